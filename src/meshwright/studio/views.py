"""The shapes of the studio's answers that several endpoints share.

They are `TypedDict`s: mypy checks every answer where it is built, OpenAPI documents it, and msgspec
encodes it without another copy.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from typing_extensions import TypedDict

Data = TypeVar("Data")


class Problem(TypedDict):
    """Why a request was refused; `sentence` is the whole of it."""

    field: str
    value: str
    remedy: str
    sentence: str


class Refusal(TypedDict):
    """The body of every 4xx answer."""

    error: Problem


class Check(TypedDict):
    """An invariant, evaluated on the very answer that carries it."""

    text: str
    holds: bool


class Formula(TypedDict):
    """A formula with its symbols, and again with this query's numbers."""

    name: str
    symbolic: str
    substituted: str
    value: str
    source: str


class Table(TypedDict):
    """Rows for people (and for those who cannot see the picture)."""

    caption: str
    columns: list[str]
    rows: list[list[str | float | int | None]]


class Step(TypedDict):
    """One step of a simulation: what happens, and what must hold after it."""

    title: str
    sentence: str
    check: str
    holds: bool


class View(TypedDict, Generic[Data]):
    """The envelope of every simulation."""

    summary: str
    checks: list[Check]
    formulas: list[Formula]
    table: Table
    steps: list[Step]
    cli: str
    python: str
    data: Data


def check(text: str, holds: object) -> Check:
    """Return an invariant; NumPy's booleans become Python's."""
    return {"text": text, "holds": bool(holds)}


def percent(fraction: float) -> str:
    """Format a fraction as a percentage with up to one decimal place: `27.3 %`, `75 %`."""
    text = f"{100 * fraction:.1f}".removesuffix(".0")
    return f"{text} %"


def decimal_bytes(size_bytes: float) -> str:
    """Format bytes in decimal units, as link speeds and the 16-bytes rule count: `38.5 GB`."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(size_bytes) >= scale:
            return f"{size_bytes / scale:.4g} {unit}"
    return f"{size_bytes:.4g} B"
