"""What a log means: speed without warm-up, what interrupted it, what the text blames and rightly so."""

from __future__ import annotations

import itertools
import re
from statistics import median

import msgspec

from meshwright.diagnose import known_errors, oom, watchdog
from meshwright.diagnose.launcher_lines import first_of
from meshwright.diagnose.log_events import (
    evaluation,
    fail_slow,
    interruptions,
    phases,
    restarts,
    stragglers,
)
from meshwright.diagnose.log_exits import ends, own_errors
from meshwright.diagnose.log_loss import counted, judge_losses
from meshwright.diagnose.log_reading import LogReading
from meshwright.diagnose.log_speed import (
    hardly_computes,
    place,
    speed,
    speed_sentence,
    steps_of,
    values_of,
)
from meshwright.diagnose.oom_messages import look_around
from meshwright.diagnose.profile_table import judge_table
from meshwright.diagnose.records import Evidence, Finding, Part, of
from meshwright.diagnose.stack_dumps import judge_stacks
from meshwright.diagnose.step_fields import Step

WENT_ON = 3
"""Steps behind an error after which it cannot have stopped the run."""
FEW = 3
"""Records of steps below which a short text with nothing but losses is no log."""
SETTLED = 100
"""Steps after which a loss scale has found its place."""


def judge_log(reading: LogReading) -> Part:
    """Say what a log tells by itself."""
    part = Part()
    steps = steps_of(reading)
    times = speed(part, reading, steps)
    _memory(part, reading, steps)
    judge_losses(part, reading, steps)
    if reading.messages:
        around = look_around(_aside(reading), reading.messages[0].line)
        _join(part, oom.judge_messages(reading.messages, around))
    else:
        _errors(part, reading)
    _overflows(part, reading)
    if reading.trace_changes:
        part.healthy.append(
            f"ZeRO-3 met its modules in another order than recorded ({counted(reading.trace_changes, 'time', 'times')}: "
            "parameters are fetched late there, the result is right; newer DeepSpeed is silent, log_trace_cache_warnings)"
        )
    stragglers(part, reading)
    fail_slow(part, reading, times)
    interruptions(part, reading, steps, times)
    evaluation(part, reading, steps)
    phases(part, reading, steps)
    restarts(part, reading, steps)
    if reading.profile is not None:
        judge_table(part, reading.profile, reading.name)
    if not part.findings:
        judge_stacks(part, reading.stacks, reading.name)
    ends(part, reading)
    _after_the_end(part, reading)
    hardly_computes(part, reading, times)
    if part.figures and all(finding.layout_cost for finding in part.findings):
        part.healthy.append(speed_sentence(part))
    return part


def _errors(part: Part, reading: LogReading) -> None:
    """Errors by their wording; else what the watchdog says, unless it only says that something failed."""
    latest = own_errors(reading) or any(not hit.known.shadow for hit in reading.known)
    hits = reading.known if latest else [*reading.earlier, *reading.known]
    stopped = [hit for hit in hits if hit.known.repeats or not _went_on(reading, hit.line)]
    known = known_errors.findings(stopped, reading.name)
    root = first_of(reading.exits.found, reading.started)
    if root is not None and root.rank is not None and known and not known[0].cause.ranks:
        cause = msgspec.structs.replace(known[0].cause, ranks=(root.rank,))
        known[0] = msgspec.structs.replace(known[0], cause=cause)
    hang = watchdog.judge(reading.hang) if reading.hang is not None else Part()
    if any(_overcome(reading, finding) for finding in hang.findings):
        hang = Part()
        part.healthy.append(
            f"an error was overcome: the run went on ({reading.resumed[-1][1][:80]})"
        )
    hang.findings = [
        finding
        for finding in hang.findings
        if not any(known_errors.explains(hit, _words(finding)) for hit in stopped)
    ]
    vague = all(f.cause.kind == "unknown" and f.cause.confidence <= 0.5 for f in hang.findings)
    if known and vague:
        part.findings += known
        part.figures.update(hang.figures)
        return
    _join(part, hang)
    part.findings += known


def _went_on(reading: LogReading, line: int) -> bool:
    """Whether the run stepped on after a line, so that what it says did not stop it."""
    if reading.restarts:
        return False
    behind = [step for step in (*reading.steps, *reading.bars) if step.line > line]
    return (
        any(step.runtime_s is not None for step in behind)
        or len({step.number for step in behind if step.number is not None}) >= WENT_ON
    )


def _overcome(reading: LogReading, finding: Finding) -> bool:
    """Whether a run that was started again stepped on behind all that a finding rests on."""
    last = max((one.line or 0 for one in finding.cause.evidence), default=0)
    resumed = any(line > last for line, _ in reading.resumed)
    return bool(last) and resumed and _went_on(reading, last)


_DRAWS = re.compile(r"plot|matplotlib|tkagg|tkinter|\bfigure\b|model card", re.IGNORECASE)
"""Words of what is drawn or written about a run when it is over."""


def _after_the_end(part: Part, reading: LogReading) -> None:
    """Errors behind the end of training: they cost its pictures, or what was still to be saved, and no step."""
    if not reading.finished or any(step.line > reading.finished for step in reading.steps):
        return
    late = [
        finding for finding in part.findings
        if finding.cause.evidence and all((one.line or 0) > reading.finished for one in finding.cause.evidence)
    ]  # fmt: skip
    frames = {failure.line: failure.frame for failure in reading.errors}
    for finding in late:
        first = finding.cause.evidence[0]
        part.findings.remove(finding)
        if _DRAWS.search(f"{first.text} {frames.get(first.line or 0, '')}"):
            part.untold = "Training ended"
            part.healthy.append(
                f"what failed behind it only draws or describes it ({first.text[:160]})"
            )
            continue
        sentence = f"{finding.sentence}; training had ended before that (line {reading.finished})"
        part.findings.append(msgspec.structs.replace(finding, sentence=sentence))


def _words(finding: Finding) -> str:
    return " ".join([finding.sentence, *(one.text for one in finding.cause.evidence)])


def _overflows(part: Part, reading: LogReading) -> None:
    """Steps skipped while the loss scale finds its place: normal at the start, said so."""
    counts = [
        (s, s.skipped_so_far, s.number) for s in reading.steps if s.skipped_so_far and s.number
    ]
    if counts and counts[-1][2] >= SETTLED and counts[-1][1] > 0.5 * counts[-1][2]:
        step, skipped, number = counts[-1]
        part.findings.append(
            of("wrong-configuration", f"{skipped:,} of {number:,} steps were skipped because gradients overflow: next to "
               "nothing is learnt",
               "train in bf16 or fp32 (models trained in bf16 do not survive fp16's range); see that the loss scale "
               "settles above its floor, and lower the learning rate",
               confidence=0.85, where="loss scale", evidence=(place(reading, step, f"skipped={skipped}"),))
        )  # fmt: skip
    if not reading.overflows:
        return
    part.figures["overflow_steps"] = len(reading.overflows)
    if not any("loss scale" in hit.sentence for hit in reading.known):
        part.healthy.append(
            f"{counted(len(reading.overflows), 'step was', 'steps were')} skipped while the loss scale came down to "
            f"{reading.overflows[-1][1]:,.6g}, which is usual at the start of fp16"
        )


def _aside(reading: LogReading) -> list[tuple[int, str]]:
    own = {message.line for message in reading.messages}
    return [(number, line) for number, line in reading.aside if number not in own]


def _join(part: Part, other: Part) -> None:
    part.findings += other.findings
    part.missing += other.missing
    part.figures.update(other.figures)


def _memory(part: Part, reading: LogReading, steps: list[Step]) -> None:
    if reading.memory:
        part.figures["peak_memory_bytes"] = max(one[0] for one in reading.memory.values())
        part.figures["reserved_memory_bytes"] = max(one[1] for one in reading.memory.values())
        ranks = {rank: round(one[0] / 2**30, 2) for rank, one in sorted(reading.memory.items())}
        if len(ranks) > 1:
            part.figures["peak_memory_rank"] = max(ranks, key=lambda rank: ranks[rank])
    elif (values := values_of(steps, "memory_bytes")) and max(values) > 0:
        part.figures["peak_memory_bytes"] = max(values)
    if (values := values_of(steps, "reserved_bytes")) and max(values) > 0:
        part.figures["reserved_memory_bytes"] = max(values)
        part.figures.setdefault("peak_memory_bytes", max(values))
    _growth(part, reading, steps)
    _retries(part, reading, steps)


def _retries(part: Part, reading: LogReading, steps: list[Step]) -> None:
    """How often the allocator gave everything back and started over: a cost once, a fault if it goes on."""
    counts = [(s.line, int(s.alloc_retries)) for s in steps if s.alloc_retries is not None]
    counts = sorted(counts + reading.retries)
    most = max((number for _, number in counts), default=0)
    if not most:
        return
    line = next(line for line, number in counts if number)
    growing = len({number for _, number in counts if number}) > 1
    part.figures["alloc_retries"] = most
    part.findings.append(
        of("fragmentation", f"The allocator gave up and started over {counted(most, 'time', 'times')} "
           "(alloc_retries): memory is nearly full or fragmented, and each time costs"
           + (": the number still grows" if growing else ""),
           "lower the peak a little (micro-batch, recomputation) or set "
           "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; watch that the number stops growing",
           confidence=0.75 if growing else 0.5, where="caching allocator", layout_cost=not growing,
           evidence=(Evidence(file=reading.name, line=line, text=f"alloc_retries: {most}"),))
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
        median(values[:third]),
        median(values[third:-third] or values),
        median(values[-third:]),
    )
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
               evidence=(place(reading, first[0]), place(reading, last[0])))
        )  # fmt: skip


def unknown_if_silent(part: Part, reading: LogReading) -> Finding | None:
    """A text that says nothing of a run, or has one loss among words."""
    little = len(reading.steps) < FEW and set(part.figures) <= {"loss_first", "loss_last"}
    if little and reading.lines <= 2 * FEW and not part.findings and not reading.stopped:
        part.healthy = [
            said for said in part.healthy if not said.startswith("the log has no times")
        ]
    if part.findings or part.healthy or part.ended or (part.figures and not little):
        return None
    return of("unknown", "The text does not tell: it holds no step times, no memory and no error that is known",
              "give the log of the run itself, or the traces, dumps or error text", confidence=0.9,
              where=reading.name)  # fmt: skip
