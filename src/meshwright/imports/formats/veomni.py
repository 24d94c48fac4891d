"""VeOmni's YAML: FSDP2 with Ulysses and expert parallelism, in the spelling of today and of 2025."""

from __future__ import annotations

import re
from typing import Any

from meshwright.imports.names import PLANNED, refuse_other
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_named, torch_moments
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES

EDITS = {"micro_batch": "train.micro_batch_size"}


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is VeOmni's."""
    model, train = data.get("model"), data.get("train")
    return (
        isinstance(model, dict)
        and isinstance(train, dict)
        and bool({"model_path", "config_path", "ops_implementation"} & set(model))
        and "micro_batch_size" in train
    )


def _degrees(options: Options, reading: Reading) -> None:
    """How the model is split, and what lives in host memory."""
    sp = (
        options.whole("train.accelerator.ulysses_size", "train.ulysses_parallel_size", default=1)
        or 1
    )
    mode = options.word(
        "train.accelerator.fsdp_config.fsdp_mode", "train.data_parallel_mode", default="fsdp2"
    )
    again = options.flag(
        "train.gradient_checkpointing.enable", "train.enable_gradient_checkpointing", default=True
    )
    reading.layout = {
        "zero": 0 if mode == "ddp" else 3, "cp": sp, "recompute": "full" if again else "none",
        "ep": options.whole("train.accelerator.ep_size", "train.expert_parallel_size", default=1) or 1,
        "tp": options.whole("train.accelerator.tp_size", "train.tensor_parallel_size", default=1) or 1,
        "pp": options.whole("train.accelerator.pp_size", "train.pipeline_parallel_size", default=1) or 1,
    }  # fmt: skip
    if sp > 1:
        reading.layout["cp_method"] = "ulysses"
    reading.replicate = options.whole(
        "train.accelerator.dp_replicate_size", "train.data_parallel_replicate_size"
    )
    if (
        options.raw(
            "train.accelerator.fsdp_config.reshard_after_forward",
            "train.enable_reshard_after_forward",
        )
        is False
    ):
        reading.layout["zero"] = 2
    if options.flag("train.accelerator.fsdp_config.offload", "train.enable_fsdp_offload"):
        reading.offload |= {"optimizer", "parameters"}
    if options.flag("train.accelerator.offload_config.enable_activation", "train.accelerator.offload.enable_activation",
                    "train.offload.enable_activation", "train.enable_activation_offload"):  # fmt: skip
        reading.offload.add("activations")


def _job(options: Options, reading: Reading) -> None:
    """Precision and optimizer."""
    mixed = options.flag(
        "train.accelerator.fsdp_config.mixed_precision.enable",
        "train.enable_mixed_precision",
        default=True,
    )
    recipe = (
        RECIPES["bf16"].but(gradient_bytes=4, gradient_reduce_bytes=4)
        if mixed
        else RECIPES["pure-bf16"]
    )
    reading.job = {"framework": "fsdp", "precision": recipe.model_dump(), "document_masking": True}
    name = options.text("train.optimizer.type", "train.optimizer", default="adamw")
    optimizer = torch_moments(optimizer_named(name, "train.optimizer"), recipe)
    reading.job["optimizer"] = optimizer.model_dump()


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what a VeOmni configuration trains.

    Raises:
        SpecError: a value that cannot be, or no decoder of text.
    """
    options = Options(flattened(data))
    options.guessing = given.guess
    reading = Reading("VeOmni YAML", options=dict(EDITS))
    if any(name.startswith("model.condition_") for name in options.values):
        raise SpecError("model.condition_model_path", None, f"trains a diffusion model: {PLANNED}")  # fmt: skip
    parts = [name for name in options.values if re.match(r"model\.(?:en|de)coders\b", name)]
    if parts and given.model is None:
        raise SpecError(parts[0], None, f"trains a model of pictures and text: {PLANNED}")
    reading.model = given.model
    reading.model_name = options.loose(
        "model.model_path", "model.config_path", "model.tokenizer_path"
    )
    if reading.model is None:
        refuse_other(reading.model_name)
        refuse_other(options.loose("model.teacher_model_path"))
    reading.seq_len = options.whole("data.max_seq_len", default=2048)
    reading.micro_batch = options.whole("train.micro_batch_size", default=1)
    reading.global_batch = options.whole("train.global_batch_size")
    _degrees(options, reading)
    _job(options, reading)
    if options.has("model.lora_config.rank"):
        adapters(reading, rank=options.whole("model.lora_config.rank", default=16), alpha=options.number("model.lora_config.alpha"),
                 targets=options.raw("model.lora_config.lora_modules"), dropout=options.number("model.lora_config.dropout"),
                 option="model.lora_config.lora_modules")  # fmt: skip
    reading.note(
        "rows are packed from several documents; full ones are priced", "data.dyn_bsz_buffer_size"
    )
    options.raw("model.tokenizer_path")
    options.finish(reading, "veomni", "common", strict=given.strict)
    return reading
