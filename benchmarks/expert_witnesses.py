"""Measured runs that say whether a claimed gain is there: same model, device and length, no lower precision.

A planner that claims to beat a published layout is either wrong or has seen something. Published tables
hold other layouts of the same model on the same device; where one of them was measured to be faster per
device than the expert's, the claim does not rest on the cost model alone. A run whose products are wider
(16 bits against an expert's 8) counts, because it had the slower tensor cores; one whose are narrower does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from meshwright.evidence.import_rows import import_row
from meshwright.evidence.machines import SkipRow
from meshwright.evidence.measured import absolute_time_trusted, measured_step_time_s
from meshwright.evidence.rows import published_rows
from meshwright.planner.legality import Question
from meshwright.specs.frameworks import framework
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model

Sameness = tuple[object, ...]
WIDTHS = {"fp4": 4, "fp8": 8, "int8": 8, "bf16": 16, "fp16": 16, "tf32": 19, "fp32": 32}
"""Bits of the operands of a precision's products."""
FASTER = 0.05
"""Share of an expert's measured rate by which a run must be faster to count."""


@dataclass(frozen=True)
class Witness:
    """A measured run; tokens a second and device."""

    layout: str
    framework: str
    gpus: int
    source: str
    tokens_per_s: float
    compute: str = ""
    """Precision of its products."""


def same(question: Question) -> Sameness:
    """What two runs must share so that their rates per device say something of each other."""
    job = question.job
    device = question.cluster.device.name
    return (*_shape(question.model), device, job.seq_len, job.finetune)


def _shape(model: Model) -> Sameness:
    experts = model.experts
    routed = (experts.experts, experts.top_k, experts.ffn) if experts else ()
    return (model.layers, model.hidden, model.heads, model.kv_heads, model.ffn, *routed)


def rate(question: Question, step_s: float) -> float:
    """Tokens a second and device."""
    return question.job.global_batch * question.job.seq_len / step_s / question.cluster.gpus


def _measured() -> Iterator[tuple[Sameness, Witness]]:
    for row in published_rows():
        if row["outcome"] not in ("", "ok"):
            continue
        try:
            run = import_row(row)
        except SkipRow:
            continue
        seconds = measured_step_time_s(row, run)
        if math.isnan(seconds) or not absolute_time_trusted(row):
            continue
        question = Question(run.model, run.cluster, run.job)
        found = Witness(
            run.layout.label(), run.job.framework, run.gpus, row["source"], rate(question, seconds),
            run.job.precision.compute,
        )  # fmt: skip
        yield same(question), found


@cache
def witnesses() -> dict[Sameness, list[Witness]]:
    """All measured runs by what they were asked, the fastest first."""
    found: dict[Sameness, list[Witness]] = {}
    for asked, one in _measured():
        found.setdefault(asked, []).append(one)
    return {asked: sorted(some, key=lambda w: -w.tokens_per_s) for asked, some in found.items()}


def witness_of(question: Question, layout: Layout, expert_s: float) -> tuple[Witness, float] | None:
    """The fastest other layout measured at the same question on any number of devices, and the expert's own rate.

    A run under the expert's own framework comes before all others, then one of its own precision. None where the expert's step was not measured, or nothing was measured to be faster than it.
    """
    if math.isnan(expert_s):
        return None
    own = rate(question, expert_s)
    compute = question.job.precision.compute
    faster = [
        one
        for one in witnesses().get(same(question), [])
        if one.tokens_per_s > own * (1 + FASTER) and one.layout != layout.label()
        and WIDTHS[one.compute] >= WIDTHS[compute]
    ]  # fmt: skip
    asked = framework(question.job.framework).behaviour
    alike = [one for one in faster if framework(one.framework).behaviour == asked]
    exact = [one for one in alike or faster if one.compute == compute]
    best = next(iter(exact or alike or faster), None)
    return (best, own) if best else None
