"""The zero-bubble fork of Megatron-LM: stages with a layer fewer, and schedules that split the backward."""

from __future__ import annotations

from typing import Any

from meshwright.imports.options import Options
from meshwright.imports.reading import Reading
from meshwright.specs.model import Model

_BY_MEMORY = {"zb": "zb-v", "half": "v-half", "min": "v-min"}


def padded_stages(
    options: Options, model: Model, pp: int, each: int
) -> tuple[int, tuple[int, ...] | None] | None:
    """Stages of a rank, and layers of each, under `--allow-padding-num-layers`; None without it.

    Layers count as the next multiple of the ranks; what is missing is missing from the last stage
    first, then from the first ones on.

    Args:
        each: layers of a stage where a rank holds several; 0: it holds one.
    """
    if not options.flag("allow-padding-num-layers") or model.layers % pp == 0:
        return None
    held = -(-model.layers // pp)
    each = each if each and held % each == 0 else held
    sizes = [each] * (pp * held // each)
    for index in range(-1, held * pp - model.layers - 1):
        sizes[index] -= 1
    return held // each, tuple(sizes)


def without_bubbles(options: Options, reading: Reading, fields: dict[str, Any]) -> dict[str, Any]:
    """The schedule that the fork's switches, or DeepSpeed's `--enable-zbh1-pipeline`, ask for."""
    options.raw("enable-zb-runtime", "interleave-group-size", "zero-bubble-v-schedule-mem-setup")
    pending = options.text("zero-bubble-max-pending-backward", default="auto")
    pp = fields["pp"]
    if pp == 1:
        options.flag("enable-zero-bubble", "zero-bubble-v-schedule", "enable-zbh1-pipeline")
        return {}
    if options.flag("zero-bubble-v-schedule"):
        setup = options.word("zero-bubble-v-schedule-mem-setup", default="zb")
        return {"schedule": _BY_MEMORY.get(setup, "zb-v"), "virtual_stages": 2, "stage_layers": None}  # fmt: skip
    if options.flag("enable-1f1b-v"):
        reading.unmodelled("--enable-1f1b-v", "each rank holds two stages, the second of the way back; 1F1B is priced")  # fmt: skip
        return {}
    if options.flag("enable-zbh1-pipeline"):
        return {"schedule": "zb-h1"}
    if options.flag("enable-zero-bubble"):
        waiting = int(pending) if pending.isdigit() else 0
        kind = "zb-h1" if 0 < waiting <= pp else "zb-h2" if waiting == 2 * pp else "zb-auto"
        return {"schedule": kind, "virtual_stages": 1}
    group = options.whole("interleave-group-size")
    if group:
        reading.unmodelled("--interleave-group-size", f"stages of a rank take turns in groups of {group} micro-batches; the usual interleaving is priced")  # fmt: skip
    return {}
