"""The table of a plan: what each framework would do, best first, and why not."""

from __future__ import annotations

from meshwright.costs.step import estimate
from meshwright.planner.rescue import lacking, shortfall
from meshwright.planner.solve import Solution
from meshwright.planner.stacks import ALIKE, starts
from meshwright.planner.words import PART_WORDS
from meshwright.specs.plan import Estimate, FrameworkAnswer
from meshwright.specs.quantities import format_bytes


def answers(
    solutions: list[Solution], refused: dict[str, str], objective: str = "time"
) -> tuple[FrameworkAnswer, ...]:
    """The table of a plan: what each framework would do, best first, and why not."""
    best = _priced(solutions[0])
    found = []
    for solution in solutions:
        name, priced = solution.question.job.framework, _priced(solution)
        if priced is None:
            found.append(FrameworkAnswer(framework=name, why_not=_shortfall(solution)))
            continue
        why = "" if solution is solutions[0] else _why_not(solution, best, priced, objective)
        found.append(
            FrameworkAnswer(
                framework=name, layout=solution.layout, step_time_s=priced.step_time_s,
                pessimistic_s=priced.pessimistic_s, peak_memory_bytes=priced.peak_memory_bytes,
                fit_probability=priced.fit_probability, why_not=why,
            )
        )  # fmt: skip
    found += [FrameworkAnswer(framework=name, why_not=why) for name, why in refused.items()]
    return tuple(found)


def _priced(solution: Solution) -> Estimate | None:
    if solution.choice is None:
        return None
    question = solution.question
    return estimate(question.model, question.cluster, question.job, solution.layout)


def _shortfall(solution: Solution) -> str:
    found = shortfall(solution.question, solution.result)
    if found is None:
        return "no legal layout"
    return f"does not fit: its lightest layout {lacking(found[1])}"


def _why_not(
    solution: Solution, best: Estimate | None, priced: Estimate, objective: str = "time"
) -> str:
    assert best is not None
    more = priced.peak_memory_bytes - best.peak_memory_bytes
    if objective == "memory" and more > 0:
        return f"needs {format_bytes(more)} more memory"
    if (
        solution.result.fit_probability
        and (best.fit_probability or 1) - (priced.fit_probability or 1) > 0.1
    ):
        return f"fits with {priced.fit_probability:.0%} only"
    change = (priced.pessimistic_s or 0.0) / (best.pessimistic_s or 1.0) - 1
    shown = f"{abs(change):.0%}" if abs(change) >= 0.01 else f"{abs(change):.1%}"
    if change < -0.0005 and not starts(solution.question):
        what = "of a mixture" if solution.question.model.experts else "for these devices"
        return f"{shown} faster, but no plan {what} can be written for it here"
    if -1.01 * ALIKE < change < 0 and starts(solution.question):
        return f"as fast within {ALIKE:.0%}, and no reason to change to it"
    if abs(change) < 0.0005:
        return "as fast, and no reason to change to it"
    grown = max(
        (priced.time_parts[name] - best.time_parts[name], name) for name in priced.time_parts
    )
    # Frameworks are ranked by the pessimistic time: where the other one leads, the words say which is meant.
    worst = " at worst" if priced.step_time_s < best.step_time_s else ""
    return f"{shown} slower{worst}: more time in {PART_WORDS[grown[1]]} ({grown[0]:+.3g} s)"
