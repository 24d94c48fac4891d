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
_QUANTISES = ("quantization_config.", "bnb_config.", "quantization.", "bnb.", "quant.", "quantisation.", "bitsandbytes.")  # fmt: skip
"""Tables of how frozen weights are stored."""
_OF_BITS = {"bits": "bits", "num_bits": "bits", "quant_type": "bnb_4bit_quant_type", "double_quant": "bnb_4bit_use_double_quant",
            "use_double_quant": "bnb_4bit_use_double_quant", "compute_dtype": "bnb_4bit_compute_dtype"}  # fmt: skip
"""Fields of such tables by the names that they have outside."""
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
    opened = _without_idle_tables(opened)
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


def _without_idle_tables(opened: dict[str, Any]) -> dict[str, Any]:
    """Options without the tables of quantised weights that are switched off, and without the switch of those that are on."""
    switches = {f"{around}enabled" for around in _QUANTISES} & set(opened)
    idle = tuple(one.removesuffix("enabled") for one in switches if opened[one] is False)
    return {name: one for name, one in opened.items() if name not in switches and not name.startswith(idle)} if switches else opened  # fmt: skip


def _inside(name: str) -> str:
    """The field that a dotted name ends in, where it is one of such a table; else empty."""
    short = name
    while around := next((one for one in _AROUND if short.startswith(one)), ""):
        short = short.removeprefix(around)
    if short != name and _FIELDS.fullmatch(short):
        return short
    if short != name and name.startswith(_QUANTISES) and short in _OF_BITS:
        return _OF_BITS[short]
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
