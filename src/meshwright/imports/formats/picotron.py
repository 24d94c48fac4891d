"""Picotron's JSON: 4D parallelism of a Llama-like model by its hub name and overrides of its sizes."""

from __future__ import annotations

from typing import Any

from meshwright.imports.names import model_named
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_named, torch_moments
from meshwright.specs.job import RECIPES

EDITS = {
    "micro_batch": "training.micro_batch_size", "tp": "distributed.tp_size", "pp": "distributed.pp_size",
    "cp": "distributed.cp_size", "accumulation": "training.gradient_accumulation_steps",
}  # fmt: skip


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is Picotron's."""
    ranks = data.get("distributed")
    return isinstance(ranks, dict) and {"tp_size", "pp_size", "dp_size"} <= set(ranks)


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what a Picotron configuration trains.

    Raises:
        SpecError: a value that cannot be.
    """
    options = Options(flattened(data))
    reading = Reading("Picotron JSON", options=dict(EDITS))
    reading.model_name = options.loose("model.name")
    model = given.model or model_named(reading.model_name)
    said = {
        "layers": options.whole("model.num_hidden_layers"),
        "heads": options.whole("model.num_attention_heads"),
        "kv_heads": options.whole("model.num_key_value_heads"),
    }
    if model is not None:
        changed = {
            name: value for name, value in said.items() if value and value != getattr(model, name)
        }
        if "heads" in changed:
            changed["head_dim"] = model.hidden // changed["heads"]
        model = model.but(name="imported", **changed) if changed else model
    elif said["layers"]:
        reading.note(
            "the model's sizes are changed from those of its name; --model gives them",
            "model.num_hidden_layers",
        )
    reading.model = model
    get = "distributed."
    axes = {
        axis: options.whole(f"{get}{axis}_size", default=1) or 1
        for axis in ("tp", "cp", "pp", "dp")
    }
    reading.dp = axes.pop("dp")
    engine = options.word(f"{get}pp_engine", default="1f1b")
    reading.layout = {
        **axes,
        "zero": 0,
        "recompute": "none",
        "schedule": "gpipe" if engine == "afab" else "1f1b",
    }
    if axes["cp"] > 1:
        reading.layout["cp_method"] = "ring"
    reading.seq_len = options.whole("training.seq_length")
    reading.micro_batch = options.whole("training.micro_batch_size", default=1)
    reading.accumulation = options.whole("training.gradient_accumulation_steps", default=1) or 1
    wide = "32" in options.word("model.dtype", default="bfloat16")
    # Weights and moments in 16 bits, gradients summed in a 32-bit buffer.
    recipe = (
        RECIPES["fp32"]
        if wide
        else RECIPES["pure-bf16"].but(gradient_bytes=4, gradient_reduce_bytes=4)
    )
    optimizer = torch_moments(optimizer_named("adamw", "optimizer"), recipe)
    reading.job = {
        "framework": "any",
        "precision": recipe.model_dump(),
        "optimizer": optimizer.model_dump(),
    }
    if axes["cp"] > 1:
        # context_parallel.py: consecutive pieces, and a rank skips those after its own.
        reading.job["framework_options"] = {"context_balanced": False}
    if not options.flag("model.use_flash_attention", default=True):
        reading.job["attention_kernel"] = "unfused"
    options.finish(reading, "picotron", "common", strict=given.strict)
    return reading
