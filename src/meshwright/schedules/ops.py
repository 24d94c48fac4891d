"""The schedule: for each pipeline rank, the ordered compute operations of one step, in columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]


class Kind(IntEnum):
    """What an operation computes. The letters are those of torch's schedule files."""

    F = 0
    """forward of one micro-batch (or slice) through one stage"""
    B = 1
    """full backward: input gradient and weight gradient together"""
    I = 2  # noqa: E741 - the letter the field uses
    """backward for the input gradient only"""
    W = 3
    """backward for the weight gradient only"""


class Op(NamedTuple):
    """One compute operation. `unit` is the micro-batch, or micro-batch · slices + slice."""

    kind: Kind
    stage: int
    unit: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.name}{self.unit}"


@dataclass(frozen=True, eq=False)
class Schedule:
    """Ordered compute operations of every pipeline rank for one step.

    The columns `kind`, `stage`, `unit` hold all operations, rank after rank;
    `offsets[r]:offsets[r + 1]` are those of rank r. Stages are global: a chain of
    `pp * virtual_stages` stages carries a micro-batch from the embedding to the loss, and
    `stage_rank[stage]` says which rank holds each. A bidirectional schedule has two chains, the
    second one's stages numbered after the first one's.

    Attributes:
        name: one of `meshwright.specs.layout.SCHEDULES`, or the name of a file.
        pp: pipeline ranks.
        micro_batches: micro-batches of one step, over both chains if there are two.
        virtual_stages: model chunks per rank and chain.
        chains: 1, or 2 for bidirectional schedules (each rank then holds two model shares).
        slices: pieces that the sequence of each micro-batch is cut into.
        stage_rank: shape (stages,), the rank of every stage.
        kind, stage, unit: shape (operations,), the operations in order of execution.
        overlapped: shape (operations,), True where an operation runs together with the next one
            (DualPipe's forward-and-backward pair).
        offsets: shape (pp + 1,), first operation of every rank.
        asynchronous: no flush at the step's end (PipeDream), so weights exist in versions.
    """

    name: str
    pp: int
    micro_batches: int
    virtual_stages: int
    stage_rank: IntArray
    kind: NDArray[np.uint8]
    stage: IntArray
    unit: IntArray
    offsets: IntArray
    overlapped: NDArray[np.bool_]
    chains: int = 1
    slices: int = 1
    asynchronous: bool = False
    notes: tuple[str, ...] = field(default=())

    @property
    def stages(self) -> int:
        """Stages of all chains."""
        return len(self.stage_rank)

    @property
    def chain_length(self) -> int:
        """Stages that one micro-batch passes through."""
        return len(self.stage_rank) // self.chains

    @property
    def units(self) -> int:
        """Micro-batches times slices: how many forwards a stage of a single chain runs."""
        return self.micro_batches * self.slices

    @property
    def split_backward(self) -> bool:
        """Whether some backward is split into I and W."""
        return bool((self.kind >= Kind.I).any())

    @cached_property
    def rank(self) -> IntArray:
        """Shape (operations,): the rank of every operation."""
        return np.repeat(np.arange(self.pp, dtype=np.int32), np.diff(self.offsets))

    def __len__(self) -> int:
        return len(self.kind)

    def chain_of(self, unit: int) -> int:
        """Return the chain that carries a unit; the first half of them takes chain 0."""
        return 0 if self.chains == 1 or unit < self.units // 2 else 1

    def ops(self, rank: int) -> Iterator[Op]:
        """Yield the operations of one rank in order of execution."""
        first, last = int(self.offsets[rank]), int(self.offsets[rank + 1])
        columns = (c[first:last].tolist() for c in (self.kind, self.stage, self.unit))
        for kind, stage, unit in zip(*columns, strict=True):
            yield Op(Kind(kind), stage, unit)

    def order(self) -> list[list[Op]]:
        """Return all operations as one list per rank (readable; slow for millions)."""
        return [list(self.ops(rank)) for rank in range(self.pp)]

    def stages_of(self, rank: int) -> list[int]:
        """Return the global stages that a rank holds."""
        return [int(s) for s in np.flatnonzero(self.stage_rank == rank)]


RankColumns = tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.integer]]


def from_columns(
    name: str,
    ranks: Sequence[RankColumns],
    *,
    micro_batches: int,
    stage_rank: NDArray[np.integer],
    virtual_stages: int = 1,
    chains: int = 1,
    slices: int = 1,
    overlapped: Sequence[NDArray[np.bool_]] | None = None,
    asynchronous: bool = False,
    notes: tuple[str, ...] = (),
) -> Schedule:
    """Assemble a schedule from (kind, stage, unit) columns per rank."""
    sizes = [len(kind) for kind, _, _ in ranks]
    columns = [np.concatenate([rank[c] for rank in ranks]) for c in range(3)]
    pairs = np.concatenate(overlapped) if overlapped else np.zeros(sum(sizes), dtype=np.bool_)
    return Schedule(
        name=name,
        pp=len(ranks),
        micro_batches=micro_batches,
        virtual_stages=virtual_stages,
        stage_rank=np.asarray(stage_rank, dtype=np.int32),
        kind=columns[0].astype(np.uint8),
        stage=columns[1].astype(np.int32),
        unit=columns[2].astype(np.int32),
        offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
        overlapped=pairs,
        chains=chains,
        slices=slices,
        asynchronous=asynchronous,
        notes=notes,
    )


def from_lists(
    name: str,
    ranks: Sequence[Sequence[tuple[int, int, int]]],
    *,
    micro_batches: int,
    stage_rank: NDArray[np.integer],
    virtual_stages: int = 1,
    chains: int = 1,
    slices: int = 1,
    overlapped: Sequence[Sequence[bool]] | None = None,
    notes: tuple[str, ...] = (),
) -> Schedule:
    """Assemble a schedule from one list of (kind, stage, unit) per rank."""
    pairs = None
    if overlapped is not None:
        pairs = [np.array(marks, dtype=np.bool_) for marks in overlapped]
    columns: list[RankColumns] = []
    for ops in ranks:
        table = np.array(ops, dtype=np.int32).reshape(-1, 3)
        columns.append((table[:, 0], table[:, 1], table[:, 2]))
    return from_columns(
        name,
        columns,
        micro_batches=micro_batches,
        stage_rank=stage_rank,
        virtual_stages=virtual_stages,
        chains=chains,
        slices=slices,
        overlapped=pairs,
        notes=notes,
    )


def loop_placement(pp: int, virtual_stages: int) -> IntArray:
    """Return ranks of the stages in loops: 0 1 2 3 0 1 2 3 (Megatron's interleaving)."""
    return np.tile(np.arange(pp, dtype=np.int32), virtual_stages)


def wave_placement(pp: int, virtual_stages: int) -> IntArray:
    """Return ranks of the stages in waves: 0 1 2 3 3 2 1 0 (the V of ZB-V and DualPipeV)."""
    down = np.arange(pp, dtype=np.int32)
    return np.concatenate([down if c % 2 == 0 else down[::-1] for c in range(virtual_stages)])


def two_way_placement(pp: int) -> IntArray:
    """Return ranks of the stages of two opposite chains: 0 1 2 3 | 3 2 1 0 (Chimera, DualPipe)."""
    down = np.arange(pp, dtype=np.int32)
    return np.concatenate([down, down[::-1]])
