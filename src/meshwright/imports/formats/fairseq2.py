"""fairseq2's YAML of a language model's training: a model by its name or architecture, FSDP or DDP, tensor parallelism."""

from __future__ import annotations

import re
from typing import Any

from meshwright.imports.names import model_named, refuse_other
from meshwright.imports.options import Options, flattened
from meshwright.imports.other_models import refuse_tables
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw
from meshwright.specs.job import RECIPES

EDITS = {
    "micro_batch": "dataset.batch_size", "tp": "gang.tensor_parallel_size",
    "accumulation": "trainer.grad_accumulation.num_batches", "recompute": "trainer.activation_checkpointing.mode",
}  # fmt: skip
_LENGTH = 8192
_TOKENS = 2 * _LENGTH
"""What its recipes take where nothing is said: tokens of a sequence, and of a rank's batch."""


_OF_REGIMES = {"num_steps", "num_data_epochs", "validate_every_n_steps", "checkpoint_every_n_steps", "publish_metrics_every_n_steps"}  # fmt: skip


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is fairseq2's: a regime in its words beside a model and a data set."""
    parts = [data.get(name) for name in ("model", "dataset", "regime")]
    return all(isinstance(one, dict) for one in parts) and bool(_OF_REGIMES & set(data["regime"]))


def _usual(name: str) -> str:
    """The name that others give a model of its cards (`llama3_2_1b_instruct` is `llama3.2-1b-instruct`)."""
    dotted = re.sub(r"^(llama3|qwen2|qwen25|gemma3)_(\d)_(?=\d+b)", r"\1.\2-", name.lower())
    return dotted.replace("qwen25", "qwen2.5").replace("_", "-")


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what a fairseq2 recipe trains.

    Raises:
        SpecError: a value that cannot be, or a model that is no decoder of text.
    """
    refuse_tables(flattened(data), "the configuration")
    options = Options(flattened(data))
    reading = Reading("fairseq2 YAML", options=dict(EDITS))
    refuse_other(options.word("model.family"))
    named = _usual(options.loose("model.name", "model.arch"))
    refuse_other(named)
    model = given.model or model_named(named)
    layers = options.whole("model.config_overrides.num_layers")
    if model is not None and layers and layers != model.layers:
        model = model.but(name="imported", layers=layers)
    reading.model, reading.model_name = model, "" if model is not None else named
    tp = options.whole("gang.tensor_parallel_size", default=1) or 1
    trainer = "trainer."
    shards = options.word(f"{trainer}data_parallelism", default="fsdp") == "fsdp"
    again = options.flag(f"{trainer}fsdp.reshard_after_forward", default=True)
    reading.layout = {"tp": tp, "zero": (3 if again else 2) if shards else 0}
    if options.flag(f"{trainer}fsdp.hybrid") and shards:
        reading.note("shards inside a host and copies between hosts", f"{trainer}fsdp.hybrid")
    every = options.whole(f"{trainer}activation_checkpointing.every_nth_layer", default=1) or 1
    layered = options.word(f"{trainer}activation_checkpointing.mode", default="off") == "layerwise"
    reading.layout["recompute"] = "full" if layered else "none"
    if layered and every > 1:
        reading.unmodelled(
            f"{trainer}activation_checkpointing.every_nth_layer",
            f"one layer of {every} is recomputed; all are priced",
        )
    reading.accumulation = options.whole(f"{trainer}grad_accumulation.num_batches", default=1) or 1
    reading.reduces_each = not options.flag(f"{trainer}grad_accumulation.no_sync")
    _batch(options, reading)
    reading.job = {
        "framework": "fsdp",
        "precision": RECIPES[_precision(options)].model_dump(),
        "optimizer": optimizer_or_adamw(
            reading, options.word("optimizer.name", default="adamw"), "optimizer.name"
        ).model_dump(),
    }
    reading.count_steps(options, "regime.num_steps")
    options.finish(reading, "fairseq2", "common", strict=given.strict)
    return reading


def _batch(options: Options, reading: Reading) -> None:
    """A rank's batch: so many examples, or so many tokens in sequences of whatever length."""
    reading.seq_len = options.whole("dataset.max_seq_len", default=_LENGTH) or _LENGTH
    examples = options.whole("dataset.batch_size")
    tokens = options.whole("dataset.max_num_tokens", default=_TOKENS) or _TOKENS
    reading.micro_batch = examples or max(tokens // reading.seq_len, 1)
    if not examples:
        reading.guess("dataset.max_num_tokens", f"{tokens} tokens a rank are taken for {reading.micro_batch} sequences of the longest length")  # fmt: skip


def _precision(options: Options) -> str:
    mode = options.word("trainer.mixed_precision.mode", default="static")
    dtype = options.word("trainer.mixed_precision.dtype", default="bfloat16")
    whole = options.flag("trainer.fsdp.fp32_reduce", default=True)
    weights = options.word("model.dtype", default="float32")
    if mode == "off":  # all of it in the width of the weights
        return "pure-bf16" if "16" in weights else "fp32"
    if dtype == "float16":
        return "fp16"
    return "fp32" if dtype == "float32" else "bf16-fp32-grads" if whole else "bf16"
