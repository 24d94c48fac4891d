"""Flip points: the circumstances under which another layout would be chosen, computed and replanned.

A pool of the best layouts of every shape, priced under changed circumstances, says where to look.
What is printed is decided by planning again there: a flip point at which the whole search does not
choose another layout is not one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from meshwright.costs.columns import LayoutColumns, concatenate, from_layouts
from meshwright.costs.step import capacity_bytes
from meshwright.planner.legality import Question, legal
from meshwright.planner.odds import Odds
from meshwright.planner.search import Candidates, SearchResult, reprice
from meshwright.planner.solve import Solution
from meshwright.specs.cluster import Cluster
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.plan import FlipPoint
from meshwright.specs.quantities import format_bytes

FACTORS = (2.0, 4.0, 8.0)
"""How much more (or less) of something is tried."""
PRECISION = 1.05
"""Ratio to which a threshold is narrowed down."""
MEMORY_PRECISION = 1.0002
"""The same for memory: peaks are known, so it costs nothing to be exact."""
POOL = 250
"""Layouts of one framework that are re-priced when circumstances change."""
OFF = 1.08
"""How far beyond the pool's threshold the search is asked again when it does not agree."""
TRIES = 2

Replan = Callable[[Question], Solution | None]
"""The whole way from a question to a choice, as the plan itself took it; None: nothing fits."""


@dataclass(frozen=True)
class Axis:
    """One circumstance: how to change the question by a factor, and how to say it."""

    quantity: str
    current: float
    at: Callable[[Question, float], Question]
    rounded: Callable[[float, int], float]
    said: Callable[[str, float, str], str]
    only_memory: bool = False


def flip_points(
    question: Question, solutions: list[Solution], replan: Replan
) -> tuple[FlipPoint, ...]:
    """Find what would change the choice: network, memory, global batch, one at a time.

    `solutions` are what the frameworks that came close answered, the chosen one first.
    """
    finder = _Finder(question, solutions, replan)
    found: list[FlipPoint] = []
    for axis in (*_network(question), _memory(question)):
        for direction in (1, -1):
            found += finder.first(axis, direction, FACTORS)
    for direction in (1, -1):
        found += finder.first(_batch(question), direction, FACTORS, narrow=False)
    return tuple(found)


class _Finder:
    def __init__(self, question: Question, solutions: list[Solution], replan: Replan) -> None:
        self.question, self.replan = question, replan
        self.chosen = solutions[0]
        # Layers recomputed in part, or moved between stages, are not in what the search enumerates.
        self.pools = [
            (one.question, concatenate([from_layouts([one.layout]), _pool(one.result)]))
            for one in solutions
        ]
        self.room = Odds.of(self.chosen.question).room(self.chosen.result.fit_probability)
        self.priced = self._price(question, self.pools)
        self.today = self._best(self.priced, capacity_bytes(question.cluster)) or _key(self.chosen)

    def _price(
        self, question: Question, pools: list[tuple[Question, LayoutColumns]]
    ) -> list[tuple[str, Candidates]]:
        """Some pools under a question, without what is not legal under it."""
        found: list[tuple[str, Candidates]] = []
        for asked, pool in pools:
            under = replace(question, job=asked.job.but(global_batch=question.job.global_batch))
            alive, _ = legal(under, pool)
            if alive.any():
                priced = reprice(under, pool.take(alive), self.room)
                found.append((under.job.framework, priced))
        return found

    def _best(
        self, priced: list[tuple[str, Candidates]], capacity: float
    ) -> tuple[object, ...] | None:
        """What kind of layout is fastest among what fits."""
        best: tuple[float, tuple[object, ...]] | None = None
        for framework, candidates in priced:
            fits = candidates.peak_bytes * self.room <= capacity
            times = np.where(fits, candidates.pessimistic_s, np.inf)
            row = int(np.argmin(times))
            if math.isfinite(times[row]) and (best is None or times[row] < best[0]):
                best = float(times[row]), _kind(framework, candidates.columns.layout(row))
        return best[1] if best else None

    def changes(self, axis: Axis, factor: float) -> bool:
        """Whether another kind of layout wins among the pools when something grows by a factor."""
        question = axis.at(self.question, factor)
        capacity = capacity_bytes(question.cluster)
        if axis.only_memory:  # it changes what fits, and no time
            return self._best(self.priced, capacity) != self.today
        # Today's winner must first be the best of its own framework.
        own = [pool for pool in self.pools if pool[0].job.framework == self.today[0]]
        priced = self._price(question, own)
        if self._best(priced, capacity) != self.today:
            return True
        others = [pool for pool in self.pools if pool[0].job.framework != self.today[0]]
        return self._best(priced + self._price(question, others), capacity) != self.today

    def first(
        self, axis: Axis, direction: int, factors: tuple[float, ...], *, narrow: bool = True
    ) -> list[FlipPoint]:
        """The first change in a direction, if there is one, as replanned."""
        if axis.only_memory and direction < 0:
            # Below what the chosen layout itself needs, it cannot stay.
            needed = self._needed_share()
            if needed < 1.0 and (found := self._replanned(axis, direction, needed, narrow=False)):
                return found
        inside = 1.0
        for factor in factors:
            outside = factor**direction
            if self.changes(axis, outside):
                if narrow:
                    outside = self._narrowed(axis, inside, outside)
                return self._replanned(axis, direction, outside, narrow=narrow)
            inside = outside
        return []

    def _needed_share(self) -> float:
        """Share of the device's memory just below what the chosen layout needs."""
        cluster = self.question.cluster
        choice = self.chosen.choice
        assert choice is not None
        needed = choice.peak_bytes * self.room + cluster.reserve_bytes
        return needed / cluster.device.memory_bytes * (1 - 1e-4)

    def _narrowed(self, axis: Axis, inside: float, outside: float) -> float:
        precision = MEMORY_PRECISION if axis.only_memory else PRECISION
        while max(inside, outside) / min(inside, outside) > precision:
            middle = math.sqrt(inside * outside)
            if self.changes(axis, middle):
                outside = middle
            else:
                inside = middle
        return outside

    def _replanned(
        self, axis: Axis, direction: int, factor: float, *, narrow: bool
    ) -> list[FlipPoint]:
        """Plan again at the figure that will be printed, and a little beyond it if need be."""
        for attempt in range(TRIES if narrow else 1):
            value = axis.rounded(axis.current * factor * OFF ** (direction * attempt), direction)
            if value <= 0 or value == axis.current:
                return []
            after = self.replan(axis.at(self.question, value / axis.current))
            if after is None and direction > 0:
                return []
            word = "above" if direction > 0 else "below"
            if after is None:
                label, name = "none", ""
                sentence = axis.said(word, value, "nothing priced here would fit")
            else:
                if _key(after) == _key(self.chosen):
                    continue
                label, name = after.layout.label(), after.question.job.framework
                other = name != self.chosen.question.job.framework
                text = label + (f" under {name}" if other else "")
                sentence = axis.said(word, value, f"{text} would be chosen")
            return [
                FlipPoint(
                    quantity=axis.quantity, current=axis.current, threshold=value,
                    direction=word, becomes=label, framework=name, sentence=sentence,
                )
            ]  # fmt: skip
        return []


def _key(solution: Solution) -> tuple[object, ...]:
    return _kind(solution.question.job.framework, solution.layout)


def _kind(framework: str, layout: Layout) -> tuple[object, ...]:
    """What makes another kind of layout: framework, degrees, sharding, recomputation."""
    return (
        framework, layout.tp, layout.pp, layout.cp, layout.ep, layout.etp, layout.zero,
        layout.recompute,
    )  # fmt: skip


def _pool(result: SearchResult) -> LayoutColumns:
    """Candidates worth re-pricing: the best of every kind, fitting or not, so that all are there."""
    columns = result.ranked.columns
    keys = np.stack(
        [
            columns.tp,
            columns.pp,
            columns.cp,
            columns.ep,
            columns.etp,
            columns.zero,
            columns.recompute,
        ]
    )
    _, first = np.unique(keys, axis=1, return_index=True)
    picks = np.sort(first)[:POOL]
    tables = [columns.take(picks)]
    others = (result.gambles.columns, result.over_memory.columns)
    tables += [more.slice(0, POOL // 4) for more in others if more.rows]
    return concatenate(tables)


def _network(question: Question) -> list[Axis]:
    cluster = question.cluster
    if len(cluster.levels) < 2 or cluster.gpus <= cluster.fast_domain:
        return []

    def said(word: str, value: float, then: str) -> str:
        return f"{word} {value:g} GB/s per device between nodes (now {current:.3g}), {then}"

    current = cluster.levels[-1].bandwidth_bytes_s / 1e9
    return [
        Axis(
            "inter-node bandwidth, GB/s per device per direction", current, with_network,
            lambda value, direction: _significant(value, direction), said,
        )
    ]  # fmt: skip


def with_network(question: Question, factor: float) -> Question:
    """The same question with every level outside the innermost scaled in bandwidth."""
    return replace(question, cluster=scaled_network(question.cluster, factor))


def scaled_network(cluster: Cluster, factor: float) -> Cluster:
    """The cluster with every level outside the innermost scaled in bandwidth."""
    levels = tuple(
        level
        if index == 0
        else level.model_copy(update={"bandwidth_bytes_s": level.bandwidth_bytes_s * factor})
        for index, level in enumerate(cluster.levels)
    )
    return cluster.model_copy(update={"levels": levels})


def _memory(question: Question) -> Axis:
    current = question.cluster.device.memory_bytes

    def said(word: str, value: float, then: str) -> str:
        return f"{word} {format_bytes(value)} of memory per device (now {format_bytes(current)}), {then}"

    return Axis(
        "device memory, bytes", current, with_memory, lambda value, direction: value, said,
        only_memory=True,
    )  # fmt: skip


def with_memory(question: Question, factor: float) -> Question:
    """The same question on devices with more memory, or less."""
    return replace(question, cluster=scaled_memory(question.cluster, factor))


def scaled_memory(cluster: Cluster, factor: float) -> Cluster:
    """The cluster of devices with more memory, or less."""
    device = cluster.device.model_copy(
        update={"memory_bytes": cluster.device.memory_bytes * factor}
    )
    return cluster.model_copy(update={"device": device})


def _batch(question: Question) -> Axis:
    current = question.job.global_batch

    def at(asked: Question, factor: float) -> Question:
        size = max(round(current * factor), 1)
        return replace(asked, job=asked.job.but(global_batch=size))

    def said(word: str, value: float, then: str) -> str:
        return f"with a global batch of {value:g} sequences (now {current}), {then}"

    return Axis(
        "global batch, sequences", current, at, lambda value, direction: float(round(value)), said
    )


def circumstances(flip: FlipPoint, cluster: Cluster, job: Job) -> tuple[Cluster, Job]:
    """Cluster and job as they are at a flip point of a plan for this cluster and job."""
    factor = flip.threshold / flip.current
    if flip.quantity.startswith("global batch"):
        return cluster, job.but(global_batch=int(flip.threshold))
    scaled = scaled_network if flip.quantity.startswith("inter-node") else scaled_memory
    return scaled(cluster, factor), job


def _significant(value: float, direction: int) -> float:
    """Three significant digits, rounded away from the current value."""
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    exact = (math.ceil if direction > 0 else math.floor)(round(value / step, 6)) * step
    return float(f"{exact:.3g}")
