"""ChatLearn: reinforcement learning; the policy trainer's update on Megatron-LM or on FSDP2 (chatlearn/configs)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.imports.formats import megatron
from meshwright.imports.formats.megatron_tables import flags_in_table
from meshwright.imports.interpolate import resolved
from meshwright.imports.names import PLANNED, model_named
from meshwright.imports.options import Options, counted
from meshwright.imports.reading import Given, Reading
from meshwright.imports.tasks import name_task
from meshwright.specs.errors import SpecError
from meshwright.specs.job import OPTIMIZERS, RECIPES

_INERT = frozenset({
    "free_gpu_memory", "generation_batch_size", "trainable", "gpu_per_process", "num_gpu", "num_cpu", "cpu_per_process", "seed",
    "max_prompt_tokens_length", "max_response_tokens_length", "trust_remote_code", "load", "optimizer", "pos_clip_ratio",
    "neg_clip_ratio", "final_clip_ratio", "diff_clip_ratio", "kl_coef", "entropy_coef", "train_micro_batch_size", "packing",
    "max_token_in_packing", "use_group_sequence_policy", "use_expandable_segments", "meta_init", "save_hf", "sync_frequency",
    "num_inference_per_prompt", "enable_thinking", "megatron_model_cfg", "replica_dp_size", "num_replica", "fsdp_size", "rerun_mode",
})  # fmt: skip
"""Names of the trainer's table that are read here, or change nothing of its update."""
_PROVIDERS = (
    "pretrain_gpt",
    "pretrain_qwen",
    "pretrain_deepseek",
    "qwen3_next.pretrain_qwen3_next",
)
"""What builds a model on Megatron-LM; ChatLearn's own and those of Pai's patch."""


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is one of its experiments."""
    models = data.get("models")
    return (
        isinstance(data.get("runtime_args"), dict)
        and isinstance(models, dict)
        and isinstance(models.get("policy_trainer"), dict)
    )


def read(data: dict[str, Any], given: Given, folder: Path | None) -> Reading:
    """Return what the policy trainer's update runs.

    Raises:
        SpecError: the model is none that is known, or a value cannot be.
    """
    data = resolved(data, dict(given.variables))
    runtime, models = data["runtime_args"], data["models"]
    trainer = models["policy_trainer"]
    policy = models["policy"] if isinstance(models.get("policy"), dict) else {}
    if runtime.get("model_type") == "vlm":
        raise SpecError("runtime_args.model_type", "vlm", f"trains a vision-language model: {PLANNED}")  # fmt: skip
    names = [str(table.get("load") or "") for table in (policy, trainer)]
    tokens = sum(counted(policy.get(f"max_{part}_tokens_length")) or usual for part, usual in (("prompt", 1024), ("response", 2048)))  # fmt: skip
    if runtime.get("train_backend") == "fsdp":
        reading = _fsdp(trainer, given)
        reading.model, reading.model_name = given.model, names[0]
    else:
        reading = _megatron(trainer, given, names, tokens)
    reading.devices = counted(trainer.get("num_gpu"))
    reading.counts_itself = reading.devices > 0
    reading.global_batch = counted(runtime.get("train_global_batch_size"))
    reading.micro_batch = counted(trainer.get("train_micro_batch_size")) or counted(runtime.get("train_micro_batch_size"))  # fmt: skip
    reading.seq_len = tokens
    reading.guess("--seq", f"sequences have at most {tokens} tokens; that is taken for all")
    if trainer.get("packing", False) is True:
        held = counted(trainer.get("max_token_in_packing")) or 32768
        reading.micro_batch = max(1, held // tokens)
        reading.job["document_masking"] = True
        reading.guess("--micro-batch", f"micro-batches are filled to {held} tokens; {reading.micro_batch} is taken")  # fmt: skip
    name_task(reading, "grpo")
    _beside(trainer, models, reading)
    return reading


def _megatron(trainer: dict[str, Any], given: Given, names: list[str], tokens: int) -> Reading:
    """The update on Megatron-LM: its arguments stand in the trainer's table."""
    shape = trainer.get("megatron_model_cfg")
    kept = {name: value for name, value in trainer.items() if name not in _INERT}
    table = {**(shape if isinstance(shape, dict) else {}), **kept}
    provider = str(table.pop("model_provider_module", _PROVIDERS[0]))
    flags = flags_in_table(table)
    for name in ("bf16", "sequence_parallel"):  # on unless said otherwise
        if name not in table:
            flags[name.replace("_", "-")] = True
    for name in ("attention-dropout", "hidden-dropout"):
        flags.setdefault(name, 0.0)
    flags |= {"seq-length": tokens}
    model = given.model or next(filter(None, map(model_named, names)), None)
    if model is None and "num-layers" not in flags:
        said = names[0][-60:] or "that none of its tables names"
        raise SpecError("--model", None, f"the model comes from the checkpoint {said}, which is no preset: give a preset or its config.json")  # fmt: skip
    if model is not None and model.experts is not None and "num-layers" not in flags:
        # What turns the checkpoint into Megatron-LM's model sets these itself.
        flags.setdefault("moe-grouped-gemm", True)
        flags.setdefault("moe-token-dispatcher-type", "alltoall")
    reading = megatron.read(Options(flags, "--"), replace(given, model=model), "ChatLearn YAML")
    reading.options = {axis: name.lstrip("-").replace("-", "_") for axis, name in reading.options.items()}  # fmt: skip
    if given.model is None and model is not None:
        reading.note(f"{model.name}, by the checkpoint's name: the trainer loads it", "--model")
    if provider not in _PROVIDERS:
        reading.unmodelled("model_provider_module", f"layers are built by {provider[-60:]}; Megatron-LM's own are priced")  # fmt: skip
    return reading


def _fsdp(trainer: dict[str, Any], given: Given) -> Reading:
    """The update on FSDP2 (chatlearn/models/fsdp_module.py): whole shards, 32-bit weights, sums in 32 bits."""
    reading = Reading("ChatLearn YAML", options={"micro_batch": "train_micro_batch_size"})
    ranks = counted(trainer.get("ulysses_sequence_parallel_size")) or 1
    reading.layout = {
        "zero": 3,
        "cp": ranks,
        "cp_method": "ulysses",
        "recompute": "full" if trainer.get("gradient_checkpointing", True) else "none",
    }
    reading.job = {
        "framework": "fsdp",
        "precision": RECIPES["bf16"].but(gradient_bytes=4, gradient_reduce_bytes=4).model_dump(),
        "optimizer": OPTIMIZERS["adamw"].model_dump(),
    }
    options = Options({name: value for name, value in trainer.items() if name not in _INERT})
    options.read |= {"ulysses_sequence_parallel_size", "gradient_checkpointing", "groupgemm"}
    if not options.flag("groupgemm"):
        reading.note("a mixture's experts run one by one; grouped products are priced", "groupgemm")
    options.finish(reading, "hf", "common", strict=given.strict)
    return reading


def _beside(trainer: dict[str, Any], models: dict[str, Any], reading: Reading) -> None:
    """What stands beside the update."""
    if trainer.get("kl_coef"):
        reading.unmodelled("kl_coef", "the reference's weights wait in host memory and its passes stand beside the step; neither is priced")  # fmt: skip
    if trainer.get("entropy_coef"):
        reading.unmodelled("entropy_coef", "the entropy of all logits; the estimate leaves it out")
    if "value_trainer" in models:
        reading.unmodelled("value_trainer", "a critic trains beside the actor; only the actor is priced")  # fmt: skip
