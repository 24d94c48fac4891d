"""What is known of options by name: harmless, with an effect, their usual values and the words that they take."""

from __future__ import annotations

import fnmatch
import tomllib
from functools import cache
from importlib import resources
from typing import Any


def idle(name: str, value: Any, effect: str | None, tables: tuple[str, ...]) -> bool:
    """Whether an option stands at what its framework takes anyway, or is switched off."""
    usual = _usual(name, tables)
    if usual is not None:
        return _same(value, usual)
    if isinstance(value, str) and effect is not None:
        return value.strip().lower() in ("false", "")
    return value is False or value == {}


def _usual(name: str, tables: tuple[str, ...]) -> Any:
    short = name.lower().replace("-", "_")
    for table in tables:
        for pattern, value in _tables()[table].get("usual", {}).items():
            if fnmatch.fnmatchcase(short, pattern):
                return value
    return None


def choices(name: str, tables: tuple[str, ...]) -> list[str]:
    """The words that an option takes, as patterns; none where any will do."""
    short = name.lower().replace("-", "_")
    for table in tables:
        for pattern, words in _tables()[table].get("choices", {}).items():
            if fnmatch.fnmatchcase(short, pattern):
                return list(words)
    return []


def _same(value: Any, usual: Any) -> bool:
    left, right = (str(one).strip().lower() for one in (value, usual))
    try:
        return left == right or float(left) == float(right)
    except ValueError:
        return False


@cache
def _tables() -> dict[str, Any]:
    folder = resources.files("meshwright.imports").joinpath("data")
    found: dict[str, Any] = {}
    for name in ("options.toml", "options_tables.toml", "options_pretraining.toml"):
        found |= tomllib.loads(folder.joinpath(name).read_text("utf-8"))
    return found


@cache
def known(name: str, tables: tuple[str, ...]) -> str | None:
    """What an option changes that the estimate has no term for; "" if nothing; None: not known."""
    short = name.lower().replace("-", "_")
    for table in tables:
        if short in _tables()[table].get("effects", {}):
            return str(_tables()[table]["effects"][short])
    if any(short in _tables()[table]["harmless"] for table in tables):
        return ""
    for table in tables:
        entry = _tables()[table]
        for pattern, effect in entry.get("effects", {}).items():
            if fnmatch.fnmatchcase(short, pattern) and not _narrower(short, pattern, tables):
                return str(effect)
    for table in tables:
        if any(fnmatch.fnmatchcase(short, pattern) for pattern in _tables()[table]["harmless"]):
            return ""
    return None


def _narrower(short: str, pattern: str, tables: tuple[str, ...]) -> bool:
    """Whether what is said of a whole table gives way to a harmless name inside it."""
    return pattern.endswith(".*") and any(
        len(one) > len(pattern) and fnmatch.fnmatchcase(short, one)
        for table in tables
        for one in _tables()[table]["harmless"]
    )
