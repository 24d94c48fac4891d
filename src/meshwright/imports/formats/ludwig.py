"""Ludwig's YAML for language models: its words become TrainingArguments', whose reader does the rest.

Names and defaults: ludwig/schema/trainer.py, schema/llms/{peft,quantization}.py, utils/llm_utils.py and backend/.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshwright.imports.formats import hf
from meshwright.imports.names import PLANNED
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.tasks import name_task
from meshwright.specs.errors import SpecError

EDITS = {"micro_batch": "trainer.batch_size", "accumulation": "trainer.gradient_accumulation_steps"}
_OF_DATA = ("input_features", "output_features", "prompt", "preprocessing", "generation", "backend", "defaults", "hyperopt", "model_type")  # fmt: skip
"""Tables that are read by name here, or say nothing of memory, time or numerics."""
_NAMES = {
    "trainer.batch_size": "per_device_train_batch_size", "trainer.gradient_accumulation_steps": "gradient_accumulation_steps",
    "trainer.effective_batch_size": "effective_batch_size", "trainer.learning_rate": "learning_rate", "trainer.epochs": "num_train_epochs",
    "trainer.train_steps": "max_steps", "trainer.enable_gradient_checkpointing": "gradient_checkpointing", "trainer.optimizer.type": "optim",
    "trainer.optimizer": "optim", "trainer.compile": "torch_compile", "trainer.beta": "beta", "adapter.r": "lora_r", "adapter.alpha": "lora_alpha",
    "adapter.dropout": "lora_dropout", "adapter.target_modules": "target_modules", "adapter.use_rslora": "use_rslora", "adapter.use_dora": "use_dora",
    "adapter.init_lora_weights": "init_lora_weights", "quantization.bnb_4bit_quant_type": "bnb_4bit_quant_type",
    "quantization.bnb_4bit_use_double_quant": "bnb_4bit_use_double_quant", "quantization.bnb_4bit_compute_dtype": "bnb_4bit_compute_dtype",
    "trainer.learning_rate_scheduler.warmup_fraction": "warmup_ratio", "trainer.learning_rate_scheduler.decay": "lr_scheduler_type",
    "trainer.optimizer.weight_decay": "weight_decay", "trainer.eval_batch_size": "per_device_eval_batch_size",
}  # fmt: skip
_ADAPTERS = ("lora", "dora", "loha", "lokr")
_OPTIMIZERS = {"adam": "adamw_torch", "adamw": "adamw_torch", "paged_adam": "paged_adamw_32bit", "paged_adamw": "paged_adamw_32bit",
               "paged_adam_8bit": "paged_adamw_8bit", "paged_adamw_8bit": "paged_adamw_8bit", "adam_8bit": "adamw_bnb_8bit", "adamw_8bit": "adamw_bnb_8bit"}  # fmt: skip
"""Ludwig's names of optimizers by TrainingArguments'; Adam keeps what AdamW keeps."""


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is Ludwig's, of whatever kind of model."""
    features = isinstance(data.get("input_features"), list)
    return features and ("output_features" in data or isinstance(data.get("trainer"), dict))


def read(data: dict[str, Any], given: Given, folder: Path | None) -> Reading:
    """Return what a configuration of Ludwig's fine-tunes.

    Raises:
        SpecError: it trains no language model, or a value that cannot be.
    """
    kind = data.get("model_type", "ecd")
    if kind != "llm":
        raise SpecError("model_type", kind, f"trains another kind of model: {PLANNED}")
    said = flattened({key: value for key, value in data.items() if key not in _OF_DATA})
    name = said.pop("base_model", said.pop("model_name", None))
    reading = Reading("Ludwig YAML", options=dict(EDITS))
    task = str(said.pop("trainer.type", "none"))
    if task == "none":
        raise SpecError("trainer", task, "does not train: Ludwig answers with the model as it is")
    found: dict[str, Any] = {"model_name_or_path": name, "per_device_train_batch_size": 1, "optim": "adam", "gradient_checkpointing": False}  # fmt: skip
    found |= {_NAMES.get(key, key): value for key, value in said.items() if value != "auto"}
    if said.get("trainer.batch_size") == "auto":
        found.pop("per_device_train_batch_size")
    found["optim"] = _OPTIMIZERS.get(str(found["optim"]), found["optim"])
    if _adapted(data.get("adapter"), found):
        found["use_lora"] = True
    bits = found.pop("quantization.bits", 0)
    found |= {"load_in_4bit": bits == 4, "load_in_8bit": bits == 8}
    _precision(found, reading)
    _length(data, found)
    _backend(data.get("backend"), found, reading)
    reading = hf.fill(Options(found), reading, given, folder)
    name_task(reading, "" if task == "finetune" else task)
    return reading


def _adapted(adapter: Any, found: dict[str, Any]) -> bool:
    """Add what adapters are where a file says nothing: scaled by twice the rank, on PEFT's own matrices."""
    kind = adapter if isinstance(adapter, str) else (adapter or {}).get("type", "lora") if adapter else ""  # fmt: skip
    for key in ("adapter", "adapter.type"):
        found.pop(key, None)
    if kind not in _ADAPTERS:
        if kind:
            found["peft_type"] = kind
        return False
    rank = found.setdefault("lora_r", 8)
    found.setdefault("lora_alpha", 2 * rank if isinstance(rank, int) else 16)
    found.setdefault("target_modules", ["q_proj", "v_proj"])
    found.setdefault("lora_dropout", 0.05)
    if kind != "lora":
        found["use_dora" if kind == "dora" else "peft_type"] = True if kind == "dora" else kind
    return True


def _precision(found: dict[str, Any], reading: Reading) -> None:
    if found.pop("trainer.use_mixed_precision", False):
        found["fp16"] = True  # its automatic mixed precision, with a scale of the loss
        return
    found["torch_dtype"] = "bfloat16"
    reading.guess("precision", "weights are loaded in their checkpoint's own width, and nothing is mixed: bf16 is taken")  # fmt: skip


def _length(data: dict[str, Any], found: dict[str, Any]) -> None:
    """The tokens of a sequence: the cut of all features together, or that of question and answer each."""
    whole = (data.get("preprocessing") or {}).get("global_max_sequence_length")
    sides = [
        (one.get("preprocessing") or {}).get("max_sequence_length")
        for side in ("input_features", "output_features")
        for one in data.get(side) or []
        if isinstance(one, dict)
    ]
    if isinstance(whole, int):
        found["max_length"] = whole
    elif sides and all(isinstance(one, int) for one in sides):
        found["max_length"] = sum(sides)


def _backend(backend: Any, found: dict[str, Any], reading: Reading) -> None:
    """One process on this machine, or Ray's workers and how they share the states."""
    table: dict[str, Any] = {"type": backend} if isinstance(backend, str) else backend or {}
    trainer = table.get("trainer") or {}
    kind = table.get("type", "local")
    shares = trainer.get("strategy") if kind == "ray" else table
    strategy: dict[str, Any] = {"type": shares} if isinstance(shares, str) else shares or {}
    if kind not in ("ray", *_SHARDS):
        reading.devices = 1
        reading.note("its local backend starts one process: one device is priced", "backend")
    workers = trainer.get("num_workers")
    if isinstance(workers, int):
        reading.devices = workers
    if strategy.get("type") == "deepspeed":
        found["deepspeed"] = {key: one for key, one in strategy.items() if key != "type"} or {"zero_optimization": {"stage": 3}}  # fmt: skip
    elif strategy.get("type") == "fsdp":
        found["fsdp"] = "full_shard"


_SHARDS = ("deepspeed", "fsdp", "ddp", "accelerate", "horovod")
"""Backends that a launcher starts on every device."""
