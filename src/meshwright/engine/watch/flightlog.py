"""Reading the flight recorder's rings: who waited for whom, and which rank missed what.

Needs no torch. A ring file is a header and slots of 64 bytes, little-endian; the groups that the
slots number are in a JSON file beside it.
"""

from __future__ import annotations

import json
import platform
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.specs.errors import SpecError
from meshwright.specs.quantities import format_bytes, format_seconds

MAGIC = b"MWFLIGHT"
HEADER = struct.Struct("<8sIII")
SLOT = struct.Struct("<QddHBxiQQI")
"""Number, started, finished (0: not yet), group, kind, peer, turn, payload bytes, step."""
HEADER_BYTES = SLOT_BYTES = 64
CAPACITY = 512

KINDS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "receive", "broadcast",
    "barrier", "gather", "scatter", "reduce",
)  # fmt: skip


_ASIDE = ("other", "checkpoint")
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

    def __str__(self) -> str:
        with_whom = f"{'to' if self.kind == 'send' else 'from'} rank {self.peer}"
        if self.peer < 0:
            with_whom = f"over {self.axis} among {_ranks(self.ranks)}"
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

    @property
    def waiting(self) -> list[Call]:
        """Operations that were started and not finished."""
        return [call for call in self.calls if call.finished is None]

    @property
    def last(self) -> Call | None:
        """The newest operation; one of the training step if there is any."""
        return max(self.calls, key=lambda c: (c.axis not in _ASIDE, c.number), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why a run stood still, as far as the rings tell."""

    sentence: str
    missing_ranks: tuple[int, ...]
    """Ranks that others waited for and that waited for nobody."""
    missed: Call | None
    """An operation that waited for them, as the rank that waited saw it."""

    def plain(self) -> dict[str, Any]:
        """Data for JSON."""
        return {
            "sentence": self.sentence, "missing_ranks": list(self.missing_ranks),
            "missed": self.missed.plain() if self.missed else None,
        }  # fmt: skip


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
        key=lambda path: int(path.parent.name.rpartition("-")[2]),
    )
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
    try:
        raw = path.read_bytes()
        magic, capacity, rank, _ = HEADER.unpack_from(raw)
        facts = json.loads(path.with_suffix(".json").read_text("utf-8"))
        groups, here = facts["groups"], facts["host"] == platform.node()
    except FileNotFoundError:
        return Flight(rank=int(path.stem.rpartition("-")[2]), calls=())  # no operation yet
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        raise SpecError("run", str(path), "is no flight recorder's ring") from None
    if magic != MAGIC or len(raw) < HEADER_BYTES + capacity * SLOT_BYTES:
        raise SpecError("run", str(path), "is no flight recorder's ring")
    calls = []
    for at in range(capacity):
        number, started, finished, group, kind, peer, turn, size, step = SLOT.unpack_from(
            raw, HEADER_BYTES + at * SLOT_BYTES
        )
        if number == 0 or group >= len(groups):
            continue
        calls.append(
            Call(
                rank=rank, number=number, kind=KINDS[kind], axis=groups[group]["axis"],
                group=groups[group]["name"], ranks=tuple(groups[group]["ranks"]), peer=peer, turn=turn, payload_bytes=size,
                step=step, started=started, finished=finished or None,
            )
        )  # fmt: skip
    calls.sort(key=lambda call: call.number)
    return Flight(rank=rank, calls=tuple(calls), stopped=here and is_stopped(facts["pid"]))


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal, where the system tells (Linux)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state == "T"


def judge(flights: Sequence[Flight]) -> Verdict:
    """Say which rank the others waited for, and in which operation.

    A rank misses a collective that a peer of its group has started and it has not, and a message
    whose other end it has not started. Who is waited for and misses nothing of anybody's is at the
    root; if everybody waits for somebody, the ranks wait in a circle.
    """
    waits: dict[int, list[tuple[Call, set[int]]]] = {}
    done = _progress(flights)
    for flight in flights:
        for call in flight.waiting:
            if lacking := _lacking(call, done):
                waits.setdefault(flight.rank, []).append((call, lacking))
    if not waits:
        return _inside(flights)
    wanted = {rank for calls in waits.values() for _, lacking in calls for rank in lacking}
    roots = sorted(wanted - set(waits))
    if not roots:
        circle = sorted(wanted)
        return Verdict(
            sentence=f"{_ranks(circle)} wait for each other in a circle: "
            + "; ".join(f"rank {rank} in {waits[rank][0][0]}" for rank in circle[:4]),
            missing_ranks=tuple(circle), missed=waits[circle[0]][0][0],
        )  # fmt: skip
    return _blame(roots, waits, flights)


def _inside(flights: Sequence[Flight]) -> Verdict:
    """Nobody misses an operation: what stood still did so inside one, or in no operation at all."""
    busy = [call for flight in flights for call in flight.waiting]
    stopped = tuple(flight.rank for flight in flights if flight.stopped)
    if not busy:
        return Verdict(sentence="no rank waited for another", missing_ranks=stopped, missed=None)
    sentence = f"every rank had started what its peers wait for, such as {busy[0]}: "
    if stopped:
        sentence += f"{_ranks(stopped)} stopped inside it (by a signal, SIGSTOP or its like)"
    else:
        sentence += "a rank inside it, the link between them, or the backend stood still"
    return Verdict(sentence=sentence, missing_ranks=stopped, missed=busy[0])


def _blame(
    roots: list[int], waits: dict[int, list[tuple[Call, set[int]]]], flights: Sequence[Flight]
) -> Verdict:
    missed = min(
        (call for calls in waits.values() for call, lacking in calls if lacking & set(roots)),
        key=lambda call: (call.axis in _ASIDE, call.started),
    )
    last = next((flight.last for flight in flights if flight.rank == roots[0]), None)
    verb = "has" if len(roots) == 1 else "have"
    what = f"{_ranks(roots)} {verb} not started "
    if missed.peer >= 0:
        other = "the receive for" if missed.kind == "send" else "the send for"
        what += f"{other} rank {missed.rank}'s {missed}"
    else:
        what += str(missed)
    sentence = f"{what}, in which rank {missed.rank} waited"
    others = sorted(set(waits) - {missed.rank})
    if others:
        sentence += f"; {_ranks(others)} waited behind it"
    if last is not None:
        moment = last.finished or last.started
        ago = format_seconds(max(missed.started - moment, 0.0))
        state = "done" if last.finished else "unfinished"
        order = f"{ago} before" if missed.started > moment else "after that wait began"
        sentence += f". Its last operation was {last}, {state} {order}"
    return Verdict(sentence=sentence + ".", missing_ranks=tuple(roots), missed=missed)


def _progress(flights: Iterable[Flight]) -> dict[Any, int]:
    """How far each rank has come on each group, and with each peer: the newest turn started."""
    found: dict[Any, int] = {}
    for flight in flights:
        for call in flight.calls:
            key = (flight.rank, *_stream(call))
            found[key] = max(found.get(key, 0), call.turn)
    return found


def _stream(call: Call) -> tuple[Any, ...]:
    if call.peer >= 0:
        return call.group, call.kind, call.peer
    return (call.group,)


def _lacking(call: Call, done: dict[Any, int]) -> set[int]:
    """Ranks whose part in an operation has not started."""
    if call.peer >= 0:
        other = "receive" if call.kind == "send" else "send"
        began = done.get((call.peer, call.group, other, call.rank), 0)
        return {call.peer} if began < call.turn else set()
    return {
        rank for rank in call.ranks
        if rank != call.rank and done.get((rank, *_stream(call)), 0) < call.turn
    }  # fmt: skip


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = [str(rank) for rank in ranks[:8]]
    if len(ranks) > 8:
        return f"ranks {', '.join(shown)} … ({len(ranks)})"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"
