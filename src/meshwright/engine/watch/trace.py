"""Measured steps out of profiler traces: the pipeline as it ran, its bubble, the collectives.

Needs no torch; events are read by the one streaming reader of traces (`specs/trace_events.py`). The traces are those of `train --profile`; their ranges are named in profile.py.
Ranks of one host share a clock. Between hosts a constant offset shows as waiting, so the bubble of
a pipeline that spans hosts is as good as their clocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from meshwright.schedules.ops import Kind, from_columns
from meshwright.simulator.evaluate import Simulator
from meshwright.simulator.timeline import Bubble, Timeline
from meshwright.simulator.times import StageTimes, measured_times
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import expecting, open_stream
from meshwright.specs.trace_events import Event, read_events

OPERATION = re.compile(r"(F|B|I|W|loss) stage (\d{1,4}) micro-batch (\d{1,6})")
_CALL = re.compile(r"([\w.-]{1,40}) (\S{1,200}) (\d{1,15}) B")
_STEP = re.compile(r"step (\d{1,12})")


class Span(NamedTuple):
    """A range of a trace, in seconds of its rank's clock."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Collectives:
    """One rank's operations on one axis in one step."""

    calls: int
    payload_bytes: int
    in_flight_s: float
    """Time during which at least one was under way, hidden behind compute or not."""


@dataclass(frozen=True, slots=True)
class RankTrace:
    """What one rank's trace says of its steps."""

    facts: dict[str, Any]
    """rank, pp_rank, pipeline, pp, schedule, virtual_stages, micro_batches."""
    steps: dict[int, Span]
    operations: dict[int, dict[tuple[Kind, int, int], Span]]
    """By step: kind, stage and micro-batch."""
    collectives: dict[int, dict[str, Collectives]]


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One step of one pipeline, as it ran."""

    number: int
    pipeline: int
    step_s: float
    """From the first rank's start to the last one's end, optimizer included."""
    timeline: Timeline
    """Starts and ends as measured; 0 is the first operation's start."""
    replayed: Timeline
    """The same order and the same durations with messages that take no time."""
    collectives: dict[int, dict[str, Collectives]]
    """By rank and axis."""


def read_traces(where: Path) -> list[RankTrace]:
    """Read the traces of a run's folder (or of a folder of traces), by rank.

    Raises:
        SpecError: there are none, or a file is no trace of ours.
    """
    if not where.exists():
        raise SpecError("trace", str(where), "no such folder")
    folder = where / "profile" if (where / "profile").is_dir() else where
    paths = sorted([*folder.glob("rank-*.json.gz"), *folder.glob("rank-*.json")])
    if not paths:
        raise SpecError("trace", str(where), "holds no traces; train with --profile steps=3:5")
    return [read_trace(path) for path in paths]


def read_trace(path: Path) -> RankTrace:
    """Read one rank's trace.

    Raises:
        SpecError: not a Chrome trace that `train --profile` wrote.
    """
    facts: dict[str, Any] = {}
    with open_stream(path, "trace", MOST_BYTES, unpack=True) as stream:
        ranges = [one for piece in read_events(stream, str(path), facts) for one in _ranges(piece)]
    with expecting("trace", str(path), "a trace of train --profile"):
        document = msgspec.convert(facts, _Document)
        return _sorted_out(
            msgspec.structs.asdict(document.meshwright), ranges, document.baseTimeNanoseconds * 1e-9
        )


def _ranges(events: list[Event]) -> Iterator[tuple[str, Span]]:
    """The named ranges among events, with times in seconds; what has no time of a clock is left out."""
    for event in events:
        if event.ph != "X" or event.cat != "user_annotation" or not isinstance(event.name, str):
            continue
        start, length = event.ts, event.dur
        if not isinstance(start, float) or not isinstance(length, float):
            continue
        if abs(start) <= 1e18 and 0 <= length <= 1e15:
            yield event.name, Span(start * 1e-6, (start + length) * 1e-6)


MOST_BYTES = 2**28
"""Of an unpacked trace: a few steps have some tens of megabytes."""
_Number = Annotated[int, msgspec.Meta(ge=0, le=10**6)]


class _Facts(msgspec.Struct):
    """What the profiler notes of its rank."""

    rank: _Number
    pp_rank: _Number
    pipeline: _Number
    pp: _Number
    schedule: Annotated[str, msgspec.Meta(max_length=100, pattern=r"^[\w .-]+$")]
    virtual_stages: Annotated[int, msgspec.Meta(ge=1, le=1000)]
    micro_batches: Annotated[int, msgspec.Meta(ge=1, le=10**6)]


class _Document(msgspec.Struct):
    """What stands beside the events."""

    meshwright: _Facts
    baseTimeNanoseconds: Annotated[float, msgspec.Meta(ge=0, le=1e20)] = 0.0


def _sorted_out(facts: dict[str, Any], ranges: list[tuple[str, Span]], base_s: float) -> RankTrace:
    steps: dict[int, Span] = {}
    operations: list[tuple[tuple[str, int, int], Span]] = []
    calls: list[tuple[str, int, Span]] = []
    transfers: list[Span] = []
    for name, relative in ranges:
        span = Span(base_s + relative.start_s, base_s + relative.end_s)
        if match := OPERATION.fullmatch(name):
            operations.append(((match[1], int(match[2]), int(match[3])), span))
        elif match := _STEP.fullmatch(name):
            steps[int(match[1])] = span
        elif match := _CALL.fullmatch(name):
            calls.append((match[1], int(match[3]), span))
        elif name.startswith(("gloo:", "nccl:")):
            transfers.append(span)
    found: dict[int, dict[tuple[Kind, int, int], Span]] = {}
    moved: dict[int, dict[str, Collectives]] = {}
    for number, whole in steps.items():
        found[number] = _operations([o for o in operations if _inside(o[1], whole)])
        moved[number] = _collectives([c for c in calls if _inside(c[2], whole)], transfers)
    return RankTrace(facts, steps, found, moved)


def _inside(span: Span, whole: Span) -> bool:
    return whole.start_s <= span.start_s <= whole.end_s


def _operations(
    ranges: list[tuple[tuple[str, int, int], Span]],
) -> dict[tuple[Kind, int, int], Span]:
    """Compute by kind, stage and micro-batch; the loss counts as the end of its forward."""
    found = {
        (Kind[kind], stage, unit): span for (kind, stage, unit), span in ranges if kind != "loss"
    }
    for (kind, stage, unit), span in ranges:
        forward = (Kind.F, stage, unit)
        if kind == "loss" and forward in found:
            found[forward] = Span(found[forward].start_s, span.end_s)
    return found


def _collectives(
    calls: list[tuple[str, int, Span]], transfers: list[Span]
) -> dict[str, Collectives]:
    """By axis. The backend notes a transfer while the call that asks for it runs, so the one tells
    how long it took and the other on which axis."""
    starts = np.array([span.start_s for span in transfers])
    under_way: dict[str, list[Span]] = {}
    counts: dict[str, tuple[int, int]] = {}
    for axis, size, span in calls:
        mine = np.flatnonzero((starts >= span.start_s) & (starts <= span.end_s))
        under_way.setdefault(axis, []).extend([transfers[at] for at in mine] or [span])
        number, total = counts.get(axis, (0, 0))
        counts[axis] = number + 1, total + size
    return {
        axis: Collectives(number, total, _covered_s(under_way[axis]))
        for axis, (number, total) in counts.items()
    }


def _covered_s(spans: Sequence[Span]) -> float:
    """Length of the union of spans."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(end - max(start, until), 0.0)
        until = max(until, end)
    return total


def measured_steps(traces: Sequence[RankTrace], pipeline: int | None = None) -> list[MeasuredStep]:
    """The profiled steps of one pipeline: the first, or the one that begins with rank `pipeline`.

    Raises:
        SpecError: there is no such pipeline, or ranks of it are missing.
    """
    wanted = min(t.facts["pipeline"] for t in traces) if pipeline is None else pipeline
    ranks = sorted(
        (t for t in traces if t.facts["pipeline"] == wanted), key=lambda t: t.facts["pp_rank"]
    )
    if not ranks:
        known = sorted({t.facts["pipeline"] for t in traces})
        raise SpecError("pipeline", wanted, f"pipelines begin with the ranks {known}")
    if len(ranks) != ranks[0].facts["pp"]:
        raise SpecError(
            "trace", wanted, f"its pipeline has {ranks[0].facts['pp']} ranks, {len(ranks)} traces"
        )
    numbers = sorted(set.intersection(*(set(t.steps) for t in ranks)))
    with expecting("trace", str(wanted), "a pipeline's trace of whole steps"):
        return [_measured(number, wanted, ranks) for number in numbers]


def _measured(number: int, pipeline: int, ranks: list[RankTrace]) -> MeasuredStep:
    facts = ranks[0].facts
    rows = [sorted(t.operations[number].items(), key=lambda item: item[1]) for t in ranks]
    if not all(rows):
        raise SpecError("trace", number, "a rank's trace of this step holds no operations")
    stage_rank = {key[1]: at for at, row in enumerate(rows) for key, _ in row}
    columns = []
    for row in rows:
        kind, stage, unit = np.array([key for key, _ in row], dtype=np.int32).T
        columns.append((kind, stage, unit))
    schedule = from_columns(
        facts["schedule"],
        columns,
        micro_batches=facts["micro_batches"],
        stage_rank=np.array([stage_rank[stage] for stage in sorted(stage_rank)], dtype=np.int32),
        virtual_stages=facts["virtual_stages"],
    )
    spans = [span for row in rows for _, span in row]
    begin = min(span.start_s for span in spans)
    start = np.array([span.start_s - begin for span in spans])
    end = np.array([span.end_s - begin for span in spans])
    spent = ((key, span.end_s - span.start_s) for row in rows for key, span in row)
    times = StageTimes.of(*measured_times(schedule.stages, schedule.units, spent))
    replayed = Simulator(schedule).run(times)
    makespan = float(end.max())
    timeline = replace(
        replayed, start=start, end=end, node_end=end, durations=end - start, makespan_s=makespan,
        step_s=makespan, bubble=_bubble(replayed, start, end),
        rank_end_s=np.array([max(span.end_s for _, span in row) - begin for row in rows]),
    )  # fmt: skip
    whole = [t.steps[number] for t in ranks]
    return MeasuredStep(
        number=number,
        pipeline=pipeline,
        step_s=max(span.end_s for span in whole) - min(span.start_s for span in whole),
        timeline=timeline,
        replayed=replayed,
        collectives={t.facts["rank"]: t.collectives[number] for t in ranks},
    )


def _bubble(replayed: Timeline, start: Any, end: Any) -> Bubble:
    """Idle shares as measured; what the replay does not need is communication's (and the host's)."""
    schedule, makespan = replayed.schedule, float(end.max())
    work = float(replayed.busy_s.mean())
    firsts, lasts = schedule.offsets[:-1], schedule.offsets[1:] - 1
    longest = float((end[lasts] - start[firsts]).max())
    share = replayed.makespan_s / makespan
    parts = {name: part * share for name, part in replayed.bubble.attribution.items()}
    parts["communication"] = parts.get("communication", 0.0) + 1.0 - share
    return Bubble(1 - work / longest, 1 - work / makespan, parts)
