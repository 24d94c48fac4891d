"""The result of a simulation: when everything ran, what bound it, and where ranks idled."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from meshwright.schedules.ops import Kind, Op, Schedule
from meshwright.simulator import longest_path
from meshwright.simulator.graph import StepGraph

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Bubble:
    """Idle shares of the ranks' time, each as a fraction.

    Attributes:
        span: 1 - mean busy time / longest span, where a rank's span runs from its first start to
            its last end. This is the zero-bubble papers' number (arXiv 2401.10241, section 5.1);
            a training step sees it only if no rank waits for the others before its optimizer.
        makespan: 1 - mean busy time / makespan: what a step with one global synchronisation
            (gradient norm, NaN check) pays.
        attribution: parts that add up to `makespan`, by cause: `communication` (what would vanish
            with free messages), `imbalance` (what would then vanish with equal stages and
            micro-batches), and of the rest `warm_up` (before a rank's first backward), `drain`
            (after its last forward) and `order` (between). Communication and imbalance are
            differences of replays, so one can be negative when unequal times happen to help.
    """

    span: float
    makespan: float
    attribution: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Timeline:
    """One evaluated step. Times are in the unit of the durations given, seconds by convention.

    Attributes:
        schedule: what was run.
        start, end: shape (operations,), in the order of the schedule's columns.
        message_from, message_to: shape (messages,), operations at both ends of each message.
        message_start, message_end: shape (messages,).
        bubble: idle shares, attributed.
        makespan_s: from 0 to the last operation's end, before gradient reduction and optimizer.
        step_s: the whole step: the makespan and what follows it that is not hidden.
        rank_end_s: shape (pp,), when each rank has also reduced its gradients.
    """

    schedule: Schedule
    graph: StepGraph
    durations: FloatArray
    start: FloatArray
    end: FloatArray
    node_end: FloatArray
    message_start: FloatArray
    message_end: FloatArray
    bubble: Bubble
    makespan_s: float
    step_s: float
    rank_end_s: FloatArray

    @property
    def message_from(self) -> NDArray[np.int32]:
        """Shape (messages,): the operation whose output each message carries."""
        return self.graph.message_from

    @property
    def message_to(self) -> NDArray[np.int32]:
        """Shape (messages,): the operation that waits for each message."""
        return self.graph.message_to

    @cached_property
    def busy_s(self) -> FloatArray:
        """Shape (pp,): time that each rank computes."""
        return busy(self.schedule, self.start, self.end, self.graph.paired)

    @cached_property
    def idle_s(self) -> FloatArray:
        """Shape (pp,): makespan minus busy time."""
        return self.makespan_s - self.busy_s

    @cached_property
    def peak_in_flight(self) -> list[float]:
        """Micro-batches of activations that each rank holds at most, in shares of one rank.

        A chunk counts 1 / virtual stages, a slice 1 / slices; each is held from the start of its
        forward to the end of its weight gradient.
        """
        return in_flight_peaks(self.schedule)

    @cached_property
    def slack_s(self) -> FloatArray:
        """Shape (operations,): how much longer each could take without delaying the makespan."""
        everything = longest_path.slack(self.graph, self.node_end, self.durations)
        return everything[: len(self.schedule)]

    @cached_property
    def critical_path(self) -> list[int]:
        """Node numbers from the step's start to its end, each waiting for the one before.

        Numbers below `len(schedule)` are operations, the others messages.
        """
        before = longest_path.binding(self.graph, self.node_end)
        node = int(self.node_end.argmax())
        path = []
        while node >= 0:
            path.append(node)
            node = int(before[node])
        return path[::-1]

    @property
    def critical_parts(self) -> dict[str, float]:
        """Time of the critical path by what it is spent on; adds up to the makespan."""
        n = len(self.schedule)
        path = np.array(self.critical_path, dtype=np.int64)
        spent = self.durations[path]
        ops = path[path < n]
        kinds = self.schedule.kind[ops]
        parts = {
            kind.name: float(self.durations[ops][kinds == kind].sum())
            for kind in Kind
            if (kinds == kind).any()
        }
        if len(self.message_from):
            parts["messages"] = float(spent[path >= n].sum())
        return parts

    def op(self, index: int) -> Op:
        """Return the operation at a position of the columns."""
        s = self.schedule
        return Op(Kind(int(s.kind[index])), int(s.stage[index]), int(s.unit[index]))


def busy(schedule: Schedule, start: FloatArray, end: FloatArray, paired: bool) -> FloatArray:
    """Return the time each rank computes, shape (pp,); a pair that runs together counts once."""
    spent = end - start
    if paired:
        spent[schedule.overlapped] = 0.0
    return np.asarray(
        np.bincount(schedule.rank, weights=spent, minlength=schedule.pp), dtype=np.float64
    )


def in_flight_peaks(schedule: Schedule) -> list[float]:
    """Return the most micro-batches that each rank holds at once; depends on the order alone."""
    share = 1.0 / (schedule.virtual_stages * schedule.slices)
    change = np.where(schedule.kind == Kind.F, 1, 0)
    change[(schedule.kind == Kind.B) | (schedule.kind == Kind.W)] = -1
    peaks = []
    for rank in range(schedule.pp):
        ops = slice(schedule.offsets[rank], schedule.offsets[rank + 1])
        peaks.append(float(np.cumsum(change[ops]).max(initial=0)) * share)
    return peaks
