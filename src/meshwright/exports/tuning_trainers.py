"""Readers of files for transformers' Trainer and what is built on it: TRL, axolotl, LLaMA-Factory."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.exports.tuning_programs import LENGTHS, UNSLOTH, UNSLOTH_LOSS, unsloth_recomputes
from meshwright.exports.tuning_run import Data, Keys, Tuning
from meshwright.exports.tuning_words import (
    batches,
    done,
    preferences,
    quantisation,
    set_finetune,
    trained,
    usual,
)


def axolotl(data: Data) -> Tuning:
    """An axolotl file."""
    keys = Keys(data)
    found = Tuning("axolotl", model=str(keys.get("base_model", default="")))
    adapter = str(keys.get("adapter", default="") or "").lower()
    storage, twice = quantisation(keys)
    method = {"lora": "lora", "qlora": "qlora"}.get(adapter, "full")
    if keys.flag("peft_use_dora", "lora_use_dora"):
        method = "dora"
    if method == "qlora":
        own = data.get("bnb_config_kwargs")
        own = own if isinstance(own, Mapping) else {}
        storage = str(own.get("bnb_4bit_quant_type", storage or "nf4"))
        twice = twice or bool(own.get("bnb_4bit_use_double_quant", True))
    every = keys.flag("lora_target_linear")
    set_finetune(
        found, keys, method, rank=keys.whole("lora_r", default=8),
        alpha=float(keys.get("lora_alpha", default=16)),
        dropout=float(keys.get("lora_dropout", default=0.0) or 0.0),
        targets="all-linear" if every and not keys.get("lora_target_modules")
        else keys.get("lora_target_modules"),
        storage=storage if method != "full" else None, double_quantization=twice or None,
        train=trained(keys.get("lora_modules_to_save")),
    )  # fmt: skip
    usual(found, keys, "sequence_len", default=2048, weights=("torch_dtype", "dtype"))
    found.micro_batch = keys.whole("micro_batch_size", default=1)
    found.accumulate = keys.whole("gradient_accumulation_steps", default=1)
    found.cp = keys.whole("context_parallel_size", "sequence_parallel_degree", default=1)
    again = str(keys.get("gradient_checkpointing", default="")).lower()
    found.recompute = found.checkpoints or again in (
        "true",
        "1",
        "unsloth",
        "offload",
        "offload_disk",
    )
    if again.startswith("offload"):
        found.offload = ("activations", *found.offload)
    preferences(found, str(keys.get("rl", default="") or ""))
    if keys.flag("reward_model"):
        preferences(found, "reward")
    if keys.flag("liger_fused_linear_cross_entropy"):
        found.job = found.job.but(loss="liger")
    if keys.flag("cut_cross_entropy"):
        found.job = found.job.but(loss="cut")
    plugins = str(keys.get("plugins", default=""))
    if "cut_cross_entropy" in plugins:
        found.job = found.job.but(loss="cut")
    return done(found, keys)


def llama_factory(data: Data) -> Tuning:
    """A LLaMA-Factory file."""
    keys = Keys(data)
    found = Tuning("llama-factory", model=str(keys.get("model_name_or_path", default="")))
    kind = str(keys.get("finetuning_type", default="lora"))
    storage, twice = quantisation(keys)
    method = {"full": "full", "freeze": "full", "lora": "lora"}.get(kind, "lora")
    if storage and method == "lora":
        method = "qlora"
        twice = storage != "int4" and keys.flag("double_quantization", default=True)
    if keys.flag("use_dora") and method == "lora":
        method = "dora"
    if kind == "freeze":
        found.assumed.append("finetuning_type freeze: priced as if every layer trained")
        keys.get("freeze_trainable_layers", "freeze_trainable_modules")
    target = str(keys.get("lora_target", default="all"))
    set_finetune(
        found, keys, method, rank=keys.whole("lora_rank", default=8),
        alpha=float(keys.get("lora_alpha", default=16)),
        dropout=float(keys.get("lora_dropout", default=0.0)),
        targets="all-linear" if target == "all" else target.split(","),
        storage=storage, double_quantization=twice or None,
        train=trained(keys.get("additional_target")),
    )  # fmt: skip
    usual(found, keys, "cutoff_len", default=2048, weights=("infer_dtype", "_none"))
    batches(found, keys)
    found.recompute = not keys.flag("disable_gradient_checkpointing")
    preferences(found, str(keys.get("stage", default="sft")))
    return done(found, keys)


def trl(data: Data) -> Tuning:
    """A file, command or program for TRL or transformers' Trainer, also with Unsloth's model."""
    keys = Keys(data)
    if keys.get("_unsloth") is not None:
        keys = Keys({**UNSLOTH, **data})
    found = Tuning(
        "trl", model=str(keys.get("model_name_or_path", "model_name", "model_id", default=""))
    )
    peft = keys.flag("use_peft", "use_lora") or keys.get("lora_r", "lora_rank") is not None
    peft = peft or (keys.get("_python") is not None and keys.get("r") is not None)
    peft = peft and not keys.flag("full_finetuning")
    if peft and keys.get("lora_r", "r", "lora_rank") is None:
        found.assumed.append("adapters whose rank is not said, or of another kind: LoRA of rank 16")
    storage, twice = quantisation(keys)
    method = "qlora" if peft and storage else "lora" if peft else "full"
    if method == "lora" and keys.flag("use_dora"):
        method = "dora"
    set_finetune(
        found, keys, method, rank=keys.whole("lora_r", "r", "lora_rank", default=16),
        alpha=float(keys.get("lora_alpha", default=32) or 32),
        dropout=float(keys.get("lora_dropout", default=0.05 if peft else 0.0) or 0.0),
        targets=keys.get("lora_target_modules", "target_modules"),
        storage=storage if method == "qlora" else None, double_quantization=twice or None,
        train=trained(keys.get("lora_modules_to_save", "modules_to_save")),
    )  # fmt: skip
    usual(found, keys, *LENGTHS, default=1024, weights=("dtype", "torch_dtype"))
    batches(found, keys)
    trainer = keys.get("_trainer")
    plain = keys.get("_python") is not None and trainer in (None, "", "seq2seq")
    found.recompute = keys.flag("gradient_checkpointing", default=not plain)
    for name in keys.get("_larger", default=()):
        found.assumed.append(f"{name}: the larger of two values that the program chooses between")
    if keys.get("_unsloth") is not None:
        _unsloth(found, keys)
    elif keys.get("gradient_checkpointing") is None:
        found.assumed.append(
            "gradient_checkpointing off (Trainer's default)"
            if plain
            else "gradient_checkpointing on (TRL's default; Trainer's is off)"
        )
    if trainer is not None:
        preferences(found, str(trainer))
    elif keys.get("max_prompt_length", "loss_type") is not None and keys.get("beta") is not None:
        preferences(found, "dpo")
    keys.get(
        "gradient_checkpointing_kwargs", "use_gradient_checkpointing", "bnb_4bit_compute_dtype"
    )
    return done(found, keys)


def _unsloth(found: Tuning, keys: Keys) -> None:
    """What Unsloth does by itself."""
    found.job = found.job.but(loss=UNSLOTH_LOSS)
    found.assumed.append("Unsloth's fused loss keeps no logits")
    found.recompute, offloads = unsloth_recomputes(keys.get("use_gradient_checkpointing"))
    if offloads:
        found.offload = ("activations", *found.offload)
        found.assumed.append(
            "use_gradient_checkpointing = 'unsloth' keeps layers' inputs in host memory"
        )
    if keys.flag("fast_inference"):
        found.assumed.append("fast_inference: vLLM's cache beside the training is not counted")
    keys.get("load_in_16bit", "float8_kv_cache", "max_lora_rank", "gpu_memory_utilization")


def llama_factory_v1(data: Data) -> Tuning:
    """A LLaMA-Factory file of its second interface: `model_class`, `peft_config`, `dist_config`."""
    keys = Keys(data)
    found = Tuning("llama-factory", model=str(keys.get("model", default="")))
    parts = {name: keys.get(f"{name}_config", default={}) for name in ("peft", "quant", "dist")}
    peft, quant, dist = (Keys(one if isinstance(one, Mapping) else {}) for one in parts.values())
    adapts = "lora" in str(peft.get("name", default="")).lower()
    four = bool(quant.data) and int(quant.get("quantization_bit", default=4)) == 4
    method = "full" if not adapts else "qlora" if four else "lora"
    if "freeze" in str(peft.get("name", default="")):
        found.assumed.append("freeze: priced as if every layer trained")
    target = peft.get("target_modules", default="all")
    set_finetune(
        found, keys, method, rank=peft.whole("r", default=8),
        alpha=float(peft.get("lora_alpha", default=16)),
        dropout=float(peft.get("lora_dropout", default=0.0)),
        targets="all-linear" if target == "all" else target,
        storage="nf4" if method == "qlora" else None,
    )  # fmt: skip
    usual(found, keys, "cutoff_len", default=2048, weights=("dtype", "_none"))
    found.micro_batch = keys.whole("micro_batch_size", default=1)
    kind = str(dist.get("name", default=""))
    found.zero = 3 if "fsdp" in kind else 0
    if kind == "deepspeed":
        file = str(dist.get("config_file", default=""))
        found.zero = 3 if "z3" in file or "zero3" in file else 2
        found.assumed.append(f"ZeRO-{found.zero} from the name {file.rsplit('/', 1)[-1]}")
    found.recompute = keys.flag("enable_activation_checkpointing", default=True)
    return done(found, keys)
