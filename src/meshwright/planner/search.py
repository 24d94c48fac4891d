"""The search: price every legal layout, keep what fits, rank by a pessimistic estimate.

A search finds the layout whose cost the model underestimates most, so candidates are ranked not by
their nominal step time but by the time under a pessimistic reading of the model (slower links,
slower kernels for what is hard to predict), and memory must fit with a stated reserve.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from meshwright.costs.columns import ARRAYS, Floats, Ints, LayoutColumns
from meshwright.costs.step import EstimateColumns, capacity_bytes, price
from meshwright.planner.legality import Question
from meshwright.planner.space import MEMORY_MARGIN, Constraints, Tally, enumerate_layouts
from meshwright.specs.errors import SpecError
from meshwright.specs.plan import Searched

OBJECTIVES = ("time", "memory")
CHUNK = 16_384
HYBRID_MARGIN = 0.002
"""Share of the step that sharding over fewer than all replicas must gain to be worth a second
group: less is within what any model of latencies gets wrong."""
PESSIMISM = {
    "tensor_parallel": 0.25, "context_parallel": 0.25, "expert_parallel": 0.35,
    "pipeline_p2p": 0.50, "pipeline_bubble": 0.15,
    "launch": 0.25, "elementwise": 0.10, "recompute": 0.0, "step_overhead": 0.5,
}  # fmt: skip
"""How much worse each part may be than modelled when ranking: communication most, products least."""


@dataclass(frozen=True)
class Candidates:
    """Layouts that were priced and kept, best first; arrays of shape (rows,)."""

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
    """What a search found: the ranking, the fastest that do not fit, and what was looked at."""

    ranked: Candidates
    over_memory: Candidates
    searched: Searched


def search(
    question: Question,
    constraints: Constraints | None = None,
    *,
    objective: str = "time",
    keep: int = 4000,
    progress: Callable[[int], None] | None = None,
) -> SearchResult:
    """Price every legal layout and return the best `keep` that fit, best first.

    `progress` is called with the number of layouts priced so far.

    Raises:
        SpecError: the objective is unknown.
    """
    if objective not in OBJECTIVES:
        raise SpecError("objective", objective, f"one of {', '.join(OBJECTIVES)}")
    started = time.perf_counter()
    constraints = constraints or Constraints()
    tally = Tally()
    capacity = capacity_bytes(question.cluster)
    kept: list[Candidates] = []
    over: list[Candidates] = []
    priced = 0
    for table in _chunks(enumerate_layouts(question, constraints, tally)):
        candidates = _price(question, table, capacity)
        priced += table.rows
        fits = np.flatnonzero(candidates.fits)
        tally.add("does not fit in memory", table.rows - len(fits))
        kept.append(_best(candidates.take(fits), objective, keep))
        short = candidates.take(np.flatnonzero(~candidates.fits))
        over += [_best(short, "time", 200), _best(short, "memory", 20)]
        if progress:
            progress(priced)
    searched = Searched(priced=priced, pruned=tally.removed, seconds=time.perf_counter() - started)
    return SearchResult(_best(_join(kept), objective, keep), _sorted(_join(over)), searched)


def _price(question: Question, table: LayoutColumns, capacity: float) -> Candidates:
    estimates = price(question.model, question.cluster, question.job, table)
    peak = estimates.memory.peak
    hybrid = (table.zero > 0) & (table.shard > 0) & (table.shard < table.dp * table.cp)
    pessimistic = pessimistic_s(estimates) * np.where(hybrid, 1.0 + HYBRID_MARGIN, 1.0)
    return Candidates(
        table, estimates.step_time_s, pessimistic, peak,
        peak * (1.0 + MEMORY_MARGIN) <= capacity,
    )  # fmt: skip


def pessimistic_s(estimates: EstimateColumns) -> Floats:
    """Step time with every part that is hard to predict at the bad end of its range."""
    total = estimates.step_time_s - estimates.time_parts["data_parallel"]
    total = total + estimates.data_parallel_worst_s
    for name, extra in PESSIMISM.items():
        total = total + extra * estimates.time_parts[name]
    return total


def reprice(question: Question, columns: LayoutColumns) -> Candidates:
    """Price given layouts under a question (another cluster or job), without re-enumerating."""
    return _price(question, columns, capacity_bytes(question.cluster))


def _chunks(tables: Iterator[LayoutColumns]) -> Iterator[LayoutColumns]:
    """Join small tables and split large ones into chunks that stay in the processor's cache."""
    waiting: list[LayoutColumns] = []
    rows = 0
    for table in tables:
        waiting.append(table)
        rows += table.rows
        if rows >= CHUNK:
            whole = concatenate(waiting)
            full = whole.rows - whole.rows % CHUNK
            for start in range(0, full, CHUNK):
                yield whole.slice(start, start + CHUNK)
            rest = whole.slice(full, whole.rows)
            waiting, rows = ([rest], rest.rows) if rest.rows else ([], 0)
    if waiting:
        yield concatenate(waiting)


def concatenate(tables: list[LayoutColumns]) -> LayoutColumns:
    """Stack tables that share their rank orders."""
    arrays = {name: np.concatenate([getattr(t, name) for t in tables]) for name in ARRAYS}
    return LayoutColumns(**arrays, orders=tables[0].orders, splits=tables[0].splits)


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


def _join(parts: list[Candidates]) -> Candidates:
    parts = [part for part in parts if part.columns.rows] or parts[:1]
    if not parts:
        raise SpecError(
            "layout", "none", "no combination of axes is legal under these constraints; relax one"
        )
    return Candidates(
        concatenate([part.columns for part in parts]),
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("step_time_s", "pessimistic_s", "peak_bytes", "fits")
        ),
    )


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


def with_network(question: Question, factor: float) -> Question:
    """The same question with every level outside the innermost scaled in bandwidth."""
    cluster = question.cluster
    levels = tuple(
        level
        if index == 0
        else level.model_copy(update={"bandwidth_bytes_s": level.bandwidth_bytes_s * factor})
        for index, level in enumerate(cluster.levels)
    )
    return replace(question, cluster=cluster.model_copy(update={"levels": levels}))
