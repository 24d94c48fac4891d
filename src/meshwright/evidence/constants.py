"""The fitted constants of the cost model: declared in data/constants.toml, read, set, written."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from meshwright import costs
from meshwright.costs.tables import changed, table
from meshwright.specs.errors import SpecError
from meshwright.specs.writing import write_atomically

DIGITS = 4
"""Significant digits that a fitted value is written with."""


@dataclass(frozen=True, slots=True)
class FittedConstant:
    """One constant: where it is, what it means, what is believed of it before any run is read.

    `spread` is the standard deviation of that belief in the logarithm; `low` and `high` are bounds.
    """

    file: str
    section: str
    key: str
    meaning: str
    prior: float
    spread: float
    low: float
    high: float

    @property
    def name(self) -> str:
        """`file.section.key`."""
        return f"{self.file}.{self.section}.{self.key}"

    def _cell(self) -> tuple[Any, Any]:
        where = table(self.file)[self.section]
        key, _, index = self.key.partition(".")
        return (where[key], int(index)) if index else (where, key)

    def get(self) -> float:
        """The value that the cost model uses now."""
        holder, key = self._cell()
        return float(holder[key])

    def put(self, value: float) -> None:
        """Let the cost model use another value, in this process."""
        holder, key = self._cell()
        holder[key] = value


@cache
def fitted_constants() -> tuple[FittedConstant, ...]:
    """Return the constants that data/constants.toml declares, one for each section it names.

    Raises:
        SpecError: a declared constant is not in its file, or its prior is outside its bounds.
    """
    file = resources.files("meshwright.evidence").joinpath("data/constants.toml")
    found = []
    for entry in tomllib.loads(file.read_text("utf-8"))["constant"]:
        for section in entry["of"]:
            prior = entry["prior"][section] if isinstance(entry["prior"], dict) else entry["prior"]
            one = FittedConstant(
                file=entry["file"], section=section, key=entry["key"], meaning=entry["meaning"],
                prior=float(prior), spread=float(entry["spread"]), low=float(entry["low"]),
                high=float(entry["high"]),
            )  # fmt: skip
            if not 0 < one.low <= one.prior <= one.high:
                raise SpecError("prior", one.prior, f"{one.name}: between {one.low} and {one.high}")
            try:
                one.get()
            except (KeyError, IndexError):
                where = f"costs/data/{one.file}.toml has no such entry"
                raise SpecError("constant", one.name, where) from None
            found.append(one)
    return tuple(found)


def put_all(values: Mapping[str, float]) -> None:
    """Let the cost model use these values, by name, in this process."""
    for one in fitted_constants():
        if one.name in values:
            one.put(values[one.name])
    changed()


@contextmanager
def constants_set(values: Mapping[str, float]) -> Iterator[None]:
    """Use other values inside a block."""
    before = {one.name: one.get() for one in fitted_constants() if one.name in values}
    put_all(values)
    try:
        yield
    finally:
        put_all(before)


def rounded(value: float) -> float:
    """A value as it is written to a data file."""
    return float(f"{value:.{DIGITS}g}")


def write_constants(values: Mapping[str, float]) -> list[str]:
    """Write values into costs/data/*.toml, touching nothing else; returns the files that changed."""
    folder = Path(str(resources.files(costs))) / "data"
    written = []
    for file in sorted({one.file for one in fitted_constants()}):
        path = folder / f"{file}.toml"
        text = old = path.read_text("utf-8")
        held = [one for one in fitted_constants() if one.file == file and one.name in values]
        for one in held:
            text = _replaced(text, one, values[one.name])
        if text != old:
            write_atomically(str(path), text)
            written.append(path.name)
    return written


def _replaced(text: str, one: FittedConstant, value: float) -> str:
    start = text.index(f"[{one.section}]\n")
    end = text.find("\n[", start)
    end = len(text) if end < 0 else end
    key, _, index = one.key.partition(".")
    line = re.compile(rf"^{key} = ([^#\n]*?)([ \t]*(?:#.*)?)$", re.MULTILINE)
    match = line.search(text, start, end)
    assert match is not None, f"{one.name} stands on a line of its own"
    shown = _literal(value)
    if index:
        entries = [entry.strip() for entry in match.group(1).strip("[]").split(",")]
        entries[int(index)] = shown
        shown = f"[{', '.join(entries)}]"
    return f"{text[: match.start(1)]}{shown}{text[match.end(1) :]}"


def _literal(value: float) -> str:
    shown = f"{value:.{DIGITS}g}"
    return shown if set(shown) & set(".e") else f"{shown}.0"


def declared(names: Sequence[str]) -> tuple[FittedConstant, ...]:
    """The constants of some names, in the order of their declaration."""
    return tuple(one for one in fitted_constants() if one.name in set(names))
