"""Tables inside TrainingArguments, in YAML or as JSON on a command line: how a model is loaded and quantised, what
adapts it, DeepSpeed's own and the parallel sizes. Their fields count as if they stood outside."""

from __future__ import annotations

import json
import re
from typing import Any

from meshwright.imports.options import flattened

_AROUND = (
    "model_init_kwargs.",
    "model_kwargs.",
    "quantization_config.",
    "bnb_config.",
    "quantization.",
    "bnb.",
    "quant.",
    "quantisation.",
    "bitsandbytes.",
    "parallelism_config.",
)
_FIELDS = re.compile(
    r"load_in_[48]bit|use_[48]bit|use_qlora|bnb_4bit_\w+|torch_dtype|dtype|attn_implementation|tp_plan|(?:tp|cp|sp)_size|"
    r"dp_(?:shard|replicate)_size|device_map|use_cache"
)
_ADAPTERS = ("peft_config.", "lora_config.", "peft.", "lora.")
_OF_PEFT = re.compile(r"r|rank|alpha|dropout|targets|lora_r|lora_rank|enabled|lora_alpha|lora_dropout|target_modules|modules_to_save|use_dora|use_rslora|peft_type|bias|task_type")  # fmt: skip
PEFT_NAMES = {"r": "lora_r", "rank": "lora_r", "alpha": "lora_alpha", "dropout": "lora_dropout", "targets": "target_modules"}  # fmt: skip
"""Fields of such tables by the names that they have outside."""
_DEEPSPEED = ("deepspeed", "deepspeed_config", "ds_config")
_LONGEST = 100_000


METHODS = ("sft", "dpo", "kto", "orpo", "grpo", "trl")
"""Tables of a file of one's own that are called after what they train for."""


def raised(data: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """A file whose TrainingArguments stand in a table called after a method, with that table's fields outside; and its name."""
    for name in METHODS:
        inner = data.get(name)
        if isinstance(inner, dict) and "per_device_train_batch_size" in inner:
            others = {key: value for key, value in data.items() if key not in METHODS}
            return {**others, **inner}, name
    return data, ""


def lifted(values: dict[str, Any]) -> dict[str, Any]:
    """Options with the fields of such tables under their own names; what stands outside counts over them."""
    opened: dict[str, Any] = {}
    for name, value in values.items():
        table = _table(value) if name != "fsdp_config" else None
        if table is None or name in _DEEPSPEED:
            opened[name] = value if table is None else table
        else:
            opened |= flattened(table, f"{name}.")
    found: dict[str, Any] = {}
    inner: dict[str, Any] = {}
    whole: dict[str, dict[str, Any]] = {}
    for name, value in opened.items():
        outer, _, field = name.partition(".")
        if field and outer in _DEEPSPEED and not isinstance(values.get(outer), str):
            _put(whole.setdefault(outer, {}), field, value)
            continue
        short = _inside(name)
        if short:
            inner[short] = value
        else:
            found[name] = value
    if any(name.startswith(_ADAPTERS) for name in opened):
        inner["use_peft"] = inner.pop("enabled", True)
    return {**inner, **found, **whole}


def _inside(name: str) -> str:
    """The field that a dotted name ends in, where it is one of such a table; else empty."""
    short = name
    while around := next((one for one in _AROUND if short.startswith(one)), ""):
        short = short.removeprefix(around)
    if short != name and _FIELDS.fullmatch(short):
        return short
    for around in _ADAPTERS:
        field = name.removeprefix(around)
        if field != name and _OF_PEFT.fullmatch(field):
            return PEFT_NAMES.get(field, field)
        if field != name and _FIELDS.fullmatch(field):
            return field
    return ""


def _table(value: Any) -> dict[str, Any] | None:
    """A table that stands as JSON in one word."""
    if not isinstance(value, str) or value.strip()[:1] != "{" or len(value) > _LONGEST:
        return None
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found else None


def _put(table: dict[str, Any], dotted: str, value: Any) -> None:
    *outer, last = dotted.split(".")
    for name in outer:
        inner = table.get(name)
        if not isinstance(inner, dict):
            inner = table[name] = {}
        table = inner
    table[last] = value
