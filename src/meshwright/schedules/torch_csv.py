"""Schedules in torch's CSV action format: one row per rank, one action per cell.

The format of `torch.distributed.pipelining` (`_PipelineScheduleRuntime._load_csv`) and of
torchtitan's `pipeline_parallel_schedule_csv`: `2F0` is the forward of micro-batch 0 on stage 2,
`(0F1;7B0)OVERLAP_F_B` runs two together. Sends, receives and FSDP actions may be present.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator

import numpy as np

from meshwright.schedules.communication import with_messages
from meshwright.schedules.ops import Kind, Schedule, from_lists
from meshwright.schedules.validate import validate
from meshwright.specs.errors import SpecError

_ACTION = re.compile(
    r"^(\d+)(F|I|B|W|UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)(\d*)$"
)
_PAIR = re.compile(r"^\(([^;()]+);([^;()]+)\)OVERLAP_F_B$")
MAX_CELLS = 20_000_000


def write_torch_csv(schedule: Schedule, *, messages: bool = False) -> str:
    """Return the schedule as torch reads it.

    Args:
        schedule: one chain, no slices: torch has neither bidirectional nor sliced schedules.
        messages: whether to include sends and receives (torch's `compute_comms` format); without,
            torch adds its own (`compute_only`).

    Raises:
        SpecError: torch's format cannot express the schedule.
    """
    for count, what in ((schedule.chains, "two opposite pipelines"), (schedule.slices, "slices")):
        if count > 1:
            raise SpecError("csv", schedule.name, f"torch's schedule format has no {what}")
    if messages:
        rows = [[str(action) for action in row] for row in with_messages(schedule)]
    else:
        rows = [_cells(schedule, rank) for rank in range(schedule.pp)]
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def _cells(schedule: Schedule, rank: int) -> list[str]:
    first, last = int(schedule.offsets[rank]), int(schedule.offsets[rank + 1])
    paired = schedule.overlapped[first:last].tolist()
    cells: list[str] = []
    words = [str(op) for op in schedule.ops(rank)]
    for i, word in enumerate(words):
        if i and paired[i - 1]:
            continue
        cells.append(f"({word};{words[i + 1]})OVERLAP_F_B" if paired[i] else word)
    return cells


def _lines(text: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader(io.StringIO(text))
    except csv.Error as error:
        raise SpecError("csv", None, f"is no CSV table ({error})") from None


def read_torch_csv(text: str, name: str = "csv") -> Schedule:
    """Read a schedule and prove it; sends, receives and FSDP actions are checked and dropped.

    The rank of each stage is the row it appears in.

    Raises:
        SpecError: a cell is not an action, or the schedule is not sound (see `validate`): torch
            2.13's own listing of 1F1B is refused, as its last rank runs micro-batches 1 … m.
    """
    ranks: list[list[tuple[int, int, int]]] = []
    pairs: list[list[bool]] = []
    cells = 0
    for row, line in enumerate(_lines(text)):
        ops: list[tuple[int, int, int]] = []
        marks: list[bool] = []
        cells += len(line)
        if cells > MAX_CELLS:
            raise SpecError("csv", f"{cells} cells", f"at most {MAX_CELLS} are read")
        for column, cell in enumerate(line):
            where = f"csv row {row}, column {column}"
            found = _parse_cell(cell.strip(), where)
            ops += found
            marks += [True, False] if len(found) == 2 else [False] * len(found)
        if line:
            ranks.append(ops)
            pairs.append(marks)
    if not any(ranks):
        raise SpecError("csv", text[:40], "no actions found")
    schedule = _assemble(ranks, pairs, name)
    validate(schedule)
    return schedule


def _parse_cell(cell: str, where: str) -> list[tuple[int, int, int]]:
    if not cell:
        return []
    pair = _PAIR.match(cell)
    if pair:
        return [op for half in pair.groups() for op in _parse_cell(half.strip(), where)]
    match = _ACTION.match(cell)
    if not match:
        raise SpecError(where, cell, "an action such as 2F0, 1SEND_F3 or (0F1;7B0)OVERLAP_F_B")
    stage, what, unit = match.groups()
    if what not in Kind.__members__:
        return []
    if not unit or len(stage) > 6 or len(unit) > 7:
        raise SpecError(where, cell, "a compute action names its stage and micro-batch, as 2F0")
    return [(Kind[what], int(stage), int(unit))]


def _check_same_micro_batches(ranks: list[list[tuple[int, int, int]]]) -> None:
    """Refuse a file whose stages forward different micro-batches, saying which."""
    forwarded: dict[int, set[int]] = {}
    for ops in ranks:
        for kind, stage, unit in ops:
            if kind == Kind.F:
                forwarded.setdefault(stage, set()).add(unit)
    if not forwarded:
        raise SpecError("csv", "no forward", "a training step has forwards and backwards")
    first = min(forwarded)
    for stage in sorted(forwarded):
        if forwarded[stage] != forwarded[first]:
            raise SpecError(
                "csv",
                f"stage {stage}",
                f"it forwards micro-batches {_span(forwarded[stage])}, "
                f"but stage {first} forwards {_span(forwarded[first])}",
            )


def _span(units: set[int]) -> str:
    low, high = min(units), max(units)
    return f"{low}…{high}" if len(units) == high - low + 1 else f"{len(units)} of {low}…{high}"


def _assemble(
    ranks: list[list[tuple[int, int, int]]], pairs: list[list[bool]], name: str
) -> Schedule:
    stages = 1 + max(stage for ops in ranks for _, stage, _ in ops)
    units = 1 + max(unit for ops in ranks for _, _, unit in ops)
    if stages * units > MAX_CELLS:
        raise SpecError("csv", f"{stages} stages, {units} micro-batches", "too large to be real")
    stage_rank = np.full(stages, -1, dtype=np.int32)
    for rank, ops in enumerate(ranks):
        for stage in {stage for _, stage, _ in ops}:
            if stage_rank[stage] >= 0:
                raise SpecError(
                    "csv", f"stage {stage}", f"it is on ranks {stage_rank[stage]} and {rank}"
                )
            stage_rank[stage] = rank
    _check_same_micro_batches(ranks)
    missing = np.flatnonzero(stage_rank < 0)
    if len(missing):
        raise SpecError("csv", f"stage {missing[0]}", "no rank runs it")
    return from_lists(
        name,
        ranks,
        micro_batches=units,
        stage_rank=stage_rank,
        virtual_stages=max(1, round(stages / len(ranks))),
        overlapped=pairs,
    )
