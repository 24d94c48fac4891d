"""The search: price layouts, keep what fits with the odds that are asked for, rank pessimistically.

A search finds the layout whose cost the model underestimates most, so candidates are ranked not by
their nominal step time but by the time under a pessimistic reading of the model (slower links,
slower kernels for what is hard to predict), and memory must fit with a stated probability.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from meshwright.costs.columns import Floats, Ints, LayoutColumns, concatenate
from meshwright.costs.offload import host_short_bytes
from meshwright.costs.pessimism import pessimistic_s
from meshwright.costs.step import capacity_bytes, price
from meshwright.planner.bounds import TOO_BIG, any_within, bounded_tables
from meshwright.planner.corners import in_words_of
from meshwright.planner.legality import Question
from meshwright.planner.nothing_legal import NothingLegalError, why_nothing
from meshwright.planner.odds import FALLBACKS, WANTED, Odds
from meshwright.planner.space import Constraints, Tally, enumerate_layouts
from meshwright.specs.errors import SpecError
from meshwright.specs.plan import Searched
from meshwright.specs.stopping import go_on

OBJECTIVES = ("time", "memory")
HYBRID_MARGIN = 0.002
"""Share of the step that sharding over fewer than all replicas must gain to be worth a second
group: less is within what any model of latencies gets wrong."""
LIGHTEST = 20
"""Layouts kept of each table for being light, beside those kept for being fast."""


@dataclass(frozen=True)
class Candidates:
    """Layouts that were priced and kept, best first; arrays of shape (rows,).

    The peak of a layout that its hosts cannot hold is infinite.
    """

    columns: LayoutColumns
    step_time_s: Floats
    pessimistic_s: Floats
    peak_bytes: Floats
    fits: np.ndarray

    def take(self, index: Ints) -> Candidates:
        """Return the chosen rows in the given order."""
        return Candidates(
            self.columns.take(index), self.step_time_s[index], self.pessimistic_s[index],
            self.peak_bytes[index], self.fits[index],
        )  # fmt: skip


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    `ranked` fits with `fit_probability`, which is less than was asked for where nothing fits so
    surely; `gambles` fit by the estimate alone, `over_memory` not even by that: the fastest of each.
    """

    ranked: Candidates
    gambles: Candidates
    over_memory: Candidates
    searched: Searched
    fit_probability: float


def search(
    question: Question,
    constraints: Constraints | None = None,
    *,
    objective: str = "time",
    keep: int = 4000,
    bounded: bool = False,
    under: float = float("inf"),
    too_big: int = TOO_BIG,
    progress: Callable[[int], None] | None = None,
) -> SearchResult:
    """Price legal layouts and return the best `keep` that fit, best first.

    `bounded` leaves out what provably cannot win or fit (`planner.bounds`): the best is the same,
    the tail of the ranking is cut; so is what cannot be faster than `under` seconds, and what cannot fit
    but for the `too_big` fastest. `progress` is called with the number of layouts priced so far.

    Raises:
        SpecError: the objective is unknown, or no combination of axes is legal; it names the fixed
            choices that leave none.
    """
    if objective not in OBJECTIVES:
        raise SpecError("objective", objective, f"one of {', '.join(OBJECTIVES)}")
    started = time.perf_counter()
    constraints = constraints or Constraints()
    if constraints.offload:
        constraints = constraints.but(offload=in_words_of(question, constraints.offload))
    tally = Tally()
    wanted = constraints.fit_probability or WANTED
    kept = _Kept(question, objective, keep, wanted)
    try:
        if bounded and objective == "time":
            bounded_tables(
                question, constraints, tally, kept.add, under, too_big, lambda: kept.least_bytes
            )
        else:
            for table in enumerate_layouts(question, constraints, tally):
                kept.add(table)
                if progress:
                    progress(kept.priced)
        if progress:
            progress(kept.priced)
        tally.add("does not fit in memory", kept.unfit)
        result = kept.result()
    except NothingLegalError:
        raise why_nothing(question, constraints) from None
    searched = Searched(
        priced=kept.priced, pruned=tally.removed, seconds=time.perf_counter() - started
    )
    return replace(result, searched=searched)


def reaches(question: Question, constraints: Constraints, within: float) -> bool:
    """Whether a search finds a layout that fits as surely as asked for in at most `within` seconds.

    Raises:
        SpecError: no combination of axes is legal.
    """
    kept = _Kept(question, "time", 1, constraints.fit_probability or WANTED)
    try:
        return any_within(question, constraints, within, kept.add)
    except NothingLegalError:
        raise why_nothing(question, constraints) from None


class _Kept:
    """The best of the tables seen so far."""

    def __init__(self, question: Question, objective: str, keep: int, wanted: float) -> None:
        self.question, self.objective, self.keep, self.wanted = question, objective, keep, wanted
        self.odds = Odds.of(question)
        self.room = self.odds.room(wanted)
        self.capacity = capacity_bytes(question.cluster)
        self.ranked: list[Candidates] = []
        self.gambles: list[Candidates] = []
        self.over: list[Candidates] = []
        self.priced = self.unfit = 0
        self.least_bytes = np.inf

    def add(self, table: LayoutColumns) -> Candidates:
        """Price a table and keep its best; returns what fits."""
        go_on()
        candidates = _price(self.question, table, self.capacity, self.room)
        self.priced += table.rows
        self.least_bytes = min(self.least_bytes, float(candidates.peak_bytes.min(initial=np.inf)))
        nominal = candidates.peak_bytes <= self.capacity
        fitting = candidates.take(np.flatnonzero(candidates.fits))
        gamble = candidates.take(np.flatnonzero(nominal & ~candidates.fits))
        short = candidates.take(np.flatnonzero(~nominal))
        self.unfit += short.columns.rows
        self.ranked.append(_best(fitting, self.objective, self.keep))
        for some, into in ((gamble, self.gambles), (short, self.over)):
            into += [_best(some, "time", 10 * LIGHTEST), _best(some, "memory", LIGHTEST)]
        return fitting

    def result(self) -> SearchResult:
        """Everything kept, best first; where nothing fits surely enough, what fits most surely."""
        ranked = _best(join(self.ranked), self.objective, self.keep)
        gambles, over = _sorted(join(self.gambles)), _sorted(join(self.over))
        reached = self.wanted
        for lower in FALLBACKS:
            if ranked.columns.rows or lower >= self.wanted:
                continue
            sure = gambles.peak_bytes * self.odds.room(lower) <= self.capacity
            reached = lower
            ranked = _best(gambles.take(np.flatnonzero(sure)), self.objective, self.keep)
        return SearchResult(ranked, gambles, over, Searched(), reached)


def _price(question: Question, table: LayoutColumns, capacity: float, room: float) -> Candidates:
    estimates = price(question.model, question.cluster, question.job, table)
    peak = estimates.memory.peak
    if estimates.memory.moved:
        # What its host cannot hold is no layout at all: it neither fits nor is it a gamble.
        lacking = host_short_bytes(question.cluster, estimates.memory.moved) > 0
        peak = np.where(lacking, np.inf, peak)
    hybrid = (table.zero > 0) & (table.shard > 0) & (table.shard < table.dp * table.cp)
    pessimistic = pessimistic_s(estimates) * np.where(hybrid, 1.0 + HYBRID_MARGIN, 1.0)
    return Candidates(table, estimates.step_time_s, pessimistic, peak, peak * room <= capacity)


def reprice(question: Question, columns: LayoutColumns, room: float | None = None) -> Candidates:
    """Price given layouts under a question (another cluster or job), without re-enumerating.

    `room` is how many times its peak a layout needs to count as fitting; None: for 90 %.
    """
    if room is None:
        room = Odds.of(question).room(WANTED)
    return _price(question, columns, capacity_bytes(question.cluster), room)


def _objective_values(candidates: Candidates, objective: str) -> tuple[Floats, ...]:
    """Sort keys, least first; ties go to the simpler layout, then to the lighter one."""
    c = candidates.columns
    simplicity = (c.tp > 1) * 1.0 + (c.pp > 1) * 2.0 + (c.virtual_stages > 1) + (c.cp > 1) * 2.0
    simplicity = simplicity + c.rank_order + (c.recompute > 0) + (c.shard > 0) + c.zero * 0.1
    if objective == "memory":
        return (candidates.peak_bytes, candidates.pessimistic_s, simplicity)
    return (np.round(candidates.pessimistic_s, 9), simplicity, candidates.peak_bytes)


def _best(candidates: Candidates, objective: str, keep: int) -> Candidates:
    values = _objective_values(candidates, objective)
    rows = len(values[0])
    index = np.arange(rows)
    if rows > 4 * keep > 0:
        cut = np.partition(values[0], keep)[keep]
        index = np.flatnonzero(values[0] <= cut)
    order = np.lexsort(tuple(value[index] for value in reversed(values)))
    return candidates.take(index[order][:keep])


def _sorted(candidates: Candidates) -> Candidates:
    return _best(candidates, "time", max(candidates.columns.rows, 1))


def join(parts: Iterable[Candidates]) -> Candidates:
    """All of some candidates in one table, in their order."""
    parts = list(parts)
    parts = [part for part in parts if part.columns.rows] or parts[:1]
    if not parts:
        raise NothingLegalError
    return Candidates(
        concatenate([part.columns for part in parts]),
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("step_time_s", "pessimistic_s", "peak_bytes", "fits")
        ),
    )


def undominated(candidates: Candidates) -> Ints:
    """Rows that no other beats in both nominal step time and peak memory, in their given order."""
    order = np.lexsort((candidates.peak_bytes, candidates.step_time_s))
    lightest = np.minimum.accumulate(candidates.peak_bytes[order])
    earlier = np.concatenate([[np.inf], lightest[:-1]])
    return np.sort(order[candidates.peak_bytes[order] < earlier])


def pareto(candidates: Candidates, most: int = 24) -> Ints:
    """Rows on the front of step time against peak memory, fastest first."""
    order = np.lexsort((candidates.peak_bytes, candidates.step_time_s))
    front: list[int] = []
    lightest = np.inf
    for row in order:
        if candidates.peak_bytes[row] < lightest * 0.995:
            front.append(int(row))
            lightest = candidates.peak_bytes[row]
    if len(front) > most:
        picks = np.linspace(0, len(front) - 1, most).round().astype(int)
        front = [front[i] for i in picks]
    return np.array(front, dtype=np.int64)
