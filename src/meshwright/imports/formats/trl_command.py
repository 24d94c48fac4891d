"""TRL's own command: `trl sft --accelerate_config zero3 --num_processes 4 …` starts accelerate (trl/cli, 0.14 to 1.x).

Options of `accelerate launch` stand between the script's, and a name says one of TRL's own configurations.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.formats import accelerate
from meshwright.imports.options import flags_of
from meshwright.imports.reading import Given, Reading
from meshwright.specs.foreign import parse_yaml, read_text

_EIGHT = ["--num_processes", "8", "--mixed_precision", "bf16"]
_OWN = {
    "fsdp1": ["--use_fsdp", "--fsdp_sharding_strategy", "FULL_SHARD", *_EIGHT],
    "fsdp2": ["--use_fsdp", "--fsdp_version", "2", *_EIGHT],
    "zero1": ["--use_deepspeed", "--zero_stage", "1", *_EIGHT],
    "zero2": ["--use_deepspeed", "--zero_stage", "2", *_EIGHT],
    "zero3": ["--use_deepspeed", "--zero_stage", "3", *_EIGHT],
    "multi_gpu": ["--multi_gpu", *_EIGHT],
    "single_gpu": ["--num_processes", "1", "--mixed_precision", "bf16"],
}
"""What the files in trl/accelerate_configs say."""
_OF_ACCELERATE = re.compile(
    r"--(?:num_processes|num_machines|machine_rank|main_process_(?:ip|port)|mixed_precision|gpu_ids|zero_stage|"
    r"offload_(?:optimizer|param)_device|fsdp_\w+(?<!fsdp_config))$"
)


def as_launched(words: list[str]) -> tuple[list[str], list[str]]:
    """The words of accelerate's launcher, none where the command names none, and those of the script."""
    said: list[str] = []
    named: list[str] = []
    rest: list[str] = []
    index = 0
    while index < len(words):
        name, equals, value = words[index].partition("=")
        name = name.replace("-", "_").replace("__", "--", 1)
        wide = 1
        if not equals and index + 1 < len(words):
            value, wide = words[index + 1], 2
        if name in ("--accelerate_config", "--config_file") and value:
            named = _OWN.get(value, ["--config_file", value])
        elif _OF_ACCELERATE.match(name) and value:
            said += [name, value]
        else:
            wide = 1
            rest.append(words[index])
        index += wide
    if not (said or named):
        return [], words
    over = set(said[::2])
    kept = [
        word
        for at, word in enumerate(named)
        if word not in over and not (at and named[at - 1] in over)
    ]
    return ["accelerate", "launch", *kept, *said], rest


_SCRIPT = re.compile(
    r"(?:^|/)(?:trl|examples)/(?:examples/)?scripts/(?:sft|dpo|kto|orpo|cpo|gkd|grpo|rloo|reward|reward_modeling|online_dpo)\w*\.py$"
)


def is_own(program: str) -> bool:
    """Whether a command is TRL's, or one of its own scripts, whose arguments are TRL's configurations."""
    return program.startswith("trl ") or _SCRIPT.search(program) is not None


_OF_YAML = re.compile(r"num_processes|num_machines|machine_rank|main_process_(?:ip|port)|gpu_ids")


def configured(values: dict[str, Any], reading: Reading, given: Given, folder: Path | None) -> None:
    """Take accelerate's part out of a configuration of TRL's: `accelerate_config`, and sizes beside it.

    Raises:
        SpecError: accelerate's configuration cannot be read.
    """
    named = str(values.pop("accelerate_config", None) or values.pop("config_file", None) or "")
    said = {name: values.pop(name) for name in list(values) if _OF_YAML.fullmatch(name)}
    data: dict[str, Any] = {}
    if named in _OWN:
        data = _as_table(_OWN[named])
    elif named and (path := beside(folder, named)) is not None:
        found = parse_yaml(read_text(path, "accelerate_config"), "accelerate_config", named)
        data = found if isinstance(found, dict) else {}
    elif named:
        reading.guess("accelerate_config", f"{named[-60:]} is not here; what it says of sharding is left out")  # fmt: skip
    if data:
        accelerate.apply({**data, **said}, reading, given, folder)
    elif str(said.get("num_processes", "")).isdigit():
        reading.devices = int(said["num_processes"])


def _as_table(words: list[str]) -> dict[str, Any]:
    """The words of accelerate's launcher as its configuration."""
    flags = {name.replace("-", "_"): value for name, value in flags_of(words).items()}
    inner = {name: value for name, value in flags.items() if name.startswith(("fsdp_", "zero_"))}
    kind = next((kind for name, kind in _KINDS.items() if name in flags), "NO")
    table = {"FSDP": "fsdp_config", "DEEPSPEED": "deepspeed_config"}.get(kind)
    return {
        "distributed_type": kind, "mixed_precision": flags["mixed_precision"],
        "num_processes": int(flags["num_processes"]), **({table: inner} if table else {}),
    }  # fmt: skip


_KINDS = {"use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED", "multi_gpu": "MULTI_GPU"}
