"""Leaving out what cannot win: bounds on time and memory that need no full pricing.

How states are sharded (ZeRO stage, shard degree) changes the traffic of data parallelism, the
optimizer's share and the states held, and nothing else. So one *head* stands for all ways to shard a
layout: priced once, without that traffic, it bounds all of them in time; holding the states that the
widest sharding leaves, in memory. Heads are opened in the order of their bounds, until the next one's
bound is worse than the best found by more than `SLACK`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from meshwright.costs.columns import Floats, Ints, LayoutColumns, concatenate
from meshwright.costs.memory import constants
from meshwright.costs.pessimism import without_sharding_s
from meshwright.costs.stages import ROLES
from meshwright.costs.step import EstimateColumns, capacity_bytes, price
from meshwright.planner.legality import SHARDING_RULES, Question, legal
from meshwright.planner.space import Constraints, Heads, Tally, enumerate_heads
from meshwright.specs.errors import SpecError

if TYPE_CHECKING:
    from meshwright.planner.search import Candidates

SLACK = 1.1
"""How much slower than the best a head's bound may be and still be opened: runners-up live there."""
LEAST = 6_000
"""Layouts that are priced however bad their bounds: under other circumstances they might win."""
OPENED = 2_048
"""Heads opened at a time."""
TOO_BIG = 150
"""Heads opened though they cannot fit, the fastest: what more memory would buy."""


NOT_OPENED = "cannot beat the best (bound on time)"
CANNOT_FIT = "does not fit in memory (bound)"


def bounded_tables(
    question: Question,
    constraints: Constraints,
    tally: Tally,
    add: Callable[[LayoutColumns], Candidates],
    under: float = float("inf"),
) -> None:
    """Give `add` every table of legal layouts that might be the best, best bounds first.

    None that cannot be faster than `under` seconds is given.
    """
    heads, time_s, peak = _bounded_heads(question, constraints, tally)
    if not heads.columns.rows:
        return
    capacity = capacity_bytes(question.cluster)
    order = np.argsort(time_s, kind="stable")
    too_big = order[peak[order] > capacity]
    hopeless = order[time_s[order] > under]
    tally.add(NOT_OPENED, int(heads.counts[hopeless].sum()))
    order = order[(peak[order] <= capacity) & (time_s[order] <= under)]
    tally.add(CANNOT_FIT, int(heads.counts[too_big[TOO_BIG:]].sum()))
    _open(question, heads, too_big[:TOO_BIG], tally, add)
    best, priced = np.inf, 0
    for start in range(0, len(order), OPENED):
        some = order[start : start + OPENED]
        reach = best * SLACK
        if priced >= LEAST:
            some = some[time_s[some] <= reach]
        fitting, rows = _open(question, heads, some, tally, add)
        best, priced = min(best, fitting), priced + rows
        if len(some) < OPENED:
            closed = order[start + len(some) :]
            tally.add(NOT_OPENED, int(heads.counts[closed].sum()))
            break


def _open(
    question: Question,
    heads: Heads,
    rows: Ints,
    tally: Tally,
    add: Callable[[LayoutColumns], Candidates],
) -> tuple[float, int]:
    """Price every way to shard some heads; the best time of what fits, and how many were priced."""
    if not len(rows):
        return float("inf"), 0
    table = heads.expand(rows)
    alive, removed = legal(question, table, SHARDING_RULES)
    tally.add_all(removed)
    if not alive.any():
        return float("inf"), 0
    fitting = add(table if alive.all() else table.take(alive))
    return float(fitting.pessimistic_s.min(initial=np.inf)), int(alive.sum())


def _bounded_heads(
    question: Question, constraints: Constraints, tally: Tally
) -> tuple[Heads, Floats, Floats]:
    """All legal heads with the least time and memory that any way to shard them can have."""
    columns: list[LayoutColumns] = []
    group: list[Ints] = []
    ways: list[Ints] = []
    time_s: list[Floats] = []
    peak: list[Floats] = []
    for heads in enumerate_heads(question, constraints, tally):
        priced = price(question.model, question.cluster, question.job, heads.columns)
        columns.append(heads.columns)
        group.append(heads.group + len(ways))
        ways += heads.ways
        time_s.append(without_sharding_s(priced))
        peak.append(_least_peak(priced, heads.columns))
    if not columns:
        raise SpecError(
            "layout", "none", "no combination of axes is legal under these constraints; relax one"
        )
    joined = Heads(concatenate(columns), np.concatenate(group), tuple(ways))
    return joined, np.concatenate(time_s), np.concatenate(peak)


def _least_peak(priced: EstimateColumns, columns: LayoutColumns) -> Floats:
    """The peak without what only some ZeRO stages need: gathered layers, reduction buckets."""
    share = float(constants()["allocator"]["fragmentation"])
    least = np.zeros(columns.rows)
    for role in ROLES:
        parts = priced.memory.parts[role]
        only_some = parts["gathered_parameters"] * (1.0 + share)
        only_some = only_some + np.where(columns.zero >= 2, parts["buffers"], 0.0)
        least = np.maximum(least, priced.memory.total[role] - only_some)
    return least
