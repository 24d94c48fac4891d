"""prime-rl's first releases, the ones behind INTELLECT-2 (zeroband): the table of what trains.

Defaults are those of `src/zeroband/training/config.py` of spring 2025.
"""

from __future__ import annotations

from typing import Any

from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.specs.job import RECIPES


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is one of theirs: a model, and micro-batches under `train` or steps of a rollout under `optim`."""
    train, optim, model = data.get("train"), data.get("optim"), data.get("model")
    if not (isinstance(train, dict) and isinstance(optim, dict)):
        return False
    named = isinstance(data.get("model_name"), str) or (isinstance(model, dict) and "name" in model)
    return named and ("micro_bs" in train or "step_per_rollout" in optim)


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what such a table trains.

    Raises:
        SpecError: a value that cannot be.
    """
    options = Options(flattened(data))
    reading = Reading("prime-rl TOML of its first releases", options={"micro_batch": "train.micro_bs"})  # fmt: skip
    reading.model, reading.model_name = given.model, options.loose("model_name", "model.name")
    reading.micro_batch = options.whole("train.micro_bs", default=1) or 1
    reading.global_batch = options.whole("optim.batch_size", default=512)
    reading.seq_len = options.whole("data.seq_length", default=1024)
    reading.guess("--seq", f"rows have at most {reading.seq_len} tokens; full ones are priced")
    ids = options.raw("gpus_ids")
    if isinstance(ids, list) and ids:
        reading.devices = len(ids)
    every = options.loose("train.ac_ckpt").lower()
    reading.layout = {
        "zero": 3 if options.flag("train.reshard_after_forward", default=True) else 2,
        "recompute": "none" if every in ("", "false", "0") else "full",
    }
    if every.isdigit() and int(every) > 1:
        reading.unmodelled("train.ac_ckpt", f"every {every}. layer is recomputed; all are priced so")  # fmt: skip
    reading.job = {"framework": "fsdp", "precision": RECIPES["bf16-fp32-grads"].model_dump()}
    if options.word("collate_mode", default="padding") != "padding":
        reading.job["document_masking"] = True
    if options.word("train.attn_impl", default="flash_attention_2") == "eager":
        reading.job["attention_kernel"] = "unfused"
    if options.flag("train.liger_qwen"):
        reading.job["loss"] = "liger"
    reading.note("the trainer is priced, not inference or rewards")
    options.finish(reading, "prime_rl", "common", strict=given.strict)
    return reading
