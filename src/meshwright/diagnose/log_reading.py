"""A log read once, line by line: steps, memory, messages, starts and ends, what the run was given."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from meshwright.diagnose import known_errors, watchdog_lines
from meshwright.diagnose.error_kinds import Failure
from meshwright.diagnose.launcher_lines import Exits, read_exit
from meshwright.diagnose.log_lines import Blocks, plain, read_bars, read_step
from meshwright.diagnose.oom_messages import OUT_OF_MEMORY, Message, read_message
from meshwright.diagnose.profile_table import Table, read_row
from meshwright.diagnose.stack_dumps import Stacks, read_stack
from meshwright.diagnose.step_fields import Step
from meshwright.diagnose.text_values import (
    DECIMAL,
    count,
    decimal,
    rank_number,
    rank_of,
    size_bytes,
)

_MEGATRON_MEMORY = re.compile(
    rf"\[Rank (\d+)\][^\[]*?max allocated: ({DECIMAL})[^\[]*?max reserved: ({DECIMAL})"
)
_RESTART = re.compile(
    r"restart_count=([1-9]\d*)|worker_group.{0,200}restarting|Restarting worker group|attempt (\d+) of|"
    r"\[default\] Starting worker group.{0,200}restart",
    re.IGNORECASE,
)
_RESUMED = re.compile(
    r"(?:Restor(?:ing|ed) (?:all )?states? from|successfully loaded checkpoint|loaded checkpoint from|"
    r"Resuming from checkpoint|resum(?:e|ing) (?:training )?from|Loading the checkpoint at)[^\n]*",
    re.IGNORECASE,
)
_FINISHED = re.compile(
    r"'train_runtime'|\btrain_runtime +=|\bTraining (?:completed|finished|done)\b|\bafter training is done\b",
    re.IGNORECASE,
)
_ERROR = re.compile(
    r"\b((?:[A-Z]\w{0,80}(?:Error|Exception)|Exception): .{3,300})"
    r"|((?:Fatal Python error|Non-OK-status|Check failed|Fatal error)\b.{3,300})"
    r"|(?:^|: )F(?:\d{4} [\d:.]{8,18} +\d{1,9})? [\w./-]{3,200}\.\w{1,4}:\d{1,6}\] (.{3,300})"
)
_COMPLAINT = re.compile(
    r"\b(?:ERROR|FATAL|CRITICAL)\b[\]:]| - (?:ERROR|CRITICAL) - |\bERROR {1,4}[A-Z]|terminate called|what\(\): |\b[Ee]rror: \S"
)
_FAILURE = re.compile(r"rror|xception|Non-OK|Check failed|\d\] ")
_STOPPED = (
    (re.compile(r"DUE TO TIME LIMIT|\bDeadlineExceeded\b"), "the job's time limit"),
    (re.compile(r"DUE TO PREEMPTION|\bPreempted by\b|\bPreempting\b"), "the scheduler, for another job (preemption)"),
    (re.compile(r"DUE TO JOB REQUEUE"), "the scheduler, to be queued again"),
    (re.compile(r"NODE[_ ]FAIL"), "a node failed"),
    (re.compile(r"DUE TO TASK FAILURE|FAILED \(non-zero exit code"), "another task of it failed"),
    (re.compile(r"CANCELLED AT"), "cancelled"),
    (re.compile(r"disk quota exceeded|Errno 122", re.IGNORECASE), "the user's quota of the file system is used up"),
    (re.compile(r"No space left on device|Errno 28", re.IGNORECASE), "the disk is full"),
)  # fmt: skip


@dataclass(slots=True)
class LogReading:
    """What one log holds."""

    name: str
    lines: int = 0
    steps: list[Step] = field(default_factory=list)
    bars: list[Step] = field(default_factory=list)
    memory: dict[int, tuple[float, float, int]] = field(default_factory=dict)
    """Rank → peak allocated, peak reserved, line (Megatron's report)."""
    messages: list[Message] = field(default_factory=list)
    aside: list[tuple[int, str]] = field(default_factory=list)
    """Lines near an out-of-memory message, and settings anywhere."""
    hang: watchdog_lines.Reading | None = None
    known: list[known_errors.Hit] = field(default_factory=list)
    """Since a launcher started last."""
    earlier: list[known_errors.Hit] = field(default_factory=list)
    """Before that."""
    overflows: list[tuple[int, float]] = field(default_factory=list)
    """Line and loss scale of steps skipped for an overflow."""
    trace_changes: int = 0
    """How often DeepSpeed's ZeRO-3 met a module in another order than it recorded."""
    exits: Exits = field(default_factory=Exits)
    """Processes that launchers saw end."""
    stacks: Stacks = field(default_factory=Stacks)
    """Stacks of threads that a tool or a handler dumped."""
    traceback: tuple[int, str, int | None] | None = None
    """Line, last frame and rank of a traceback whose error has not come yet."""
    of_rank: bool = False
    """That traceback's heading names its rank, whoever printed it."""
    retries: list[tuple[int, int]] = field(default_factory=list)
    """Line and how often the allocator had to start over since the run began."""
    finished: int = 0
    """Line at which training said that it had ended."""
    started: int = 0
    """Line at which a launcher started its processes last."""
    restarts: list[tuple[int, str]] = field(default_factory=list)
    resumed: list[tuple[int, str]] = field(default_factory=list)
    errors: list[Failure] = field(default_factory=list)
    complaint: tuple[int, str, int | None] | None = None
    """The first line that calls itself an error; said only where nothing better is known."""
    stopped: list[tuple[int, str, str]] = field(default_factory=list)
    words: dict[str, str] = field(default_factory=dict)
    """What the run was given, see `log_setting`."""
    profile: Table | None = None
    """The table that a profiler printed."""
    table: list[str] = field(default_factory=list)
    """Lines of Megatron-LM's table of arguments, or of torchtitan's configuration."""
    scores: list[tuple[int, int, float, str]] = field(default_factory=list)
    """Straggler reports: line, rank, score (1: as fast as the best), which score."""
    alarms: list[tuple[int, str]] = field(default_factory=list)
    probes: list[tuple[int, int, float]] = field(default_factory=list)
    """Probe of a rank's compute: line, rank, time."""
    failslow: list[tuple[int, float, float]] = field(default_factory=list)
    """Line, fastest iteration and slow iteration in seconds."""
    reason: tuple[int, str] | None = None
    degraded: list[tuple[int, float]] = field(default_factory=list)
    """Line and share by which a detector found iterations slower."""

    def setting(self, name: str) -> int | None:
        """A whole number above zero that the run was given; None where the log does not say."""
        return count(self.words.get(name)) or None


_SETTING = (
    (r"--nproc[-_]per[-_]node[= ]+(\d+)", "gpus_per_node"),
    (r"\bGPUS_PER_NODE=(\d+)", "gpus_per_node"),
    (r"nproc_per_node\s*[:=]\s*(\d+)", "gpus_per_node"),
    (r"--nnodes[= ]+(\d+)", "nodes"), (r"\bNNODES=(\d+)", "nodes"),
    (r"using world size:? ?(\d+)", "world"), (r"\bworld[_ ]size[:= ]+(\d+)", "world"),
    (r"data-parallel[- ]size:? ?(\d+)", "dp"),
    (r"(?<!data-)(?<!pipeline-)(?:tensor-)?model-parallel[- ]size:? ?(\d+)", "tp"),
    (r"pipeline-model-parallel[- ]size:? ?(\d+)", "pp"),
    (r"context-parallel size:? ?(\d+)", "cp"),
    (r"Total train batch size[^=]*= ?([\d,]+)", "global_batch"),
    (r"Instantaneous batch size per device = ?([\d,]+)", "micro_batch"),
    (r"Gradient Accumulation steps = ?([\d,]+)", "accumulation"),
    (r"Num examples = ?([\d,]+)", "examples"),
    (r"Total optimization steps = ?([\d,]+)", "steps"),
    (r"Number of trainable parameters = ?([\d,]+)", "parameters"),
    (r"--(?:per_device_train_batch_size|micro[-_]batch[-_]size)[= ]+(\d+)", "micro_batch"),
    (r"--(?:max_seq_len|block_size|seq[-_]length|max_length|model_max_length)[= ]+(\d+)", "seq"),
    (r"--gradient_accumulation_steps[= ]+(\d+)", "accumulation"),
    (r"--(?:actor_)?model(?:_name_or_path|_name)?[= ]+(\S+)", "model"),
    (r"(NVIDIA [A-Z]\w+[ -]?[\w -]*?(?:\d+ ?GB)?|Tesla [A-Z]\d+[\w-]*|gpu_type=[\w ]+?(?= gpu)|\bAMD Instinct MI\d+X?)", "device"),
    (r"\b((?:NVIDIA )?(?:H100|H200|B200|GB200|A100|V100|A10G|L40S|MI300X|MI325X|RTX ?\d{4}))\b", "device_word"),
)  # fmt: skip
_SETTINGS = [(re.compile(pattern), name) for pattern, name in _SETTING]
_HAS_SETTING = re.compile(
    r"size|batch|nproc|NODE|nnodes|= ?\d|--|NVIDIA|Tesla|Instinct|gpu_type|[HABV]\d00|RTX|A10G|L40S"
)
_ARGUMENT = re.compile(
    r"[^\w.]{0,9}(?:\w{0,9}rank\w{0,9}\s{0,4}\d{1,7}\]?:?\s{0,9}|\d{1,7}:\s{0,9})?\w{1,99} \.{2,}\s*\S"
)
_RETRIES = re.compile(r"\b(\d{1,9}) CUDA memory allocation retries")
_OVERFLOW = re.compile(
    rf"(?:Attempted loss scale: {DECIMAL}, reducing to|reducing loss scale to|setting loss scale to:"
    rf"|Attempted loss scale:) ({DECIMAL})",
    re.IGNORECASE,
)
"""The scale after a step that overflowed: DeepSpeed's (one that only counts keeps it), apex's, fairseq's."""
_SCORE = re.compile(rf"Rank=(\d+) Node=\S+ Score=({DECIMAL})")
_PROBE = re.compile(rf"Computation result of rank (\d+) collected = \(Perf:.*?avg=({DECIMAL})")
_FAILSLOW = re.compile(rf"min_iter=({DECIMAL}), slow_iter=({DECIMAL})")
_DEGRADED = re.compile(rf"change point.*degradation=({DECIMAL})")


def read_log(lines: Iterable[str], name: str) -> LogReading:
    """Read a log."""
    found = LogReading(name=name)
    blocks, window, report = Blocks(), list[tuple[int, str]](), ""
    open_message: Message | None = None
    for number, raw in enumerate(lines, 1):
        found.lines = number
        line = plain(raw)
        window.append((number, line))
        del window[:-30]
        if open_message is not None and number <= open_message.line + 3:
            _continue(open_message, line)
        if OUT_OF_MEMORY.search(line):
            open_message = _message(found, number, line, open_message)
            found.aside += [one for one in window if one not in found.aside][:40]
        elif (
            (found.messages and len(found.aside) < 80)
            or "expandable_segments" in line
            or ("checkpoint" in line and "--" in line)
        ):
            found.aside.append((number, line))
        _hang(found, number, line)
        # PyTorch gives NCCL's own warning on the line behind these words.
        last = len(window) > 1 and window[-2][1].rstrip().endswith("Last error:")
        known_errors.note(found.known, number, f"NCCL WARN {line}" if last else line)
        found.profile = read_row(found.profile, number, line)
        if "relative performance" in line or "individual performance" in line:
            report = "relative" if "relative" in line else "individual"
        _events(found, number, line, report)
        _settings(found, line)
        if " .." in line and _ARGUMENT.match(line.lstrip()) and len(found.table) < 4096:
            found.table.append(line)
        inside, opened = blocks.read(line, number)
        if opened is not None:
            found.steps.append(opened)
        if inside:
            continue
        if "<" in line and "/" in line:
            found.bars += read_bars(line, number)
        if step := read_step(line, number):
            found.steps.append(step)
    return found


def _message(found: LogReading, number: int, line: str, before: Message | None) -> Message | None:
    if len(found.messages) >= 64:
        return None
    message = read_message(line, found.name, number)
    if before is not None and number <= before.line + 3 and before.tried is None:
        _continue(before, line)
        return before
    found.messages.append(message)
    return message


def _continue(message: Message, line: str) -> None:
    """A message may span lines."""
    if not re.search(r"allocat|capacity|in use|reserved|free", line):
        return
    joined = " ".join(f"{message.text} {line}".split())  # terminals wrap it behind a blank
    whole = read_message(joined, message.file, message.line)
    for name in ("tried", "total", "free", "in_use", "allocated", "unallocated", "pools", "gpu"):
        if getattr(message, name) is None:
            setattr(message, name, getattr(whole, name))
    message.processes = message.processes or whole.processes
    if len(message.text) < 1200 and line not in message.text:
        message.text = whole.text


def _hang(found: LogReading, number: int, line: str) -> None:
    if found.hang is None:
        found.hang = watchdog_lines.Reading(file=found.name)
    watchdog_lines.read_line(found.hang, number, line)


def _events(found: LogReading, number: int, line: str, report: str) -> None:
    short = line.strip()[:300]
    if "max allocated" in line:
        for who, live, held in _MEGATRON_MEMORY.findall(line):
            # Megatron prints MB and divides by 2**20.
            allocated, reserved = size_bytes(live, "MiB"), size_bytes(held, "MiB")
            if (rank := rank_number(who)) is not None and None not in (allocated, reserved):
                found.memory[rank] = (allocated or 0.0, reserved or 0.0, number)
    if "Setting OMP_NUM_THREADS environment variable for each process" in line:
        # torchrun's first words: what stands above belongs to another program of the same script.
        found.started = number
        found.earlier += found.known
        found.known = []
    if _FINISHED.search(line):
        found.finished = number
    if _RESTART.search(line):
        found.restarts.append((number, short))
    if _RESUMED.search(line):
        found.resumed.append((number, short))
    failed = _FAILURE.search(line) is not None and len(found.errors) < 200
    if failed and (match := _ERROR.search(line)):
        frame = found.traceback[1] if found.traceback else ""
        found.errors.append(
            Failure(
                number,
                (match[1] or match[2] or f"Fatal error: {match[3]}")[:300],
                rank_of(line),
                frame,
            )
        )
    elif "direct cause of the following exception" in line and found.errors:
        found.errors[-1].wrapped = True
    elif found.complaint is None and _COMPLAINT.search(line):
        found.complaint = (number, short, rank_of(line))
    for pattern, why in _STOPPED:
        if pattern.search(line) and len(found.stopped) < 50:
            found.stopped.append((number, why, short))
    read_exit(found.exits, number, line)
    read_stack(found.stacks, number, line)
    _traceback(found, number, line)
    if "allocation retries" in line and (match := _RETRIES.search(line)):
        found.retries.append((number, int(match[1])))
    if "oss scale" in line and (scale := _value(_OVERFLOW, line)) is not None:
        found.overflows.append((number, scale))
    if "Invalidate trace cache @ step" in line:
        found.trace_changes += 1
    if (one := _rank_value(_SCORE, line)) is not None:
        found.scores.append((number, *one, report))
    if "STRAGGLER DETECTION" in line or "Detected stragglers" in line:
        found.alarms.append((number, short))
    if (one := _rank_value(_PROBE, line)) is not None:
        found.probes.append((number, *one))
    if match := _FAILSLOW.search(line):
        fast, slow = decimal(match[1]), decimal(match[2])
        if fast and slow:  # a detector that has seen no iteration writes 0
            found.failslow.append((number, fast / 1e3, slow / 1e3))
    if "change point" in line and (share := _value(_DEGRADED, line)) is not None:
        found.degraded.append((number, share))
    if match := re.search(r"Reason of fail-slow is (\w+)", line):
        found.reason = (number, match[1])


_OF_RANK = re.compile(r"Traceback \(most recent call last\): \(RANK (\d{1,7})\)")
"""Distributed checkpoints gather the ranks' errors at the rank that leads."""
_FRAME = re.compile(r'\bFile "([^"]{1,300})", line (\d{1,7}), in (\S{1,80})')
_BEGIN = (
    r"^(?:.{0,120}\[rank\d{1,7}\]: )?[^A-Za-z]{0,40}(?:\w{0,20}(?:rank|default) ?\d{1,7}\W{1,6})?"
)
"""Of a line, what launchers write before the program's own words."""
_RAISED = re.compile(
    _BEGIN + r"[A-Za-z_][\w.]{0,120}"
    r"(?:Error|Exception|Interrupt|Exit|Warning|Failure|Timeout|Killed|Iteration|Expired)\b"
)
_BARE = re.compile(_BEGIN + r"([A-Z]\w{0,80}(?:Error|Exception))\s*$")


def _traceback(found: LogReading, number: int, line: str) -> None:
    if "Traceback (most recent call last)" in line:
        of_rank = _OF_RANK.search(line)
        found.traceback = (number, "", rank_number(of_rank[1]) if of_rank else rank_of(line))
        found.of_rank = of_rank is not None
    elif found.traceback is not None:
        if match := _FRAME.search(line):
            found.traceback = (number, f"{match[3]}, {match[1]}:{match[2]}", found.traceback[2])
        elif _RAISED.match(line) or _ERROR.search(line):
            if (bare := _BARE.match(line)) and len(found.errors) < 200:
                rank = found.traceback[2] if found.of_rank else rank_of(line)
                rank = found.traceback[2] if rank is None else rank
                found.errors.append(Failure(number, bare[1], rank, found.traceback[1]))
            found.traceback = None


def _value(pattern: re.Pattern[str], line: str) -> float | None:
    match = pattern.search(line)
    return None if match is None else decimal(match[1])


def _rank_value(pattern: re.Pattern[str], line: str) -> tuple[int, float] | None:
    match = pattern.search(line)
    if match is None:
        return None
    rank, value = rank_number(match[1]), decimal(match[2])
    return None if rank is None or value is None else (rank, value)


def _settings(found: LogReading, line: str) -> None:
    if not _HAS_SETTING.search(line):
        return
    for pattern, name in _SETTINGS:
        if name not in found.words and (match := pattern.search(line)):
            found.words[name] = match[1].replace(",", "").strip()
