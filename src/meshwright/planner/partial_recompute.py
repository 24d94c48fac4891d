"""Recomputing only as many layers as memory asks for, and fewer in later pipeline stages.

The search knows three modes: no layer recomputed, selective, every layer. A layout that fits with
every layer recomputed mostly fits with only some, at a fraction of the time. So the fastest such
layouts are taken up again: the least number of layers per rank that fits is found, and then,
because a 1F1B stage holds fewer micro-batches in flight the later it is, fewer for the ranks behind
the first.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.costs.columns import RECOMPUTES, Floats, Ints, LayoutColumns, from_layouts
from meshwright.planner.legality import Question
from meshwright.planner.search import SearchResult, reprice
from meshwright.planner.space import Constraints, offered
from meshwright.specs.layout import Layout

SEEDS = 200
"""Layouts with every layer recomputed that are taken up again: the fastest."""
KEPT = 5
"""Layouts handed to the finalists."""
TRIED = 20
"""Numbers of layers that a round prices of each: of shallow models all at once."""
SPLIT_MARGIN = 0.01
"""Share of the step that unequal stages must gain: few frameworks can run them."""


def partly_recomputed(
    question: Question, constraints: Constraints, result: SearchResult, room: float | None = None
) -> list[Layout]:
    """Layouts that fit with some layers recomputed and beat the best of the search, fastest first.

    Empty where recomputation is fixed or forbidden, or where the framework has all or nothing.
    """
    fixed = constraints.recompute is not None or constraints.no_recompute
    can = offered(question)
    if fixed or not can.recompute_layers or not result.ranked.columns.rows:
        return []
    limit = float(result.ranked.pessimistic_s[0])
    seeds = _seeds(result)
    if not seeds.rows:
        return []
    found = _uniform(question, seeds, limit, room)
    if can.stage_recompute_layers:
        tapered = [_tapered(question, layout, time, room) for layout, time in found[:KEPT]]
        found = tapered + found[KEPT:]
        found.sort(key=lambda item: item[1])
    return [layout for layout, _ in found[:KEPT]]


def _seeds(result: SearchResult) -> LayoutColumns:
    ranked = result.ranked
    full = np.flatnonzero(ranked.columns.recompute == RECOMPUTES.index("full"))
    return ranked.columns.take(full[:SEEDS])


def _uniform(
    question: Question, seeds: LayoutColumns, limit: float, room: float | None
) -> list[tuple[Layout, float]]:
    """Each seed with the fewest layers per rank that make it fit, if still under the limit."""
    fewest, took_s = _fewest(question, seeds, room)
    good = np.flatnonzero(took_s < limit)
    order = good[np.argsort(took_s[good], kind="stable")]
    counted = replace(seeds, recompute_layers=fewest * seeds.virtual_stages)
    return [(counted.layout(int(row)), float(took_s[row])) for row in order]


def _fewest(question: Question, seeds: LayoutColumns, room: float | None) -> tuple[Ints, Floats]:
    """For each seed the fewest recomputed layers of a chunk that make it fit, and its time; infinite where none do.

    A chunk is a module list: frameworks recompute the same number in each of a rank's chunks. More recomputed
    layers never hold more, so each round prices `TRIED` numbers, evenly spaced, and goes on between two of them.
    """
    chunks = seeds.virtual_stages
    enough = (question.model.layers // seeds.pp - 1) // chunks + 1  # every layer, or beyond
    too_few, took_s = np.zeros_like(enough), np.full(seeds.rows, np.inf)
    while (left := np.flatnonzero(enough - too_few > 1)).size:
        step = -(-(enough[left] - too_few[left]) // (TRIED + 1))
        tried = too_few[left, None] + step[:, None] * np.arange(1, TRIED + 1)
        row, column = np.nonzero(tried < enough[left, None])
        seed, count = left[row], tried[row, column]
        asked = replace(seeds.take(seed), recompute_layers=count * chunks[seed])
        priced = reprice(question, asked, room)
        fits = np.flatnonzero(priced.fits)[::-1]  # of a seed's numbers the least is written last
        enough[seed[fits]], took_s[seed[fits]] = count[fits], priced.pessimistic_s[fits]
        np.maximum.at(too_few, seed[~priced.fits], count[~priced.fits])
    return enough, took_s


def _tapered(
    question: Question, layout: Layout, time_s: float, room: float | None
) -> tuple[Layout, float]:
    """The layout with fewer recomputed layers behind the first rank, where that is faster."""
    most = layout.recompute_layers
    if layout.pp < 2 or layout.virtual_stages > 1 or layout.schedule != "1f1b":
        return layout, time_s
    inner = layout.pp - 2
    splits = [
        (first, *(middle,) * inner, last)
        for first in range(most, max(most - 3, 0), -1)
        for middle in (range(first + 1) if inner else (0,))
        for last in range((middle if inner else first) + 1)
    ]
    layouts = [layout.but(recompute_layers=0, stage_recompute_layers=split) for split in splits]
    priced = reprice(question, from_layouts(layouts), room)
    times = np.where(priced.fits, priced.pessimistic_s, np.inf)
    best = int(np.argmin(times))
    if times[best] < time_s * (1 - SPLIT_MARGIN):
        return layouts[best], float(times[best])
    return layout, time_s
