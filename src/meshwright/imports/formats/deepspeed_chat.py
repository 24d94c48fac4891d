"""DeepSpeed-Chat's programs, whose options are TrainingArguments' and some of their own."""

from __future__ import annotations

from typing import Any

from meshwright.imports.options import flags_of
from meshwright.imports.own.arguments import typed
from meshwright.imports.reading import Reading

_OWN = {
    "lora_dim",
    "lora_module_name",
    "sft_only_data_path",
    "num_padding_at_beginning",
    "data_split",
}
"""Options of these programs that no other has."""
_ACTOR = ("model_name_or_path", "zero_stage", "gradient_checkpointing", "lora_dim", "lora_module_name", "learning_rate",
          "weight_decay", "dropout")  # fmt: skip
_OF_GENERATION = ("enable_hybrid_engine", "unpin_actor_parameters", "release_inference_cache", "inference_tp_size",
                  "tp_gather_partition_size", "generation_batches", "generation_batch_numbers", "per_device_generation_batch_size", "enable_test_mode")  # fmt: skip
_MICRO = ("per_device_training_batch_size", "per_device_mini_train_batch_size")


def is_one(values: dict[str, Any], own: dict[str, Any]) -> bool:
    """Whether a command's options are those of DeepSpeed-Chat."""
    return bool({"zero_stage", "actor_zero_stage"} & set(values)) and bool(_OWN & {*values, *own})


def is_command(words: list[str]) -> bool:
    """Whether a command's words are those of DeepSpeed-Chat."""
    return is_one({name.replace("-", "_"): value for name, value in flags_of(words).items()}, {})


def settle(values: dict[str, Any], own: dict[str, Any], reading: Reading) -> None:
    """Put what these programs say into TrainingArguments' words: fp16 unless told, adapters by their width.

    The third step trains an actor, which is priced, and a critic (step3_rlhf_finetuning/main.py).
    """
    if "actor_model_name_or_path" in values:
        _actor(values, reading)
    dropout = typed(values.pop("dropout", None))
    if isinstance(dropout, (int, float)):
        reading.job["dropout"] = float(dropout)  # over what the model's configuration says
    values.setdefault("dtype", "fp16")
    kind = str(values.pop("dtype")).lower()
    values["bf16" if "bf" in kind else "fp16"] = True
    own.pop("dtype", None)
    own.pop("lora_dim", None)
    if str(values.get("lora_dim", "0")).isdigit() and int(str(values.get("lora_dim", 0))) > 0:
        values |= {"use_lora": True, "lora_r": values.pop("lora_dim")}
        values.setdefault(
            "lora_target_modules", "all-linear"
        )  # every linear layer of the named module
        if "only_optimize_lora" not in values:
            reading.unmodelled(
                "--lora_dim",
                "the other weights train, too, without --only_optimize_lora; adapters alone are priced",
            )


def _actor(values: dict[str, Any], reading: Reading) -> None:
    """The third step's options: the actor's without their prefix, its critic named."""
    for name in _ACTOR:
        if f"actor_{name}" in values:
            values[name] = values.pop(f"actor_{name}")
    lengths = [
        typed(values.pop(name, 256)) for name in ("max_prompt_seq_len", "max_answer_seq_len")
    ]
    if all(isinstance(one, int) for one in lengths):
        values["max_seq_length"] = sum(lengths)
    micro = next((values[name] for name in _MICRO if name in values), None)
    if micro is not None:
        values["per_device_train_batch_size"] = micro
    for name in [
        *_MICRO,
        *(one for one in values if one.startswith(("critic_", "disable_critic"))),
    ]:
        values.pop(name, None)
    reading.unmodelled("--critic_model_name_or_path", "a critic trains, and a reference and a reward model are held; the actor is priced")  # fmt: skip
    told = [values.pop(name, None) for name in _OF_GENERATION]
    if any(one not in (None, "1", 1) for one in told):
        reading.unmodelled("--enable_hybrid_engine", "answers are generated between the steps; the training half is priced")  # fmt: skip
