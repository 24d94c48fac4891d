"""What fine-tuning tools share: words for optimizers, precision, adapters, quantisation and sharding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.exports.tuning_run import Data, Keys, Tuning
from meshwright.specs.errors import SpecError
from meshwright.specs.finetune import finetune_recipe, targets_of
from meshwright.specs.job import OPTIMIZERS, RECIPES

_OPTIMS: tuple[tuple[str, str], ...] = (
    (r"paged.*8bit", "paged-adam8bit"), (r"paged", "paged-adamw"), (r"lion.*8bit", "lion8bit"),
    (r"lion", "lion"), (r"8.?bit|adamw_bnb", "adam8bit"), (r"adafactor", "adafactor"),
    (r"muon", "muon"), (r"sgd", "sgd"), (r"adam", "adamw"),
)  # fmt: skip


def optimizer_name(keys: Keys, half: bool, *names: str) -> str:
    """Our name of the optimizer; moments of 16-bit weights have 16 bits."""
    asked = str(keys.get(*names, default="adamw_torch")).lower()
    found = next((ours for pattern, ours in _OPTIMS if re.search(pattern, asked)), "adamw")
    return "adamw-bf16" if found == "adamw" and half else found


_PLAIN_TRAINER = ("_python", "model_max_length", "block_size", "max_seq_len")
"""Settings of programs that load their model themselves, as TRL's own scripts and commands do not."""


def half_weights(keys: Keys, found: Tuning, *names: str) -> bool:
    """Whether full fine-tuning keeps weights in 16 bits without an fp32 copy.

    LLaMA-Factory casts what trains to 32 bits (model/adapter.py), TRL loads in 32 bits unless told otherwise
    (trainer/utils.py create_model_from_path), transformers 5 as the checkpoint is.
    """
    dtype = keys.get(*names)
    pure = keys.flag("pure_bf16") or keys.flag("use_badam")
    keys.get("bf16", "fp16", "tf32")
    if found.tool == "llama-factory":
        return pure
    if dtype is None and found.tool == "trl" and not set(_PLAIN_TRAINER) & set(keys.data):
        found.assumed.append(
            "weights loaded in 32 bits (TRL's default; dtype: bfloat16 halves them)"
        )
        return False
    if dtype is None or str(dtype).lower() == "auto":
        found.assumed.append("weights in 16 bits as published (transformers 5's default)")
        return True
    return "float32" not in str(dtype) and "fp32" not in str(dtype)


def set_finetune(found: Tuning, keys: Keys, method: str, **fields: Any) -> None:
    """Set the job's fine-tuning, and the precision and optimizer that go with it."""
    if method != "full":
        targets = fields.get("targets")
        try:
            fields["targets"] = targets_of(targets) if targets else targets_of("all-linear")
        except SpecError:
            found.assumed.append(f"adapters on all linear layers (the file names {targets})")
            fields["targets"] = targets_of("all-linear")
        fields = {key: value for key, value in fields.items() if value is not None}
    else:
        fields = {key: fields[key] for key in ("freeze", "frozen_layers") if fields.get(key)}
    found.job = found.job.but(finetune=finetune_recipe({"method": method, **fields}))


def quantisation(keys: Keys) -> tuple[str | None, bool]:
    """How frozen weights are stored, and whether their scales are quantised too."""
    four = (
        keys.flag("load_in_4bit", "q_lora")
        or str(keys.get("quantization_bit", "bits", default="")) == "4"
    )
    eight = keys.flag("load_in_8bit") or str(keys.get("quantization_bit", default="")) == "8"
    keys.get("quantization_method")
    kind = str(keys.get("bnb_4bit_quant_type", "quantization_type", default="nf4"))
    twice = keys.flag("bnb_4bit_use_double_quant", "use_bnb_nested_quant", "double_quantization")
    if four:
        return ("fp4" if kind == "fp4" else "nf4"), twice
    if eight:
        return "int8", False
    name = (
        keys.data.get("model_name_or_path")
        or keys.data.get("base_model")
        or keys.data.get("model_name")
    )
    return _stored_by_name(str(name or "")), False


def _stored_by_name(model: str) -> str | None:
    """How a checkpoint whose name says so is stored, whatever the run's options say."""
    if re.search(r"(?i)gptq|awq|aqlm", model):
        return "int4"
    return "nf4" if re.search(r"(?i)bnb-4bit|-4bit", model) else None


def sharding(keys: Keys, found: Tuning) -> None:
    """ZeRO stage and offload from a DeepSpeed or FSDP setting inside the file."""
    deepspeed = keys.get("deepspeed", "deepspeed_config_file")
    fsdp = keys.get("fsdp", "fsdp_config")
    if isinstance(deepspeed, Mapping):
        deepspeed_part(deepspeed, found)
    elif isinstance(deepspeed, str):
        stage = re.search(r"(?:zero|stage|z|_s)[_-]?([0-3])", deepspeed, re.IGNORECASE)
        found.zero = int(stage.group(1)) if stage else 2
        if "offload" in deepspeed or "cpu" in deepspeed:
            found.offload = ("optimizer", "parameters") if found.zero == 3 else ("optimizer",)
        found.assumed.append(f"ZeRO-{found.zero} from the name {Path(deepspeed).name}")
    elif fsdp:
        own = keys.get("fsdp_config", default={})
        own = own if isinstance(own, Mapping) else {}
        text = " ".join(map(str, fsdp)) if isinstance(fsdp, list) else str(fsdp)
        found.zero = 2 if "grad_op" in text else 3
        moved = own.get("fsdp_offload_params", own.get("offload_params", "offload" in text))
        if str(moved).lower() == "true":
            found.offload = ("optimizer", "parameters")
        names = ("fsdp_activation_checkpointing", "activation_checkpointing")
        found.checkpoints = any(str(own.get(name)).lower() == "true" for name in names)


def deepspeed_part(data: Data, found: Tuning) -> None:
    """ZeRO stage and offload of a DeepSpeed file."""
    zero = data.get("zero_optimization")
    zero = zero if isinstance(zero, Mapping) else {}
    found.zero = int(zero.get("stage", 0) or 0)
    offload = []
    for key, what in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
        part = zero.get(key)
        if isinstance(part, Mapping) and str(part.get("device", "none")) not in ("none", "None"):
            offload.append(what)
    found.offload = tuple(offload)


def trained(names: Any) -> tuple[str, ...] | None:
    """Parts that train in full beside adapters; None where none does."""
    if not names:
        return None
    text = str(names)
    parts = {"embedding": r"embed|wte", "head": r"lm_head|output", "norms": r"norm"}
    return tuple(part for part, pattern in parts.items() if re.search(pattern, text)) or None


def usual(found: Tuning, keys: Keys, *names: str, default: int, weights: tuple[str, ...]) -> None:
    """Sequence length, precision, optimizer, loss and sharding under transformers' names."""
    if keys.get(*names) is None:
        found.assumed.append(f"{names[0]} = {default}")
    half = half_weights(keys, found, *weights)
    full = not found.job.frozen
    recipe = RECIPES["pure-bf16"]
    optimizer = optimizer_name(keys, half and full, "optim", "optimizer")
    if full and not half:
        recipe = RECIPES["fp32"].but(name="bf16-autocast", compute="bf16", activation_bytes=2)
    found.job = found.job.but(
        seq_len=keys.whole(*names, default=default),
        precision=recipe,
        optimizer=OPTIMIZERS[optimizer],
        framework=found.tool,
    )
    sharding(keys, found)
    if found.zero and full and is_deepspeed(keys):
        # DeepSpeed keeps fp32 masters; FSDP its shards in the weights' precision.
        whole = OPTIMIZERS[optimizer.removesuffix("-bf16")]
        found.job = found.job.but(precision=RECIPES["bf16-fp32-grads"], optimizer=whole)
    if keys.flag("use_liger_kernel", "use_liger", "enable_liger_kernel"):
        found.job = found.job.but(loss="liger")
    if str(keys.get("attn_implementation", "flash_attn", "attention")) == "eager":
        found.job = found.job.but(framework_options={"attention_kernel": "unfused"})
    if found.checkpoints:
        found.recompute = True
    if keys.flag("activation_offloading", "enable_activation_offloading"):
        found.offload = ("activations", *found.offload)
    for flag in ("flash_attention", "flash_attention_2", "sdp_attention", "sample_packing", "packing",
                 "pad_to_sequence_len", "train_on_inputs", "use_cache"):  # fmt: skip
        keys.get(flag)


def is_deepspeed(keys: Keys) -> bool:
    """Whether the sharding is DeepSpeed's."""
    return keys.data.get("deepspeed") is not None or "zero_optimization" in keys.data


def done(found: Tuning, keys: Keys) -> Tuning:
    """The run with the keys that nobody read."""
    found.unread = keys.unread()
    return found


def batches(found: Tuning, keys: Keys) -> None:
    """Micro-batch and accumulation under TrainingArguments' names."""
    if keys.get("per_device_train_batch_size") is None:
        found.assumed.append("per_device_train_batch_size = 8 (TrainingArguments' default)")
    found.micro_batch = keys.whole("per_device_train_batch_size", default=8)
    found.accumulate = keys.whole("gradient_accumulation_steps", default=1)


PREFERENCES = ("dpo", "orpo", "ipo", "simpo", "cpo", "kto", "kto_pair", "rm", "reward")
"""Training on pairs of a chosen and a rejected answer (KTO: on answers and their mismatches)."""
REFERENCED = ("dpo", "ipo", "kto", "kto_pair", "grpo", "ppo")
"""Kinds that also hold the untrained model."""


def preferences(found: Tuning, kind: str) -> None:
    """Set what training on pairs of answers holds: twice the sequences, and the untrained model."""
    kind = kind.strip().lower()
    if kind in PREFERENCES:
        found.micro_batch *= 2
        found.assumed.append(f"{kind}: a pair of answers is two sequences")
    if kind not in (*PREFERENCES, *REFERENCED):
        return
    if kind in REFERENCED and not found.job.frozen:
        found.beside_bytes = 2.0
        found.assumed.append("the reference model is held in 16 bits beside the one that trains")
    if kind in ("grpo", "ppo"):
        found.assumed.append(f"{kind}: the update alone; sampling and value models are not counted")
