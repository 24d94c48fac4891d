"""Oumi's YAML: its words become TrainingArguments', whose reader does the rest.

Names and defaults: oumi/core/configs/params/{model,training,peft,fsdp,deepspeed}_params.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshwright.imports.formats import hf
from meshwright.imports.interpolate import resolved
from meshwright.imports.names import PLANNED
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.tasks import name_task
from meshwright.specs.errors import SpecError

_TABLES = ("model", "training", "peft")
_NAMES = {
    "model_name": "model_name_or_path", "model_max_length": "max_length", "torch_dtype_str": "torch_dtype", "optimizer": "optim",
    "enable_gradient_checkpointing": "gradient_checkpointing", "q_lora": "load_in_4bit", "lora_modules_to_save": "modules_to_save",
    "enable_liger_kernel": "use_liger_kernel",
}  # fmt: skip
EDITS = {
    "micro_batch": "per_device_train_batch_size",
    "accumulation": "gradient_accumulation_steps",
    "recompute": "enable_gradient_checkpointing",
}


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is Oumi's."""
    model, training = data.get("model"), data.get("training")
    return isinstance(model, dict) and "model_name" in model and isinstance(training, dict) and "trainer_type" in training  # fmt: skip


def read(data: dict[str, Any], given: Given, folder: Path | None) -> Reading:
    """Return what an Oumi configuration trains.

    Raises:
        SpecError: a value that cannot be, or no decoder of text.
    """
    data = resolved(data, dict(given.variables))
    train = (data.get("data") or {}).get("train") or {}
    if "vision" in str(train.get("collator_name", "")):
        raise SpecError("collator_name", train["collator_name"], f"trains a vision-language model: {PLANNED}")  # fmt: skip
    found: dict[str, Any] = {}
    for table in _TABLES:
        for name, value in flattened(data.get(table) or {}).items():
            if name.startswith("trainer_kwargs."):
                found[name.partition(".")[2]] = value
            elif value is not None:
                found.setdefault(_NAMES.get(name, name), value)
    kind = str(found.pop("trainer_type", "")).upper()
    if not found.get("use_peft"):
        found = {name: one for name, one in found.items() if name not in ("load_in_4bit", "use_peft") and not name.startswith("lora_")}  # fmt: skip
    elif str(found.pop("q_lora_bits", 4)) == "8" and found.pop("load_in_4bit", False):
        found["load_in_8bit"] = True
    if found.get("use_peft"):
        found.setdefault("lora_r", 8)
        found.setdefault("lora_alpha", 8)
    mixed = str(found.pop("mixed_precision_dtype", "none")).lower()
    found |= {"bf16": True} if "bf" in mixed else {"fp16": True} if "16" in mixed else {}
    if train.get("pack"):
        found["packing"] = True
    found |= _sharded(data)
    reading = Reading("Oumi YAML", options=dict(EDITS))
    reading = hf.fill(Options(found), reading, given, folder)
    if "freeze_layers" in (data.get("model") or {}):
        reading.remarks = [one for one in reading.remarks if one.option != "freeze_layers"]
        reading.unmodelled("model.freeze_layers", "these parts do not train; all are priced as trained")  # fmt: skip
    name_task(reading, kind.lower())
    if kind.startswith("VERL"):
        reading.unmodelled("trainer_type", "verl trains then, by its own settings; TrainingArguments' are priced")  # fmt: skip
    return reading


def _sharded(data: dict[str, Any]) -> dict[str, Any]:
    """How FSDP or DeepSpeed shards, by TrainingArguments' names."""
    fsdp, deepspeed = data.get("fsdp") or {}, data.get("deepspeed") or {}
    if deepspeed.get("enable_deepspeed"):
        named = deepspeed.get("deepspeed_config_path")
        if named:
            return {"deepspeed": str(named)}
        stage = str(deepspeed.get("zero_stage", 0)).rpartition("_")[2]
        table = {name: one for name, one in deepspeed.items() if name not in ("enable_deepspeed", "deepspeed_config_path", "precision")}  # fmt: skip
        zero = {name: table.pop(name) for name in list(table) if name in _OF_ZERO}
        zero.pop("zero_stage", None)
        zero |= {"stage": int(stage) if stage.isdigit() else stage}
        for part in ("offload_optimizer", "offload_param"):
            if _moves(zero.get(part)):
                zero[part] = {**zero[part], "device": str(zero[part].get("device", "cpu")).lower()}
            else:
                zero.pop(part, None)
        return {"deepspeed": {**table, "zero_optimization": zero}}
    if not fsdp.get("enable_fsdp"):
        return {}
    strategy = str(fsdp.get("sharding_strategy", "FULL_SHARD")).lower()
    rest = {
        f"fsdp_config.{name}": value for name, value in fsdp.items() if name not in _OF_STRATEGY
    }
    rest.setdefault("fsdp_config.auto_wrap_policy", "NO_WRAP")  # Oumi's own
    return {"fsdp": f"{strategy}{' offload' if fsdp.get('cpu_offload') else ''}", **rest}


_OF_STRATEGY = ("enable_fsdp", "sharding_strategy", "cpu_offload")
_OF_ZERO = (
    "zero_stage", "offload_optimizer", "offload_param", "overlap_comm", "contiguous_gradients", "reduce_bucket_size",
    "allgather_bucket_size", "allgather_partitions", "reduce_scatter", "round_robin_gradients", "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold", "stage3_max_live_parameters", "stage3_max_reuse_distance",
    "stage3_gather_16bit_weights_on_model_save", "sub_group_size", "memory_efficient_linear",
)  # fmt: skip
"""Fields of Oumi's `deepspeed` table that DeepSpeed has inside `zero_optimization`."""


def _moves(table: Any) -> bool:
    return isinstance(table, dict) and str(table.get("device", "cpu")).lower() != "none"
