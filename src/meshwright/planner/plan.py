"""The planner's front door: model, cluster and job in, a defended Plan out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from meshwright.costs.step import estimate, estimates
from meshwright.planner.compared import UPPER_BOUND, asked_for, stacks_for
from meshwright.planner.dispatchers import not_written
from meshwright.planner.economy import cheapest, dearer, offers
from meshwright.planner.flips import Replan, flip_points
from meshwright.planner.graphs import capacity_note, faster_with_graphs, graph_note
from meshwright.planner.legality import Question, why_illegal
from meshwright.planner.neighbours import neighbours, why_lost
from meshwright.planner.notes import layout_notes, notes
from meshwright.planner.odds import Odds
from meshwright.planner.offloading import faster_in_host
from meshwright.planner.rescue import shortfall, ways_out
from meshwright.planner.search import SearchResult, pareto, search
from meshwright.planner.solve import Solution, answer
from meshwright.planner.space import Constraints
from meshwright.planner.stack_table import answers
from meshwright.planner.stacks import Refuses, all_searched, solve_all, solve_ways, under
from meshwright.specs.cluster import Cluster
from meshwright.specs.clusters import not_measured
from meshwright.specs.devices import unmeasured
from meshwright.specs.errors import DoesNotFitError, SpecError
from meshwright.specs.frameworks import framework
from meshwright.specs.job import Job
from meshwright.specs.job_words import job_lacks
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model
from meshwright.specs.plan import Alternative, Estimate, FlipPoint, FrameworkAnswer, Plan, Searched
from meshwright.specs.sharing import shared_card
from meshwright.version import __version__

OBJECTIVES = ("time", "memory", "cost")
RUNNER_UP = "another shape"
"""The `axis` of alternatives that differ in more than one choice."""
GAMBLE = "gamble"
"""The `axis` of a faster layout that fits with lower odds than were asked for."""
IN_HOST = "host memory"
"""The `axis` of a faster layout that keeps activations in host memory."""
CAPTURED = "CUDA graphs"
"""The `axis` of a layout that is faster where CUDA graphs spare the host its launches."""
GAMBLE_GAIN = 0.01
"""Share of the step that a gamble must gain to be worth showing."""
NEAR = 1.15
"""How much slower than the best a framework may be for its layouts to say where flip points are looked for."""


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
    refuses: Refuses | None = None,
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
        refuses: says why no plan of a question can be written for its framework (`exports.expressible.why_unwritten`);
            tools that train further are then compared where one can.

    Raises:
        DoesNotFitError: no legal layout fits; the message gives the shortfall and three ways out.
        SpecError: no layout is legal under the constraints, the framework cannot run the job, or a
            deadline without a token budget.
    """
    if objective not in OBJECTIVES:
        raise SpecError("objective", objective, f"one of {', '.join(OBJECTIVES)}")
    job = job or Job()
    asked = Question(model, cluster, job)
    if asked_for(job):
        run = _as_run(asked)
        for field, value, instead in [
            *job_lacks(run, framework(job.framework)),
            *not_written(run, job.framework),
        ]:
            raise SpecError(field, value, f"{framework(job.framework).title} {instead}")
    constraints = constraints or Constraints()
    if max_days is not None:
        _check_deadline(max_days, objective, job)
    by = "time" if objective == "cost" else objective
    found = _answers(asked, constraints, by, progress, refuses)
    solution = found.solutions[0]
    economy: list[Alternative] = []
    if objective == "cost":
        solution, economy = _cheapest(solution, constraints, max_days, top, progress)
    if solution.choice is None:
        solution = min(found.solutions, key=_lacks)
        exhaustive = search(solution.question, constraints)
        raise DoesNotFitError(
            "; ".join(ways_out(solution.question, constraints, exhaustive, solution.result))
        )
    question, chosen = solution.question, solution.layout
    best = estimate(model, question.cluster, question.job, chosen)
    alternatives = [
        *economy,
        *_runners_up(solution, best, top),
        *_gamble(solution, best),
        *(_in_host(solution, constraints, best) if top else ()),
        *(_captured(solution, best) if top else ()),
    ]
    flips: tuple[FlipPoint, ...] = ()
    if defend:
        alternatives += neighbours(question, chosen, best, solution.result.fit_probability)
        if objective == "time":
            flips = flip_points(asked, found.near, found.replan)
    return Plan(
        meshwright_version=__version__,
        command=command,
        model=model,
        cluster=question.cluster,
        job=question.job,
        layout=chosen,
        estimate=best,
        fits=best.fits,
        objective=objective,
        frameworks=found.table,
        alternatives=tuple(alternatives),
        flip_points=flips,
        searched=solution.result.searched if objective == "cost" else found.searched,
        notes=(
            *_used(question.cluster, cluster),
            *notes(solution, best, constraints, asked, found.replan, objective == "memory"),
            *capacity_note(question, chosen, best),
            *graph_note(question.job),
            *_unmeasured(question.cluster),
        ),
    )


@dataclass(frozen=True)
class _Answers:
    """What answered a question: one framework, or several compared."""

    solutions: list[Solution]
    table: tuple[FrameworkAnswer, ...]
    searched: Searched
    replan: Replan

    @property
    def near(self) -> list[Solution]:
        """The solutions that came within `NEAR` of the best."""
        first = self.solutions[0].choice
        if first is None:
            return []
        return [
            one
            for one in self.solutions
            if one.choice is not None and one.choice.score <= first.score * NEAR
        ]


def _as_run(asked: Question) -> Job:
    """The job as the framework that it names runs it."""
    job, cluster = asked.job, asked.cluster
    if job.framework == UPPER_BOUND:
        return job
    return under(job, job.framework, cluster.device, cluster.gpus, asked.model)


def _answers(
    asked: Question,
    constraints: Constraints,
    objective: str,
    progress: Callable[[int], None] | None,
    refuses: Refuses | None,
) -> _Answers:
    if asked_for(asked.job) or not stacks_for(asked.cluster.device.vendor, asked.job):
        job = _as_run(asked)
        solution = solve_ways(replace(asked, job=job), constraints, objective)
        if progress:
            progress(solution.result.searched.priced)

        def again(question: Question) -> Solution | None:
            renewed = replace(question, job=job.but(global_batch=question.job.global_batch))
            return _solved(lambda: solve_ways(renewed, constraints))

        return _Answers([solution], (), solution.result.searched, again)
    solutions, refused = solve_all(
        asked, constraints, objective, progress=progress, refuses=refuses
    )
    found = _Answers(
        solutions,
        answers(solutions, refused, objective),
        all_searched([one.result.searched for one in solutions]),
        lambda _: None,
    )

    def all_again(question: Question) -> Solution | None:
        # All frameworks: one that is far behind today may come first; bounds leave out the others.
        return _solved(
            lambda: solve_all(question, constraints, winner_only=True, refuses=refuses)[0][0]
        )

    return replace(found, replan=all_again)


def _solved(solving: Callable[[], Solution]) -> Solution | None:
    try:
        found = solving()
    except SpecError:
        return None
    return found if found.choice is not None else None


def _lacks(solution: Solution) -> float:
    """Bytes a device that what does not fit lacks at least; infinite where no layout is legal."""
    found = shortfall(solution.question, solution.result)
    return found[1] if found is not None else math.inf


def _check_deadline(max_days: float, objective: str, job: Job) -> None:
    if objective != "cost":
        raise SpecError("max_days", max_days, "a deadline goes with the objective cost")
    if not 0 < max_days < float("inf"):
        raise SpecError("max_days", max_days, "a positive number of days is expected")
    if not job.token_budget:
        raise SpecError("max_days", max_days, "a deadline needs a token budget, such as 1T tokens")


def _cheapest(
    solution: Solution,
    constraints: Constraints,
    max_days: float | None,
    top: int,
    progress: Callable[[int], None] | None,
) -> tuple[Solution, list[Alternative]]:
    """The question on as many devices as are cheapest, solved, and `top` other numbers."""
    found = offers(solution.question, constraints, progress)
    if not found:
        return solution, []
    chosen = cheapest(found, max_days)
    result = replace(
        chosen.result, searched=all_searched([offer.result.searched for offer in found])
    )
    return answer(chosen.question, constraints, result), dearer(found, chosen, max_days)[:top]


def _unmeasured(cluster: Cluster) -> list[str]:
    found = (unmeasured(cluster.device), shared_card(cluster), not_measured(cluster))
    return [note for note in found if note]


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
        notes=(*layout_notes(question, priced), *graph_note(job), *_unmeasured(cluster)),
    )  # fmt: skip


def pareto_front(question: Question, result: SearchResult) -> list[tuple[Layout, Estimate]]:
    """Layouts that no other beats in both step time and peak memory, fastest first."""
    rows = pareto(result.ranked)
    layouts = [result.ranked.columns.layout(int(row)) for row in rows]
    priced = estimates(question.model, question.cluster, question.job, layouts)
    return list(zip(layouts, priced, strict=True))


def _shape(layout: Layout) -> tuple[object, ...]:
    return (
        layout.tp, layout.pp, layout.cp, layout.ep, layout.etp, layout.zero, layout.schedule,
        layout.recompute,
    )  # fmt: skip


def _runners_up(solution: Solution, best: Estimate, top: int) -> list[Alternative]:
    """The best layouts of other shapes: what a colleague would propose instead."""
    question, ranked = solution.question, solution.result.ranked
    seen = {_shape(solution.layout)}
    layouts: list[Layout] = []
    for row in range(ranked.columns.rows if top else 0):
        layout = ranked.columns.layout(row)
        if _shape(layout) not in seen:
            seen.add(_shape(layout))
            layouts.append(layout)
        if len(layouts) >= top:
            break
    priced = estimates(question.model, question.cluster, question.job, layouts)
    wanted = solution.result.fit_probability
    return [
        Alternative(
            axis=RUNNER_UP,
            layout=layout,
            estimate=other,
            why_not=why_lost(question, best, other, layout, wanted),
        )
        for layout, other in zip(layouts, priced, strict=True)
    ]


def _in_host(solution: Solution, constraints: Constraints, best: Estimate) -> list[Alternative]:
    """The fastest layout that recomputes nothing because host memory holds its activations.

    It is shown, not chosen: how far the copies hide behind the compute has been measured by no
    published run, so a default that fits without does not rest on it.
    """
    question = solution.question
    layout = faster_in_host(question, constraints, solution.result)
    if layout is None:
        return []
    other = estimate(question.model, question.cluster, question.job, layout)
    gain = 1 - other.step_time_s / best.step_time_s
    why = (
        f"{gain:.1%} faster if the copies to host memory hide as modelled, which no published run has "
        "measured; --offload activations takes it"
    )
    return [Alternative(axis=IN_HOST, layout=layout, estimate=other, why_not=why)]


def _captured(solution: Solution, best: Estimate) -> list[Alternative]:
    """The fastest layout whose layers CUDA graphs capture: shown, taken when asked for."""
    found = faster_with_graphs(solution.question, best, solution.result)
    if found is None:
        return []
    question, layout = found
    other = estimate(question.model, question.cluster, question.job, layout)
    gain = 1 - other.step_time_s / best.step_time_s
    why = (
        f"{gain:.1%} faster if graphs hide all launches; published comparisons found from -2 % to 25 %, "
        "so `--cuda-graphs layers` takes it only when asked"
    )
    return [Alternative(axis=CAPTURED, layout=layout, estimate=other, why_not=why)]


def _gamble(solution: Solution, best: Estimate) -> list[Alternative]:
    """The fastest layout that fits by the estimate, but not with the odds that were asked for."""
    question, gambles = solution.question, solution.result.gambles
    rows = np.flatnonzero(gambles.pessimistic_s < (best.pessimistic_s or 0.0) * (1 - GAMBLE_GAIN))
    if not len(rows):
        return []
    layout = gambles.columns.layout(int(rows[0]))
    other = estimate(question.model, question.cluster, question.job, layout)
    gain = 1 - other.step_time_s / best.step_time_s
    odds = Odds.of(question).fits(other.peak_memory_bytes, other.capacity_bytes)
    why = f"{gain:.1%} faster, but fits with {odds:.0%} only: a gamble that two steps would settle"
    return [Alternative(axis=GAMBLE, layout=layout, estimate=other, why_not=why)]
