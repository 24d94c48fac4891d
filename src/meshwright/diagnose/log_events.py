"""What interrupted a logged run: stragglers' reports, slow spells, evaluations, restarts, its end."""

from __future__ import annotations

import itertools
import math
from statistics import mean, median, quantiles

from meshwright.diagnose.log_reading import LogReading
from meshwright.diagnose.log_speed import place, steady
from meshwright.diagnose.records import Evidence, Part, of
from meshwright.diagnose.step_fields import Step
from meshwright.engine.watch.flightlog import ranks_text
from meshwright.specs.quantities import format_seconds

SLOW_SCORE, FAR_FROM_REST = 0.9, 0.93
"""A rank is slow if it scores below both: the score itself, and its share of the median score."""
SLOW_PROBE = 1.15


INTERRUPTED = 0.03
"""Share of the time that saving and evaluating may take unremarked."""


MOST_PLACES = 400
"""Places of a log at which a lasting slowdown is looked for."""


SCATTERED = 4.0
"""Upper over lower quartile of step times from which they have no pace."""


SPIKE = 1.5
"""Steps this much longer than the median interrupt a run."""


def stragglers(part: Part, reading: LogReading) -> None:
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
            rank: found
            for rank, found in scores.items()
            if found[1] < SLOW_SCORE and found[1] < FAR_FROM_REST * typical
        }
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
    sentence = f"every rank scores {worst:.2f} or more: no rank is slow" + (
        "; the straggler alarm is false (its threshold is above what ranks differ by anyway)"
        if reading.alarms
        else ""
    )
    part.healthy.append(sentence)
    if reading.alarms:
        part.figures["false_alarms"] = 1
        part.missing.append(
            "a threshold for the straggler detector below what ranks differ by anyway (0.7 to 0.8)"
        )


def fail_slow(part: Part, reading: LogReading, times: list[tuple[Step, float]]) -> None:
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
        slow_ranks = {r: one for r, one in latest.items() if one[1] > SLOW_PROBE * typical > 0}
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
    if len(kept) < 9:
        return
    # Trying each place costs the square of their number: a long log is looked at in blocks.
    block = -(-len(kept) // MOST_PLACES)
    coarse = [median(kept[i : i + block]) for i in range(0, len(kept), block)]
    best, at = 0.0, 0
    for cut in range(4, len(coarse) - 2):
        before, after = median(coarse[:cut]), median(coarse[cut:])
        spread = mean([abs(v - before) for v in coarse[:cut]]) + mean(
            [abs(v - after) for v in coarse[cut:]]
        )
        lead = (after - before) - 2 * spread
        if after > 1.08 * before and lead > best:
            best, at = lead, cut * block
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
           evidence=(place(reading, step),))
    )  # fmt: skip
    part.missing.append(
        "profiler traces of all ranks from before and after: which rank or link it is"
    )


def interruptions(
    part: Part, reading: LogReading, steps: list[Step], times: list[tuple[Step, float]]
) -> None:
    """Single steps that take much longer: saving, evaluation, garbage collection."""
    kept, skipped = steady([t for _, t in times])
    if len(kept) < 10 or "slowdown" in part.figures:
        return
    typical = median(kept)
    long = [(times[skipped + i][0], t) for i, t in enumerate(kept) if t > SPIKE * typical]
    if _scattered(part, reading, times[skipped:], kept):
        return
    if not long or len(long) > 0.3 * len(kept):
        return
    over = sum(t - typical for _, t in long)
    lost = over / (typical * _unlogged(times[skipped:]) + sum(kept))
    part.figures["interruption_share"] = round(lost, 4)
    if lost < (INTERRUPTED if len(long) > 1 else 3 * INTERRUPTED):
        return
    numbers = [s.number for s, _ in long if s.number is not None]
    gaps = {b - a for a, b in itertools.pairwise(numbers)}
    regular = len(numbers) > 2 and len(gaps) == 1
    where = f"every {gaps.pop()} steps" if regular else _named(long)
    part.findings.append(
        of("evaluation-or-checkpoint" if regular else "unknown",
           f"{len(long)} steps of {len(kept)} take {median([t for _, t in long]) / typical:.1f} times the "
           f"median ({where}): {lost:.1%} of the time",
           "save asynchronously or less often, evaluate less; if neither happens there, disable Python's "
           "garbage collector in the step and collect at fixed steps",
           confidence=0.65 if regular else 0.4, where=where, share_of_step=round(lost, 4),
           gain_fraction=round(lost, 4), evidence=tuple(place(reading, s) for s, _ in long[:4]))
    )  # fmt: skip


def _named(long: list[tuple[Step, float]]) -> str:
    """The first few of some steps, by their numbers, or their lines where the log gives no numbers."""
    numbers = [step.number for step, _ in long if step.number is not None]
    if numbers:
        return "steps " + ", ".join(map(str, numbers[:6]))
    return "lines " + ", ".join(str(step.line) for step, _ in long[:6])


def _unlogged(times: list[tuple[Step, float]]) -> int:
    """Steps that took their time and are not in the log, where a line gives the time of its own step only."""
    numbers = [step.number for step, _ in times if step.number is not None]
    # A step whose evaluation has a line of its own is joined from two.
    if 2 * sum(step.alone for step, _ in times) < len(times) or len(numbers) < 2:
        return 0
    return max(numbers[-1] - numbers[0] + 1 - len(numbers), 0)


def _scattered(
    part: Part, reading: LogReading, times: list[tuple[Step, float]], kept: list[float]
) -> bool:
    """Times without a pace of their own: what computes the same each step does not vary so."""
    low, _, high = quantiles(kept, n=4)
    if not high > SCATTERED * low > 0:
        return False
    order = sorted(times, key=lambda one: one[1])
    gain = 1 - low / mean(kept)
    part.findings.append(
        of("unknown", f"Steps have no steady pace: a quarter takes less than {format_seconds(low)}, a quarter more than "
           f"{format_seconds(high)}; the computation of a step does not vary so, its input or the host does",
           "time the wait for data in the step first (more workers, local and cached data), then look who shares the host "
           "and its storage; inputs of very different sizes: pack them", confidence=0.55, where="step times",
           share_of_step=round(gain, 4), evidence=tuple(place(reading, s, f"{t:.3g} s") for s, t in (order[0], order[-1])))
    )  # fmt: skip
    part.missing.append("the time that steps wait for data, in the log or by a profiler trace")
    return True


def evaluation(part: Part, reading: LogReading, steps: list[Step]) -> None:
    """Say what share of the time evaluation takes, where the log times it."""
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
            training = done * (step_s if isinstance(step_s, float) else 0.0)
            whole = total + training if training else None
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
           evidence=tuple(place(reading, s, f"eval_runtime {v:.1f} s") for s, v in spent[:3]))
    )  # fmt: skip


def phases(part: Part, reading: LogReading, steps: list[Step]) -> None:
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
                   evidence=(place(reading, kept[0], f"generate {kept[0].generate_s} of {kept[0].step_time_s} s"),))
            )  # fmt: skip
    data = [s for s in steps if s.data_s is not None and s.step_time_s]
    if len(data) >= 2:
        # Waits come in bursts (one batch of as many as there are workers), so that sums are compared.
        waited = sum(s.data_s or 0.0 for s in data[1:])
        whole = sum(s.step_time_s or 0.0 for s in data[1:])
        share = waited / whole if whole else 0.0
        part.figures["data_share"] = round(share, 4)
        if 0.05 < share < 1:
            part.findings.append(
                of("input-bound", f"A step waits {share:.0%} of its time for data",
                   "more loader workers, prefetching, tokenised and packed data on fast storage",
                   confidence=0.85, where="data loading", share_of_step=round(share, 4),
                   gain_fraction=round(share, 4), evidence=(place(reading, data[-1]),))
            )  # fmt: skip


def restarts(part: Part, reading: LogReading, steps: list[Step]) -> None:
    """Name crashes that the run came back from, and the steps it did twice."""
    numbers = [(s.number, s) for s in reading.steps if s.number is not None]
    again = [
        (a, b, s)
        for (a, _), (b, s) in itertools.pairwise(numbers)
        if b <= a and b < a - 0 and reading.resumed
    ]
    if not reading.restarts and not again:
        return
    count = max(len(again), 1 if reading.restarts else 0)
    part.figures["restarts"] = count
    step_s = part.figures.get("step_time_s")
    lost = sum(a - b + 1 for a, b, _ in again)
    if lost:
        part.figures["steps_repeated"] = lost
    error = reading.errors[0] if reading.errors else None
    crash = f" after “{error.text[:100]}”" if error else ""
    where = f"resumed at step {again[0][1]} after step {again[0][0]}" if again else "restart"
    total = len({s.number for s in steps}) + lost
    share = lost / total if lost and total else None
    said = (
        [Evidence(file=reading.name, line=error.line, text=error.text, rank=error.rank)]
        if error
        else []
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
