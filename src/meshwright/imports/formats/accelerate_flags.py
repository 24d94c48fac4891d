"""What `accelerate launch` is told by options instead of by its YAML (accelerate/commands/launch.py)."""

from __future__ import annotations

import re
from typing import Any

from meshwright.imports.launch import Launch
from meshwright.imports.options import flags_of
from meshwright.imports.shell.words import unset

_TABLES = (
    ("fsdp_config", re.compile(r"fsdp_\w+")),
    ("parallelism_config", re.compile(r"parallelism_config_\w+")),
    ("megatron_lm_config", re.compile(r"megatron_lm_\w+")),
    ("deepspeed_config", re.compile(r"zero_stage|zero3_\w+|offload_(?:optimizer|param)_device|gradient_clipping")),
)  # fmt: skip
_KINDS = {"use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED", "use_megatron_lm": "MEGATRON_LM"}


def launched(launch: Launch, data: dict[str, Any]) -> dict[str, Any]:
    """A configuration with what the launcher's own options say over it; empty where neither says anything."""
    flags = {name.replace("-", "_"): value for name, value in flags_of(launch.launcher).items()}
    said: dict[str, dict[str, Any]] = {}
    for name, value in flags.items():
        table = next((title for title, names in _TABLES if names.fullmatch(name)), "")
        if table and not (isinstance(value, str) and unset(value)):
            said.setdefault(table, {})[name] = value
    kind = next((kind for flag, kind in _KINDS.items() if flag in flags), "")
    if not (said or kind):
        return data
    found = dict(data)
    if kind:
        found["distributed_type"] = kind
    for table, fields in said.items():
        inner = found.get(table)
        found[table] = {**(inner if isinstance(inner, dict) else {}), **fields}
    if kind == "DEEPSPEED" and "zero_stage" not in found.setdefault("deepspeed_config", {}):
        named = launch.option("deepspeed_config_file", "deepspeed-config")
        found["deepspeed_config"] |= {} if named else {"zero_stage": 2}
    for name in ("num_processes", "num_machines"):
        number = launch.option(name)
        if number.isdigit():
            found[name] = int(number)
    if "mixed_precision" in flags and isinstance(flags["mixed_precision"], str):
        found["mixed_precision"] = flags["mixed_precision"]
    return found
