"""Data files: devices, clusters and models, each number with its source."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from meshwright.specs.errors import SpecError, nearest


@cache
def table(name: str) -> dict[str, dict[str, Any]]:
    """Return one data file as tables by preset name (`devices`, `clusters` or `models`)."""
    return tomllib.loads(files(__name__).joinpath(f"{name}.toml").read_text("utf-8"))


def normalise(name: str) -> str:
    """Spell a preset name as the data files do: lower case, dashes between the words."""
    return "-".join(name.lower().replace("_", " ").replace("-", " ").split())


@cache
def _names(file: str) -> dict[str, str]:
    """Every accepted spelling of the presets of one file, to the preset's own name."""
    names: dict[str, str] = {}
    for key, entry in table(file).items():
        for spelling in (key, *entry.get("aliases", ())):
            names[normalise(spelling)] = key
    return names


def find(file: str, name: str, field: str) -> str:
    """Return the preset's own name for any of its spellings.

    Raises:
        SpecError: no such preset; the remedy lists the nearest names.
    """
    names = _names(file)
    found = names.get(normalise(name))
    if found is None:
        raise SpecError(field, name, f"no such preset; {nearest(normalise(name), names)}")
    return found


def known(file: str, name: str) -> bool:
    """Whether a name (or alias) is a preset of the file."""
    return normalise(name) in _names(file)
