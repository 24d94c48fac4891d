"""Reading the flight recorder's rings: the last operations of every rank.

Needs no torch. A ring file is a header and slots of 64 bytes, little-endian; the groups that the
slots number are in a JSON file beside it.
"""

from __future__ import annotations

import os
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from meshwright.specs.errors import SpecError, one_line
from meshwright.specs.foreign import expecting, read_bytes
from meshwright.specs.quantities import format_bytes

MAGIC = b"MWFLIGHT"
HEADER = struct.Struct("<8sIII")
SLOT = struct.Struct("<QddHBxiQQI")
"""Number, started, finished (0: not yet), group, kind, peer, turn, payload bytes, step."""
HEADER_BYTES = SLOT_BYTES = 64
CAPACITY = 512
MOST_CALLS = 1_000_000
LATEST = 1e12
"""Seconds; no clock is beyond."""

KINDS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "receive", "broadcast",
    "barrier", "gather", "scatter", "reduce",
)  # fmt: skip


class _Group(msgspec.Struct):
    """A process group, as a ring's slots number it."""

    axis: Annotated[str, msgspec.Meta(max_length=200)]
    name: Annotated[str, msgspec.Meta(max_length=2000)]
    ranks: list[Annotated[int, msgspec.Meta(ge=0, le=10**7)]]


class _Sidecar(msgspec.Struct):
    """The JSON file beside a ring."""

    groups: list[_Group]
    host: str
    pid: int


ASIDE = ("other", "checkpoint")
"""Axes of what happens beside the training step; a verdict speaks of them last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One operation of one rank."""

    rank: int
    number: int
    """Counts all operations of the rank."""
    kind: str
    axis: str
    group: str
    """The process group's name, the same on all its ranks."""
    ranks: tuple[int, ...]
    peer: int
    """Global rank at the other end of a send or receive; -1 for a group."""
    turn: int
    """Counts the operations on the group; for messages those of a kind with the peer."""
    payload_bytes: int
    step: int
    """Counted from 1; 0 before the first."""
    started: float
    finished: float | None
    shape: str = ""
    """What must agree between ranks beside the kind, where it was noted: sizes and type."""

    def __str__(self) -> str:
        with_whom = f"{'to' if self.kind == 'send' else 'from'} rank {self.peer}"
        if self.peer < 0:
            with_whom = f"over {self.axis} among {ranks_text(self.ranks)}"
        size = f", {format_bytes(self.payload_bytes)}" if self.payload_bytes else ""
        return f"{self.kind} {self.turn} {with_whom} (step {self.step}{size})"

    def plain(self) -> dict[str, Any]:
        """Data for JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"ranks": list(self.ranks)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """What one rank's ring holds."""

    rank: int
    calls: tuple[Call, ...]
    """The last ones, oldest first."""
    stopped: bool = False
    """Whether its process is on this machine and stopped by a signal, now."""
    on_device: bool = False
    """Whether operations run behind the host, on a device of their own."""
    reached: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By group of collectives: the last one started and the last one finished, where counted."""

    @property
    def waiting(self) -> list[Call]:
        """Operations that were started and not finished."""
        return [call for call in self.calls if call.finished is None]

    @property
    def last(self) -> Call | None:
        """The newest operation; one of the training step if there is any."""
        return max(self.calls, key=lambda c: (c.axis not in ASIDE, c.number), default=None)


def folder_of(out: str | Path, generation: int) -> Path:
    """Where the rings of one start of a run are."""
    return Path(out) / "flight" / f"generation-{generation}"


def newest_folder(out: str | Path) -> Path:
    """The rings of the last start that left any.

    Raises:
        SpecError: there are none.
    """
    found = sorted(
        (Path(out) / "flight").glob("generation-*/rank-*.ring"),
        key=lambda path: (len(path.parent.name), path.parent.name, path.name),
    )
    if not Path(out).exists():
        raise SpecError("run", str(out), "no such folder")
    if not found:
        raise SpecError(
            "run", str(out), "holds no flight recorder's rings: no start of it failed or still runs"
        )
    return found[-1].parent


def read_flights(folder: Path) -> list[Flight]:
    """Read all rings of a start, by rank.

    Raises:
        SpecError: a file is no ring.
    """
    return [_read(path) for path in sorted(folder.glob("rank-*.ring"))]


def _read(path: Path) -> Flight:
    sidecar = path.with_suffix(".json")
    if not os.path.lexists(sidecar):  # no operation yet
        with expecting("run", str(path), "a flight recorder's ring"):
            return Flight(rank=int(path.stem.rpartition("-")[2]), calls=())
    raw = read_bytes(path, "run")
    try:
        magic, capacity, rank, _ = HEADER.unpack_from(raw)
        facts = msgspec.json.decode(read_bytes(sidecar, "run"), type=_Sidecar)
    except (msgspec.MsgspecError, struct.error, UnicodeError):
        raise SpecError("run", str(path), "is no flight recorder's ring") from None
    groups, here = facts.groups, facts.host == platform.node()
    if (
        capacity > MOST_CALLS
        or rank > 10**7
        or magic != MAGIC
        or len(raw) < HEADER_BYTES + capacity * SLOT_BYTES
    ):
        raise SpecError("run", str(path), "is no flight recorder's ring")
    calls = []
    for at in range(capacity):
        number, started, finished, group, kind, peer, turn, size, step = SLOT.unpack_from(
            raw, HEADER_BYTES + at * SLOT_BYTES
        )
        if number == 0 or group >= len(groups):
            continue
        times = 0 <= started < LATEST and 0 <= finished < LATEST  # NaN is neither
        if kind >= len(KINDS) or not times or max(number, turn, size) >= 2**53:
            raise SpecError("run", str(path), "is no flight recorder's ring")
        calls.append(
            Call(
                rank=rank, number=number, kind=KINDS[kind], axis=one_line(groups[group].axis),
                group=one_line(groups[group].name), ranks=tuple(groups[group].ranks), peer=peer,
                turn=turn, payload_bytes=size, step=step, started=started,
                finished=finished or None,
            )
        )  # fmt: skip
    calls.sort(key=lambda call: call.number)
    return Flight(rank=rank, calls=tuple(calls), stopped=here and is_stopped(facts.pid))


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal, where the system tells (Linux)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state == "T"


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 1, 2 and 3`, `ranks 0, 1, … (64)`."""
    if not ranks:
        return "no rank"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = [str(rank) for rank in ranks[:8]]
    if len(ranks) > 8:
        return f"ranks {', '.join(shown)} … ({len(ranks)})"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"
