"""Which operation waits for which, and an order in which all of them can run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from meshwright.schedules.ops import IntArray, Kind, Op, Schedule
from meshwright.specs.errors import SpecError


@dataclass(frozen=True, eq=False)
class Dependencies:
    """The data dependencies of a schedule's operations.

    `producer[i]` is the operation whose output operation i consumes, -1 for a forward of the
    first stage: F waits for the F of the previous stage; B and I wait for the backward of the
    next stage (for the F of the same stage on the last one); W waits for the I of its stage.
    What an operation needs from its own rank besides (B its F) comes earlier in a valid order.

    `forward`, `backward`, `weight` have shape (stages, units): the position of that operation in
    the columns, -1 where there is none. `backward` is where the input gradient is made (B or I),
    `weight` where the weight gradient is (B or W).
    """

    schedule: Schedule
    forward: IntArray
    backward: IntArray
    weight: IntArray
    producer: IntArray

    @cached_property
    def crosses(self) -> NDArray[np.bool_]:
        """Shape (operations,): whether the producer is on another rank (a message is needed)."""
        rank = self.schedule.rank
        crossing: NDArray[np.bool_] = (self.producer >= 0) & (rank[self.producer] != rank)
        return crossing

    @cached_property
    def topological(self) -> IntArray:
        """Return a permutation of the operations that respects rank order and dependencies.

        Raises:
            SpecError: the order of the ranks can never finish (deadlock).
        """
        order, cursor = run_order(self.schedule.offsets, self.producer)
        if len(order) != len(self.producer):
            reason = _describe_deadlock(self.schedule, cursor, self.producer)
            raise SpecError("schedule", self.schedule.name, reason)
        return order


def dependencies(schedule: Schedule) -> Dependencies:
    """Find every operation's producer.

    Raises:
        SpecError: an operation appears twice, or its producer is missing.
    """
    s = schedule
    index = np.arange(len(s), dtype=np.int32)
    tables = []
    for kinds in ((Kind.F,), (Kind.B, Kind.I), (Kind.B, Kind.W)):
        table = np.full((s.stages, s.units), -1, dtype=np.int32)
        chosen = np.isin(s.kind, kinds)
        table[s.stage[chosen], s.unit[chosen]] = index[chosen]
        tables.append(table)
    forward, backward, weight = tables

    first = s.stage % s.chain_length == 0
    last = s.stage % s.chain_length == s.chain_length - 1
    is_forward, is_weight = s.kind == Kind.F, s.kind == Kind.W
    producer = np.full(len(s), -1, dtype=np.int32)

    def fill(where: NDArray[np.bool_], table: IntArray, shift: int) -> None:
        producer[where] = table[s.stage[where] + shift, s.unit[where]]

    fill(is_forward & ~first, forward, -1)
    fill(~is_forward & ~is_weight & last, forward, 0)
    fill(~is_forward & ~is_weight & ~last, backward, 1)
    fill(is_weight, backward, 0)
    missing = np.flatnonzero((producer < 0) & ~(is_forward & first))
    if len(missing):
        i = int(missing[0])
        op = Op(Kind(int(s.kind[i])), int(s.stage[i]), int(s.unit[i]))
        raise SpecError(
            "schedule", str(op), f"rank {s.rank[i]} runs it, but what it waits for is never run"
        )
    return Dependencies(s, forward, backward, weight, producer)


def run_order(offsets: IntArray, waits: IntArray) -> tuple[IntArray, list[int]]:
    """Order the entries of queues that each wait for at most one entry of another queue.

    Queue q holds the entries `offsets[q]:offsets[q + 1]`, which run in that order; entry i waits
    for entry `waits[i]` (-1: for none). Rounds over the queues: each goes on until it must wait.

    Returns:
        the entries in an order that can run, and where every queue stopped. Fewer entries than
        there are means that the queues deadlock.
    """
    bounds = offsets.tolist()
    needed = waits.tolist()
    done = bytearray(len(needed) + 1)
    done[-1] = 1  # waits[i] = -1 reads this one: nothing to wait for
    cursor = bounds[:-1]
    order: list[int] = []
    moved = True
    while moved:
        moved = False
        for queue, limit in enumerate(bounds[1:]):
            i = start = cursor[queue]
            while i < limit and done[needed[i]]:
                done[i] = 1
                i += 1
            if i != start:
                order.extend(range(start, i))
                cursor[queue] = i
                moved = True
    return np.array(order, dtype=np.int32), cursor


def _describe_deadlock(schedule: Schedule, cursor: list[int], waits: IntArray) -> str:
    stuck = []
    for rank in range(schedule.pp):
        i = cursor[rank]
        if i < schedule.offsets[rank + 1]:
            waiting, needed = (
                Op(Kind(int(schedule.kind[j])), int(schedule.stage[j]), int(schedule.unit[j]))
                for j in (i, int(waits[i]))
            )
            stuck.append(f"rank {rank} at {waiting} waits for {needed}")
    return "it deadlocks: " + "; ".join(stuck[:4]) + ("; …" if len(stuck) > 4 else "")
