"""What a log means: speed without warm-up, what interrupted it, what the text blames and rightly so."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import mean, median

import msgspec

from meshwright.diagnose import known_errors, oom, watchdog
from meshwright.diagnose.log_lines import Step
from meshwright.diagnose.log_reading import LogReading
from meshwright.diagnose.records import Evidence, Finding, Part, of
from meshwright.engine.watch.flightlog import ranks_text
from meshwright.specs.quantities import format_seconds

WARM_UP = 1.3
"""A first step is warm-up (compilation, allocation, caches) if it takes this much of the median."""
SLOW_SCORE, FAR_FROM_REST = 0.9, 0.93
"""A rank is slow if it scores below both: the score itself, and its share of the median score."""
SLOW_PROBE = 1.15
INTERRUPTED = 0.03
"""Share of the time that saving and evaluating may take unremarked."""
SPIKE = 1.5
"""Steps this much longer than the median interrupt a run."""


def steps_of(reading: LogReading) -> list[Step]:
    """One record a step, in order: ranks that print the same step count once."""
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
    return list(found.values())


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


def judge_log(reading: LogReading) -> Part:
    """Say what a log tells by itself."""
    part = Part()
    steps = steps_of(reading)
    times = _speed(part, reading, steps)
    _memory(part, reading, steps)
    _loss(part, reading, steps)
    if reading.messages:
        _join(part, oom.judge_messages(reading.messages, oom.look_around(_aside(reading))))
    else:
        _errors(part, reading)
    _overflows(part, reading)
    _stragglers(part, reading)
    _fail_slow(part, reading, times)
    _interruptions(part, reading, steps, times)
    _evaluation(part, reading, steps)
    _phases(part, reading, steps)
    _restarts(part, reading, steps)
    _ends(part, reading)
    if part.figures and all(finding.layout_cost for finding in part.findings):
        part.healthy.append(_speed_sentence(part))
    return part


def _errors(part: Part, reading: LogReading) -> None:
    """Errors by their wording; else what the watchdog says, unless it only says that something failed."""
    known = known_errors.findings(reading.known, reading.name)
    if reading.root is not None and known and not known[0].cause.ranks:
        cause = msgspec.structs.replace(known[0].cause, ranks=(reading.root[1],))
        known[0] = msgspec.structs.replace(known[0], cause=cause)
    hang = watchdog.judge(reading.hang) if reading.hang is not None else Part()
    vague = all(f.cause.kind == "unknown" and f.cause.confidence <= 0.5 for f in hang.findings)
    if known and vague:
        part.findings += known
        part.figures.update(hang.figures)
        return
    _join(part, hang)
    part.findings += known


def _overflows(part: Part, reading: LogReading) -> None:
    """Steps skipped while the loss scale finds its place: normal at the start, said so."""
    if not reading.overflows:
        return
    part.figures["overflow_steps"] = len(reading.overflows)
    if not any("loss scale" in hit.sentence for hit in reading.known):
        part.healthy.append(
            f"{len(reading.overflows)} steps were skipped while the loss scale came down to "
            f"{reading.overflows[-1][1] / 2:,.0f}, which is usual at the start of fp16"
        )


def _aside(reading: LogReading) -> list[tuple[int, str]]:
    own = {message.line for message in reading.messages}
    return [(number, line) for number, line in reading.aside if number not in own]


def _join(part: Part, other: Part) -> None:
    part.findings += other.findings
    part.missing += other.missing
    part.figures.update(other.figures)


def _values(steps: Sequence[Step], name: str) -> list[float]:
    found = [getattr(step, name) for step in steps]
    return [float(v) for v in found if v is not None and math.isfinite(v)]


def _speed(part: Part, reading: LogReading, steps: list[Step]) -> list[tuple[Step, float]]:
    """Put speed into the figures; return steps with their time, warm-up included."""
    timed = [(s, s.step_time_s) for s in steps if s.step_time_s is not None and s.step_time_s > 0]
    timed = timed or _micro_steps(part, steps) or _by_clock(steps) or _by_bar(reading)
    kept, skipped = steady([t for _, t in timed])
    figures = part.figures
    if kept:
        figures["step_time_s"] = median(kept)
        figures["steps_read"], figures["warm_up_steps"] = len(timed), skipped
        if len(kept) > 2:
            figures["step_time_spread"] = round((max(kept) - min(kept)) / median(kept), 4)
    elif (whole := _values(steps, "runtime_s")) and (number := _step_count(reading, steps)):
        figures["step_time_s"] = median(whole) / number
    for source, target in (
        ("tokens_per_s_per_gpu", "tokens_per_s_per_gpu"), ("tokens_per_s", "tokens_per_s"),
        ("samples_per_s", "samples_per_s"), ("flops_per_gpu", "flops_per_s_per_gpu"),
        ("mfu", "mfu"),
    ):  # fmt: skip
        if values := rates_steady(_values(steps, source)):
            figures[target] = median(values)
    if runtime := _values(steps, "runtime_s"):
        figures["run_time_s"] = median(runtime)
    if batch := _values(steps, "global_batch"):
        figures["global_batch"] = int(batch[-1])
    return timed


def _step_count(reading: LogReading, steps: list[Step]) -> int | None:
    if "steps" in reading.words:
        return int(reading.words["steps"])
    rates, whole = _values(steps, "steps_per_s"), _values(steps, "runtime_s")
    if rates and whole:
        # Printed to three digits; a whole number of steps if only one fits.
        low, high = (rates[0] - 5e-4) * whole[0], (rates[0] + 5e-4) * whole[0]
        if math.floor(high) == math.ceil(low) > 0:
            return math.ceil(low)
    ends = [bar.of for bar in reading.bars if bar.of and bar.number == bar.of]
    if ends:
        return ends[-1]
    if "examples" in reading.words and "global_batch" in reading.words:
        return math.ceil(
            int(reading.words["examples"]) / max(int(reading.words["global_batch"]), 1)
        )
    return None


def _micro_steps(part: Part, steps: list[Step]) -> list[tuple[Step, float]]:
    """Times of micro-steps (DeepSpeed): what one is made of."""
    parts = [s for s in steps if s.forward_s is not None and s.backward_s is not None]
    found = [(s, (s.forward_s or 0) + (s.backward_s or 0) + (s.optimizer_s or 0)) for s in parts]
    if not found:
        return []
    kept, skipped = steady([s.forward_s or 0.0 for s in parts])
    whole = parts[skipped:] if kept else parts
    part.figures["forward_s"] = median(_values(whole, "forward_s"))
    part.figures["backward_s"] = median(_values(whole, "backward_s"))
    total = median([t for _, t in found[skipped:]])
    part.figures["micro_step_time_s"] = total
    if reduced := _values(whole, "reduce_s"):
        part.figures["gradient_reduction_s"] = median(reduced)
        part.figures["exposed_share"] = round(median(reduced) / total, 4)
    if skipped:
        part.figures["warm_up_steps"] = skipped
    return found[skipped:]


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


def _memory(part: Part, reading: LogReading, steps: list[Step]) -> None:
    if reading.memory:
        part.figures["peak_memory_bytes"] = max(one[0] for one in reading.memory.values())
        part.figures["reserved_memory_bytes"] = max(one[1] for one in reading.memory.values())
        ranks = {rank: round(one[0] / 2**30, 2) for rank, one in sorted(reading.memory.items())}
        if len(ranks) > 1:
            part.figures["peak_memory_rank"] = max(ranks, key=lambda rank: ranks[rank])
    elif (values := _values(steps, "memory_bytes")) and max(values) > 0:
        part.figures["peak_memory_bytes"] = max(values)
    if values := _values(steps, "reserved_bytes"):
        part.figures["reserved_memory_bytes"] = max(values)
        part.figures.setdefault("peak_memory_bytes", max(values))
    _growth(part, reading, steps)
    retries = _values(steps, "alloc_retries")
    if retries and max(retries) > 0:
        line = next(s for s in steps if s.alloc_retries)
        part.figures["alloc_retries"] = int(max(retries))
        part.findings.append(
            of("fragmentation", f"The allocator gave up and started over {max(retries):.0f} times "
               "(alloc_retries): memory is nearly full or fragmented, and each time costs",
               "lower the peak a little (micro-batch, recomputation) or set "
               "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; watch that the number stops growing",
               confidence=0.5, where="caching allocator", layout_cost=True,
               evidence=(Evidence(file=reading.name, line=line.line, text=f"alloc_retries: {max(retries):.0f}"),))
        )  # fmt: skip


def _growth(part: Part, reading: LogReading, steps: list[Step]) -> None:
    """Memory that grows from step to step: a leak, unless it is the warm-up."""
    curve = [(s, s.memory_bytes) for s in steps if s.memory_bytes is not None]
    if len(curve) < 8:
        return
    kept = curve[max(2, len(curve) // 10) :]
    values = [value for _, value in kept]
    third = max(len(values) // 3, 1)
    early, middle, late = (
        median(values[:third]), median(values[third:-third] or values), median(values[-third:])
    )  # fmt: skip
    rises = sum(b > a for a, b in itertools.pairwise(values))
    if late > 1.05 * early and early < middle < late and rises >= 0.5 * (len(values) - 1):
        first, last = kept[0], kept[-1]
        number = (last[0].number or last[0].line) - (first[0].number or first[0].line)
        rate = (last[1] - first[1]) / max(number, 1)
        part.figures["memory_growth_bytes_per_step"] = rate
        part.findings.append(
            of("leak", f"Memory grows by {rate / 2**20:.1f} MiB a step, from {first[1] / 2**30:.2f} to "
               f"{last[1] / 2**30:.2f} GiB over {number} steps",
               "look for what a step keeps: losses or outputs appended with their graph (use .item() or "
               ".detach()), a cache by shape, hooks added each step; a memory snapshot of two steps "
               "names it", confidence=0.75, where="memory over steps",
               evidence=(_at(reading, first[0]), _at(reading, last[0])))
        )  # fmt: skip


def _at(reading: LogReading, step: Step, text: str = "") -> Evidence:
    said = text or f"step {step.number}" if step.number is not None else text or "here"
    return Evidence(file=reading.name, line=step.line, text=said, event=None)


def _loss(part: Part, reading: LogReading, steps: list[Step]) -> None:
    losses = [(s, s.loss) for s in steps if s.loss is not None]
    if not losses:
        return
    finite = [(s, v) for s, v in losses if math.isfinite(v)]
    if finite:
        part.figures["loss_first"], part.figures["loss_last"] = finite[0][1], finite[-1][1]
    bad = [s for s, v in losses if not math.isfinite(v)] + [s for s in steps if s.nan]
    skipped = sum(int(v) for v in _values(steps, "skipped"))
    if skipped and any(s.skipped for s in steps):
        part.figures["skipped_steps"] = skipped
    if bad:
        part.figures["nan_steps"] = len(bad)
        first = bad[0]
        part.findings.append(
            of("unknown", f"The loss is not a number from step {first.number} on" if len(bad) > 1
               else f"The loss is not a number at step {first.number}",
               "go back to the last good checkpoint; look at the batch and the gradient norm of the step "
               "before; lower the learning rate or the loss scale, check masks that leave a row empty",
               confidence=0.6, where=f"loss at step {first.number}", evidence=(_at(reading, first, "loss: nan"),))
        )  # fmt: skip
        return
    _dead(part, reading, finite)
    _spikes(part, reading, finite)


def _dead(part: Part, reading: LogReading, losses: list[tuple[Step, float]]) -> None:
    """A loss of exactly zero: nothing is learnt, and nothing crashes."""
    zero = [(step, value) for step, value in losses if value == 0.0]
    if not zero or not any(value > 0.01 for _, value in losses[: losses.index(zero[0])] or losses):
        return
    step = zero[0][0]
    part.figures["zero_loss_steps"] = len(zero)
    part.findings.append(
        of("wrong-configuration", f"The loss is exactly 0 from step {step.number or step.line} on: the run goes on and "
           "learns nothing" if losses[-1][1] == 0.0 else f"The loss is exactly 0 at {len(zero)} steps",
           "a loss of a language model is never 0: see that labels are not all masked (-100) after a change of template, "
           "packing or truncation, that half precision does not overflow (bf16, or fp32 for the loss), and that the "
           "checkpoint's weights are finite",
           confidence=0.8, where=f"loss at step {step.number or step.line}",
           evidence=(_at(reading, step, "loss 0.0"),))
    )  # fmt: skip


def _spikes(part: Part, reading: LogReading, losses: list[tuple[Step, float]]) -> None:
    if len(losses) < 4:
        return
    spikes = [
        (step, value) for at, (step, value) in enumerate(losses) if at >= 2
        and value > 1.5 * median([v for _, v in losses[max(0, at - 10) : at]]) > 0
        and value > losses[0][1] * 1.05
    ]  # fmt: skip
    if not spikes:
        return
    part.figures["loss_spikes"] = len(spikes)
    final = median([v for _, v in losses[-3:]])
    if final > 1.2 * losses[0][1] > 0:
        step, value = spikes[0]
        part.findings.append(
            of("unknown", f"The loss diverges: {losses[0][1]:.3g} at first, {value:.3g} at step "
               f"{step.number}, {final:.3g} at the end", "lower the learning rate, lengthen the warm-up, check "
               "initialisation and precision; speed figures of such a run are still valid",
               confidence=0.5, where=f"loss at step {step.number}", layout_cost=True,
               evidence=(_at(reading, step, f"loss {value:.4g}"),))
        )  # fmt: skip


def _stragglers(part: Part, reading: LogReading) -> None:
    """Reports of a straggler detector: is anybody really slow?"""
    latest: dict[tuple[str, int], tuple[int, float]] = {}
    for line, rank, score, report in reading.scores:
        latest[report, rank] = (line, score)
    if not latest:
        return
    slow: dict[int, tuple[int, float]] = {}
    for report in {one for one, _ in latest}:
        scores = {rank: value for (one, rank), value in latest.items() if one == report}
        typical = median(score for _, score in scores.values())
        slow |= {
            rank: found for rank, found in scores.items()
            if found[1] < SLOW_SCORE and found[1] < FAR_FROM_REST * typical
        }  # fmt: skip
    worst = min(score for _, score in latest.values())
    part.figures["lowest_straggler_score"] = worst
    if slow:
        ranks = tuple(sorted(slow))
        least = min(score for _, score in slow.values())
        part.findings.append(
            of("slow-rank", f"{ranks_text(ranks).capitalize()} computes at {least:.0%} of the speed of the others",
               "look at that GPU (clocks, temperature, other processes, ECC); exclude the node if it stays",
               confidence=0.8, ranks=ranks, where="GPU performance score", share_of_step=1 - least,
               gain_fraction=round(1 - least, 4),
               evidence=tuple(Evidence(file=reading.name, line=line, rank=rank, text=f"rank {rank} scores {score}")
                              for rank, (line, score) in slow.items())[:4])
        )  # fmt: skip
        return
    sentence = (
        f"every rank scores {worst:.2f} or more: no rank is slow"
        + ("; the straggler alarm is false (its threshold is above what ranks differ by anyway)"
           if reading.alarms else "")
    )  # fmt: skip
    part.healthy.append(sentence)
    if reading.alarms:
        part.figures["false_alarms"] = 1
        part.missing.append(
            "a threshold for the straggler detector below what ranks differ by anyway (0.7 to 0.8)"
        )


def _fail_slow(part: Part, reading: LogReading, times: list[tuple[Step, float]]) -> None:
    """Probes of ranks, and iterations that became slower."""
    gain = None
    evidence: list[Evidence] = []
    if reading.failslow:
        line, fast, slow = reading.failslow[0]
        part.figures["step_time_before_s"], part.figures["step_time_s"] = fast, slow
        part.figures["slowdown"] = round(slow / fast, 4)
        gain = round(1 - fast / slow, 4)
        evidence.append(Evidence(file=reading.name, line=line,
                                 text=f"iteration {format_seconds(fast)} before, {format_seconds(slow)} after"))  # fmt: skip
    latest = {rank: (line, value) for line, rank, value in reading.probes}
    if len(latest) >= 2:
        typical = median(value for _, value in latest.values())
        slow_ranks = {r: one for r, one in latest.items() if one[1] > SLOW_PROBE * typical}
        if slow_ranks and 2 * len(slow_ranks) <= len(latest):
            ranks = tuple(sorted(slow_ranks))
            worst = max(value for _, value in slow_ranks.values())
            evidence += [
                Evidence(file=reading.name, line=line, rank=rank,
                         text=f"compute probe of rank {rank}: {value:.1f} against {typical:.1f} of the median")
                for rank, (line, value) in slow_ranks.items()
            ]  # fmt: skip
            part.findings.append(
                of("slow-rank", f"{ranks_text(ranks).capitalize()} computes {worst / typical:.1f} times slower than "
                   "the others (compute probe), the links are not at fault",
                   "look at that GPU (clocks, power cap, another process on it); until then give it less "
                   "work, or exclude it", confidence=0.9, ranks=ranks, where="computation",
                   share_of_step=gain, gain_fraction=gain, evidence=tuple(evidence[:6]))
            )  # fmt: skip
            return
    if gain is not None and gain > 0.05:
        part.findings.append(
            of("unknown", f"Iterations became {1 / (1 - gain) - 1:.0%} slower; which rank, the text does not tell",
               "probe each rank's compute and each link", confidence=0.5, where="iteration time",
               share_of_step=gain, gain_fraction=gain, evidence=tuple(evidence))
        )  # fmt: skip
        return
    if _change_points(part, reading):
        return
    _onset(part, reading, times)


def _change_points(part: Part, reading: LogReading) -> bool:
    """What a detector of slow iterations wrote: all ranks slow down together, so none is named."""
    if not reading.degraded:
        return False
    line, share = reading.degraded[0]
    worst = median([value for _, value in reading.degraded])
    part.figures["slowdown"] = round(1 + worst, 4)
    gain = round(1 - 1 / (1 + worst), 4)
    part.findings.append(
        of("unknown", f"Iterations became {worst:.0%} slower, on all ranks at once, as they wait for each "
           "other; which rank or link it is, this text does not tell",
           "probe each rank's compute and each link (the detector's controller does); then exclude what is slow",
           confidence=0.7, where="iteration time", share_of_step=gain, gain_fraction=gain,
           evidence=(Evidence(file=reading.name, line=line, text=f"change point: degradation {share:.3f}"),))
    )  # fmt: skip
    part.missing.append("the compute and link probes of all ranks: which of them is slow")
    return True


def _onset(part: Part, reading: LogReading, times: list[tuple[Step, float]]) -> None:
    """A lasting rise of the step time within the log."""
    kept, skipped = steady([t for _, t in times])
    if len(kept) < 12:
        return
    best, at = 0.0, 0
    for cut in range(4, len(kept) - 3):
        before, after = median(kept[:cut]), median(kept[cut:])
        spread = mean([abs(v - before) for v in kept[:cut]]) + mean(
            [abs(v - after) for v in kept[cut:]]
        )
        lead = (after - before) - 2 * spread
        if after > 1.08 * before and lead > best:
            best, at = lead, cut
    if not at:
        return
    before, after = median(kept[:at]), median(kept[at:])
    step = times[skipped + at][0]
    part.figures["step_time_before_s"] = before
    part.figures["slowdown"] = round(after / before, 4)
    part.findings.append(
        of("unknown", f"From step {step.number} on a step takes {after / before - 1:.0%} longer "
           f"({format_seconds(after)} instead of {format_seconds(before)}) and stays so: something became slow",
           "probe each GPU (a matmul of known size) and each link (all-reduce) of the job; clocks and "
           "temperature of that hour", confidence=0.6, where=f"from step {step.number}",
           share_of_step=round(1 - before / after, 4), gain_fraction=round(1 - before / after, 4),
           evidence=(_at(reading, step),))
    )  # fmt: skip
    part.missing.append(
        "profiler traces of all ranks from before and after: which rank or link it is"
    )


def _interruptions(
    part: Part, reading: LogReading, steps: list[Step], times: list[tuple[Step, float]]
) -> None:
    """Single steps that take much longer: saving, evaluation, garbage collection."""
    kept, skipped = steady([t for _, t in times])
    if len(kept) < 10 or "slowdown" in part.figures:
        return
    typical = median(kept)
    long = [(times[skipped + i][0], t) for i, t in enumerate(kept) if t > SPIKE * typical]
    if not long or len(long) > 0.3 * len(kept):
        return
    lost = sum(t - typical for _, t in long) / sum(kept)
    part.figures["interruption_share"] = round(lost, 4)
    if lost < (INTERRUPTED if len(long) > 1 else 3 * INTERRUPTED):
        return
    numbers = [s.number for s, _ in long if s.number is not None]
    gaps = {b - a for a, b in itertools.pairwise(numbers)}
    regular = len(numbers) > 2 and len(gaps) == 1
    where = f"every {gaps.pop()} steps" if regular else "steps " + ", ".join(map(str, numbers[:6]))
    part.findings.append(
        of("evaluation-or-checkpoint" if regular else "unknown",
           f"{len(long)} steps of {len(kept)} take {median([t for _, t in long]) / typical:.1f} times the "
           f"median ({where}): {lost:.1%} of the time",
           "save asynchronously or less often, evaluate less; if neither happens there, disable Python's "
           "garbage collector in the step and collect at fixed steps",
           confidence=0.65 if regular else 0.4, where=where, share_of_step=round(lost, 4),
           gain_fraction=round(lost, 4), evidence=tuple(_at(reading, s) for s, _ in long[:4]))
    )  # fmt: skip


def _evaluation(part: Part, reading: LogReading, steps: list[Step]) -> None:
    spent = [(s, s.evaluation_s) for s in steps if s.evaluation_s]
    if not spent:
        return
    total = sum(value for _, value in spent)
    whole = part.figures.get("run_time_s")
    if not isinstance(whole, float):
        clocks = [bar.clock_s for bar in reading.bars if bar.clock_s]
        done = max((bar.number or 0 for bar in reading.bars), default=0)
        step_s = part.figures.get("step_time_s")
        whole = max(clocks) if clocks else None
        if whole is None or whole < total:
            whole = total + done * (step_s if isinstance(step_s, float) else 0.0)
    share = min(total / whole, 1.0) if whole else None
    part.figures["evaluation_s"] = total
    if share is None:
        return
    part.figures["evaluation_share"] = round(share, 4)
    if share < 0.1:
        return
    not_a_number = [s for s in steps if s.eval_loss is not None and math.isnan(s.eval_loss)]
    part.findings.append(
        of("evaluation-or-checkpoint",
           f"Evaluation takes {share:.0%} of the time so far: {format_seconds(spent[0][1])} at a time"
           + ("; its loss is not a number" if not_a_number else ""),
           "evaluate less often (eval_steps), on fewer samples, without generation, or in a job of its own",
           confidence=0.85, where="evaluation", share_of_step=round(share, 4), gain_fraction=round(share, 4),
           evidence=tuple(_at(reading, s, f"eval_runtime {v:.1f} s") for s, v in spent[:3]))
    )  # fmt: skip


def _phases(part: Part, reading: LogReading, steps: list[Step]) -> None:
    """Steps that print their own phases: reinforcement learning, data loading."""
    parts = [s for s in steps if s.generate_s and s.step_time_s]
    kept = parts[1:] if len(parts) > 4 else parts
    if kept:
        share = median([(s.generate_s or 0) / (s.step_time_s or 1) for s in kept])
        training = median([(s.train_s or 0) / (s.step_time_s or 1) for s in kept])
        part.figures["generation_share"] = round(share, 4)
        part.figures["training_share"] = round(training, 4)
        if share > 0.4:
            part.findings.append(
                of("unknown", f"Generation is the bottleneck: {share:.0%} of a step, training {training:.0%}",
                   "speed up generation first: an inference engine (vLLM), larger generation batches, "
                   "shorter answers; training speed hardly matters here",
                   confidence=0.85, where="generation", share_of_step=round(share, 4), layout_cost=True,
                   evidence=(_at(reading, kept[0], f"generate {kept[0].generate_s} of {kept[0].step_time_s} s"),))
            )  # fmt: skip
    data = [s for s in steps if s.data_s is not None and s.step_time_s]
    if len(data) >= 2:
        share = median([(s.data_s or 0) / (s.step_time_s or 1) for s in data[1:]])
        part.figures["data_share"] = round(share, 4)
        if 0.05 < share < 1:
            part.findings.append(
                of("input-bound", f"A step waits {share:.0%} of its time for data",
                   "more loader workers, prefetching, tokenised and packed data on fast storage",
                   confidence=0.85, where="data loading", share_of_step=round(share, 4),
                   gain_fraction=round(share, 4), evidence=(_at(reading, data[-1]),))
            )  # fmt: skip


def _restarts(part: Part, reading: LogReading, steps: list[Step]) -> None:
    numbers = [(s.number, s) for s in reading.steps if s.number is not None]
    again = [
        (a, b, s) for (a, _), (b, s) in itertools.pairwise(numbers)
        if b <= a and b < a - 0 and reading.resumed
    ]  # fmt: skip
    if not reading.restarts and not again:
        return
    count = max(len(again), 1 if reading.restarts else 0)
    part.figures["restarts"] = count
    step_s = part.figures.get("step_time_s")
    lost = sum(a - b + 1 for a, b, _ in again)
    if lost:
        part.figures["steps_repeated"] = lost
    error = reading.errors[0] if reading.errors else None
    crash = f" after “{error[1][:100]}”" if error else ""
    where = f"resumed at step {again[0][1]} after step {again[0][0]}" if again else "restart"
    total = len({s.number for s in steps}) + lost
    share = lost / total if lost and total else None
    said = (
        [Evidence(file=reading.name, line=error[0], text=error[1], rank=error[2])] if error else []
    )
    said += [
        Evidence(file=reading.name, line=n, text=t)
        for n, t in (reading.restarts + reading.resumed)[:3]
    ]
    part.findings.append(
        of("unknown", f"The run crashed{crash} and restarted ({where}); it went on"
           + (f", {lost} steps were done twice" if lost else ""),
           "cure the error that stopped it; save often enough that a restart repeats little"
           + (f" (here {format_seconds(lost * step_s)})" if lost and isinstance(step_s, float) else ""),
           confidence=0.8, where=where, share_of_step=None if share is None else round(share, 4),
           evidence=tuple(said))
    )  # fmt: skip


def _ends(part: Part, reading: LogReading) -> None:
    """What ended the run, where nothing before explains it."""
    if any(f.cause.kind not in ("bubble",) and not f.layout_cost for f in part.findings):
        return
    for line, why, text in reading.stopped:
        if why in ("cancelled", "the job's time limit"):
            part.healthy.append(
                f"it was ended by {why}" if why[0] == "t" else f"it was {why} by hand"
            )
            return
        kind, remedy = {
            "the disk is full": ("wrong-configuration", "free space or quota where checkpoints and logs "
                                 "go, keep fewer checkpoints; then resume from the last whole one"),
            "a node failed": ("gpu-error", "exclude the node and resume from the last checkpoint"),
        }.get(why, ("unknown", "exit code -9 is the host's out-of-memory killer or the scheduler: see dmesg "
                    "and the job's memory limit"))  # fmt: skip
        part.findings.append(
            of(kind, f"The run ended because {why}" if why[0] in "at" else f"A process was {why}",  # type: ignore[arg-type]
               remedy, confidence=0.8, where=why, evidence=(Evidence(file=reading.name, line=line, text=text),))
        )  # fmt: skip
        return
    if reading.alarms or not reading.errors:
        return
    last = reading.errors[0]
    if _harmless(last[1]) or (reading.steps and reading.steps[-1].line > last[0]):
        return
    part.findings.append(
        of("unknown", f"The program stopped with an error of its own: {last[1][:140]}",
           "read the traceback above that line; it is not a fault of speed, memory or communication "
           "that this text shows", confidence=0.5, where="program",
           ranks=() if last[2] is None else (last[2],),
           evidence=(Evidence(file=reading.name, line=last[0], text=last[1], rank=last[2]),))
    )  # fmt: skip


def _harmless(text: str) -> bool:
    return text.startswith(("ChildFailedError", "KeyboardInterrupt", "DeprecationWarning"))


def _speed_sentence(part: Part) -> str:
    figures = part.figures
    step, rate = figures.get("step_time_s"), figures.get("tokens_per_s_per_gpu")
    parts = []
    if isinstance(step, float):
        spread = figures.get("step_time_spread")
        within = isinstance(spread, float) and spread < 0.3
        steady = f", steady within {max(spread, 0.01):.0%}" if within else ""  # type: ignore[type-var]
        parts.append(f"steps of {format_seconds(step)}{steady}")
    if isinstance(rate, float):
        parts.append(f"{rate:,.0f} tokens/s per GPU")
    if isinstance(mfu := figures.get("mfu"), float):
        parts.append(f"MFU {mfu:.1%} as printed")
    return ", ".join(parts) or "the log shows no fault"


def unknown_if_silent(part: Part, reading: LogReading) -> Finding | None:
    """A text that says nothing of a run."""
    if part.findings or part.figures or part.healthy:
        return None
    return of("unknown", "The text does not tell: it holds no step times, no memory and no error that is known",
              "give the log of the run itself, or the traces, dumps or error text", confidence=0.9,
              where=reading.name)  # fmt: skip
