"""What launchers say of processes that ended: torchrun, DeepSpeed, accelerate, srun, mpirun, spawn, Kubernetes, Ray."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field

from meshwright.diagnose.text_values import count, rank_number

MOST = 256
"""Ends kept of one text."""
_BESIDE = 4
"""Lines of torchrun's summary between a rank and its exit code."""


@dataclass(slots=True)
class Exit:
    """One process' end."""

    line: int
    text: str
    code: int
    """Negative: minus the signal's number, as Python has it."""
    rank: int | None = None
    local: int | None = None
    first: bool = False
    """The launcher calls it the first."""


@dataclass(slots=True)
class Exits:
    """All ends of a text, as they are read."""

    found: list[Exit] = field(default_factory=list)
    root: bool = False
    """Behind torchrun's heading of the first failure."""
    _rank: tuple[int, int, int | None] | None = None
    """Line, rank and local rank that torchrun's summary names last."""


_RANK = re.compile(r"\brank *:? ?(\d{1,7}) \(local[_ ]rank: (\d{1,4})", re.IGNORECASE)
_CODE = re.compile(
    r"exitcode *: (-?\d{1,3}) \(pid|\bsignal (\d{1,2}) \(SIG[A-Z]+\) received by PID", re.IGNORECASE
)
_LINES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"failed \(exitcode: (?P<code>-?\d{1,3})\) local_rank: (?P<local>\d{1,4})",
        r"exits with return code = (?P<code>-?\d{1,3})",
        r"srun: error: \S{1,80}: (?:task (?P<rank>\d{1,7})|tasks \S{1,40}): "
        r"(?:Exited with exit code (?P<code>\d{1,3})|(?P<word>Killed|Terminated|Aborted|Segmentation fault|Bus error|Out Of Memory))",
        r"process rank (?P<rank>\d{1,7}) with PID .{0,120}exited on signal (?P<signal>\d{1,2})",
        r"process (?P<rank>\d{1,7}) terminated with (?:signal (?P<word>SIG[A-Z]{1,8})|exit code (?P<code>\d{1,3}))",
        r"died with <Signals\.(?P<word>SIG[A-Z]{1,8})",
        r"\*\*\* (?P<word>SIG[A-Z]{1,8})\b.{0,60} received by PID",
        r"returned non-zero exit status (?P<code>\d{1,3})",
        r"\b(?:exitCode|exit code):? ?(?P<code>137|143|139|134|135|129|152|153)\b",
        r"^(?:\S{1,200}: line \d{1,6}:\s+\d{1,9} )?(?P<word>Killed|Aborted|Segmentation fault|Terminated)(?:\s+\(core dumped\))?(?:\s{2,}\S.*)?\s*$",
    )
)
_SIGNALS = (1, 2, 4, 6, 7, 8, 9, 11, 15, 24, 25)
"""Signals by which processes of a training end: SIGHUP, SIGINT, SIGILL, …, SIGXCPU, SIGXFSZ."""
_WORDS = {
    "killed": 9, "terminated": 15, "aborted": 6, "segmentation fault": 11, "bus error": 7, "out of memory": 9,
}  # fmt: skip
_WORTH = re.compile(r"exit|local.rank|killed|abort|terminat|fault|srun|signal|died with|received by PID|Root Cause", re.IGNORECASE)  # fmt: skip


def read_exit(exits: Exits, number: int, line: str) -> None:
    """Take in one line of a text."""
    if not _WORTH.search(line) or len(exits.found) >= MOST:
        return
    if "Root Cause (first observed failure)" in line:
        exits.root = True
    if match := _RANK.search(line):
        rank, local = rank_number(match[1]), rank_number(match[2])
        if rank is not None:
            exits._rank = (number, rank, local)
    if match := _CODE.search(line):
        held = exits._rank if exits._rank and number <= exits._rank[0] + _BESIDE else None
        code = int(match[1]) if match[1] else -int(match[2])
        exits.found.append(
            Exit(
                number, line.strip()[:300], code, held[1] if held else None,
                held[2] if held else None, exits.root,
            )
        )  # fmt: skip
    else:
        for pattern in _LINES:
            if match := pattern.search(line):
                exits.found.append(_exit(match, number, line))
                return


def _exit(match: re.Match[str], number: int, line: str) -> Exit:
    named = match.groupdict()
    word, by = (named.get("word") or "").lower(), named.get("signal")
    if word.startswith("sig"):
        code = -int(getattr(signal, word.upper(), 0))
    elif word:
        code = -_WORDS[word]
    else:
        code = -(count(by) or 0) if by else int(named.get("code") or 0)
    # What a shell adds to a signal's number.
    if code - 128 in _SIGNALS:
        code = 128 - code
    text = line.strip()[:300]
    return Exit(number, text, code, rank_number(named.get("rank")), rank_number(named.get("local")))


def first_of(exits: list[Exit], started: int = 0) -> Exit | None:
    """The end that the others follow: the one the launcher calls first, else the first that was no order to end; since it
    started last, if any."""
    ended = [one for one in exits if one.code != 0]
    ended = [one for one in ended if one.line > started] or ended
    own = [one for one in ended if one.code != -15] or ended
    called = [one for one in own if one.first]
    if called or not own:
        return called[0] if called else None
    # torchrun's summary names the rank of the job, its lines before count within a host.
    first = own[0]
    same = [
        one for one in own
        if one.code == first.code and one.rank is not None and one.local == first.local is not None
    ]  # fmt: skip
    return same[0] if first.rank is None and same else first
