"""MindSpeed-LLM's FSDP2 engine: Hugging Face models on Ascend NPUs by a YAML of five tables and a command's words."""

from __future__ import annotations

import posixpath
from typing import Any

from meshwright.imports.names import refuse_other
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES

EDITS = {
    "micro_batch": "training.per_device_train_batch_size", "cp": "parallel.cp_size", "ep": "parallel.ep_size",
    "tp": "parallel.tp_size", "recompute": "parallel.recompute",
}  # fmt: skip
_METHODS = {"ulysses": "ulysses", "ring": "ring", "kvallgather": "all-gather"}
_WHOLE_LAYERS = ("model.layers.{*}", "model.layers.*", "layers.{*}")
_USUAL_BATCH = 8
"""Sequences of a device where nothing is said (`per_device_train_batch_size`)."""


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is one of its configurations."""
    parallel, training = data.get("parallel"), data.get("training")
    if not isinstance(parallel, dict) or not isinstance(training, dict) or "model" not in data:
        return False
    return bool({"fsdp_modules", "ep_fsdp_modules", "fsdp_size", "ep_fsdp_size"} & set(parallel))


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what a configuration trains, its command's words over it.

    Raises:
        SpecError: a value that cannot be, or no decoder of text.
    """
    options = Options(flattened(data), absent=("auto", "none", "null"))
    options.guessing = given.guess
    reading = Reading("MindSpeed-LLM FSDP2 YAML", options=dict(EDITS), likely="ascend-910b")
    reading.model = given.model
    kind = options.word("model.model_id")
    reading.model_name = options.loose("model.model_name_or_path", "model.tokenizer_name_or_path")
    if reading.model is None:
        refuse_other(posixpath.basename(reading.model_name.rstrip("/")) or kind)
        refuse_other(kind)
    reading.seq_len = options.whole("data.cutoff_len", default=2048)
    reading.micro_batch = options.whole("training.per_device_train_batch_size", default=_USUAL_BATCH) or 1  # fmt: skip
    reading.accumulation = options.whole("training.gradient_accumulation_steps", default=1) or 1
    reading.count_steps(options, "training.max_steps")
    _degrees(options, reading)
    reduced = 4 if options.word("parallel.reduce_dtype", default="fp32") == "fp32" else 2
    precision = RECIPES["bf16"].but(gradient_bytes=4, gradient_reduce_bytes=reduced)
    if options.word("model.quant_recipe_name") not in ("", "none"):
        precision = RECIPES["fp8"].but(gradient_bytes=4, gradient_reduce_bytes=reduced)
    name = options.word("training.optimizer", default="adamw")
    reading.job = {
        "framework": "fsdp", "precision": precision.model_dump(), "attention_kernel": "flash",
        "optimizer": optimizer_or_adamw(reading, name, "training.optimizer").model_dump(),
        "document_masking": options.flag("data.reset_attention_mask") or options.flag("data.neat_packing"),
    }  # fmt: skip
    _named(options, reading)
    options.finish(reading, "mindspeed_fsdp2", "common", strict=given.strict)
    return reading


def _degrees(options: Options, reading: Reading) -> None:
    """How the model is split: FSDP2's ranks, sequences over further ones, experts over those."""
    cp = options.whole("parallel.cp_size", default=1, least=1)
    method = options.word("parallel.cp_type", default="ulysses")
    if method not in _METHODS:
        raise SpecError("parallel.cp_type", method, f"one of {', '.join(_METHODS)} is expected")
    modules = options.raw("parallel.recompute_modules") or list(_WHOLE_LAYERS[:1])
    again = options.flag("parallel.recompute")
    if again and not set(map(str, modules)) & set(_WHOLE_LAYERS):
        reading.unmodelled("parallel.recompute_modules", f"{', '.join(map(str, modules))[:80]} alone are recomputed; whole layers are priced")  # fmt: skip
    kept = options.raw("parallel.reshard_after_forward") in (False, "false", "False")
    reading.layout = {
        "zero": 2 if kept else 3, "cp": cp, "tp": options.whole("parallel.tp_size", default=1, least=1),
        "ep": options.whole("parallel.ep_size", default=1, least=1), "recompute": "full" if again else "none",
    }  # fmt: skip
    if cp > 1:
        reading.layout["cp_method"] = _METHODS[method]
    reading.shard = options.whole("parallel.fsdp_size")
    if not reading.shard:
        reading.guess("parallel.fsdp_size", "is not stated in the file, its command gives it; shards over all devices are taken")  # fmt: skip
    options.raw("parallel.ep_fsdp_size")


def _named(options: Options, reading: Reading) -> None:
    """What a step pays for, or saves, that has no term."""
    if options.whole("optimization.chunk_loss_size"):
        reading.unmodelled("optimization.chunk_loss_size", "the loss is taken in parts of the sequence; the estimate holds all logits")  # fmt: skip
    if options.flag("parallel.enable_chunk_batch"):
        reading.unmodelled("parallel.enable_chunk_batch", "layers take the micro-batch in pieces; it is priced whole")  # fmt: skip
    dispatcher = options.word("parallel.ep_dispatcher", default="eager")
    if reading.layout["ep"] > 1 and dispatcher != "eager":
        reading.unmodelled("parallel.ep_dispatcher", f"{dispatcher} joins exchange and products; the usual all-to-all is priced")  # fmt: skip
