"""What tables print of what their runs did, in the schema's units: step times, rates, peaks of memory.

No prediction sees it; it stands beside what is predicted, and calibration rests on it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from meshwright.evidence import heads
from meshwright.evidence.remarks import whole

_BEFORE = r"(?:(?:median|mean|avg|average|measured|global|steady(?: state)?|train(?:ing)?|optimizer|wall)[ -])*"
_TIME = re.compile(
    rf"{_BEFORE}(?:(?:step|iter(?:ation)?)s? ?(?:time|duration|latency)|time (?:per|/) ?(?:global )?(?:step|iter(?:ation)?)|"
    r"(?<=mean )(?:step|iter(?:ation)?)|(?<=median )(?:step|iter(?:ation)?)|(?<=average )(?:step|iter(?:ation)?))"
    r"(?: (?P<unit>ms|msec|milliseconds|s|sec|secs|seconds))?|"
    r"(?P<per>ms|s|sec|secs|seconds) ?(?:/|per) ?(?:step|it|iter(?:ation)?)|迭代时间"
)
_RATE = re.compile(
    r"(?P<before>[\w ()-]*?)(?P<what>tok(?:en)?s?|samples?|sequences?|sentences?|seqs?|tps|tgs)"
    r"(?P<behind>(?:[ /]|per)*(?:s|sec|second|gpu|npu|hpu|device|chip|card|rank|accelerator|/|per| )*)"
)
_OF_ONE = re.compile(r"gpu|npu|hpu|device|chip|card|rank|accelerator|tgs")
_OF_ALL = re.compile(r"total|global|aggregate|job|overall|cluster|\ball\b")
_NO_TRAINING = re.compile(
    r"decode|prefill|generat|output|completion|inference|rollout|eval|seen|target"
)
_MEMORY = re.compile(r"\bmem(?:ory)?\b|vram|\bhbm\b|显存|\bpeak\b.* (?:gib|gb|mib)$")
_NO_PEAK = re.compile(
    r"cpu|host|\bram$|bandwidth|util|save|saving|reduc|free|before|\best\b|estimat|total|\bkv\b|%"
)
_SIZES = {"gib": 1.0, "gb": 1e9 / 2**30, "mib": 2.0**-10, "mb": 1e6 / 2**30}
_SIZE = re.compile(r"\b(GiB|GB|MiB|MB)\b|(?<=\d)(GiB|GB|MiB|MB)\b", re.IGNORECASE)
_NUMBER = re.compile(r"\s*\**[~≈<>]?\s*(\d[\d,]*(?:\.\d+)?)\s*([kM](?![A-Za-z]))?")


def printed(row: dict[str, str]) -> None:
    """Fill the schema's measured columns of a row from those that its table heads in words of its own.

    A rate is a device's where its head or a single device says so, else it is left out; so are times and sizes
    without a unit.
    """
    for head, cell in list(row.items()):
        column = heads.column_of(head)
        if (
            not cell.strip()
            or head.startswith("measured_")
            or column not in (heads.MEASURED, heads.SAID)
        ):
            continue
        words = heads.words_of(head)
        for name, value in (
            ("measured_iter_time_s", _seconds(words, cell)),
            ("measured_tokens_per_s_per_gpu", _rate(words, cell, row)),
            ("measured_peak_mem_gib", _gib(words, cell)),
        ):
            if value and not row.get(name, "").strip():
                row[name] = f"{value:.6g}"


def _number(cell: str) -> float:
    found = _NUMBER.match(cell)
    if found is None:
        return 0.0
    return float(found[1].replace(",", "")) * {"k": 1e3, "M": 1e6}.get(found[2] or "", 1.0)


def _seconds(words: str, cell: str) -> float:
    found = _TIME.fullmatch(words)
    if found is None:
        return 0.0
    behind = re.match(r"\s*\**[~≈]?\s*[\d.,]+\s*(ms|s)\b", cell)
    unit = behind[1] if behind else found["unit"] or found["per"] or ""
    return _number(cell) * (1e-3 if unit.startswith("m") else 1.0) if unit else 0.0


def _rate(words: str, cell: str, row: Mapping[str, str]) -> float:
    found = _RATE.fullmatch(words)
    per_second = found is not None and (
        found["what"] in ("tps", "tgs") or re.search(r"(?:/| |per)s(?:ec(?:ond)?)?\b", words)
    )
    if found is None or not per_second or _NO_TRAINING.search(words):
        return 0.0
    gpus = whole(row.get("gpus", "")) if row.get("gpus", "").strip() else 1
    if _OF_ONE.search(words):
        gpus = 1
    elif gpus > 1 and not (_OF_ALL.search(words) or found["what"].startswith("s")):
        return 0.0
    length = 1 if found["what"].startswith("t") else whole(row.get("seq_len", ""))
    if not found["what"].startswith("t") and length <= 1:
        return 0.0
    return _number(cell) * length / gpus


def _gib(words: str, cell: str) -> float:
    if not _MEMORY.search(words) or _NO_PEAK.search(words):
        return 0.0
    unit = _SIZE.search(cell) or _SIZE.search(words)
    return _number(cell) * _SIZES[(unit[1] or unit[2]).lower()] if unit else 0.0
