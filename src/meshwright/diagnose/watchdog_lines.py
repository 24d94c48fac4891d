"""Lines of NCCL watchdogs, monitored barriers and launchers as records of who waited for what."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from meshwright.diagnose.gpu_faults import FAULT
from meshwright.diagnose.known_nccl import HARMLESS
from meshwright.diagnose.known_words import Sifted
from meshwright.diagnose.records import Evidence
from meshwright.diagnose.text_values import count, rank_number, rank_of

WATCHDOG = Sifted(
    re.compile(
        r"Watchdog caught collective operation timeout|Timeout at NCCL work|CollectiveFingerPrint"
        r"|Some NCCL operations have failed or timed out|failed to pass monitoredBarrier"
        r"|store based barrier|Culprit rank|Not all ranks joining collective|missing ranks"
        r"|Timed out waiting \d+ms for (?:recv|send)|watchdog at work sequence id"
        r"|(?:unhandled|remote process exited).{0,60}(?:error|NCCL)|NCCL WARN|NCCL error"
        r"|ProcessGroupNCCL.*(?:heartbeat|exception)|Connection closed by peer"
        r"|are the lagging ranks that caused|but didn't join collective|Timeout at collective|timed out in blocking wait"
        r"|Is there a distributed collective mismatch|mismatch between collectives|"
        + FAULT.pattern,
        re.IGNORECASE,
    )
)


_TIMEOUT = re.compile(
    r"\[(?:PG (?:ID )?(?P<pg>\w+)(?: PG GUID (?P<guid>[^\]()]*?))?(?:\s*\((?P<name>[^)]*)\))? )?Rank (?P<rank>\d+)\]"
    r".{0,400}?Watchdog caught collective operation timeout: WorkNCCL\((?P<work>[^)]*)",
    re.IGNORECASE,
)


_BARE = re.compile(r"Watchdog caught collective operation timeout: WorkNCCL\((?P<work>[^)]*)")


_RAN = re.compile(r"ran for (\d+) milliseconds")


_AT_WORK = re.compile(
    r"\[PG (?:ID )?(?P<pg>\w+)(?: PG GUID (?P<guid>[^\]()]*?))?(?:\s*\((?P<name>[^)]*)\))? Rank (?P<rank>\d+)\]"
    r".{0,400}?work(?: sequence id)?:? ?-?\d*.{0,400}?last enqueued(?: NCCL)? work: (?P<enqueued>-?\d+), "
    r"last completed(?: NCCL)? work: (?P<completed>-?\d+)",
    re.IGNORECASE,
)


_FINGERPRINT = re.compile(
    r"Rank (\d{1,7})(?: is running (?:inconsistent )?(?:collective: ?)?|: ?)(?:CollectiveFingerPrint\()?"
    r"(?:SequenceNumber ?= ?(\d{1,15}))?,? ?(?:(?:OpType ?= ?)?_?([A-Z][A-Z_]{3,40}))?(?:, ?TensorShape ?= ?\[([^\]]*)\])?"
)
"""A rank, its number in the sequence, what it calls, and the shape, as far as the text has them."""
_MISMATCH = re.compile(r"mismatch between collectives", re.IGNORECASE)
MOST_BEHIND = 6
"""Lines behind the word of a mismatch in which the ranks are named."""


_CULPRIT = re.compile(
    r"Culprit rank (\d+); Error type: (\w+)(?:, Expected ([^']*)'([^']*)' does not match found [^']*'([^']*)')?"
)


_MISSING = re.compile(r"missing ranks:? ?[\[{(]?([\d, ]+)", re.IGNORECASE)


_LAGGING = re.compile(
    r"ranks? \[([\d, ]+)\] are the lagging ranks|\[([\d, ]+)\] finished collective #\d+, but didn't join"
)
"""What TORCH_NCCL_DESYNC_DEBUG reports (torch/csrc/distributed/c10d/TraceUtils.h)."""
_BARRIER = re.compile(r"[Rr]anks? ([\d, ]+) failed to pass monitoredBarrier in (\d+) ms")


_STORE = re.compile(
    r"store based barrier (?:on|to initialize process group for) rank:? (?P<rank>\d+).*?key: \w*?(?::(?P<key>\d+))? "
    r"\(world_size=(?P<world>\d+), (?:worker_count|num_workers_joined)=(?P<joined>\d+)"
)


_NETWORK = re.compile(
    r"NCCL WARN[^\n]*(?:\bibv_|\bIB\b|NET/|socket|\bconnect(?:ion|ed)?s?\b|\btime-?out|\bport\b)|ncclRemoteError"
    r"|remote process exited or there was a network error|Connection (?:reset|closed) by (?:remote )?peer"
    r"|NET/IB[^\n]*(?:error|failed)|No route to host|link (?:down|flap)",
    re.IGNORECASE,
)


CHECKPOINT = re.compile(
    r"\bsav(?:ing|ed|e_state|e_checkpoint|e_model)\b|state[_ ]dict|checkpoint (?:to|save|written)"
    r"|Retrieving full model|Saving DeepSpeed",
    re.IGNORECASE,
)


EVALUATION = re.compile(
    r"\bvalidat(?:ion|ing|e)\b|\bevaluat|\beval_|Generating (?:samples|images|videos)",
    re.IGNORECASE,
)


START_UP = re.compile(
    r"compiling|fused kernels|initializ(?:ed|ing)|loading (?:model|checkpoint|weights)|building|"
    r"dataset index|rendezvous|NCCL version",
    re.IGNORECASE,
)


PREPARING = re.compile(
    r"(?:tokeniz|\bMap\b|\bFilter\b|Packing|Grouping|Preprocess|Converting|Generating \w+ split)[^%|]{0,80}\d{1,3}%\|",
    re.IGNORECASE,
)
"""The bar of work on the data before the first step; a report may stand behind it on its line."""
_INFORMS = re.compile(r"\[I ProcessGroupWrapper|Running collective: ")
"""What the wrapper tells of every call under TORCH_DISTRIBUTED_DEBUG=DETAIL."""
_NOT_A_PHASE = re.compile(r"ProcessGroupNCCL|Watchdog|WorkNCCL", re.IGNORECASE)


@dataclass(slots=True)
class Wait:
    """One rank's report that a collective did not end."""

    line: int
    text: str
    rank: int | None
    group: str
    """Empty where the text does not name it."""
    seq: int | None = None
    op: str = ""
    numel_in: int | None = None
    timeout_ms: int | None = None
    ran_ms: int | None = None


@dataclass(slots=True)
class Print:
    """What one rank calls, by the wrapper that compares the ranks' calls."""

    op: str
    shape: str
    seq: int | None
    line: int
    text: str


@dataclass(slots=True)
class Joined:
    """One rank's report that a group is not whole yet."""

    rank: int
    group: int
    """The how manieth group of the program it is, from 1: the first one is all ranks."""
    joined: int
    world: int
    line: int
    text: str


@dataclass(slots=True)
class Reading:
    """All that a text says about a stop."""

    file: str
    waits: list[Wait] = field(default_factory=list)
    positions: dict[tuple[str, int], tuple[int, int, int]] = field(default_factory=dict)
    """(group, rank) → last enqueued, last completed, line."""
    fingerprints: dict[int, Print] = field(default_factory=dict)
    """By rank."""
    mismatch: tuple[int, str, int | None] | None = None
    """The line that says that ranks call different things."""
    culprits: dict[int, tuple[str, str, str, int, str]] = field(default_factory=dict)
    absent: dict[int, tuple[int, str]] = field(default_factory=dict)
    joined: list[Joined] = field(default_factory=list)
    """Reports of a group's store barrier, by which all of its ranks have to pass once."""
    gpu_faults: list[tuple[int, str, int | None]] = field(default_factory=list)
    network: list[tuple[int, str, int | None]] = field(default_factory=list)
    general: tuple[int, str] | None = None
    sizes: tuple[int, str, int | None] | None = None
    """A backend's own word that sizes did not match."""
    phase: tuple[str, int, str] | None = None
    """What went on before the first report: `data`, `checkpoint`, `evaluation`, `start-up`, `training`, `end`."""
    world: int | None = None
    subgroups: bool = False
    """Reports of groups that are a part of all ranks: who is absent from one, its members' numbers do not tell."""


def read_line(reading: Reading, number: int, line: str) -> None:
    """Take in one line of a log."""
    _phase(reading, number, line)
    short = line.strip()[:400]
    if reading.mismatch is None and _MISMATCH.search(line):
        reading.mismatch = (number, short, rank_of(line))
    if reading.mismatch is not None and number <= reading.mismatch[0] + MOST_BEHIND:
        _fingerprints(reading, number, line, short)
    if not WATCHDOG.search(line) and "last enqueued" not in line:
        return
    if _INFORMS.search(line):
        return
    matches = list(_TIMEOUT.finditer(line)) or list(_BARE.finditer(line))
    for one in matches:
        reading.waits.append(wait := _wait(one, line, number, short))
        wait.rank = _global(told := wait.rank, line)
        reading.subgroups |= told != wait.rank
    if match := _AT_WORK.search(line):
        group = match["name"] or match["guid"] or match["pg"] or ""
        at, enqueued = _global(rank_number(match["rank"]), line), _signed(match["enqueued"])
        reading.subgroups |= at != rank_number(match["rank"])
        completed = _signed(match["completed"])
        if at is not None and enqueued is not None and completed is not None:
            reading.positions[group.strip(), at] = (enqueued, completed, number)
    if "CollectiveFingerPrint" in line:
        _fingerprints(reading, number, line, short)
    for who, kind, _, expected, found in _CULPRIT.findall(line):
        if (rank := rank_number(who)) is not None:
            reading.culprits[rank] = (kind, expected, found, number, short)
    for pattern in (_MISSING, _LAGGING, _BARRIER):
        if match := pattern.search(line):
            for who in re.findall(r"\d+", next(filter(None, match.groups()))):
                if (rank := rank_number(who)) is not None:
                    reading.absent[rank] = (number, short)
    if (match := _STORE.search(line)) and len(reading.joined) < 4096:
        who, world = rank_number(match["rank"]), rank_number(match["world"])
        joined, key = rank_number(match["joined"]), rank_number(match["key"] or "1")
        if who is not None and world is not None and joined is not None and key is not None:
            reading.joined.append(Joined(who, key, joined, world, number, short))
    rank = rank_of(line)
    if "distributed collective mismatch" in line and reading.sizes is None:
        reading.sizes = (number, short, rank)
    if FAULT.search(line):
        reading.gpu_faults.append((number, short, rank))
    elif "NCCL INFO" in line or HARMLESS.search(line):
        return
    elif _NETWORK.search(line):
        reading.network.append((number, short, rank))
    elif reading.general is None and "WARN" not in line:
        reading.general = (number, short)


def _fingerprints(reading: Reading, number: int, line: str, short: str) -> None:
    for who, seq, op, shape in _FINGERPRINT.findall(line):
        if (seq or op) and (rank := rank_number(who)) is not None:
            reading.fingerprints[rank] = Print(
                op.strip("_"), shape, count(seq or None), number, short
            )


def _phase(reading: Reading, number: int, line: str) -> None:
    if reading.waits or reading.fingerprints:
        return
    if match := re.search(r"world[_ ]size[:= ]+(\d+)|nproc[-_]per[-_]node[= ]+(\d+)", line):
        reading.world = rank_number(match[1] or match[2])
    if match := PREPARING.search(line):
        reading.phase = ("data", number, line[match.start() :].strip()[:300])
        return
    if _NOT_A_PHASE.search(line):
        return
    for name, pattern in (
        ("checkpoint", CHECKPOINT),
        ("evaluation", EVALUATION),
        ("start-up", START_UP),
    ):
        if pattern.search(line):
            reading.phase = (name, number, line.strip()[:300])
            return
    if re.search(r"\btrain_runtime\b|Training (?:completed|finished|done)", line):
        reading.phase = ("end", number, line.strip()[:300])
        return
    if re.search(r"\b(?:step|iteration|iter|loss)\b.{0,99}\d", line, re.IGNORECASE):
        reading.phase = ("training", number, line.strip()[:300])


def _wait(match: re.Match[str], line: str, number: int, short: str) -> Wait:
    groups = match.groupdict()
    work = groups["work"]
    group = groups.get("name") or groups.get("guid") or groups.get("pg") or ""
    rank = rank_number(groups.get("rank"))
    wait = Wait(line=number, text=short, rank=rank, group=group.strip())

    def number_of(name: str) -> int | None:
        found = re.search(rf"{name}=(-?\d+)", work + ")")
        return _signed(found[1]) if found else None

    wait.seq, wait.numel_in = number_of("SeqNum"), number_of("NumelIn")
    if op := re.search(r"OpType=(\w+)", work):
        wait.op = op[1].strip("_")
    rest = line[match.start() :]
    if found := re.search(r"Timeout\(ms\)=(\d+)", rest):
        wait.timeout_ms = count(found[1])
    if found := _RAN.search(rest):
        wait.ran_ms = count(found[1])
    return wait


_PREFIX = re.compile(r"\[rank(\d{1,7})\]:")


def _global(told: int | None, line: str) -> int | None:
    """The rank of the job: the prefix of the line has it, what stands in the message counts within a group."""
    match = None if "default_pg" in line else _PREFIX.search(line)
    return rank_number(match[1]) if match and told is not None else told


def _signed(text: str | None) -> int | None:
    """A sequence number; -1 before the first collective."""
    number = count(text.removeprefix("-")) if text else None
    return -number if number is not None and text and text[0] == "-" else number


def said(reading: Reading, *lines: tuple[int, str, int | None]) -> tuple[Evidence, ...]:
    """Lines as evidence, each with the rank that wrote it."""
    return tuple(
        Evidence(file=reading.file, line=number, text=text, rank=rank)
        for number, text, rank in lines
    )
