"""Evaluate a schedule: build its graph once, then run it with any times."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from meshwright.schedules.ops import Kind, Schedule
from meshwright.simulator.graph import StepGraph, build_graph
from meshwright.simulator.longest_path import Engine, LongestPath, starts
from meshwright.simulator.timeline import Bubble, FloatArray, Timeline, busy
from meshwright.simulator.times import StageTimes
from meshwright.specs.errors import SpecError

Times = StageTimes | tuple[float, float, float]


class Simulator:
    """A schedule prepared for repeated evaluation.

    Args:
        schedule: what to run.
        engine: `python`, `numba` (the `fast` extra), or `auto`: numba from 400,000 nodes on.
        pair_ratio: time of an overlapped forward-and-backward pair (DualPipe) over the sum of its
            parts, when it runs as one piece of work. None: its parts run one after the other.

    Raises:
        SpecError: the schedule deadlocks or misses an operation, or numba is not installed.
    """

    def __init__(
        self, schedule: Schedule, *, engine: Engine = "auto", pair_ratio: float | None = None
    ) -> None:
        if pair_ratio is not None and not 0 < pair_ratio <= 1:
            raise SpecError("pair_ratio", pair_ratio, "a number above 0 and up to 1 is expected")
        self.schedule = schedule
        self.engine: Engine = engine
        self.pair_ratio = pair_ratio
        self.paired = pair_ratio is not None and bool(schedule.overlapped.any())
        self._paths: dict[bool, LongestPath] = {}

    def path(self, messages: bool) -> LongestPath:
        """Return the prepared longest path, with or without messages as nodes."""
        if messages not in self._paths:
            graph = build_graph(self.schedule, messages=messages, paired=self.paired)
            self._paths[messages] = LongestPath(graph, self.engine)
        return self._paths[messages]

    def durations(self, graph: StepGraph, times: Times, comm_s: FloatArray) -> FloatArray:
        """Return the duration of every node: operations, then messages."""
        table = as_times(self.schedule, times)
        duration = table.durations(self.schedule)
        if self.pair_ratio is not None:
            first = np.flatnonzero(self.schedule.overlapped)
            duration[first + 1] = self.pair_ratio * (duration[first] + duration[first + 1])
            duration[first] = 0.0
        if not len(graph.message_from):
            return duration
        return np.concatenate([duration, comm_s[graph.boundary]])

    def run(
        self,
        times: Times = (1.0, 1.0, 1.0),
        comm_s: ArrayLike = 0.0,
        *,
        gradient_s: ArrayLike = 0.0,
        optimizer_s: float = 0.0,
        overlap_slowdown: float = 1.0,
        attribute: bool = True,
    ) -> Timeline:
        """Evaluate one step.

        Args:
            times: stage times, or (F, I, W) of one micro-batch on one rank's whole share.
            comm_s: time of a message across each stage boundary, a scalar or shape (stages,);
                entry s is the boundary between stages s and s + 1, in both directions.
            gradient_s: time to reduce each stage's gradients, a scalar or shape (stages,). It
                starts when the stage's last weight gradient is there, on a stream of its own.
            optimizer_s: time of the optimizer, which starts when all ranks are done (one global
                gradient norm).
            overlap_slowdown: how much slower a rank computes while it sends or receives, 1 being
                not at all; found by iteration, as slower operations shift the messages.
            attribute: whether to attribute the bubble (two more evaluations).

        Raises:
            SpecError: times of the wrong shape, negative, or not finite, or a slowdown below 1.
        """
        if not 1.0 <= overlap_slowdown < np.inf:
            raise SpecError("overlap_slowdown", overlap_slowdown, "a factor of at least 1")
        comm = _per_stage(self.schedule, comm_s, "comm")
        path = self.path(bool(comm.any()))
        graph, n = path.graph, len(self.schedule)
        durations = self.durations(graph, times, comm)
        if overlap_slowdown != 1.0 and len(graph.message_from):
            durations = slowed_by_messages(path, durations, overlap_slowdown)
        node_end = path.ends(durations)
        node_start = starts(graph, node_end)
        start, end = node_start[:n].copy(), node_end[:n].copy()
        if self.paired:
            first = np.flatnonzero(self.schedule.overlapped)
            start[first], end[first] = start[first + 1], end[first + 1]
        makespan = float(end.max(initial=0.0))
        gradient = _per_stage(self.schedule, gradient_s, "gradient")
        reduced = _gradients_reduced(self.schedule, end, gradient)
        return Timeline(
            schedule=self.schedule,
            graph=graph,
            durations=durations,
            start=start,
            end=end,
            node_end=node_end,
            message_start=node_start[n:],
            message_end=node_end[n:],
            bubble=self._bubble(times, start, end, attribute),
            makespan_s=makespan,
            step_s=float(reduced.max(initial=0.0)) + optimizer_s,
            rank_end_s=reduced,
        )

    def makespan_s(self, times: Times = (1.0, 1.0, 1.0), comm_s: ArrayLike = 0.0) -> float:
        """Return the makespan alone: the cheapest question."""
        comm = _per_stage(self.schedule, comm_s, "comm")
        path = self.path(bool(comm.any()))
        return float(path.ends(self.durations(path.graph, times, comm)).max(initial=0.0))

    def makespans_s(self, variants: list[Times], comm_s: ArrayLike = 0.0) -> FloatArray:
        """Return the makespans of many variants of the times, evaluated together."""
        comm = _per_stage(self.schedule, comm_s, "comm")
        path = self.path(bool(comm.any()))
        columns = [self.durations(path.graph, times, comm) for times in variants]
        ends = path.ends_of_many(np.stack(columns, axis=1))
        return np.asarray(ends.max(axis=0, initial=0.0))

    def _bubble(self, times: Times, start: FloatArray, end: FloatArray, attribute: bool) -> Bubble:
        schedule = self.schedule
        work = float(busy(schedule, start, end, self.paired).mean())
        makespan = float(end.max(initial=0.0))
        if makespan <= 0:
            return Bubble(0.0, 0.0)
        firsts, lasts = schedule.offsets[:-1], schedule.offsets[1:] - 1
        longest_span = float((end[lasts] - start[firsts]).max())
        parts = self._attribution(times, work, makespan) if attribute else {}
        return Bubble(1 - work / longest_span, 1 - work / makespan, parts)

    def _attribution(self, times: Times, work: float, makespan: float) -> dict[str, float]:
        """Replay without messages, then with equal times; what is left is the schedule's own."""
        given = as_times(self.schedule, times)
        free = self.makespan_s(given)
        path = self.path(False)
        durations = self.durations(path.graph, given.balanced(), np.zeros(0))
        ends = path.ends(durations)
        even = float(ends.max(initial=0.0))
        phases = _idle_by_phase(self.schedule, starts(path.graph, ends), ends, even)
        idle = sum(phases.values())
        # The balanced replay does the same mean work, up to how unevenly stages are used.
        scale = (even - work) / idle if idle > 0 else 0.0
        parts = {
            "communication": (makespan - free) / makespan,
            "imbalance": (free - even) / makespan,
        }
        return parts | {name: value * scale / makespan for name, value in phases.items()}


def evaluate(
    schedule: Schedule,
    times: Times = (1.0, 1.0, 1.0),
    comm_s: ArrayLike = 0.0,
    *,
    gradient_s: ArrayLike = 0.0,
    optimizer_s: float = 0.0,
    overlap_slowdown: float = 1.0,
    pair_ratio: float | None = None,
    engine: Engine = "auto",
) -> Timeline:
    """Evaluate one step of a schedule. See `Simulator.run` for the arguments.

    Example:
        >>> from meshwright import schedules
        >>> timeline = evaluate(schedules.build("1f1b", pp=4, micro_batches=8))
        >>> round(timeline.bubble.makespan, 4), timeline.makespan_s, timeline.peak_in_flight
        (0.2727, 33.0, [4.0, 3.0, 2.0, 1.0])

    Raises:
        SpecError: the schedule deadlocks or misses an operation, or times make no sense.
    """
    simulator = Simulator(schedule, engine=engine, pair_ratio=pair_ratio)
    return simulator.run(
        times,
        comm_s,
        gradient_s=gradient_s,
        optimizer_s=optimizer_s,
        overlap_slowdown=overlap_slowdown,
    )


def slowed_by_messages(path: LongestPath, durations: FloatArray, slowdown: float) -> FloatArray:
    """Return durations with operations stretched where they overlap messages of their rank.

    While a message comes or goes, a rank computes 1 / slowdown as fast, so an overlap of length o
    adds o (1 - 1/slowdown). Iterates until the makespan settles (at most 50 rounds).
    """
    graph = path.graph
    n = len(graph.schedule)
    rank = graph.schedule.rank
    stretched, before = durations, -1.0
    for _ in range(50):
        ends = path.ends(stretched)
        if abs(ends.max() - before) <= 1e-9 * ends.max():
            break
        before = float(ends.max())
        begins = starts(graph, ends)
        stretched = durations.copy()
        for r in range(graph.schedule.pp):
            mine = (rank[graph.message_from] == r) | (rank[graph.message_to] == r)
            ops = slice(int(graph.schedule.offsets[r]), int(graph.schedule.offsets[r + 1]))
            covered = _covered_until(begins[n:][mine], ends[n:][mine])
            overlap = np.interp(ends[ops], *covered) - np.interp(begins[ops], *covered)
            stretched[ops] += overlap * (1.0 - 1.0 / slowdown)
    return stretched


def _covered_until(begin: FloatArray, end: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return moments, and how much of the time before each is covered by some interval."""
    moments = np.concatenate([begin, end])
    change = np.concatenate([np.ones(len(begin)), -np.ones(len(end))])
    order = np.argsort(moments, kind="stable")
    moments, active = moments[order], np.cumsum(change[order]) > 0
    lengths = np.diff(moments) * active[:-1]
    if not len(moments):
        return np.zeros(1), np.zeros(1)
    return moments, np.concatenate([[0.0], np.cumsum(lengths)])


def as_times(schedule: Schedule, times: Times) -> StageTimes:
    """Return stage times; a triple is one micro-batch on a rank, split over chunks and slices."""
    return times if isinstance(times, StageTimes) else StageTimes.per_rank(schedule, *times)


def _per_stage(schedule: Schedule, value: ArrayLike, name: str) -> FloatArray:
    try:
        column = np.broadcast_to(np.asarray(value, dtype=np.float64), (schedule.stages,))
    except ValueError:
        raise SpecError(
            name, value, f"one value, or one per stage ({schedule.stages}), is expected"
        ) from None
    if not np.isfinite(column).all() or (column < 0).any():
        raise SpecError(name, value, "finite times of at least 0 are expected")
    return column


def _gradients_reduced(schedule: Schedule, end: FloatArray, gradient: FloatArray) -> FloatArray:
    """Return when each rank has reduced the gradients of its stages, one after another."""
    last_use = np.zeros(schedule.stages)
    made = (schedule.kind == Kind.B) | (schedule.kind == Kind.W)
    np.maximum.at(last_use, schedule.stage[made], end[made])
    reduced = np.zeros(schedule.pp)
    np.maximum.at(reduced, schedule.rank, end)
    if gradient.any():
        clock = np.zeros(schedule.pp)
        for stage in np.argsort(last_use, kind="stable"):
            rank = schedule.stage_rank[stage]
            clock[rank] = max(clock[rank], last_use[stage]) + gradient[stage]
        reduced = np.maximum(reduced, clock)
    return reduced


def _idle_by_phase(
    schedule: Schedule, start: FloatArray, end: FloatArray, makespan: float
) -> dict[str, float]:
    """Return idle time per rank on average, by when it happens."""
    totals = {"warm_up": 0.0, "drain": 0.0, "order": 0.0}
    for rank in range(schedule.pp):
        ops = slice(schedule.offsets[rank], schedule.offsets[rank + 1])
        kind, begin, finish = schedule.kind[ops], start[ops], end[ops]
        gaps = np.maximum(begin - np.append(0.0, finish[:-1]), 0.0)
        forwards = np.flatnonzero(kind == Kind.F)
        backwards = np.flatnonzero(kind != Kind.F)
        if not len(forwards) or not len(backwards):
            totals["order"] += float(makespan - (finish - begin).sum())
            continue
        warm, last_forward = int(backwards[0]), int(forwards[-1])
        totals["warm_up"] += float(gaps[: warm + 1].sum())
        totals["order"] += float(gaps[warm + 1 : last_forward + 1].sum())
        after = max(warm, last_forward) + 1
        totals["drain"] += float(gaps[after:].sum() + makespan - finish[-1])
    return {name: value / schedule.pp for name, value in totals.items()}
