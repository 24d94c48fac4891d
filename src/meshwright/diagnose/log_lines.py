"""Lines of training logs as records of steps, whatever framework printed them.

Frameworks print the same few things under different names; so a line is read as pairs of name and
value, the names are looked up in one table (`step_fields`), and only what is not a list of pairs
(progress bars, multi-line blocks) has code of its own.
"""

from __future__ import annotations

import re

import msgspec

from meshwright.diagnose.step_fields import Step, put_pair
from meshwright.diagnose.text_values import DECIMAL, count, decimal, rank_number

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|(?<=[ \]])\[(?:\d{1,2}(?:;\d{1,2})*)m(?=\S)|\[39m$")


_PAIR = re.compile(
    rf"""['"]?(?<![A-Za-z0-9])([A-Za-z][A-Za-z0-9_ /.\-]{{0,80}}?(?:\([A-Za-z/ ]*\))?(?:\sin\ss)?)['"]?\s*[:=]\s*
        ['"]?([-+]?{DECIMAL}|nan|NaN|inf|-inf)\s*
        (TFLOPS|TFLOPs|TFLOP/s|PFLOP/s|[KMGT]i?B\b|[KMGBT](?=\s|$|\)|,|\||'|")|ms|s\b|%|us)?""",
    re.VERBOSE,
)
_BEHIND_LOSS = re.compile(
    rf"\bloss\b.{{0,80}}?\(({DECIMAL}) ?s(?:ec(?:onds)?)?\)\s*$", re.IGNORECASE
)
"""`iter 7, loss=0.31 (3.145s)`"""
_SINCE = re.compile(rf"\bloss = .{{1,80}}, step = \d{{1,15}} \(({DECIMAL}) sec\)\s*$")
"""TensorFlow's hooks: the time since the line before, not of a step."""
_BEHIND = re.compile(
    rf"(?<!\d[smhd] )({DECIMAL}) ?(ms|s|(?:it|steps?|iters?)/s|% (?:bf16 )?MFU|tok/s|tokens/s|tps)\b(?=\s*(?:\||$|\())"
)
_PER_STEP = re.compile(rf"\(({DECIMAL}) sec(?:onds)?/(?:step|iteration|iter|batch)\)")
_SPACED = re.compile(
    rf"\b(train loss|val loss|loss|time|mfu|dt|norm|(?:tok(?:en)?s?|its?|iters?|steps?)/s(?:ec)?)\s+([-+]?{DECIMAL}|nan)\s*(ms|s|%)?(?=[,;| ]|$)",
    re.IGNORECASE,
)
_METER = re.compile(
    rf"\b[Tt]ime:?\s{{1,9}}({DECIMAL})(?:\s*\({DECIMAL}\))?,?\s{{1,9}}[Dd]ata(?:_time)?:?\s{{1,9}}({DECIMAL})"
)
"""Seconds of a step and of its wait for data, as the meters of vision training print them."""
_METER_STEP = re.compile(r"\bEpoch:?\s*\[\d+\]\s*\[\s*(\d{1,15})/(\d{1,15})\]")
_SPEED = re.compile(
    rf"\bSpeed:?\s{{1,9}}({DECIMAL}) ?(?:samples|img|images)/s(?:ec)?\b", re.IGNORECASE
)
_OF_SAMPLES = re.compile(r"\b\d+/(\d{1,15}), (?:RunningAvg)?SamplesPerSec")
"""DeepSpeed: epoch and step."""
_STEP_OF = re.compile(
    r"\b(?:iteration|iter|step|global[_ ]?step|batch|Step|Iteration)\s*[:=]?\s*\[?\s*(\d{1,15})\s*/\s*(\d{1,15})\b"
)
_STEP = re.compile(
    r"\b(?:iteration|iter|steps?|global[_ ]?step|batch)\s*[:=]?\s*\[?\s*(\d[\d,]{0,18})\b(?!\s*[-:]\d\d)",
    re.IGNORECASE,
)
_PROGRESS = re.compile(r"\bglobal_step/max_steps\W{1,6}(\d{1,15})/(\d{1,15})\b")
"""ms-swift's."""
_GLOBAL = re.compile(r"global[_ ]?step\s*[:=]\s*(\d{1,15})\b", re.IGNORECASE)
_BAR = re.compile(
    rf"(?<!\d)(\d{{1,15}})/(\d{{1,15}}) \[(?:(\d{{1,6}}):)?(\d{{1,6}}):(\d{{1,6}})<(?:[\d:]+|\?),\s*({DECIMAL}|\?) ?(s/it|it/s|s/ba|s/batch|ms/it)?"
)
_NOT_TRAINING = re.compile(
    r"Loading|Download|Fetching|Tokeniz|\bMap\b|Filter|Packing|Saving|Generating|Preprocess|Evaluat|Resolving",
    re.IGNORECASE,
)
"""Bars of what goes on beside the steps."""
_CLOCK = re.compile(
    r"(?:\d{4}-\d\d-\d\d|\d\d/\d\d/\d{4})[ T_](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
)
_RANK = re.compile(r"^\W*(?:\[?(?:default|rank|Rank) ?(\d+)\]?|(\d+):)")


def plain(line: str) -> str:
    """Return a line without colour codes."""
    return _ANSI.sub("", line) if "\x1b" in line or ("m" in line and "[" in line) else line


_ALONE = re.compile(rf"\biter \d{{1,12}}: loss {DECIMAL}[^,]{{0,20}}, time {DECIMAL} ?ms")
"""nanoGPT's line and its kin's: every so many steps, the time of that one."""


_MLPERF = ":::MLLOG "


def _mlperf(text: str, number: int) -> Step | None:
    """A line of MLPerf's logging: one key with its value, the step among its metadata."""
    try:
        told = msgspec.json.decode(text[text.index("{") :], type=dict[str, object], strict=False)
    except (ValueError, RecursionError):  # cut, or another program's
        return None
    key, value, beside = told.get("key"), told.get("value"), told.get("metadata")
    step = Step(line=number)
    at = beside.get("step") if isinstance(beside, dict) else None
    if isinstance(at, int) and 0 <= at < 1 << 50:
        step.number = at
    pairs = value if isinstance(value, dict) else {key: value}
    known = False
    for name, one in pairs.items():
        if isinstance(one, int | float) and not isinstance(one, bool):
            name = "samples_per_sec" if name == "throughput" else str(name)
            known |= put_pair(step, name, str(one), "")
    return step if known else None


_OF_A_HOST = re.compile(r"Memory on the node \(IP|\(memory monitor\)")
"""Ray, of processes and their host's memory."""


def read_step(line: str, number: int) -> Step | None:
    """Return what a line says of a step, or None where it says nothing of speed, loss or memory."""
    text = plain(line)
    if _OF_A_HOST.search(text):
        return None
    if _MLPERF in text:
        return _mlperf(text, number)
    step = Step(line=number)
    known = False
    for match in _PAIR.finditer(text):
        known |= put_pair(step, match[1], match[2], match[3] or "")
    for match in _SPACED.finditer(text):
        known |= put_pair(step, match[1], match[2], match[3] or "")
    known |= _behind(step, text)
    if (per_step := _PER_STEP.search(text)) and (took := decimal(per_step[1])) is not None:
        step.step_time_s, known = took, True
    if since := _SINCE.search(text):
        step.interval_s = decimal(since[1])
    elif step.step_time_s is None and (took_behind := _BEHIND_LOSS.search(text)):
        step.step_time_s = decimal(took_behind[1])
        known |= step.step_time_s is not None
    if step.step_time_s is None and step.update_s is not None and step.data_s is not None:
        step.step_time_s = step.update_s + step.data_s
    if (rate := _SPEED.search(text)) and step.samples_per_s is None:
        step.samples_per_s, known = decimal(rate[1]), True
    if meter := _METER.search(text):
        step.step_time_s, step.data_s, known = decimal(meter[1]), decimal(meter[2]), True
    if not known:
        return None
    _place(step, text)
    step.alone = _ALONE.search(text) is not None
    timed = step.step_time_s is not None or step.tokens_per_s_per_gpu is not None
    if not timed and _SAVING.search(text):
        return None  # a checkpoint's name carries a step and a loss
    return step


def _behind(step: Step, text: str) -> bool:
    """Values whose name stands behind them, as in `| 223.5 ms | 55.2% bf16 MFU | 2345 tok/s`."""
    if "|" not in text:
        return False
    known = False
    for value, unit in _BEHIND.findall(text):
        number = decimal(value)
        if number is None:
            continue
        if unit in ("ms", "s") and step.step_time_s is None:
            step.step_time_s, known = number * (1e-3 if unit == "ms" else 1.0), True
        elif unit[-2:] == "/s" and unit[0] in "is" and step.step_time_s is None and number > 0:
            step.step_time_s, known = 1.0 / number, True
        elif "MFU" in unit and step.mfu is None:
            step.mfu, known = number / 100, True
        elif unit in ("tok/s", "tokens/s") and step.tokens_per_s is None:
            step.tokens_per_s, known = number, True
    return known


def _place(step: Step, text: str) -> None:
    if match := _GLOBAL.search(text):
        step.number = int(match[1])
    elif match := _STEP_OF.search(text) or _METER_STEP.search(text) or _PROGRESS.search(text):
        step.number, step.of = int(match[1]), int(match[2])
    elif match := _STEP.search(text):
        step.number = count(match[1])
    elif match := _OF_SAMPLES.search(text):
        step.number = int(match[1])
    if match := _CLOCK.search(text):
        hours, minutes, seconds = (int(part) for part in match.groups()[:3])
        step.clock_s = 3600 * hours + 60 * minutes + seconds + float(f"0.{match[4] or 0}")
    if match := _RANK.search(text):
        step.rank = rank_number(match[1] or match[2])


def read_bars(line: str, number: int) -> list[Step]:
    """Return the states of a progress bar in a line (carriage returns kept them in one)."""
    found = []
    for match in _BAR.finditer(line):
        if _NOT_TRAINING.search(line[max(0, match.start() - 120) : match.start()]):
            continue
        done, whole, hours, minutes, seconds, rate, unit = match.groups()
        step = Step(line=number, number=int(done), of=int(whole))
        step.clock_s = 3600 * int(hours or 0) + 60 * int(minutes) + int(seconds)
        if unit and (speed := decimal(rate)) is not None:
            if unit == "it/s":
                step.running_s_it = 1 / speed if speed else None
            else:
                step.running_s_it = speed * (1e-3 if unit == "ms/it" else 1.0)
        found.append(step)
    return found


_BLOCK = re.compile(r"^\W*\[(?:batch|step|iter)=(\d{1,15})(?:/(\d{1,15}))?\]:?\s*$")
_IN_BLOCK = re.compile(rf"^\s+(?:Train |Eval )?([\w/.\-]+):\s*([-+]?{DECIMAL}|nan)\s*$")


_LISTED = re.compile(
    rf"^\s*(?:[-*] )?(\w[\w.]*/[\w/.@-]+)\s*[:=]\s*([-+]?{DECIMAL}|nan)\s*(?:s|\(\d+(?:\.\d+)?%\))?\s*$"
)
"""A metric a line, without a heading, as people paste them: `timing_s/gen: 31.3`."""
_SAVING = re.compile(r"checkpoint|\.ckpt", re.IGNORECASE)


class Blocks:
    """Composer and its like: a heading with the step, then a name and value per line; or such lines alone, of which a
    name that comes again begins the next step."""

    def __init__(self) -> None:
        self.current: Step | None = None
        self._listed: Step | None = None
        self._names: set[str] = set()
        self._handed = False

    def read(self, line: str, number: int) -> tuple[bool, Step | None]:
        """Return whether the line belongs to a block, and the step that a heading opened."""
        if match := _BLOCK.match(line):
            self.current = Step(line=number, number=int(match[1]))
            self.current.of = int(match[2]) if match[2] else None
            return True, self.current
        if self.current is not None and (match := _IN_BLOCK.match(line)):
            name, value = match[1], match[2]
            if name.endswith("batches_per_sec") and "device" not in name:
                rate = decimal(value)
                self.current.step_time_s = 1 / rate if rate and rate > 0 else None
            elif re.search(r"device/samples_per_sec|flops_per_sec$(?<!device/flops_per_sec)", name):
                pass
            else:
                put_pair(self.current, name, value, "")
            return True, None
        self.current = None
        if match := _LISTED.match(line):
            return True, self._metric(match[1], match[2], number)
        self._listed = None
        return False, None

    def _metric(self, name: str, value: str, number: int) -> Step | None:
        """Put one listed metric into its step; the step is handed on once something of it is known."""
        if self._listed is None or name in self._names:
            self._listed, self._names, self._handed = Step(line=number), set(), False
        self._names.add(name)
        if not put_pair(self._listed, name, value, "") or self._handed:
            return None
        self._handed = True
        return self._listed
