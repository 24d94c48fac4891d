"""The step as a graph in which every node waits for at most two others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from meshwright.schedules.dependencies import Dependencies, dependencies, run_order
from meshwright.schedules.ops import IntArray, Kind, Schedule
from meshwright.specs.errors import SpecError


@dataclass(frozen=True, eq=False)
class StepGraph:
    """Operations and messages as nodes on in-order streams.

    Nodes 0 … n-1 are the schedule's operations, one stream per rank. Further nodes are messages
    between ranks, two streams per rank: activations to the next stage and gradients to the
    previous one. A node starts when its stream is free (`previous`) and its input is there
    (`waits`); -1 means that there is nothing to wait for.

    Where pairs run together (DualPipe's forward and backward), each is one piece of work: its
    first node has no duration, its second the pair's, and whoever needs the first waits for the second.

    Attributes:
        message_from, message_to: shape (messages,), operations that produce and consume each one.
        paired: whether overlapped pairs run together.
    """

    schedule: Schedule
    deps: Dependencies
    offsets: IntArray
    waits: IntArray
    message_from: IntArray
    message_to: IntArray
    paired: bool

    @property
    def nodes(self) -> int:
        """Operations and messages together."""
        return len(self.waits)

    @cached_property
    def previous(self) -> IntArray:
        """Shape (nodes,): the node before on the same stream, or -1."""
        previous = np.arange(-1, self.nodes - 1, dtype=np.int32)
        previous[self.offsets[:-1][np.diff(self.offsets) > 0]] = -1
        return previous

    @cached_property
    def order(self) -> IntArray:
        """Return an order in which all nodes can run.

        Raises:
            SpecError: the schedule deadlocks.
        """
        order, _ = run_order(self.offsets, self.waits)
        if len(order) != self.nodes:
            _ = self.deps.topological  # says which ranks wait for what, if the order is at fault
            raise SpecError(
                "schedule", self.schedule.name, "it deadlocks once pairs overlap or messages queue"
            )
        return order

    @cached_property
    def boundary(self) -> IntArray:
        """Shape (messages,): the stage below the boundary that each message crosses."""
        s = self.schedule
        stage = s.stage[self.message_from]
        below: IntArray = stage - (s.kind[self.message_from] != Kind.F)
        return below

    @cached_property
    def levels(self) -> list[NDArray[np.int32]]:
        """Return nodes grouped so that each group waits only for earlier groups."""
        previous, waits = self.previous.tolist(), self.waits.tolist()
        depth = [0] * (self.nodes + 1)
        for i in self.order.tolist():
            depth[i] = 1 + max(depth[previous[i]], depth[waits[i]])
        column = np.array(depth[:-1], dtype=np.int32)
        by_depth = np.argsort(column, kind="stable").astype(np.int32)
        ends = np.cumsum(np.bincount(column)[1:])
        return np.split(by_depth, ends[:-1])


def build_graph(schedule: Schedule, *, messages: bool, paired: bool) -> StepGraph:
    """Turn a schedule into nodes.

    Args:
        schedule: the order of every rank.
        messages: whether messages between ranks take time, and so are nodes of their own.
        paired: whether pairs marked as overlapped run together, or one after the other.
    """
    deps = dependencies(schedule)
    n = len(schedule)
    finisher = np.arange(n + 1, dtype=np.int32)
    finisher[-1] = -1
    if paired:
        first = np.flatnonzero(schedule.overlapped)
        finisher[first] = first + 1
    waits = finisher[deps.producer]
    offsets = schedule.offsets
    source = target = np.zeros(0, dtype=np.int32)
    if messages:
        target = np.flatnonzero(deps.crosses).astype(np.int32)
        source = deps.producer[target]
        stream = 2 * schedule.rank[source] + (schedule.kind[source] != Kind.F)
        in_stream_order = np.lexsort((finisher[source], stream))
        source, target = source[in_stream_order], target[in_stream_order]
        sizes = np.bincount(stream, minlength=2 * schedule.pp)
        offsets = np.concatenate([offsets, n + np.cumsum(sizes)]).astype(np.int32)
        waits[target] = n + np.arange(len(target), dtype=np.int32)
        waits = np.concatenate([waits, finisher[source]])
    return StepGraph(schedule, deps, offsets, waits, source, target, paired)
