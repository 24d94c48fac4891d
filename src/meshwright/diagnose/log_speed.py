"""How fast a logged run was: steps in order, warm-up left out, times from whatever the log prints."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import median

from meshwright.diagnose.log_reading import LogReading
from meshwright.diagnose.records import Evidence, Part, of
from meshwright.diagnose.step_fields import Step
from meshwright.specs.quantities import format_seconds

UNSTEADY, FEW = 0.75, 9
"""A pace that differs by more than this share of its median, over fewer steps than tell a trend."""
WARM_UP = 1.3
"""A first step is warm-up (compilation, allocation, caches) if it takes this much of the median."""
HARDLY, LONG_STEP_S = 0.05, 2.0
"""Share of the peak below which a step longer than this does something else than compute."""


SAME_START = 0.05
"""Share by which the first losses of two runs of one model from scratch differ at most."""
LONG_ENOUGH = 5
"""Steps from which on the last of several runs in one log speaks for itself."""


def steps_of(reading: LogReading) -> list[Step]:
    """One record a step, in order: ranks that print the same step count once; of several runs in one log, the last."""
    found: dict[tuple[int, int], Step] = {}
    start = 0
    last = -1
    for step in reading.steps:
        if step.number is None:
            found[start, -step.line] = step
            continue
        if step.number < last:
            start += 1  # a restart counts its steps again
        last = step.number
        held = found.get((start, step.number))
        if held is None:
            found[start, step.number] = step
            continue
        for name in Step.__dataclass_fields__:
            if getattr(held, name) is None:
                setattr(held, name, getattr(step, name))
    return _last_run(list(found.values()), reading.started)


def _last_run(steps: list[Step], started: int) -> list[Step]:
    """The steps of the last run that began from scratch: at the first number again, where a launcher started or as high a loss."""
    numbered = [at for at, step in enumerate(steps) if step.number is not None]
    if not numbered:
        return steps
    first = steps[numbered[0]]
    begin = 0
    for before, at in itertools.pairwise(numbered):
        step = steps[at]
        if step.number != first.number or (steps[before].number or 0) <= (step.number or 0):
            continue
        fresh = first.loss and step.loss and abs(step.loss - first.loss) < SAME_START * first.loss
        if (fresh or steps[before].line < started < step.line) and len(steps) - at >= LONG_ENOUGH:
            begin = at
    return steps[begin:]


def steady(values: Sequence[float]) -> tuple[list[float], int]:
    """Return values without the warm-up, and how many were left out."""
    values = list(values)
    skip = 0
    if len(values) >= 2:
        typical = median(values[1:])
        while skip < len(values) - 1 and skip < 5 and values[skip] > WARM_UP * typical:
            skip += 1
    return values[skip:], skip


def rates_steady(values: Sequence[float]) -> list[float]:
    """The same for rates, whose warm-up is low."""
    values = list(values)
    skip = 0
    if len(values) >= 2:
        typical = median(values[1:])
        while skip < len(values) - 1 and skip < 5 and values[skip] * WARM_UP < typical:
            skip += 1
    return values[skip:]


def values_of(steps: Sequence[Step], name: str) -> list[float]:
    """Return the finite values of one of the steps' fields."""
    found = [getattr(step, name) for step in steps]
    return [float(v) for v in found if v is not None and math.isfinite(v)]


def _above_zero(steps: Sequence[Step], name: str) -> list[float]:
    return [value for value in values_of(steps, name) if value > 0]


def speed(part: Part, reading: LogReading, steps: list[Step]) -> list[tuple[Step, float]]:
    """Put speed into the figures; return steps with their time, warm-up included."""
    timed = [(s, s.step_time_s) for s in steps if s.step_time_s is not None and s.step_time_s > 0]
    timed = (
        timed
        or _by_interval(steps)
        or _by_mean(steps)
        or _micro_steps(part, steps)
        or _by_clock(steps)
        or _by_bar(reading)
    )
    kept, skipped = steady([t for _, t in timed])
    figures = part.figures
    if kept:
        figures["step_time_s"] = median(kept)
        figures["steps_read"], figures["warm_up_steps"] = len(timed), skipped
        if len(kept) > 2:
            spread = (max(kept) - min(kept)) / median(kept)
            figures["step_time_spread"] = round(spread, 4)
            if spread > UNSTEADY and len(kept) < FEW:
                figures["step_time_shortest_s"], figures["step_time_longest_s"] = (
                    min(kept),
                    max(kept),
                )
    elif (whole := _above_zero(steps, "runtime_s")) and (number := _step_count(reading, steps)):
        figures["step_time_s"] = median(whole) / number
    for source, target in (
        ("tokens_per_s_per_gpu", "tokens_per_s_per_gpu"),
        ("tokens_per_s", "tokens_per_s"),
        ("samples_per_s", "samples_per_s"),
        ("flops_per_gpu", "flops_per_s_per_gpu"),
        ("mfu", "mfu"),
    ):
        if values := rates_steady(_above_zero(steps, source)):
            figures[target] = median(values)
    if runtime := _above_zero(steps, "runtime_s"):
        figures["run_time_s"] = median(runtime)
    if batch := values_of(steps, "global_batch"):
        figures["global_batch"] = int(batch[-1])
    return timed


def _step_count(reading: LogReading, steps: list[Step]) -> int | None:
    if given := reading.setting("steps"):
        return given
    rates, whole = values_of(steps, "steps_per_s"), values_of(steps, "runtime_s")
    if rates and whole:
        # Printed to three digits; a whole number of steps if only one fits.
        low, high = (rates[0] - 5e-4) * whole[0], (rates[0] + 5e-4) * whole[0]
        if math.floor(high) == math.ceil(low) > 0:
            return math.ceil(low)
    ends = [bar.of for bar in reading.bars if bar.of and bar.number == bar.of]
    if ends:
        return ends[-1]
    examples, batch = reading.setting("examples"), reading.setting("global_batch")
    return math.ceil(examples / batch) if examples and batch else None


def _micro_steps(part: Part, steps: list[Step]) -> list[tuple[Step, float]]:
    """Times of micro-steps (DeepSpeed): what one is made of."""
    parts = [s for s in steps if s.forward_s is not None and s.backward_s is not None]
    timed = [(s, (s.forward_s or 0) + (s.backward_s or 0) + (s.optimizer_s or 0)) for s in parts]
    found = [(s, t) for s, t in timed if t > 0]
    parts = [s for s, _ in found]
    if not found:
        return []
    kept, skipped = steady([s.forward_s or 0.0 for s in parts])
    whole = parts[skipped:] if kept else parts
    part.figures["forward_s"] = median(values_of(whole, "forward_s"))
    part.figures["backward_s"] = median(values_of(whole, "backward_s"))
    total = median([t for _, t in found[skipped:]])
    part.figures["micro_step_time_s"] = total
    if reduced := values_of(whole, "reduce_s"):
        part.figures["gradient_reduction_s"] = median(reduced)
        part.figures["exposed_share"] = round(median(reduced) / total, 4)
    if skipped:
        part.figures["warm_up_steps"] = skipped
    return found[skipped:]


def _by_interval(steps: list[Step]) -> list[tuple[Step, float]]:
    """Times that a line gives for all steps since the one before."""
    found: list[tuple[Step, float]] = []
    for before, step in itertools.pairwise(
        [s for s in steps if s.number is not None and s.interval_s]
    ):
        ahead = (step.number or 0) - (before.number or 0)
        if ahead > 0 and step.interval_s:
            found.append((step, step.interval_s / ahead))
    return found


def _by_mean(steps: list[Step]) -> list[tuple[Step, float]]:
    """Times from a mean since the run began."""
    means = [(s, s.number, s.mean_s) for s in steps if s.number and s.mean_s]
    found = [
        (step, (number * mean - before * held) / (number - before))
        for (_, before, held), (step, number, mean) in itertools.pairwise(means)
        if number > before
    ]
    return [(step, time) for step, time in found if time > 0] or [(s, m) for s, _, m in means]


def _by_clock(steps: list[Step]) -> list[tuple[Step, float]]:
    """Times from the clock that lines carry, where nothing prints them."""
    found: list[tuple[Step, float]] = []
    before: Step | None = None
    for step in steps:
        if step.number is None or step.clock_s is None:
            continue
        if before is not None and before.number is not None and before.clock_s is not None:
            ahead, gone = step.number - before.number, (step.clock_s - before.clock_s) % 86400
            if ahead > 0 and 0 < gone < 43200:
                found.append((step, gone / ahead))
        before = step
    return found


def _by_bar(reading: LogReading) -> list[tuple[Step, float]]:
    """Times from a progress bar's elapsed time; of the bar that went furthest."""
    by_length: dict[int, dict[int, Step]] = {}
    for bar in reading.bars:
        if bar.of and bar.number is not None:
            by_length.setdefault(bar.of, {}).setdefault(bar.number, bar)
    if not by_length:
        return []
    bars = max(by_length.values(), key=lambda states: (len(states), max(states)))
    order = [bars[number] for number in sorted(bars)]
    if len(order) < 3:
        last = order[-1]
        if not last.number:
            return []
        # One state: its own smoothed rate, which leaves out what came after the step.
        speed = last.running_s_it or (last.clock_s or 0.0) / last.number
        return [(last, speed)] if speed else []
    whole = [bar for bar in order if bar.number]
    first, last = order[0], order[-1]
    average = ((last.clock_s or 0) - (first.clock_s or 0)) / (
        (last.number or 0) - (first.number or 0)
    )
    speeds = [(bar, bar.running_s_it) for bar in whole if bar.running_s_it]
    if not speeds and average > 0:
        return [(last, average)]
    return [(bar, speed) for bar, speed in speeds if speed is not None]


def place(reading: LogReading, step: Step, text: str = "") -> Evidence:
    """Point at the line of a step."""
    said = text or (f"step {step.number}" if step.number is not None else "a step without a number")
    return Evidence(file=reading.name, line=step.line, text=said, event=None)


def hardly_computes(part: Part, reading: LogReading, times: list[tuple[Step, float]]) -> None:
    """Long steps at next to none of the device's peak: whatever takes the time, it is not computing.

    Short steps of small models do so, too, and rightly: kernels are launched one by one.
    """
    mfu, step_s = part.figures.get("mfu"), part.figures.get("step_time_s")
    if part.findings or not isinstance(mfu, float) or not isinstance(step_s, float) or not times:
        return
    if not 0 < mfu < HARDLY or step_s < LONG_STEP_S:
        return
    part.findings.append(
        of("unknown", f"A step of {format_seconds(step_s)} uses {mfu:.1%} of the device's peak: something other than "
           "computing takes its time, and this log does not tell what",
           "look at the links first (NCCL_DEBUG=INFO: NET/Socket where InfiniBand should be; nccl-tests between the hosts), "
           "then at the layout (tensor parallelism or ZeRO-3 across slow links, a pipeline with few micro-batches), "
           "offloading, and waiting for data; a profiler trace of one step names it",
           confidence=0.6, where="step time", evidence=(place(reading, times[-1][0]),))
    )  # fmt: skip
    part.missing.append("a profiler trace of one step on every rank: what the step waits for")


def speed_sentence(part: Part) -> str:
    """Say how fast a run without fault is, or that its log does not tell."""
    figures = part.figures
    step, rate = figures.get("step_time_s"), figures.get("tokens_per_s_per_gpu")
    parts = []
    if isinstance(step, float):
        spread = figures.get("step_time_spread")
        within = isinstance(spread, float) and spread < 0.3
        steady = f", steady within {max(spread, 0.01):.0%}" if within else ""  # type: ignore[type-var]
        shortest, longest = figures.get("step_time_shortest_s"), figures.get("step_time_longest_s")
        if isinstance(shortest, float) and isinstance(longest, float):
            steady = f", {format_seconds(shortest)} to {format_seconds(longest)}: too few are logged to tell why"
            part.untold = "No fault shows, but the pace is not steady"
            part.missing.append("a longer piece of the log: whether steps became slower for good")
        parts.append(f"steps of {format_seconds(step)}{steady}")
    if isinstance(rate, float):
        parts.append(f"{rate:,.0f} tokens/s per GPU")
    if isinstance(mfu := figures.get("mfu"), float):
        parts.append(f"MFU {mfu:.1%} as printed")
    if not parts and not _timed(part):
        part.missing.append("a log with times of steps: whether the run is as fast as it should be")
        part.untold = "No fault shows"
        return "the log has no times of steps, so it does not tell whether the run is slow"
    return ", ".join(parts) or "the log shows no fault"


def _timed(part: Part) -> bool:
    return any(
        name.endswith(("_s", "_per_gpu", "_share")) or name == "mfu" for name in part.figures
    )
