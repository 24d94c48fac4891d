"""What open-instruct's programs do by themselves, over the options that they share with Trainer's."""

from __future__ import annotations

import posixpath
from typing import Any

from meshwright.imports.reading import Reading

_TARGETS = ("q_proj", "o_proj", "v_proj", "k_proj", "gate_proj", "up_proj", "down_proj")
_AS_TRAINER = {
    "offload_optimizer": "deepspeed_offload_optimizer", "offload_param": "deepspeed_offload_param",
    "tensor_parallel_degree": "tensor_parallel_size", "context_parallel_degree": "context_parallel_size",
}  # fmt: skip


def is_one(program: str) -> bool:
    """Whether a program is one of open-instruct's."""
    return "open_instruct/" in program


def settle(program: str, values: dict[str, Any], reading: Reading) -> None:
    """Add what the program sets itself, by the options' usual names (open_instruct/finetune.py, dpo*.py, grpo_fast.py)."""
    base = posixpath.basename(program)
    if not {"bf16", "fp16", "torch_dtype", "dtype", "mixed_precision"} & set(values) and (
        "precision" not in reading.job
    ):
        values["bf16"] = True
        reading.note("open-instruct computes in bf16", "--mixed_precision")
    if str(values.get("config_name", "")).lower().startswith("olmo") and base == "dpo.py":
        reading.layout["zero"] = 3
        reading.note("this program trains with OLMo-core, sharded", "--config_name")
    for theirs, usual in _AS_TRAINER.items():
        if theirs in values:
            values.setdefault(usual, values.pop(theirs))
    _adapters(values)
    if _on(values.pop("use_8bit_optimizer", False)):
        values["optim"] = "paged_adamw_8bit"
    elif _on(values.get("use_qlora")):
        values.setdefault("optim", "paged_adamw_32bit")
    if values.pop("fused_optimizer", None) is False:
        values.setdefault("optim", "adamw_torch")
    if base == "dpo_tune_cache.py":
        # The policy itself answers for its reference before the first step.
        values.setdefault("precompute_ref_log_probs", True)
        if _on(values.pop("concatenated_forward", True)) is False:
            reading.note("chosen and rejected answers run one after the other", "--concatenated_forward")  # fmt: skip
    if base.startswith(("grpo", "ppo")):
        _of_rollouts(values, reading)


def _adapters(values: dict[str, Any]) -> None:
    """A rank alone adds no adapters: `use_lora` does."""
    if _on(values.get("use_lora")) or _on(values.get("use_qlora")):
        values["use_lora"] = True
        usual = {"lora_rank": 64, "lora_alpha": 16, "lora_dropout": 0.1, "lora_target_modules": list(_TARGETS)}  # fmt: skip
        values |= {name: one for name, one in usual.items() if name not in values}
    elif not _on(values.get("use_peft")):
        for name in ("lora_rank", "lora_alpha", "lora_dropout"):
            values.pop(name, None)


def _of_rollouts(values: dict[str, Any], reading: Reading) -> None:
    if not _on(values.get("gradient_checkpointing")):
        values["gradient_checkpointing"] = True
        reading.note("these learners recompute whatever is said", "--gradient_checkpointing")
    refers = _on(values.pop("load_ref_policy", True))
    values["beta"] = 0.05 if refers else 0.0  # its being there is what counts here
    if refers:
        reading.note("a frozen reference is held (load_ref_policy is on where nothing is said)", "--load_ref_policy")  # fmt: skip
    zpg = str(values.pop("deepspeed_zpg", 8))
    if str(values.get("deepspeed_stage")) == "3" and zpg not in ("0", "1"):
        reading.unmodelled("--deepspeed_zpg", f"a second copy of the weights is sharded over each {zpg[:9]} ranks where there are more; not priced")  # fmt: skip
    if str(values.pop("single_gpu_mode", False)).lower() == "true":
        reading.unmodelled("--single_gpu_mode", "the engine of the rollouts shares the device; its memory is not priced")  # fmt: skip


def _on(value: Any) -> bool:
    return str(value).lower() in ("true", "1", "yes")
