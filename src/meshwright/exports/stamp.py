"""Read the stamp of an exported file: what the format itself has no words for."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PLAN = re.compile(r"model (\S[^\n\"]*?), cluster (\S+) \((\d+) x (\d+) ")
_LAYOUT = re.compile(r"layout ([^\n\"]*?), global batch (\d+), sequence (\d+)")
_MICRO = re.compile(r"\bmb(\d+)\b")
_MADE = re.compile(r"made by meshwright (\S+) for ([^\n\"]+)")


@dataclass(frozen=True, slots=True)
class Stamp:
    """Names and numbers from a stamp; empty or 0 where there is none."""

    model: str = ""
    cluster: str = ""
    global_batch: int = 0
    seq_len: int = 0
    micro_batch: int = 0
    target: str = ""


def read_stamp(text: str) -> Stamp:
    """Return the stamp in a file's text, or an empty one."""
    head = text[:20_000]
    made, plan, layout = _MADE.search(head), _PLAN.search(head), _LAYOUT.search(head)
    if made is None:
        return Stamp()
    micro = _MICRO.search(layout.group(1)) if layout else None
    return Stamp(
        model=plan.group(1) if plan else "",
        cluster=plan.group(2) if plan else "",
        global_batch=int(layout.group(2)) if layout else 0,
        seq_len=int(layout.group(3)) if layout else 0,
        micro_batch=int(micro.group(1)) if micro else 0,
        target=made.group(2),
    )
