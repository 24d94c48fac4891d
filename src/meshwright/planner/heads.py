"""Heads in the order of their bounds, priced corner by corner as far as someone reads on.

A *corner* of the space is all layouts at some degrees. One priced row for each micro-batch bounds all
of them from below (`costs.floors`), so corners are opened in the order of these floors: a head whose
bound lies below the floor of every corner still closed has its final place. What nobody reads as far
as is never enumerated.

How much memory a device has changes no time and no peak. So heads are kept for the questions asked
last, and asking again with more memory, or less, prices nothing a second time. Who reads a stream
opens more of it, so it is lent to one reader at a time: threads that ask alike take turns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

import numpy as np

from meshwright.costs.columns import Floats, Ints, LayoutColumns, concatenate
from meshwright.costs.floors import pace_floor_s, state_floor_bytes
from meshwright.costs.pessimism import without_sharding_s
from meshwright.costs.pipeline import head_on_first_rank
from meshwright.costs.rank_memory import constants
from meshwright.costs.stages import ROLES
from meshwright.costs.step import EstimateColumns, price
from meshwright.costs.tables import on_change
from meshwright.planner.constraints import Constraints, Tally
from meshwright.planner.corners import Corner, columns_at, corners
from meshwright.planner.legality import Question
from meshwright.planner.nothing_legal import NothingLegalError
from meshwright.planner.space import TABLE, Heads, legal_heads
from meshwright.specs.stopping import go_on

KEPT_HEADS = 400_000
"""Heads that are kept of questions asked before."""
AT_ONCE = 8_192
"""Heads of the corners that are opened together, at least."""
FEW = 20_000
"""Heads of a question that are opened all together: floors would cost more than they save."""


@dataclass(frozen=True)
class Bounded:
    """Heads with the least time and memory that any way to shard them can have; shape (rows,).

    `place` is where each stands in the order in which the space is enumerated.
    """

    heads: Heads
    time_s: Floats
    peak: Floats
    place: Ints


class Stream:
    """The heads of a question, opened corner by corner."""

    def __init__(self, question: Question, constraints: Constraints) -> None:
        self.question, self.constraints = question, constraints
        self.turn = Lock()
        self.removed = Tally()
        self.corners = list(corners(question, constraints, self.removed))
        if not self.corners:
            raise NothingLegalError
        nothing = np.zeros(len(self.corners))
        few = sum(one.rows for one in self.corners) <= FEW
        self.floor_s, self.floor_bytes = (nothing, nothing) if few else self._floors()
        self.closed = np.ones(len(self.corners), dtype=bool)
        self.layouts = np.array([one.rows * len(one.ways) for one in self.corners])
        """Layouts of each corner, legal or not."""
        self._first = np.cumsum([0, *(one.rows for one in self.corners)])
        self._parts: list[Bounded] = []

    @property
    def rows(self) -> int:
        """Heads priced so far."""
        return sum(len(part.place) for part in self._parts)

    def bounded(self) -> Bounded:
        """All heads opened so far, at least one.

        Raises:
            SpecError: none is legal.
        """
        while not self._parts:
            if not self.closed.any():
                raise NothingLegalError
            self.open_next()
        if len(self._parts) > 1:
            self._parts = [self._join()]
        return self._parts[0]

    def open(self, wanted: Ints) -> None:
        """Open corners by their positions."""
        for some in _tables(self.corners, np.sort(wanted)):
            self._open(some)
        self.closed[wanted] = False

    def next_floor(self, most_bytes: float = np.inf) -> float:
        """The least floor in time among closed corners whose floor in memory is at most `most_bytes`."""
        left = self.closed & (self.floor_bytes <= most_bytes)
        return float(self.floor_s[left].min(initial=np.inf))

    def open_next(self, most_bytes: float = np.inf) -> None:
        """Open the closed corners of least floors, some heads' worth."""
        go_on()
        left = np.flatnonzero(self.closed & (self.floor_bytes <= most_bytes))
        order = left[np.argsort(self.floor_s[left], kind="stable")]
        sizes = np.cumsum([self.corners[int(one)].rows for one in order])
        at_once = max(AT_ONCE, FEW if not self.floor_s.any() else 0)
        self.open(order[: int(np.searchsorted(sizes, at_once)) + 1])

    def _open(self, some: Ints) -> None:
        chosen = [self.corners[int(one)] for one in some]
        rows = np.concatenate(
            [np.arange(self._first[one], self._first[one + 1]) for one in some.tolist()]
        )
        question = self.question
        heads, alive = legal_heads(question, self.constraints, chosen, self.removed)
        if alive.any():
            priced = price(question.model, question.cluster, question.job, heads.columns)
            bound, peak = without_sharding_s(priced), _least_peak(priced, heads.columns)
            self._parts.append(Bounded(heads, bound, peak, rows[alive]))

    def _join(self) -> Bounded:
        parts = self._parts
        ways: list[Ints] = []
        group: list[Ints] = []
        for part in parts:
            group.append(part.heads.group + len(ways))
            ways += part.heads.ways
        columns = concatenate([part.heads.columns for part in parts])
        return Bounded(
            Heads(columns, np.concatenate(group), tuple(ways)),
            np.concatenate([part.time_s for part in parts]),
            np.concatenate([part.peak for part in parts]),
            np.concatenate([part.place for part in parts]),
        )

    def _floors(self) -> tuple[Floats, Floats]:
        """Least time and memory of each corner, of the rows that bound it."""
        time_s = np.full(len(self.corners), np.inf)
        held = np.full(len(self.corners), np.inf)
        plain = [_plainest(one) for one in self.corners]
        question = self.question
        for some in _tables(plain, np.arange(len(plain))):
            table = columns_at(self.constraints, [plain[int(one)] for one in some])
            of = np.repeat(some, [plain[int(one)].rows for one in some])
            pace = pace_floor_s(question.model, question.cluster, question.job, table)
            np.minimum.at(time_s, of, pace)
            np.minimum.at(held, of, state_floor_bytes(question.model, question.job, table))
        return time_s, held


def _plainest(corner: Corner) -> Corner:
    """The corner without what only adds time: recomputation, and schedules but for where the head sits."""
    left = corner.choices
    codes = np.array([code for code, _ in left.schedules])
    turns = head_on_first_rank(_schedule_only(codes, corner.at.pp))
    kinds = [int(np.flatnonzero(turns == kind)[0]) for kind in np.unique(turns)]
    choices = left._replace(
        schedules=tuple(left.schedules[kind] for kind in kinds),
        modes=((0, 0),),
        orders=left.orders[:1],
    )
    return Corner(corner.at, choices, corner.ways, corner.zero)


def _schedule_only(codes: Ints, pp: int) -> LayoutColumns:
    """Columns that say nothing but their schedule."""
    one = np.ones_like(codes)
    none = np.zeros_like(codes)
    return LayoutColumns(
        dp=one, tp=one, pp=one * pp, cp=one, ep=one, etp=one, virtual_stages=one, zero=none,
        shard=none, micro_batch=one, recompute=none, recompute_layers=none, recompute_split=none,
        sequence_parallel=none, schedule=codes, rank_order=none, first_layers=none,
        middle_layers=none, last_layers=none, stage_split=none, recompute_modules=none, offload=none, cp_method=none,
    )  # fmt: skip


def _tables(some: Sequence[Corner], wanted: Ints) -> list[Ints]:
    """Positions of corners, as many together as fill a table."""
    if not len(wanted):
        return []
    ends = np.cumsum([some[int(one)].rows for one in wanted])
    return np.split(wanted, np.flatnonzero(np.diff(ends // TABLE)) + 1)


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


_recent: OrderedDict[tuple[str, ...], Stream] = OrderedDict()
_keeping = Lock()


def forget() -> None:
    """Drop the heads that are kept of questions asked before."""
    with _keeping:
        _recent.clear()


on_change(forget)


@contextmanager
def heads_of(question: Question, constraints: Constraints) -> Iterator[Stream]:
    """The heads of a question, from before where only the device's memory is another.

    They are the caller's alone until the block ends; inside it no heads may be asked for again.

    Raises:
        SpecError: no combination of axes is legal.
    """
    key = _key(question, constraints)
    with _keeping:
        stream = _recent.pop(key, None) or Stream(question, constraints)
        _recent[key] = stream
        while len(_recent) > 1 and sum(one.rows for one in _recent.values()) > KEPT_HEADS:
            _recent.popitem(last=False)
    with stream.turn:
        yield stream


def _key(question: Question, constraints: Constraints) -> tuple[str, ...]:
    cluster = question.cluster
    device = cluster.device.model_copy(update={"memory_bytes": 1.0})
    cluster = cluster.model_copy(update={"device": device, "reserve_bytes": 0.0})
    fixed = constraints.model_copy(update={"fit_probability": None})
    return tuple(f"{noun!r}" for noun in (question.model, cluster, question.job, fixed))
