"""Columns by what their cells say, where no head does: models, devices, what was measured."""

from __future__ import annotations

import re
from collections.abc import Callable

from meshwright.evidence import heads
from meshwright.evidence.instances import device_names_in, names_a_device

MEASURED_CELL = re.compile(
    r"\s*[~≈<>]?\s*\d[\d.,]*\s*(?:[±-]\s*[\d.,]+\s*)?(?:ms|µs|us|s|secs?|seconds?|min(?:ute)?s?|h(?:ou)?rs?|days?|[KMGT]i?B|s/it\w*|"
    r"it\w*/s|(?:k|M)?\s?tok\w*/s\S*|(?:T|P)FLOP\S*|%)(?=$|[\s(/,;])",
    re.IGNORECASE,
)
"""A cell that is a time, a rate or a memory: what a run did, whatever its head."""


def models_head(table: list[dict[str, str]], known: Callable[[str], bool]) -> str:
    """The head of the column whose cells name models, where no head says so."""
    if not table or any(
        heads.column_of(head) in ("model", "layers", "params_b") for head in table[0]
    ):
        return ""
    told = {
        head: sum(known(row.get(head, "")) for row in table)
        for head in table[0]
        if heads.column_of(head) in (heads.SAID, "id", "setup", heads.MEASURED)
    }
    best = max(told, key=lambda head: told[head], default="")
    return best if best and told[best] else ""


def devices_head(table: list[dict[str, str]]) -> str:
    """The head of the column most of whose cells name devices, where no head says so."""
    if not table or any(heads.column_of(head) == "gpu" for head in table[0]):
        return ""
    told = {
        head: sum(names_a_device(row.get(head, "")) for row in table)
        for head in table[0]
        if heads.column_of(head) in (heads.SAID, "id", "setup")
    }
    best = max(told, key=lambda head: told[head], default="")
    return best if best and 2 * told[best] > len(table) else ""


def device_in_heads(table: list[dict[str, str]]) -> str:
    """The one device that the heads of a table name, where no column does: `# GPUs (A100)`."""
    if not table or any(heads.column_of(head) == "gpu" for head in table[0]):
        return ""
    named = {one.strip() for head in table[0] for one in device_names_in(head)}
    return named.pop() if len(named) == 1 else ""
