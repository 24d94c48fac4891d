"""A training step of many ranks as a graph of measured operations, evaluated for all steps at once.

For tables of operations that hold more than the pipeline's compute: messages, gradient reduction,
the optimizer (the schema of ByteDance's StragglerAnalysis). Nodes are operations of one pipeline;
every value is an array over (step, data-parallel rank), as all of them share the graph. A message or
collective ends when the last of its group has started and the transfer is over; those of the
data-parallel axis join the ranks of a step.

Slowdown by the definition of arXiv 2505.05713: the mean step with the measured durations over the
mean step in which every compute takes the mean, and every communication the median, of its type.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.specs.errors import SpecError

Array = NDArray[np.float64]
Op = tuple[str, int, int]
"""Type, number among its type on its stage, stage."""

FORWARD, BACKWARD = "forward-compute", "backward-compute"
MESSAGES = ("forward-send", "forward-recv", "backward-send", "backward-recv")
OVER_DATA = ("params-all-gather", "grads-reduce-scatter", "optimizer-clip-main-grad")
COMMUNICATION = (*MESSAGES, *OVER_DATA, "layernorm-grads-all-reduce", "embedding-grads-all-reduce")
CLOCK_S = 1e-2
"""Clocks of ranks agree to this; a transfer shorter than minus this is none."""


@dataclass(eq=False)
class StepGraph:
    """Operations, what each waits for, and their measured times, shape (operations, steps, dp)."""

    ops: list[Op]
    waits: list[list[int]]
    group_of: list[int]
    """Communication group of each operation, or -1."""
    order: list[int]
    """Groups and lone operations in an order in which they can run (indices of units)."""
    units: list[list[int]]
    duration: Array
    """Of computing; of communication the transfer alone, from the last start on."""
    ranks: NDArray[np.int64]
    """Global rank by (stage, dp)."""

    def replay(self, duration: Array) -> Array:
        """Return the time of each step with the given durations, shape (steps,)."""
        end = np.zeros_like(duration)
        start = np.zeros_like(duration)
        for unit in self.order:
            members = self.units[unit]
            for at in members:
                if self.waits[at]:
                    start[at] = np.max(end[self.waits[at]], axis=0)
            if self.group_of[members[0]] < 0:
                at = members[0]
                end[at] = start[at] + duration[at]
                continue
            together = np.max(start[members], axis=0)
            if self.ops[members[0]][0] in OVER_DATA:
                together = np.broadcast_to(together.max(axis=1, keepdims=True), together.shape)
            for at in members:
                end[at] = together + duration[at]
        last: Array = np.max(np.max(end, axis=2), axis=0)
        first: Array = np.min(np.min(start, axis=2), axis=0)
        return last - first

    def ideal(self) -> Array:
        """Durations without stragglers: each type's mean (compute) or median (communication)."""
        found = self.duration.copy()
        for kind in {op[0] for op in self.ops}:
            mine = [at for at, op in enumerate(self.ops) if op[0] == kind]
            values = self.duration[mine]
            found[mine] = np.median(values) if kind in COMMUNICATION else values.mean()
        return found

    def where(
        self, stages: Iterable[int] | None = None, dp: Iterable[int] | None = None
    ) -> NDArray[np.bool_]:
        """A mask of operations by stage and data-parallel rank."""
        mask = np.ones(self.duration.shape, dtype=bool)
        if stages is not None:
            chosen = set(stages)
            mask[[op[2] not in chosen for op in self.ops]] = False
        if dp is not None:
            chosen = set(dp)
            others = np.array([at not in chosen for at in range(self.ranks.shape[1])])
            mask[:, :, others] = False
        return mask

    def computes(self) -> list[int]:
        """Forwards and backwards."""
        return [at for at, op in enumerate(self.ops) if op[0] in (FORWARD, BACKWARD)]


def build(columns: dict[str, Array], names: Sequence[str]) -> StepGraph:
    """Build the graph of a table.

    Args:
        columns: dp_rank, stage, rank, step, start_ts, duration, seq_id, and optype as an index.
        names: the types that optype counts.

    Raises:
        SpecError: ranks or steps have not all the same operations, or virtual stages are used.
    """
    ops, times, ranks = _tensor(columns, names)
    index = {op: at for at, op in enumerate(ops)}
    start, end = times[:, :, :, 0], times[:, :, :, 0] + times[:, :, :, 1]
    stages = 1 + max(op[2] for op in ops)
    waits: list[set[int]] = [set() for _ in ops]
    groups: list[list[int]] = []
    lone: set[int] = set()
    for stage in range(stages):
        _compute_stream(index, ops, start, end, stage, stages, waits, lone)
        _after_compute(index, ops, start, end, stage, stages, waits)
    _pair_messages(index, ops, stages, groups, lone)
    for name in OVER_DATA[:2]:
        groups += [[at] for op, at in index.items() if op[0] == name]
    for name in ("embedding-grads-all-reduce", "optimizer-clip-main-grad"):
        if members := [at for op, at in index.items() if op[0] == name]:
            groups.append(members)
    group_of = [-1] * len(ops)
    for number, members in enumerate(groups):
        for at in members:
            group_of[at] = number
    transfer = _transfers(ops, groups, start, end)
    order, units = _ordered(waits, groups, group_of)
    return StepGraph(
        ops=ops, waits=[sorted(one) for one in waits], group_of=group_of, order=order, units=units,
        duration=transfer, ranks=ranks,
    )  # fmt: skip


def _tensor(
    columns: dict[str, Array], names: Sequence[str]
) -> tuple[list[Op], Array, NDArray[np.int64]]:
    """Times by (operation, step, dp, [start, duration])."""
    steps, step_at = np.unique(columns["step"], return_inverse=True)
    dp_at = columns["dp_rank"].astype(int)
    stage, seq = columns["stage"].astype(int), columns["seq_id"].astype(int)
    kind = columns["optype"].astype(int)
    keys = np.stack([kind, seq, stage], axis=1)
    unique, op_at = np.unique(keys, axis=0, return_inverse=True)
    op_at = op_at.ravel()
    shape = (len(unique), len(steps), int(dp_at.max()) + 1, 2)
    if np.prod([float(part) for part in shape]) > 2e8:
        raise SpecError("artefact", shape, "the table is too large to replay")
    times = np.full(shape, np.nan)
    times[op_at, step_at, dp_at, 0] = columns["start_ts"]
    times[op_at, step_at, dp_at, 1] = columns["duration"]
    whole = ~np.isnan(times).any(axis=(0, 2, 3))
    if not whole.any():
        raise SpecError("artefact", "operations", "no step has every operation on every rank")
    ranks = np.zeros((int(stage.max()) + 1, shape[2]), dtype=np.int64)
    ranks[stage, dp_at] = columns["rank"].astype(int)
    ops = [(names[int(k)], int(s), int(p)) for k, s, p in unique]
    return ops, times[:, whole], ranks


def _in_order(ops: list[Op], start: Array, stage: int, kinds: Sequence[str]) -> list[int]:
    mine = [at for at, op in enumerate(ops) if op[2] == stage and op[0] in kinds]
    return sorted(mine, key=lambda at: (start[at, 0, 0], ops[at][1], ops[at][0]))


def _chain(waits: list[set[int]], members: Sequence[int]) -> None:
    for before, after in itertools.pairwise(members):
        waits[after].add(before)


def _compute_stream(
    index: dict[Op, int], ops: list[Op], start: Array, end: Array, stage: int, stages: int,
    waits: list[set[int]], lone: set[int],
) -> None:  # fmt: skip
    """Compute in its order; receives before their compute, sends after it, each on its own stream."""
    compute = _in_order(ops, start, stage, (FORWARD, BACKWARD))
    _chain(waits, compute)
    for kind in MESSAGES:
        stream = _in_order(ops, start, stage, (kind,))
        _chain(waits, stream)
        way, side = kind.split("-")
        mine = [at for at in compute if ops[at][0] == f"{way}-compute"]
        real = _real_messages(stream, mine, start, end, side)
        lone.update(set(stream) - set(real))
        for message, worker in zip(real, mine[len(mine) - len(real) :], strict=False):
            if side == "send":
                waits[message].add(worker)
                continue
            waits[worker].add(message)
            before = (ops[worker][0], ops[worker][1] - 1, stage)
            if before in index:
                waits[message].add(index[before])
    backwards = [at for at, worker in enumerate(compute) if ops[worker][0] == BACKWARD]
    if backwards and backwards[0] >= 2:
        for kind in ("backward-recv", "backward-send"):
            if (kind, 0, stage) in index:
                waits[index[kind, 0, stage]].add(compute[backwards[0] - 2])


def _real_messages(
    stream: list[int], workers: list[int], start: Array, end: Array, side: str
) -> list[int]:
    """Messages that belong to a compute; profilers record some at the ends that were never sent."""
    if not workers:
        return []
    if side == "recv":
        latest = max(start[at, 0, 0] for at in workers) + 5e-5
        return [at for at in stream if start[at, 0, 0] <= latest][: len(workers)]
    earliest = min(end[at, 0, 0] for at in workers) - 5e-5
    return [at for at in stream if end[at, 0, 0] >= earliest][: len(workers)]


def _after_compute(
    index: dict[Op, int], ops: list[Op], start: Array, end: Array, stage: int, stages: int,
    waits: list[set[int]],
) -> None:  # fmt: skip
    """Gathers of parameters before the first forward; reductions and the optimizer after the last."""
    compute = _in_order(ops, start, stage, (FORWARD, BACKWARD))
    gathers = _in_order(ops, start, stage, ("params-all-gather",))
    scatters = _in_order(ops, start, stage, ("grads-reduce-scatter",))
    _chain(waits, [*gathers, *scatters])
    forwards = [at for at in compute if ops[at][0] == FORWARD]
    if gathers and forwards:
        waits[forwards[0]].add(gathers[-1])
    tail = [max(compute, key=lambda at: end[at, 0, 0])] if compute else []
    ends_of_model = ["embedding-grads-all-reduce"] if stage in (0, stages - 1) else []
    before = ("gc", "layernorm-grads-all-reduce", *ends_of_model)
    tail += [index[kind, 0, stage] for kind in before if (kind, 0, stage) in index]
    tail += scatters
    ends = (("optimizer-clip-main-grad", 0, stage), ("optimizer", 0, stage))
    tail += [index[op] for op in ends if op in index]
    _chain(waits, tail)


def _pair_messages(
    index: dict[Op, int], ops: list[Op], stages: int, groups: list[list[int]], lone: set[int]
) -> None:
    """The k-th message that a stage sends is the k-th that its neighbour receives."""
    for stage in range(stages):
        for way, step in (("forward", 1), ("backward", -1)):
            peer = stage + step
            sends = [
                at
                for op, at in index.items()
                if op[0] == f"{way}-send" and op[2] == stage and at not in lone
            ]
            receives = [
                at
                for op, at in index.items()
                if op[0] == f"{way}-recv" and op[2] == peer and at not in lone
            ]
            sends.sort(key=lambda at: ops[at][1])
            receives.sort(key=lambda at: ops[at][1])
            groups += [[a, b] for a, b in zip(sends, receives, strict=False)]
    groups += [[at] for at in sorted(lone)]


def _transfers(ops: list[Op], groups: list[list[int]], start: Array, end: Array) -> Array:
    """Durations, with the wait for the last of the group taken out of communication."""
    found = end - start
    for members in groups:
        last = np.max(start[members], axis=0)
        if ops[members[0]][0] in OVER_DATA:
            last = np.broadcast_to(last.max(axis=1, keepdims=True), last.shape)
        for at in members:
            transfer = end[at] - last
            found[at] = np.where(transfer <= -CLOCK_S, 0.0, transfer)
    return found


def _ordered(
    waits: list[set[int]], groups: list[list[int]], group_of: list[int]
) -> tuple[list[int], list[list[int]]]:
    """Units (groups and lone operations) in an order in which they can run.

    Raises:
        SpecError: the table's operations wait for each other in a circle.
    """
    units = [list(members) for members in groups]
    unit_of = list(group_of)
    for at, group in enumerate(group_of):
        if group < 0:
            unit_of[at] = len(units)
            units.append([at])
    needs = [
        {unit_of[before] for at in members for before in waits[at]} - {number}
        for number, members in enumerate(units)
    ]
    done: set[int] = set()
    order: list[int] = []
    left = set(range(len(units)))
    while left:
        ready = sorted(number for number in left if needs[number] <= done)
        if not ready:
            raise SpecError("artefact", "operations", "wait for each other in a circle")
        order += ready
        done.update(ready)
        left.difference_update(ready)
    return order, units
