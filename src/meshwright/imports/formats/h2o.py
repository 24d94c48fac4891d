"""H2O LLM Studio's YAML: its words become TrainingArguments', whose reader does the rest.

Names and defaults: llm_studio/python_configs/text_causal_language_modeling_config.py, text_dpo_modeling_config.py and
src/utils/modeling_utils.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshwright.imports.formats import hf
from meshwright.imports.names import PLANNED
from meshwright.imports.options import Options
from meshwright.imports.reading import Given, Reading
from meshwright.imports.tasks import name_task
from meshwright.specs.errors import SpecError

EDITS = {
    "micro_batch": "training.batch_size",
    "accumulation": "training.grad_accumulation",
    "recompute": "architecture.gradient_checkpointing",
}
_TABLES = ("architecture", "training", "environment", "tokenizer")
_NAMES = {
    "batch_size": "per_device_train_batch_size", "grad_accumulation": "gradient_accumulation_steps", "optimizer": "optim",
    "epochs": "num_train_epochs", "lora": "use_lora", "lora_target_modules": "target_modules", "gradient_clip": "max_grad_norm",
    "attention_implementation": "attn_implementation", "compile_model": "torch_compile",
    "schedule": "lr_scheduler_type", "warmup_epochs": "warmup_ratio", "use_flash_attention_2": "use_flash_attn",
}  # fmt: skip
_OPTIMIZERS = {"adamw": "adamw_torch", "adam": "adamw_torch", "adamw8bit": "adamw_bnb_8bit", "sgd": "sgd", "rmsprop": "rmsprop"}  # fmt: skip
_USUAL: dict[str, Any] = {
    "batch_size": 2, "grad_accumulation": 1, "optimizer": "AdamW", "lora": True, "lora_r": 4, "lora_alpha": 16, "lora_dropout": 0.05,
    "max_length": 512, "gradient_checkpointing": True, "backbone_dtype": "int4", "mixed_precision": True, "mixed_precision_dtype": "bfloat16",
    "use_deepspeed": False, "deepspeed_method": "ZeRO2",
}  # fmt: skip
_INERT = {
    "gpus", "pretrained", "pretrained_weights", "huggingface_branch", "number_of_workers", "find_unused_parameters", "trust_remote_code",
    "drop_last_batch", "save_best_checkpoint", "save_checkpoint", "evaluate_before_training", "evaluation_epochs", "train_validation_data",
    "differential_learning_rate", "differential_learning_rate_layers", "loss_function", "tokenizer_kwargs", "use_fast", "add_prefix_space",
    "add_prompt_answer_tokens", "add_prompt_answer_tokens_to_vocabulary", "max_length_prompt", "max_length_answer", "min_learning_rate_ratio",
    "deepspeed_allgather_bucket_size", "deepspeed_reduce_bucket_size", "deepspeed_stage3_prefetch_bucket_size", "openai_api_token",
    "deepspeed_stage3_param_persistence_threshold", "adaptive_kl_control", "simpo_gamma", "padding_quantile",
}  # fmt: skip
"""What says nothing of memory, time or numerics: `max_length` cuts question and answer together."""


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is H2O LLM Studio's."""
    return "llm_backbone" in data and isinstance(data.get("training"), dict)


def read(data: dict[str, Any], given: Given, folder: Path | None) -> Reading:
    """Return what a configuration of H2O LLM Studio's trains.

    Raises:
        SpecError: it trains another kind of model, or a value that cannot be.
    """
    problem = str(data.get("problem_type", "text_causal_language_modeling"))
    if "sequence_to_sequence" in problem:
        raise SpecError("problem_type", problem, f"trains an encoder-decoder: {PLANNED}")
    if "classification" in problem or "regression" in problem:
        raise SpecError("problem_type", problem, f"trains a classifier of sequences: {PLANNED}")
    said = dict(_USUAL)
    for table in _TABLES:
        inner = data.get(table)
        said |= inner if isinstance(inner, dict) else {}
    reading = Reading("H2O LLM Studio YAML", options=dict(EDITS))
    found = {_NAMES.get(key, key): one for key, one in said.items() if key not in _INERT and one not in ("", "None")}  # fmt: skip
    found["model_name_or_path"] = data["llm_backbone"]
    found["optim"] = _OPTIMIZERS.get(str(found["optim"]).lower(), found["optim"])
    _weights(found, reading)
    quiet = float(found.get("intermediate_dropout") or 0) == 0
    for name in ("intermediate_dropout", "token_averaged_loss") if quiet else ():
        found.pop(name, None)
    gpus = said.get("gpus")
    if isinstance(gpus, (list, tuple)) and gpus:
        reading.devices = len(gpus)
    method = str(found.pop("deepspeed_method")).lower()
    if found.pop("use_deepspeed"):
        found["deepspeed"] = {"zero_optimization": {"stage": 3 if method.startswith("zero3") else 2}}  # fmt: skip
    reading = hf.fill(Options(found), reading, given, folder)
    if "dpo" in problem or "rlhf" in problem:
        name_task(reading, "dpo" if "dpo" in problem else "ppo")
    return reading


def _weights(found: dict[str, Any], reading: Reading) -> None:
    """How weights are stored and multiplied: beside adapters as is said, else in the backbone's own width alone."""
    stored = str(found.pop("backbone_dtype"))
    mixed, kind = found.pop("mixed_precision"), str(found.pop("mixed_precision_dtype"))
    if stored in ("int4", "int8"):
        found |= {f"load_in_{stored[-1]}bit": True, "bnb_4bit_use_double_quant": False}
    else:
        found["torch_dtype"] = stored
    if mixed and (found.get("use_lora") or stored == "float32"):
        found["bf16" if kind == "bfloat16" else "fp16"] = True
    elif stored in ("int4", "int8"):
        reading.unmodelled("mixed_precision", "the adapters' products are in fp32 without it; priced in bf16")  # fmt: skip
        found["bf16"] = True
