"""The plan nearest to a given one that a target can express, repriced, and what changed."""

from __future__ import annotations

import math

from meshwright.exports.canonical import canonical
from meshwright.exports.limits import Limits, nearest_layout, problems, require, unplannable
from meshwright.planner.legality import Question, why_illegal
from meshwright.planner.plan import price_layout
from meshwright.planner.search import search
from meshwright.specs.errors import SpecError
from meshwright.specs.layout import Layout
from meshwright.specs.plan import Plan
from meshwright.specs.quantities import format_bytes, format_seconds

SLOWER = 1.5
"""A layout that keeps closer to the plan may cost up to this many times the fastest one's step."""

_DEGREES = ("tp", "pp", "cp", "ep", "dp", "virtual_stages", "micro_batch")
_CHOICES = ("zero", "shard", "recompute", "recompute_layers", "sequence_parallel", "schedule",
            "rank_order", "stage_layers", "stage_recompute_layers", "cp_method", "etp",
            "recompute_modules", "offload")  # fmt: skip


def nearest_plan(plan: Plan, limits: Limits, *, command: str = "") -> tuple[Plan, tuple[str, ...]]:
    """Return the nearest plan that a target can express, priced, and a line for each change.

    Each thing that the target lacks is changed in turn; where the result cannot run or does not fit
    in memory, the planner's own search under the target's limits is asked for the layout that
    differs least. A plan that can be expressed as it is comes back unchanged.

    Raises:
        SpecError: the target cannot express the model or the job, or nothing that it can fits.
    """
    if not problems(plan, limits):
        return plan, ()
    stuck = unplannable(plan.model, plan.job, plan.cluster, limits)
    if stuck is not None:
        raise SpecError(
            stuck.field, stuck.value, f"{limits.title} {stuck.lacks}; no layout changes that"
        )
    job = plan.job.but(framework=limits.framework)
    question = Question(plan.model, plan.cluster, job)
    layout = nearest_layout(plan, limits)
    made = None
    if layout is not None and why_illegal(question, layout) is None:
        made = price_layout(plan.model, plan.cluster, job, layout, command=command)
    if made is None or not made.fits:
        layout = _searched(question, plan, limits)
        if layout is not None:
            made = price_layout(plan.model, plan.cluster, job, layout, command=command)
    if made is None or not made.fits:
        raise SpecError(
            "layout",
            plan.layout.label(),
            f"{limits.title} has no layout for this model on this cluster that fits; "
            f"`meshwright plan --framework {limits.framework}` says what would",
        )
    require(made, limits)
    return made, _changes(plan, made)


def _searched(question: Question, plan: Plan, limits: Limits) -> Layout | None:
    ranked = search(question).ranked
    if not ranked.columns.rows:
        return None
    limit = float(ranked.pessimistic_s[0]) * SLOWER
    rows = [row for row in range(ranked.columns.rows) if ranked.pessimistic_s[row] <= limit]
    layouts = [ranked.columns.layout(row) for row in rows[:500]]
    able = [one for one in layouts if not problems(plan.but(layout=one.model_dump()), limits)]
    return min(able, key=lambda one: _distance(plan.layout, one), default=None)


def _distance(one: Layout, other: Layout) -> float:
    """Doublings of degrees, plus half a step for every other choice that differs."""
    degrees = sum(abs(math.log2(getattr(one, n) / getattr(other, n))) for n in _DEGREES)
    return degrees + 0.5 * sum(getattr(one, n) != getattr(other, n) for n in _CHOICES)


def _changes(before: Plan, after: Plan) -> tuple[str, ...]:
    old = canonical(before.layout, before.model)
    new = canonical(after.layout, after.model)
    lines = [
        f"{name} {getattr(old, name)} → {getattr(new, name)}"
        for name in (*_DEGREES, *_CHOICES)
        if getattr(old, name) != getattr(new, name)
    ]
    slower = after.estimate.step_time_s / before.estimate.step_time_s - 1
    return (
        *lines,
        f"step {format_seconds(before.estimate.step_time_s)} → "
        f"{format_seconds(after.estimate.step_time_s)} ({slower:+.1%}), peak memory "
        f"{format_bytes(before.estimate.peak_memory_bytes)} → "
        f"{format_bytes(after.estimate.peak_memory_bytes)}, priced as {after.job.framework}",
    )
