"""Host memory as a choice: layouts that keep activations, optimizer or parameters there.

What travels costs time. Where nothing fits without, it is the answer; where a layout that does not fit
would be faster with it than the best that fits (mostly because less is recomputed or split), it is shown
beside the answer.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.planner.legality import Question
from meshwright.planner.search import SearchResult, search
from meshwright.planner.space import Constraints, offered
from meshwright.specs.errors import SpecError
from meshwright.specs.layout import Layout, Offload

MARGIN = 0.1
"""Share of the step that host memory must gain to be worth another moving part: of the published recipes of
`docs/experts.md` that fit without, none uses it."""

CHOICES: tuple[tuple[Offload, ...], ...] = (
    ("activations",), ("optimizer",), ("activations", "optimizer"), ("optimizer", "parameters"),
    ("activations", "optimizer", "parameters"),
)  # fmt: skip


def offload_choices(question: Question, constraints: Constraints) -> list[tuple[Offload, ...]]:
    """What may be tried in host memory: nothing where the user said what lives there."""
    if constraints.offload is not None:
        return []
    has = offered(question).offload
    return [choice for choice in CHOICES if all(what in has for what in choice)]


def faster_in_host(
    question: Question, constraints: Constraints, result: SearchResult
) -> Layout | None:
    """The fastest layout that keeps activations in host memory, recomputes nothing and beats the best."""
    wanted: tuple[Offload, ...] = ("activations",)
    if wanted not in offload_choices(question, constraints) or not result.ranked.columns.rows:
        return None
    limit = float(result.ranked.pessimistic_s[0]) * (1 - MARGIN)
    if not (result.over_memory.pessimistic_s < limit).any():
        return None
    moved = constraints.but(
        offload=wanted, no_recompute=True, fit_probability=result.fit_probability
    )
    try:
        found = search(question, moved, bounded=True, keep=1, under=limit).ranked
    except SpecError:
        return None
    if not found.columns.rows or found.pessimistic_s[0] >= limit:
        return None
    return found.columns.layout(0)


def fitting_in_host(
    question: Question, constraints: Constraints, result: SearchResult, surely: float = 0.0
) -> SearchResult:
    """Where nothing fits: the search again with ever more in host memory, until something does.

    `surely`: the least probability of fitting that counts.
    """
    for choice in offload_choices(question, constraints):
        try:
            found = search(question, constraints.but(offload=choice), bounded=True)
        except SpecError:
            continue
        if found.ranked.columns.rows and found.fit_probability >= surely:
            return replace(result, ranked=found.ranked, fit_probability=found.fit_probability)
    return result
