"""Measured forwards and backwards of a pipeline, laid into the simulator.

Reads what pipeline tracers write (begin and end events by rank, Primus' lists per iteration, ranges
of torch's pipeline runtime and of ours) as one thing: operations (rank, stage, kind, micro-batch,
start, end) of a step. The simulator's longest path then gives the step with one cause removed: the
same order and durations without waiting for messages, with even stages, with even micro-batches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import numpy as np

from meshwright.diagnose.records import Evidence, Part, of
from meshwright.diagnose.sources import Source
from meshwright.diagnose.trace_reading import Trace
from meshwright.engine.watch.trace import OPERATION
from meshwright.schedules.ops import Kind, Schedule, from_columns
from meshwright.simulator.evaluate import Simulator
from meshwright.simulator.times import StageTimes
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import MIB, Limits, parse_json
from meshwright.specs.quantities import format_seconds

MAX_BYTES = 512 * MIB
LIMITS = Limits(size_bytes=MAX_BYTES, nodes=40_000_000, any_number=True, last_wins=True)
SLOW_STAGE = 1.03
"""A stage is slow from this multiple of the others' median on."""
_PP = re.compile(r"PP:(\d{1,4})([FBIW])(\d{1,6})")

Key = tuple[Kind, int, int]
"""Kind, stage, micro-batch."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a pipeline as measured; times in seconds."""

    number: int
    rows: tuple[tuple[tuple[Key, float, float], ...], ...]
    """By rank, in order of start: operation, start, end."""
    step_s: float | None = None
    """The whole step, where it was measured beside its operations."""
    tail_s: float = 0.0
    """After the last operation: reduction and optimizer."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Steps of one pipeline."""

    file: str
    steps: tuple[Step, ...]
    memory_bytes: tuple[float, ...] = ()
    """Peak by rank, where measured."""


def read_tables(sources: Sequence[Source]) -> list[Pipeline]:
    """Read files of pipeline events; Primus writes one a rank, which belong together.

    Raises:
        SpecError: a file is none, or ranks of a pipeline are missing.
    """
    found: list[Pipeline] = []
    ranks: list[tuple[Source, dict[str, Any]]] = []
    for source in sources:
        content = parse_json(source.bytes(MAX_BYTES), "artefact", source.name, LIMITS)
        if isinstance(content, list):
            found.append(_begin_end(content, source.name))
        elif isinstance(content, dict):
            ranks.append((source, content))
    if ranks:
        found.append(_per_iteration(ranks))
    return found


def _begin_end(events: list[Any], name: str) -> Pipeline:
    """Begin and end events of forward and backward by rank (`pid`), with marks of iterations."""
    open_at: dict[tuple[int, str], float] = {}
    counts: dict[tuple[int, int, str], int] = {}
    rows: dict[int, dict[int, list[tuple[Key, float, float]]]] = {}
    begin: dict[tuple[int, int], float] = {}
    finish: dict[tuple[int, int], float] = {}
    current: dict[int, int] = {}
    try:
        for event in sorted(events, key=lambda one: float(one["ts"])):
            rank, what, moment = int(event["pid"]), str(event["name"]), float(event["ts"]) * 1e-6
            said = (event.get("args") or {}).get("iteration")
            if what == "iteration begin":
                current[rank] = int(said) if said is not None else current.get(rank, -1) + 1
                begin[current[rank], rank] = moment
            step = current.get(rank, 0) if said is None else int(said)
            if what == "iteration end":
                finish[step, rank] = moment
            if what not in ("forward", "backward"):
                continue
            if event["ph"] == "B":
                open_at[rank, what] = moment
            elif event["ph"] == "E" and (rank, what) in open_at:
                unit = counts.get((step, rank, what), 0)
                counts[step, rank, what] = unit + 1
                kind = Kind.F if what == "forward" else Kind.B
                row = rows.setdefault(step, {}).setdefault(rank, [])
                row.append(((kind, rank, unit), open_at.pop((rank, what)), moment))
    except (KeyError, TypeError, ValueError) as error:
        raise SpecError("artefact", name, f"is no list of pipeline events ({error})") from None
    world = sorted({rank for by_rank in rows.values() for rank in by_rank})
    steps = []
    for number in sorted(rows):
        if sorted(rows[number]) != world:
            continue
        took = [
            finish[number, r] - begin[number, r]
            for r in world
            if (number, r) in finish and (number, r) in begin
        ]
        steps.append(
            Step(number, tuple(tuple(rows[number][r]) for r in world), mean(took) if took else None)
        )
    if not steps:
        raise SpecError("artefact", name, "holds no whole step of a pipeline")
    return Pipeline(name, tuple(steps))


def _per_iteration(files: list[tuple[Source, dict[str, Any]]]) -> Pipeline:
    """Primus: a file a rank; per iteration lists of starts and ends in milliseconds.

    Times count from each rank's own start of the iteration.
    """
    first = files[0][0].name
    held: list[tuple[int, dict[str, Any]]] = []
    for source, content in files:
        if all(isinstance(value, Mapping) for value in content.values()) and content:
            numbers = re.findall(r"\d+", source.name.rpartition("/")[2])
            held.append((int(numbers[-1]) if numbers else len(held), content))
    held.sort(key=lambda item: item[0])
    if not held:
        raise SpecError("artefact", first, "holds no pipeline events")
    try:
        common = sorted(set.intersection(*(set(map(int, content)) for _, content in held)))
        steps, memory = [], [0.0] * len(held)
        for number in common:
            rows, whole = [], 0.0
            for stage, (_, content) in enumerate(held):
                one = content[str(number)]
                row: list[tuple[Key, float, float]] = []
                for kind, word in ((Kind.F, "fwd"), (Kind.B, "bwd")):
                    begins, ends = one[f"{word}_start"], one[f"{word}_end"]
                    row += [
                        ((kind, stage, unit), float(a) * 1e-3, float(b) * 1e-3)
                        for unit, (a, b) in enumerate(zip(begins, ends, strict=True))
                    ]
                row.sort(key=lambda item: item[1])
                rows.append(tuple(row))
                whole = max(whole, float(one.get("total", 0.0)) * 1e-3) if stage == 0 else whole
                memory[stage] = max(memory[stage], float(one.get("memory", 0.0)) * 1e9)
            steps.append(Step(number, tuple(rows), whole or None))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SpecError("artefact", first, f"is no table of pipeline events ({error!r})") from None
    if len(held) < 2:
        raise SpecError(
            "artefact", first, "is one rank of a pipeline; give the files of all its ranks"
        )
    return Pipeline(first, tuple(steps), tuple(memory) if any(memory) else ())


def from_traces(traces: Sequence[Trace]) -> Pipeline | None:
    """Ranges of torch's pipeline runtime (`PP:<stage><op><micro-batch>`) or of ours, if all ranks have them."""
    by_rank = sorted(
        ((trace.rank if trace.rank is not None else at, trace) for at, trace in enumerate(traces)),
        key=lambda item: item[0],
    )
    found: list[dict[int, list[tuple[Key, float, float]]]] = []
    for _, trace in by_rank:
        offset = float(trace.facts.get("baseTimeNanoseconds", 0) or 0) * 1e-9
        rows: dict[int, list[tuple[Key, float, float]]] = {}
        for said in trace.said:
            key = _operation(said.name)
            if key is None or said.category == "gpu_user_annotation":
                continue
            step = next((n for n, (a, b) in trace.steps.items() if a <= said.start <= b), None)
            if step is not None or not trace.steps:
                rows.setdefault(step or 0, []).append((key, offset + said.start, offset + said.end))
        found.append(rows)
    if not found or not all(found):
        return None
    steps = []
    for number in sorted(set.intersection(*(set(rows) for rows in found))):
        lengths = [
            trace.steps[number][1] - trace.steps[number][0]
            for _, trace in by_rank
            if number in trace.steps
        ]
        steps.append(
            Step(number, tuple(tuple(sorted(rows[number], key=lambda item: item[1])) for rows in found),
                 median(lengths) if lengths else None)
        )  # fmt: skip
    if not steps or len({key[1] for row in steps[0].rows for key, _, _ in row}) < 2:
        return None
    return Pipeline(traces[0].file, tuple(steps))


def _operation(name: str) -> Key | None:
    if match := _PP.search(name):
        return Kind[match[2]], int(match[1]), int(match[3])
    if (match := OPERATION.fullmatch(name)) and match[1] != "loss":
        return Kind[match[1]], int(match[2]), int(match[3])
    return None


@dataclass(frozen=True, slots=True)
class Replays:
    """Makespans in seconds of one step, replayed."""

    measured: float | None
    """Where the clocks of the ranks agree."""
    same: float
    """The same order and durations, messages that take no time."""
    even_stages: float
    even_units: float
    ideal_bubble: float
    """Bubble of the order with equal times."""
    bubble: float


def replay(step: Step) -> tuple[Replays, Schedule, StageTimes]:
    """Lay a step into the simulator.

    Raises:
        SpecError: its operations make no pipeline (some are missing, or they would deadlock).
    """
    schedule, forward, inputs, weights = _laid(step)
    simulator = Simulator(schedule)
    same = simulator.run(StageTimes.of(forward, inputs, weights))

    def even(axis: int) -> float:
        columns = []
        for column in (forward, inputs, weights):
            average = column.mean(axis=axis, keepdims=True)
            if axis == 0:  # even stages: differences between micro-batches stay
                scale = column.mean() / np.maximum(column.mean(axis=1, keepdims=True), 1e-12)
                columns.append(column * scale)
            else:
                columns.append(np.broadcast_to(average, column.shape).copy())
        return simulator.makespan_s(StageTimes.of(*columns))

    balanced = simulator.run((1.0, 1.0, 1.0))
    begins = [row[0][1] for row in step.rows]
    ends = [row[-1][2] for row in step.rows]
    whole = max(ends) - min(begins)
    trusted = whole >= 0.98 * same.makespan_s
    return (
        Replays(
            measured=whole if trusted else None, same=same.makespan_s, even_stages=even(0), even_units=even(1),
            ideal_bubble=balanced.bubble.makespan, bubble=same.bubble.makespan,
        ),
        schedule, StageTimes.of(forward, inputs, weights),
    )  # fmt: skip


def _laid(step: Step) -> tuple[Schedule, Any, Any, Any]:
    keys = [[key for key, _, _ in row] for row in step.rows]
    stages = 1 + max(key[1] for row in keys for key in row)
    units = 1 + max(key[2] for row in keys for key in row)
    stage_rank = {key[1]: at for at, row in enumerate(keys) for key in row}
    if sorted(stage_rank) != list(range(stages)) or stages % len(keys):
        raise SpecError("artefact", step.number, "stages of the pipeline are missing")
    columns = []
    for row in keys:
        kind, stage, unit = np.array(row, dtype=np.int32).T
        columns.append((kind, stage, unit))
    schedule = from_columns(
        "measured", columns, micro_batches=units, virtual_stages=stages // len(keys),
        stage_rank=np.array([stage_rank[stage] for stage in range(stages)], dtype=np.int32),
    )  # fmt: skip
    forward, inputs, weights = (np.zeros((stages, units)) for _ in range(3))
    for measured in step.rows:
        for (kind, stage, unit), start, end in measured:
            spent = max(end - start, 0.0)
            if kind == Kind.F:
                forward[stage, unit] = spent
            elif kind == Kind.B:
                inputs[stage, unit] = weights[stage, unit] = spent / 2
            else:
                (inputs if kind == Kind.I else weights)[stage, unit] = spent
    return schedule, forward, inputs, weights


def judge_pipeline(pipeline: Pipeline) -> Part:
    """Diagnose a pipeline's steps, the first (warm-up) left out.

    Raises:
        SpecError: as `replay`.
    """
    steps = pipeline.steps[1:] if len(pipeline.steps) > 2 else pipeline.steps
    replays, times, busy = [], [], []
    for step in steps[-32:]:
        one, schedule, stage_times = replay(step)
        replays.append(one)
        both = stage_times.forward + stage_times.backward_input + stage_times.backward_weight
        times.append(both.mean(axis=1))
        busy.append([sum(end - start for _, start, end in row) for row in step.rows])
    part = Part()
    figures = part.figures
    stage_s = np.median(np.array(times), axis=0)
    ranks = schedule.stage_rank
    lengths = [step.step_s for step in steps if step.step_s]
    whole = [one.measured for one in replays if one.measured is not None]
    if lengths:
        figures["step_time_s"] = mean(lengths)
        figures["last_step_time_s"] = lengths[-1]
    same = median([one.same for one in replays])
    if whole:
        figures["pipeline_makespan_s"] = median(whole)
        figures["waiting_for_messages_share"] = round(max(1 - same / median(whole), 0.0), 4)
    figures |= {
        "replayed_makespan_s": same, "bubble_fraction": round(median([one.bubble for one in replays]), 4),
        "ideal_bubble_fraction": round(median([one.ideal_bubble for one in replays]), 4),
        "pipeline_stages": int(schedule.stages), "micro_batches": int(schedule.micro_batches),
        "steps_read": len(steps),
    }  # fmt: skip
    step_s = figures.get("step_time_s") if lengths else (median(whole) if whole else same)
    base = step_s if isinstance(step_s, float) else same
    if schedule.stages <= 64:
        figures |= {f"stage_{at}_time_s": float(value) for at, value in enumerate(stage_s)}
    if lengths and len(busy[0]) <= 64:
        for rank, spent in enumerate(np.median(np.array(busy), axis=0)):
            figures[f"rank_{rank}_not_computing_share"] = round(1 - float(spent) / base, 4)
    if pipeline.memory_bytes:
        figures["peak_memory_bytes"] = max(pipeline.memory_bytes)
    _blame(part, pipeline, replays, stage_s, ranks, base)
    return part


def _blame(
    part: Part, pipeline: Pipeline, replays: list[Replays], stage_s: Any, ranks: Any, base: float
) -> None:
    same = median([one.same for one in replays])
    staged = (same - median([one.even_stages for one in replays])) / base
    units = (same - median([one.even_units for one in replays])) / base
    slow = int(np.argmax(stage_s))
    others = float(np.median(np.delete(stage_s, slow)))
    ratio = float(stage_s[slow]) / others if others else 1.0
    part.figures["even_stages_gain"], part.figures["even_micro_batches_gain"] = (
        round(staged, 4),
        round(units, 4),
    )
    text = "; ".join(f"stage {at} {format_seconds(float(v))}" for at, v in enumerate(stage_s[:12]))
    said = (
        Evidence(
            file=pipeline.file, event="forward and backward", rank=int(ranks[slow]), text=text
        ),
    )
    if ratio > SLOW_STAGE and staged > 0.02:
        last = slow == len(stage_s) - 1
        part.findings.append(
            of("slow-stage", f"Stage {slow} takes {ratio - 1:.0%} longer than the others; even stages would save {staged:.1%} of "
               "the step", ("move a layer off the last stage, which also computes logits and loss, or share out the vocabulary"
               if last else "move layers off this stage, or look at its device: in one pipeline a slow device and a "
               "long stage look alike"), confidence=0.85, ranks=(int(ranks[slow]),), where=f"stage {slow}",
               share_of_step=round(staged, 4), gain_fraction=round(staged, 4), evidence=said)
        )  # fmt: skip
    if units > 0.03:
        part.findings.append(
            of("uneven-lengths", f"Micro-batches of a stage take different times; even ones would save {units:.1%} of the step",
               "balance micro-batches by the cost of their sequences", confidence=0.6, where="micro-batches",
               share_of_step=round(units, 4), gain_fraction=round(units, 4), evidence=said)
        )  # fmt: skip
    waiting = part.figures.get("waiting_for_messages_share")
    if isinstance(waiting, float) and waiting > 0.1:
        part.findings.append(
            of("slow-link", f"The pipeline waits {waiting:.0%} of its makespan for messages (or for hosts that hand them on)",
               "keep neighbouring stages on fast links; overlap sends and receives with compute", confidence=0.55,
               where="messages between stages", share_of_step=waiting, gain_fraction=round(waiting * min(1.0, same / base), 4),
               evidence=said)
        )  # fmt: skip
    ideal = median([one.ideal_bubble for one in replays])
    if ideal > 0.1:
        part.findings.append(
            of("bubble", f"{ideal:.0%} of the pipeline's time is bubble even with equal stages", "more micro-batches a step, fewer "
               "stages, or interleaved stages", confidence=0.9, where="schedule", share_of_step=round(ideal, 4),
               layout_cost=True, evidence=said)
        )  # fmt: skip
    if not any(not f.layout_cost for f in part.findings):
        part.healthy.append(f"stages are even within {ratio - 1:.0%}")


def compare(part: Part, before: Part, names: tuple[str, str]) -> None:
    """Two measurements of the same pipeline: which step is shorter."""
    old, new = before.figures.get("step_time_s"), part.figures.get("step_time_s")
    if not isinstance(old, float) or not isinstance(new, float):
        return
    change = new / old - 1
    part.figures["before_step_time_s"], part.figures["change_fraction"] = old, round(-change, 4)
    part.figures["comparison"] = (
        f"{names[1]} takes {abs(change):.1%} {'more' if change > 0 else 'less'} than {names[0]} "
        f"({format_seconds(old)} to {format_seconds(new)})"
    )
