"""The planner's front door: model, cluster and job in, a defended Plan out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from meshwright import __version__
from meshwright.costs.step import estimate, estimates
from meshwright.planner.economy import all_searched, cheapest, dearer, offers
from meshwright.planner.finalists import Choice, choose
from meshwright.planner.flips import flip_points
from meshwright.planner.legality import Question, why_illegal
from meshwright.planner.neighbours import neighbours, why_lost
from meshwright.planner.partial_recompute import partly_recomputed
from meshwright.planner.rescue import ways_out
from meshwright.planner.search import Candidates, SearchResult, pareto, search
from meshwright.planner.space import MEMORY_MARGIN, Constraints, offered
from meshwright.specs.cluster import Cluster
from meshwright.specs.errors import DoesNotFitError, SpecError
from meshwright.specs.frameworks import framework, job_lacks
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model
from meshwright.specs.plan import Alternative, Estimate, Plan, Searched
from meshwright.specs.quantities import format_bytes, format_seconds

OBJECTIVES = ("time", "memory", "cost")
RUNNER_UP = "another shape"
"""The `axis` of alternatives that differ in more than one choice."""


def plan(
    model: Model,
    cluster: Cluster,
    job: Job | None = None,
    *,
    constraints: Constraints | None = None,
    objective: str = "time",
    max_days: float | None = None,
    top: int = 5,
    defend: bool = True,
    command: str = "",
    progress: Callable[[int], None] | None = None,
) -> Plan:
    """Choose the best layout and defend it.

    Args:
        model: the architecture.
        cluster: the devices and their links.
        job: what one step must do; defaults to 4,096-token sequences in a batch of 512.
        constraints: axes to fix or limit.
        objective: `time`, `memory` (headroom), or `cost` (per token), which may leave devices of
            the cluster unused: the plan's cluster is then the part that it uses.
        max_days: with `cost`, how long the job's token budget may take.
        top: how many runners-up of a different shape to keep as alternatives.
        defend: price the neighbours and compute the flip points too.
        command: the command line to record in the plan.
        progress: called with the number of layouts priced so far.

    Raises:
        DoesNotFitError: no legal layout fits; the message gives the shortfall and three ways out.
        SpecError: no layout is legal under the constraints, the framework cannot run the job, or a
            deadline without a token budget.
    """
    if objective not in OBJECTIVES:
        raise SpecError("objective", objective, f"one of {', '.join(OBJECTIVES)}")
    job = job or Job()
    for field, value, instead in job_lacks(job, framework(job.framework)):
        raise SpecError(field, value, f"{framework(job.framework).title} {instead}")
    question = Question(model, cluster, job)
    constraints = constraints or Constraints()
    if max_days is not None:
        _check_deadline(max_days, objective, job)
    economy: list[Alternative] = []
    if objective == "cost":
        question, result, economy = _cheapest(question, constraints, max_days, top, progress)
    else:
        result = search(question, constraints, objective=objective, progress=progress)
    if not result.ranked.columns.rows:
        raise DoesNotFitError("; ".join(ways_out(question, constraints, result)))
    choice = None
    if objective != "memory":
        more = partly_recomputed(question, constraints, result)
        choice = choose(question, result.ranked, more)
    chosen = _with_method(question, choice.layout if choice else result.ranked.columns.layout(0))
    best = estimate(model, question.cluster, job, chosen)
    alternatives = [*economy, *_runners_up(question, result, chosen, best, top)]
    if defend:
        alternatives += neighbours(question, chosen, best)
    return Plan(
        meshwright_version=__version__,
        command=command,
        model=model,
        cluster=question.cluster,
        job=job,
        layout=chosen,
        estimate=best,
        fits=best.fits,
        objective=objective,
        alternatives=tuple(alternatives),
        flip_points=flip_points(question, result, chosen) if defend else (),
        searched=result.searched,
        notes=(
            *_used(question.cluster, cluster),
            *_notes(question, result),
            *_simulated(choice),
            *_memory_too_close(best),
        ),
    )


def _with_method(question: Question, layout: Layout) -> Layout:
    """The layout with a way to move keys and values that the framework has for this attention."""
    methods = offered(question).context_methods_of(question.model)
    if layout.cp == 1 or not methods or layout.cp_method in methods:
        return layout
    return layout.but(cp_method=methods[0])


def _check_deadline(max_days: float, objective: str, job: Job) -> None:
    if objective != "cost":
        raise SpecError("max_days", max_days, "a deadline goes with the objective cost")
    if not 0 < max_days < float("inf"):
        raise SpecError("max_days", max_days, "a positive number of days is expected")
    if not job.token_budget:
        raise SpecError("max_days", max_days, "a deadline needs a token budget, such as 1T tokens")


def _cheapest(
    question: Question,
    constraints: Constraints,
    max_days: float | None,
    top: int,
    progress: Callable[[int], None] | None,
) -> tuple[Question, SearchResult, list[Alternative]]:
    """The question on as many devices as are cheapest, its search, and `top` other numbers."""
    found = offers(question, constraints, progress)
    if not found:
        return question, search(question, constraints), []
    chosen = cheapest(found, max_days)
    result = replace(chosen.result, searched=all_searched(found))
    return chosen.question, result, dearer(found, chosen, max_days)[:top]


def _used(used: Cluster, offered: Cluster) -> list[str]:
    if used.gpus == offered.gpus:
        return []
    return [
        f"cheapest per token on {used.gpus} of the {offered.gpus} devices: the others are left free"
    ]


def price_layout(
    model: Model, cluster: Cluster, job: Job, layout: Layout, *, command: str = ""
) -> Plan:
    """Price one given layout as a Plan, without a search.

    Raises:
        SpecError: the layout cannot run; the message says which rule it breaks.
    """
    question = Question(model, cluster, job)
    sentence = why_illegal(question, layout)
    if sentence is not None:
        raise SpecError("layout", layout.label(), sentence)
    priced = estimate(model, cluster, job, layout)
    return Plan(
        meshwright_version=__version__, command=command, model=model, cluster=cluster, job=job,
        layout=layout, estimate=priced, fits=priced.fits, searched=Searched(priced=1),
        notes=tuple(_memory_too_close(priced)),
    )  # fmt: skip


def pareto_front(question: Question, result: SearchResult) -> list[tuple[Layout, Estimate]]:
    """Layouts that no other beats in both step time and peak memory, fastest first."""
    rows = pareto(result.ranked)
    layouts = [result.ranked.columns.layout(int(row)) for row in rows]
    priced = estimates(question.model, question.cluster, question.job, layouts)
    return list(zip(layouts, priced, strict=True))


def _shape(layout: Layout) -> tuple[int, ...]:
    return (layout.tp, layout.pp, layout.ep, layout.zero)


def _runners_up(
    question: Question, result: SearchResult, chosen: Layout, best: Estimate, top: int
) -> list[Alternative]:
    """The best layouts of other shapes: what a colleague would propose instead."""
    seen = {_shape(chosen)}
    layouts: list[Layout] = []
    for row in range(result.ranked.columns.rows if top else 0):
        layout = result.ranked.columns.layout(row)
        if _shape(layout) not in seen:
            seen.add(_shape(layout))
            layouts.append(layout)
        if len(layouts) >= top:
            break
    priced = estimates(question.model, question.cluster, question.job, layouts)
    return [
        Alternative(
            axis=RUNNER_UP,
            layout=layout,
            estimate=other,
            why_not=why_lost(question, best, other, layout),
        )
        for layout, other in zip(layouts, priced, strict=True)
    ]


def _notes(question: Question, result: SearchResult) -> list[str]:
    ranked = result.ranked
    notes = [
        f"ranked by a pessimistic step time (communication up to 35 % slower than modelled); "
        f"{MEMORY_MARGIN:.0%} of the modelled peak is kept free"
    ]
    nominal = int(np.argmin(ranked.step_time_s))
    if nominal != 0 and ranked.step_time_s[0] > ranked.step_time_s[nominal] * 1.005:
        lead = ranked.step_time_s[0] / ranked.step_time_s[nominal] - 1
        notes.append(
            f"{ranked.columns.layout(nominal).label()} is {lead:.1%} faster if the model is exactly "
            f"right, but does not survive its uncertainty"
        )
    close = _too_close(ranked)
    if close is not None:
        notes.append(close)
    if question.model.source and "assumed" in question.model.source:
        notes.append(question.model.source)
    return notes + _mismatches(question)


def _mismatches(question: Question) -> list[str]:
    """What the model, the job and the device do not agree on, and what was assumed about it."""
    model, job, device = question.model, question.job, question.cluster.device
    notes = []
    if model.positions == "learned" and job.seq_len > model.max_positions:
        notes.append(
            f"{model.name} has a table of {model.max_positions:,} positions: sequences of "
            f"{job.seq_len:,} need a longer one, which is not counted"
        )
    if job.precision.compute not in device.peak_flops:
        rate = device.peak(job.precision.compute)
        used = next(name for name, peak in device.peak_flops.items() if peak == rate)
        notes.append(
            f"{device.name} has no {job.precision.compute} matrix units: priced at its {used} rate"
        )
    return notes


def _simulated(choice: Choice | None) -> list[str]:
    if choice is None or choice.simulated_s is None:
        return []
    moved = choice.simulated_s / choice.closed_form_s - 1
    return [
        f"simulated operation by operation, the step takes {format_seconds(choice.simulated_s)} "
        f"({moved:+.1%} against the closed forms)"
    ]


def _memory_too_close(estimate: Estimate) -> list[str]:
    """Say when the device's memory lies inside the range of the peak: then a run must decide."""
    held = estimate.peak_memory_range
    if held is None or not estimate.memory_too_close:
        return []
    return [
        f"whether it fits is too close to call: the peak may be {format_bytes(held.low)} to "
        f"{format_bytes(held.high)} of {format_bytes(estimate.capacity_bytes)}; two steps on the real "
        f"devices would settle it"
    ]


def _too_close(ranked: Candidates) -> str | None:
    """Say when another shape is within 2 %: then a measurement must decide."""
    first = ranked.columns.layout(0)
    for row in range(1, min(ranked.columns.rows, 400)):
        layout = ranked.columns.layout(row)
        if ranked.pessimistic_s[row] > ranked.pessimistic_s[0] * 1.02:
            return None
        if _shape(layout)[:3] != _shape(first)[:3]:
            gap = ranked.pessimistic_s[row] / ranked.pessimistic_s[0] - 1
            return (
                f"too close to call: {layout.label()} is within {gap:.1%}; a ten-step run of both "
                f"would settle it"
            )
    return None
