"""ms-swift's Megatron commands."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from meshwright.imports.formats import megatron
from meshwright.imports.names import model_named, refuse_other
from meshwright.imports.options import Options, flags_of
from meshwright.imports.reading import PROJECTOR, Given, Reading
from meshwright.imports.tasks import name_task, refuse_task
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError

_DEFAULTS = {
    "bf16": True, "use-distributed-optimizer": True, "attention-dropout": "0.0", "hidden-dropout": "0.0",
    "micro-batch-size": "1", "recompute-granularity": "selective", "attention-backend": "flash", "cross-entropy-loss-fusion": True,
    "moe-grouped-gemm": True, "moe-token-dispatcher-type": "alltoall", "expert-tensor-parallel-size": "1",
}  # fmt: skip
"""What ms-swift takes where Megatron-LM takes something else (swift/megatron/arguments/megatron_args.py)."""


def read_swift_megatron(words: list[str], given: Given) -> Reading:
    """Return what ms-swift's Megatron command runs.

    Raises:
        SpecError: the model is not known or is no decoder of text, or a value cannot be.
    """
    flags = {name: "true" if value == "true" else value for name, value in flags_of(words).items()}
    named = next(
        (str(flags[n]) for n in ("model", "load", "mcore-model", "mcore_model") if isinstance(flags.get(n), str)), ""
    )  # fmt: skip
    _refuse(flags, named, given.model is not None)
    flags = _DEFAULTS | flags
    if flags["recompute-granularity"] == "none":
        del flags["recompute-granularity"]
    if "max-length" in flags:
        flags.setdefault("seq-length", flags["max-length"])
    if given.model is None and "num-layers" not in flags:
        base = re.sub(r"[-_](mcore|megatron)$", "", named)
        model = model_named(base)
        if model is None:
            raise SpecError(
                "--model",
                None,
                f"the command names {base or 'no model'}, which is no preset: give a preset or its config.json",
            )
        given = replace(given, model=model)
    options = Options(flags, "--")
    options.read |= {"model", "load", "moe-grouped-gemm", "moe-token-dispatcher-type"}
    tuner = options.word("train-type", "tuner-type", default="full")
    packed = options.flag("packing") or options.flag("padding-free", default=True)
    if tuner.startswith("lora"):
        options.read |= {"lora-rank", "lora-alpha", "lora-dropout", "target-modules", "modules-to-save"}  # fmt: skip
    frozen = options.flag("freeze-vit", default=True)
    aligned = options.flag("freeze-aligner", default=True)
    reading = megatron.read(options, given, "ms-swift Megatron command", more=("ms_swift",))
    reading.encoder_frozen = frozen
    if frozen and not aligned:
        reading.unmodelled("--freeze-aligner", PROJECTOR)
    if tuner.startswith("lora"):
        adapters(reading, rank=options.whole("lora-rank", default=8), alpha=options.number("lora-alpha", default=32.0),
                 targets=options.raw("target-modules"), dropout=options.number("lora-dropout", default=0.05),
                 whole=options.raw("modules-to-save"))  # fmt: skip
    if "rlhf-type" in flags:
        name_task(reading, options.word("rlhf-type"))
    reading.job["document_masking"] = packed
    if not reading.global_batch:
        reading.global_batch = 16
        reading.guess(
            "--global-batch", "global_batch_size is not set; ms-swift's own, 16, is taken"
        )
    return reading


def _refuse(flags: dict[str, Any], named: str, given: bool) -> None:
    """Refuse what a command trains that is no decoder of text, unless its shape is `given`.

    Raises:
        SpecError: by the model's name or type, or the task's.
    """
    if not given:
        refuse_other(str(flags.get("model-type", "")).replace("_", "-"))
    if str(flags.get("language-model-only", "")).lower() != "true" and not given:
        refuse_other(named)
    refuse_task("--task-type", flags.get("task-type"))
