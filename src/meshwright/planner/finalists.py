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
from meshwright.planner.search import Candidates, reprice
from meshwright.simulator.plan_step import plan_step
from meshwright.specs.errors import SpecError
from meshwright.specs.frameworks import framework
from meshwright.specs.layout import Layout

MOST = 3
"""Shapes that are simulated."""
WITHIN = 1.015
"""How much slower than the first a finalist may be: the simulator moves no layout by more."""
OPERATIONS = 40_000
"""Operations above which a step is left to the closed forms: ten million would not change ranks."""


@dataclass(frozen=True)
class Choice:
    """The layout chosen, and how far the simulator moved its step time."""

    layout: Layout
    closed_form_s: float
    simulated_s: float | None
    score: float
    """Pessimistic step time, moved by as much as the simulator moved the nominal one."""
    peak_bytes: float


def choose(
    question: Question, ranked: Candidates, more: Sequence[Layout] = (), room: float | None = None
) -> Choice:
    """Balance and simulate the best layout of each of the best shapes; return the fastest.

    `more` are layouts that the search does not enumerate but that are as good; `room` is how many
    times its peak a layout needs to fit.
    """
    candidates = balanced(question, [*more[:MOST], *_finalists(ranked)], room)
    best: Choice | None = None
    limit = float(candidates.pessimistic_s.min()) * WITHIN
    for row in range(candidates.columns.rows):
        closed, pessimistic = (
            float(candidates.step_time_s[row]),
            float(candidates.pessimistic_s[row]),
        )
        if pessimistic > limit:
            continue
        layout = candidates.columns.layout(row)
        moved = _moved_s(question, layout)
        score = pessimistic + (moved or 0.0)
        if best is None or score < best.score * (1 - 1e-4):
            simulated = None if moved is None else closed + moved
            best = Choice(layout, closed, simulated, score, float(candidates.peak_bytes[row]))
    assert best is not None
    return best


def _finalists(ranked: Candidates) -> list[Layout]:
    found: dict[tuple[int, ...], Layout] = {}
    columns = ranked.columns
    limit = float(ranked.pessimistic_s[0]) * WITHIN
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


def _moved_s(question: Question, layout: Layout) -> float | None:
    """Simulated less closed-form step time; None where there is no pipeline or it is too long.

    What the closed forms leave out happens while a pipeline fills and drains: once it is full, both
    grow by the pace of the slowest rank. So a long step is simulated with few micro-batches.
    """
    if layout.pp == 1:
        return None
    micro_batches = layout.micro_batches(question.job.global_batch)
    if micro_batches > 2 * layout.pp and micro_batches % layout.pp == 0:
        micro_batches = 2 * layout.pp
    if 3 * layout.pp * layout.virtual_stages * micro_batches > OPERATIONS:
        return None
    job = question.job.but(global_batch=micro_batches * layout.dp * layout.micro_batch)
    try:
        step = plan_step(question.model, question.cluster, job, layout)
    except SpecError:
        return None
    return float(step.run().step_s) - step.closed_form.step_time_s


def balanced(
    question: Question, layouts: Sequence[Layout], room: float | None = None
) -> Candidates:
    """Move layers away from the stages that hold embedding and head, where that makes a step faster.

    Every contiguous split that gives the first and the last rank up to four layers fewer than the
    even one is priced; the even one wins ties. Returns one priced row for each layout.
    """
    splits: list[Layout] = []
    of: list[int] = []
    for index, layout in enumerate(layouts):
        ways = [fewest for split in _splits(question, layout) for fewest in _fewer(split)]
        splits += ways
        of += [index] * len(ways)
    candidates = reprice(question, from_layouts(splits), room)
    times = np.where(candidates.fits, candidates.pessimistic_s, np.inf)
    owner = np.array(of)
    picks = []
    for index in range(len(layouts)):
        rows = np.flatnonzero(owner == index)
        best = rows[int(np.argmin(times[rows]))]
        picks.append(best if times[best] < times[rows[0]] * 0.998 else rows[0])
    return candidates.take(np.array(picks, dtype=np.int64))


def _splits(question: Question, layout: Layout) -> list[Layout]:
    """The layout as it is, then with fewer layers on the first and the last rank."""
    even, surplus = divmod(question.model.layers, layout.pp)
    fixed = layout.stage_recompute_layers is not None
    fixed = fixed or not framework(question.job.framework).stage_layers
    turning = layout.virtual_stages == 1 or layout.schedule == "interleaved"
    if layout.pp < 3 or even < 2 or fixed or not turning:
        return [layout]
    # Only the stages with the embedding and the head may hold nothing else; the engine's hold a layer each.
    alone = question.job.framework != "meshwright"
    fewest = max(even - 4, layout.virtual_stages - alone, 1)
    splits = [layout]
    for first in range(fewest, even + 1):
        for last in range(fewest, even + 1):
            rest = question.model.layers - first - last
            inner = layout.pp - 2
            middle = [rest // inner + (i < rest % inner) for i in range(inner)]
            if (first, last) != (even, even) or surplus:
                held = dealt((first, *middle, last), layout.virtual_stages)
                splits.append(layout.but(stage_layers=held))
    return splits


def dealt(ranks: Sequence[int], chunks: int) -> tuple[int, ...]:
    """Layers of each virtual stage, in the pipeline's order, from those of each rank.

    As evenly as they go: what is over goes to a rank's first chunks, and of the first rank to its last, so
    that the stages with the embedding and the head are the short ones.
    """
    counts = [
        [rank // chunks + (chunk < rank % chunks) for chunk in range(chunks)] for rank in ranks
    ]
    counts[0].reverse()
    return tuple(held[chunk] for chunk in range(chunks) for held in counts)


def _fewer(layout: Layout) -> list[Layout]:
    """The layout, and with up to four layers per chunk fewer recomputed: a split may allow it."""
    step = layout.virtual_stages
    counts = range(
        layout.recompute_layers - step, max(layout.recompute_layers - 5 * step, 0), -step
    )
    return [layout, *(layout.but(recompute_layers=count) for count in counts)]
