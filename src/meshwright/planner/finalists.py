"""The finalists of a search, re-priced by the simulator, stage by stage.

The search prices with closed forms that know the first, a middle and the last rank. Where stages
differ or a schedule's order matters, the operations themselves decide: the best layouts of the best
shapes are balanced and simulated, and the one whose simulated step is shortest is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.costs.columns import from_layouts
from meshwright.planner.legality import Question
from meshwright.planner.partial_recompute import fewest_recomputed
from meshwright.planner.search import Candidates, reprice
from meshwright.simulator.plan_step import plan_step
from meshwright.specs.errors import SpecError
from meshwright.specs.frameworks import framework
from meshwright.specs.layout import Layout

MOST = 5
"""Shapes that are simulated."""
OPERATIONS = 40_000
"""Operations above which a step is left to the closed forms: ten million would not change ranks."""


@dataclass(frozen=True)
class Choice:
    """The layout chosen, and how far the simulator moved its step time."""

    layout: Layout
    closed_form_s: float
    simulated_s: float | None


def choose(question: Question, ranked: Candidates, more: Sequence[Layout] = ()) -> Choice:
    """Balance and simulate the best layout of each of the best shapes; return the fastest.

    `more` are layouts that the search does not enumerate but that are as good.
    """
    best: tuple[float, Choice] | None = None
    for layout in (*more, *_finalists(ranked)):
        layout = fewest_recomputed(question, balanced(question, layout))
        candidate = reprice(question, from_layouts([layout]))
        closed, pessimistic = float(candidate.step_time_s[0]), float(candidate.pessimistic_s[0])
        simulated = _simulated_s(question, layout)
        score = pessimistic + (simulated - closed if simulated is not None else 0.0)
        if best is None or score < best[0] * (1 - 1e-4):
            best = score, Choice(layout, closed, simulated)
    assert best is not None
    return best[1]


def _finalists(ranked: Candidates) -> list[Layout]:
    found: dict[tuple[int, ...], Layout] = {}
    columns = ranked.columns
    limit = float(ranked.pessimistic_s[0]) * 1.03
    for row in range(columns.rows):
        if len(found) == MOST or ranked.pessimistic_s[row] > limit:
            break
        key = (
            int(columns.tp[row]), int(columns.pp[row]), int(columns.ep[row]),
            int(columns.schedule[row]), min(int(columns.virtual_stages[row]), 3),
        )  # fmt: skip
        if key not in found:
            found[key] = columns.layout(row)
    return list(found.values())


def _simulated_s(question: Question, layout: Layout) -> float | None:
    """Simulated step time, or None where there is no pipeline or it is too long to be worth it."""
    chunks = layout.pp * layout.virtual_stages * layout.micro_batches(question.job.global_batch)
    if layout.pp == 1 or 3 * chunks > OPERATIONS:
        return None
    try:
        step = plan_step(question.model, question.cluster, question.job, layout)
    except SpecError:
        return None
    return float(step.run().step_s)


def balanced(question: Question, layout: Layout) -> Layout:
    """Move layers away from the stages that hold embedding and head, if that makes a step faster.

    Every contiguous split that gives the first and the last rank up to four layers fewer than the
    even one is priced; the even one wins ties.
    """
    even, surplus = divmod(question.model.layers, layout.pp)
    fixed = layout.stage_recompute_layers is not None
    fixed = fixed or not framework(question.job.framework).stage_layers
    if layout.pp < 3 or layout.virtual_stages > 1 or even < 2 or fixed:
        return layout
    splits = [layout]
    for first in range(max(even - 4, 1), even + 1):
        for last in range(max(even - 4, 1), even + 1):
            rest = question.model.layers - first - last
            inner = layout.pp - 2
            middle = [rest // inner + (i < rest % inner) for i in range(inner)]
            if (first, last) != (even, even) or surplus:
                splits.append(layout.but(stage_layers=(first, *middle, last)))
    candidates = reprice(question, from_layouts(splits))
    times = np.where(candidates.fits, candidates.pessimistic_s, np.inf)
    best = int(np.argmin(times))
    return splits[best] if times[best] < times[0] * 0.998 else layout
