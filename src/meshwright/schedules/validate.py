"""Proof that a schedule is complete, ordered, free of deadlock, and frees what it allocates."""

from __future__ import annotations

import numpy as np

from meshwright.schedules.communication import check_messages, with_messages
from meshwright.schedules.dependencies import dependencies
from meshwright.schedules.ops import Kind, Op, Schedule
from meshwright.specs.errors import SpecError


def validate(schedule: Schedule, *, messages: bool = True) -> None:
    """Prove a schedule.

    Every stage of a unit's chain runs its F exactly once, and either B or both I and W, on the
    rank that holds the stage; on a rank, F comes before the backward and I before W; slices of a
    sequence go forward in order and backward in reverse; the ranks never wait in a circle, not
    even with sends and receives in their real order; activations held never fall below zero.

    Args:
        schedule: what to prove.
        messages: whether to run the send and receive order too (slow for millions).

    Raises:
        SpecError: the first violation, named with rank and operation.
    """
    _check_ranges(schedule)
    _check_exactly_once(schedule)
    _check_own_order(schedule)
    _ = dependencies(schedule).topological
    _check_memory(schedule)
    if messages:
        check_messages(schedule, with_messages(schedule))


def _fail(schedule: Schedule, index: int, reason: str) -> SpecError:
    kind, stage, unit = (int(c[index]) for c in (schedule.kind, schedule.stage, schedule.unit))
    return SpecError(
        "schedule", str(Op(Kind(kind), stage, unit)), f"rank {schedule.rank[index]}: {reason}"
    )


def _check_ranges(s: Schedule) -> None:
    for column, limit, what in ((s.stage, s.stages, "stages"), (s.unit, s.units, "micro-batches")):
        outside = np.flatnonzero((column < 0) | (column >= limit))
        if len(outside):
            raise _fail(s, int(outside[0]), f"there are only {limit} {what}")
    wrong = np.flatnonzero(s.stage_rank[s.stage] != s.rank)
    if len(wrong):
        i = int(wrong[0])
        raise _fail(s, i, f"stage {s.stage[i]} is on rank {s.stage_rank[s.stage[i]]}")


def _check_exactly_once(s: Schedule) -> None:

    counts = []
    for kind in Kind:
        table = np.zeros((s.stages, s.units), dtype=np.int32)
        chosen = s.kind == kind
        np.add.at(table, (s.stage[chosen], s.unit[chosen]), 1)
        counts.append(table)
        twice = np.argwhere(table > 1)
        if len(twice):
            stage, unit = (int(x) for x in twice[0])
            raise _complaint(s, Op(kind, stage, unit), f"runs {table[stage, unit]} times")
    chain_of_stage = np.arange(s.stages) // s.chain_length
    chain_of_unit = np.array([s.chain_of(u) for u in range(s.units)])
    expected = (chain_of_stage[:, None] == chain_of_unit[None, :]).astype(np.int32)
    f, b, i, w = counts
    for table, kind in ((f, Kind.F), (b + i, Kind.B), (b + w, Kind.B)):
        wrong = np.argwhere(table != expected)
        if len(wrong):
            stage, unit = (int(x) for x in wrong[0])
            if expected[stage, unit] == 0:
                raise _complaint(s, Op(kind, stage, unit), "belongs to the other chain")
            if kind != Kind.F and i[stage, unit] != w[stage, unit]:
                lone = Kind.I if i[stage, unit] else Kind.W
                raise _complaint(s, Op(lone, stage, unit), "its other half is missing")
            twice = table[stage, unit] > 1
            raise _complaint(
                s, Op(kind, stage, unit), "runs both whole and split" if twice else "never runs"
            )


def _complaint(s: Schedule, op: Op, reason: str) -> SpecError:
    return SpecError("schedule", str(op), f"rank {s.stage_rank[op.stage]}: {reason}")


def _check_own_order(s: Schedule) -> None:
    deps = dependencies(s)
    forward, backward, weight = deps.forward, deps.backward, deps.weight
    for early, late, what in (
        (forward, backward, "its forward comes later"),
        (backward, weight, "its I comes later"),
    ):
        wrong = np.argwhere((early > late) & (late >= 0))
        if len(wrong):
            raise _fail(s, int(late[tuple(wrong[0])]), what)
    if s.slices > 1:
        shape = (s.stages, s.micro_batches, s.slices)
        rules = ((forward, 1, "an earlier slice"), (backward, -1, "a later slice"))
        for table, sign, what in rules:
            step = sign * np.diff(table.reshape(shape), axis=2)
            wrong = np.argwhere(step < 0)
            if len(wrong):
                stage, batch, piece = (int(x) for x in wrong[0])
                late = table.reshape(shape)[stage, batch, piece + (0 if sign < 0 else 1)]
                raise _fail(s, int(late), f"{what} of the same sequence must come first")


def _check_memory(s: Schedule) -> None:
    change = np.where(s.kind == Kind.F, 1, 0)
    change[(s.kind == Kind.B) | (s.kind == Kind.W)] = -1
    for rank in range(s.pp):
        first, last = int(s.offsets[rank]), int(s.offsets[rank + 1])
        held = np.cumsum(change[first:last])
        below = np.flatnonzero(held < 0)
        if len(below):
            raise _fail(s, first + int(below[0]), "it frees activations that are not held")
        if len(held) and held[-1] != 0:
            raise _fail(s, last - 1, f"{held[-1]} activations are never freed")
