"""What a diagnosis says: the records behind the page, the JSON and its published schema."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import msgspec

Kind = Literal[
    "slow-rank", "slow-stage", "slow-link", "uneven-lengths", "missing-collective",
    "mismatched-collective", "frozen-rank", "gpu-error", "out-of-memory", "fragmentation", "leak",
    "input-bound", "host-bound", "exposed-communication", "bubble", "evaluation-or-checkpoint",
    "wrong-configuration", "unknown",
]  # fmt: skip

KINDS: tuple[Kind, ...] = get_args(Kind)

STOPPED: frozenset[str] = frozenset(
    {
        "missing-collective", "mismatched-collective", "frozen-rank", "gpu-error",
        "out-of-memory", "fragmentation", "wrong-configuration",
    }
)  # fmt: skip
"""Kinds that end a run rather than slow it down; they come before any gain."""

FOLLOWS_A_DEATH: frozenset[str] = frozenset({"missing-collective", "frozen-rank"})
"""What the others meet once a process is gone."""
KILLED = "killed (SIGKILL)"
"""Where a cause lies if a launcher says that a process was killed."""

SMALL_GAIN = 0.02
"""A cause that would give back less than this share of the step is noise, not a fault."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """One place in an artefact that a reader can look up."""

    file: str
    text: str
    line: int | None = None
    """Counted from 1, in text artefacts."""
    event: str | None = None
    """Name of the event, in traces, dumps and tables."""
    rank: int | None = None
    time_s: float | None = None
    """In the artefact's own clock."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One cause: where it is, what it costs, what to change, what that gains."""

    kind: Kind
    ranks: tuple[int, ...] = ()
    where: str = ""
    share_of_step: float | None = None
    gain_fraction: float | None = None
    """Share of the step that is saved without it, replayed; null where it cannot be."""
    confidence: float
    """From 0 to 1."""
    remedy: str
    evidence: tuple[Evidence, ...] = ()


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one call."""

    verdict: str
    healthy: bool
    causes: tuple[Cause, ...] = ()
    figures: dict[str, float | int | str | None] = {}
    missing: tuple[str, ...] = ()
    """What would tell more."""

    def plain(self) -> dict[str, Any]:
        """Data for JSON; numbers that are not finite become null."""
        data: dict[str, Any] = _finite(msgspec.to_builtins(self))
        return data


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a diagnosis."""
    return msgspec.json.schema(Diagnosis)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A cause with the sentence that a verdict says of it."""

    cause: Cause
    sentence: str
    layout_cost: bool = False
    """It is what the layout costs, not a fault: a run with it alone is healthy."""


class Part(msgspec.Struct, kw_only=True):
    """What one kind of artefact told."""

    findings: list[Finding] = msgspec.field(default_factory=list)
    figures: dict[str, float | int | str | None] = msgspec.field(default_factory=dict)
    missing: list[str] = msgspec.field(default_factory=list)
    healthy: list[str] = msgspec.field(default_factory=list)
    """Sentences of what was looked at and found in order."""
    untold: str = ""
    """Opens a healthy verdict in place of “Nothing is wrong” where the artefact leaves that open."""
    ended: str = ""
    """Who ended the run, where that is no fault of its own."""
    pictures: list[Any] = msgspec.field(default_factory=list)
    """Timelines for the page, see `pictures.py`."""


def of(
    kind: Kind, sentence: str, remedy: str, *, confidence: float, layout_cost: bool = False,
    **fields: Any,
) -> Finding:  # fmt: skip
    """Make a finding."""
    cause = Cause(kind=kind, remedy=remedy, confidence=round(confidence, 2), **fields)
    return Finding(cause=cause, sentence=sentence, layout_cost=layout_cost)
