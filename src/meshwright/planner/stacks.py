"""The default answer: the best that a real framework can do, and what the others would.

A plan that no software runs is an upper bound. So unless a framework is asked for, each that runs on
the device answers the question under its own rules (what it can express), its own precision (fp32
gradients where it accumulates in fp32) and its own measured behaviour, and the fastest answer wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from meshwright.costs.frameworks import behaviour
from meshwright.planner.compared import stacks_for
from meshwright.planner.dispatchers import WORTH, not_written, ways_to_dispatch
from meshwright.planner.legality import Question
from meshwright.planner.nothing_legal import any_legal, why_nothing
from meshwright.planner.odds import WANTED
from meshwright.planner.search import SearchResult, reaches, search
from meshwright.planner.solve import Solution, answer, first_of, solve
from meshwright.planner.space import Constraints
from meshwright.planner.tuning import as_tuned
from meshwright.specs.cluster import Cluster, Device
from meshwright.specs.errors import SpecError
from meshwright.specs.frameworks import framework
from meshwright.specs.job import RECIPES, Framework, Job, PrecisionRecipe
from meshwright.specs.job_words import job_lacks
from meshwright.specs.model import Model
from meshwright.specs.plan import Searched

CLOSE = 1.03
"""How much slower than the best, by the search alone, a framework may be and still be looked at closely:
with partial recomputation, uneven stages and the simulator."""


ALIKE = CLOSE - 1
"""Share of the step by which a framework must be faster than an earlier one of its list to come before it: what was
looked at closely. Half of the model's predictions are further off than twice as much (docs/accuracy.md)."""


Refuses = Callable[[Model, Job, Cluster], str]
"""Says why no plan of a question could be written in the words of the job's framework; empty: one can."""


def under(
    job: Job,
    name: Framework,
    device: Device | None = None,
    devices: int = 1,
    model: Model | None = None,
) -> Job:
    """The job as a framework runs it: its attention kernel, and its precision unless one was named.

    Sinks of a model that its kernel on the device does not know keep all scores.

    On a device without units for bf16 (NVIDIA's before Ampere) both are what it has: fp16, and plain attention.
    """
    job = as_tuned(job, name, device, devices)
    changes: dict[str, object] = {"framework": name}
    known = behaviour(Job(framework=name))
    if "attention_kernel" not in job.model_fields_set:
        old = device is not None and not device.has_bf16
        plain = old and "unfused" in framework(name).attention_kernels
        if model is not None and device is not None:
            plain = plain or framework(name).runs_sinks_plainly(model, device.vendor, device.name)
        changes["attention_kernel"] = "unfused" if plain else known.attention_kernel
    if "precision" not in job.model_fields_set:
        precision = _usual_precision(name, known.gradient_bytes)
        if device is not None and not device.has_bf16:
            precision = precision.but(name="fp16", compute="fp16")
        changes["precision"] = precision
    return job.but(**changes)


def _usual_precision(name: Framework, gradient_bytes: float) -> PrecisionRecipe:
    """bf16 as a framework keeps it: gradients in fp32 where it does, weights too where it has no copy."""
    can = framework(name)
    wide = gradient_bytes == 4 or (
        bool(can.gradients) and 2 not in {kept for kept, _ in can.gradients}
    )
    recipe = RECIPES["bf16-fp32-grads" if wide else "bf16"]
    wires = [wire for kept, wire in can.gradients if kept == recipe.gradient_bytes]
    if wires and recipe.gradient_reduce_bytes not in wires:
        recipe = recipe.but(gradient_reduce_bytes=wires[0])
    if recipe.master_bytes not in can.master_bytes and 0 in can.master_bytes:
        recipe = recipe.but(parameter_bytes=4, master_bytes=0)
    return recipe


def solve_all(
    question: Question,
    constraints: Constraints,
    objective: str = "time",
    progress: Callable[[int], None] | None = None,
    winner_only: bool = False,
    refuses: Refuses | None = None,
) -> tuple[list[Solution], dict[str, str]]:
    """What every framework answers, best first, and why some have nothing to answer.

    `winner_only` leaves out, before anything of them is priced, frameworks that by their bounds cannot
    come first. `refuses`: tools that train further are asked only where a plan could be written for them.

    Raises:
        SpecError: no framework has a legal layout under the constraints.
    """
    cluster = question.cluster
    names = stacks_for(cluster.device.vendor, question.job)
    runs = {
        name: under(question.job, name, cluster.device, cluster.gpus, question.model)
        for name in names
    }
    silent = _unwritten(question, runs, refuses)
    if len(silent) == len(names):  # none has it: it is planned for the first all the same
        silent.pop(names[0], None)
    found: list[tuple[Question, SearchResult]] = []
    left_out: list[list[Question]] = []
    refused: dict[str, str] = {}
    priced = 0
    for name in names:
        asked = replace(question, job=runs[name])
        if name in silent:
            refused[name] = silent[name]
            continue
        if elsewhere := _trains_experts_elsewhere(asked):
            refused[name] = elsewhere
            continue
        if missing := [*job_lacks(asked.job, framework(name)), *not_written(asked.job, name)]:
            refused[name] = missing[0][2]
            continue
        ways = ways_to_dispatch(asked)
        try:
            if winner_only and all(_cannot_win(way, constraints, found) for way in ways):
                left_out.append(ways)
                continue
            results = [
                (way, _searched(way, constraints, objective, winner_only=winner_only))
                for way in ways
            ]
        except SpecError as error:
            refused[name] = error.remedy
            continue
        found += results
        priced += sum(result.searched.priced for _, result in results)
        if progress:
            progress(priced)
    if not found:
        raise _none_has_a_layout(question, constraints, names, refused)
    field = _Field(constraints, objective, [first_of(asked, result) for asked, result in found])
    return _best_of_each(field.run(left_out), objective), refused


def _unwritten(
    question: Question, runs: dict[Framework, Job], refuses: Refuses | None
) -> dict[str, str]:
    """Frameworks that do not build the model, and tools that train further whose files could not say the question."""
    if refuses is None or question.job.finetune is None:
        lacks = {name: framework(name).lacks_family(question.model) for name in runs}
        return {name: f"has no {one} among its models" for name, one in lacks.items() if one}
    said = {name: refuses(question.model, job, question.cluster) for name, job in runs.items()}
    return {name: why for name, why in said.items() if why}


def _trains_experts_elsewhere(question: Question) -> str:
    """Why a framework has no price for a mixture on these devices: its kernels of experts are for others."""
    can, vendor = framework(question.job.framework), question.cluster.device.vendor
    if starts(question) or not can.is_exported_on(vendor):
        return ""
    return f"has kernels for a mixture's experts on devices of {', '.join(can.experts_exported_on)} alone"


class _Field:
    """Solutions by the search alone, of which those that may come first are looked at closely.

    Closely: with partial recomputation, uneven stages and the simulator, and without what nobody could
    defend. That may cost a solution its place, so that whoever leads has been looked at as closely as the rest.
    """

    def __init__(self, constraints: Constraints, objective: str, solutions: list[Solution]) -> None:
        self.constraints, self.objective, self.solutions = constraints, objective, solutions
        self.closely = [False] * len(solutions)

    def run(self, left_out: list[list[Question]]) -> list[Solution]:
        """All solutions, the first of them looked at closely.

        `left_out`: by framework, each of its dispatchers; they join where bounds let one come first.
        """
        if all(one.choice is None for one in self.solutions):  # then host memory may be a way
            return [self._answer(one) for one in self.solutions]
        best = min(self._ranks())
        self._look([rank <= (best[0], best[1] * CLOSE) for rank in self._ranks()])
        self._look_ahead()
        leader = min(self._ranks())
        if leader[0] != best[0] or leader[1] <= best[1] * CLOSE:
            return self.solutions  # as bounds took it when they left some out
        for ways in left_out:
            if any(_reaches(way, self.constraints, leader[1]) for way in ways):
                for way in ways:
                    result = _searched(way, self.constraints, self.objective, winner_only=True)
                    self.solutions.append(first_of(way, result))
                    self.closely.append(False)
        self._look_ahead()
        return self.solutions

    def _ranks(self) -> list[tuple[float, float]]:
        return [_rank(one, self.objective) for one in self.solutions]

    def _answer(self, one: Solution) -> Solution:
        return answer(one.question, self.constraints, one.result, self.objective)

    def _look(self, wanted: list[bool]) -> None:
        for at, one in enumerate(self.solutions):
            if wanted[at] and not self.closely[at] and one.choice is not None:
                self.solutions[at], self.closely[at] = self._answer(one), True

    def _look_ahead(self) -> None:
        """Look at whoever leads unlooked at, until the leader has been."""
        while True:
            ranks = self._ranks()
            leader = min(ranks)
            ahead = [rank == leader for rank in ranks]
            fresh = [
                at for at, now in enumerate(ahead)
                if now and not self.closely[at] and self.solutions[at].choice is not None
            ]  # fmt: skip
            if not fresh:
                return
            self._look(ahead)


def _reaches(question: Question, constraints: Constraints, within: float) -> bool:
    try:
        return starts(question) and reaches(question, constraints, within)
    except SpecError:  # nothing is legal under it
        return False


def _none_has_a_layout(
    question: Question,
    constraints: Constraints,
    names: Iterable[Framework],
    refused: dict[str, str],
) -> SpecError:
    """Why no framework answers: what would stop any of them, or what each lacks."""
    free = replace(question, job=question.job.but(framework="any"))
    if not any_legal(free, constraints):
        return why_nothing(free, constraints)
    reasons: dict[str, list[str]] = {}
    for name in names:
        why = refused.get(name, "nothing that could come first")
        title = framework(name).title
        alike = why.replace(f" under {title}", "").removeprefix(f"{title} ")
        reasons.setdefault(alike, []).append(name)
    told = "; ".join(f"{', '.join(who)}: {why}" for why, who in reasons.items())
    return SpecError("framework", "none of the device's", told)


def solve_ways(question: Question, constraints: Constraints, objective: str = "time") -> Solution:
    """What one framework answers, with the dispatcher of experts' tokens that is best for it.

    Raises:
        SpecError: no layout is legal under the constraints.
    """
    ways = ways_to_dispatch(question)
    return _best_of_each([solve(way, constraints, objective) for way in ways], objective)[0]


def _best_of_each(solutions: list[Solution], objective: str) -> list[Solution]:
    """The answers of all frameworks, best first: each with the dispatcher that is best for it."""
    best: dict[str, Solution] = {}
    for one in solutions:  # the usual dispatcher comes first
        name = one.question.job.framework
        before = best.get(name)
        if before is None or _is_worth(_rank(one, objective), _rank(before, objective)):
            best[name] = one
    ranks = {name: _rank(one, objective) for name, one in best.items()}
    odds, first = min(ranks.values())
    # What no model of costs can tell is no reason for another stack than the first that is listed.
    alike = first * (1 + ALIKE)
    usual = next(name for name in best if ranks[name][0] == odds and ranks[name][1] <= alike)
    return [best[name] for name in sorted(best, key=lambda name: (name != usual, ranks[name]))]


def _is_worth(rank: tuple[float, float], before: tuple[float, float]) -> bool:
    """Whether another dispatcher makes something fit more surely, or gains enough."""
    return (rank[0], rank[1] / (1 - WORTH)) < before


def _searched(
    question: Question, constraints: Constraints, objective: str, *, winner_only: bool
) -> SearchResult:
    """The search; where the winner alone counts, what cannot fit is priced only if nothing does."""
    if winner_only:
        try:
            result = search(question, constraints, objective=objective, bounded=True, too_big=0)
        except SpecError:
            pass
        else:
            if result.ranked.columns.rows:
                return result
    return search(question, constraints, objective=objective, bounded=True)


def _cannot_win(
    question: Question, constraints: Constraints, found: list[tuple[Question, SearchResult]]
) -> bool:
    """Whether one found before fits as surely as asked for, can be started, and is surely faster.

    What comes first is at most `CLOSE` times as slow as the fastest, by the search alone.
    """
    wanted = constraints.fit_probability or WANTED
    best = min(
        (
            float(one.ranked.pessimistic_s[0])
            for asked, one in found
            if one.ranked.columns.rows and one.fit_probability >= wanted and starts(asked)
        ),
        default=float("inf"),
    )
    if best == float("inf"):
        return False
    return not starts(question) or not reaches(question, constraints, best * CLOSE)


def starts(question: Question) -> bool:
    """Whether a plan can be written in the words of the question's framework."""
    can, vendor = framework(question.job.framework), question.cluster.device.vendor
    return can.is_exported_on(vendor, experts=question.model.experts is not None)


def _rank(solution: Solution, objective: str) -> tuple[float, float]:
    """Best first: by the odds of fitting where they differ, then by what was asked for.

    A framework that a plan cannot be written for comes after all that fit and can be started.
    """
    if solution.choice is None:
        return (1.0, float("inf"))
    value = solution.choice.score if objective != "memory" else solution.choice.peak_bytes
    odds = -solution.result.fit_probability
    return (odds if starts(solution.question) else odds + 1.0, value)


def all_searched(searches: list[Searched]) -> Searched:
    """What several searches looked at together."""
    pruned: dict[str, int] = {}
    for one in searches:
        for reason, count in one.pruned.items():
            pruned[reason] = pruned.get(reason, 0) + count
    return Searched(
        priced=sum(one.priced for one in searches),
        pruned=pruned,
        seconds=sum(one.seconds for one in searches),
    )
