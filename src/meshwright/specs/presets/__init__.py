"""Data files: devices, clusters and models, each number with its source."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

from meshwright.specs.errors import SpecError, nearest


@cache
def table(name: str) -> dict[str, Any]:
    """Return one data file: `devices`, `clusters` or `models` by preset name, or `sources`."""
    return tomllib.loads(files(__name__).joinpath(f"{name}.toml").read_text("utf-8"))


def spelled_out(sources: Iterable[str]) -> list[str]:
    """Return "name: what it stands for" for the short source names that occur in some texts."""
    texts = " ".join(sources)
    return [f"{name}: {full}" for name, full in table("sources").items() if name in texts]


def normalise(name: str) -> str:
    """Spell a preset name as the data files do: lower case, dashes between the words."""
    return "-".join(name.lower().replace("_", " ").replace("-", " ").split())


_MAKERS = re.compile(
    r"\b(nvidia|geforce|tesla|quadro|amd|radeon|instinct|google|cloud|aws|amazon|intel|habana|huawei"
    r"|graphics|gpus?|accelerators?|generation|edition|superchip|hbm[23]e?|sxm[2345]?|oam|workstation|server)\b"
)


def without_makers(name: str) -> str:
    """A normalised device name less its maker, form factor and memory type, as tools print them."""
    short = re.sub(r"-+", "", _MAKERS.sub("", name))
    return re.sub(r"(\d)gb\b", r"\1g", short)


@cache
def _short_names(file: str) -> dict[str, str]:
    names: dict[str, str] = {}
    for spelling, key in _names(file).items():
        names.setdefault(without_makers(spelling), key)
    return names


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
    if found is None and file == "devices":
        found = _short_names(file).get(without_makers(normalise(name)))
    if found is None:
        raise SpecError(field, name, f"no such preset; {nearest(normalise(name), names)}")
    return found


def known(file: str, name: str) -> bool:
    """Whether a name (or alias) is a preset of the file."""
    plain = normalise(name)
    if plain in _names(file):
        return True
    if file != "devices" or plain in _names("clusters"):
        return False
    return without_makers(plain) in _short_names(file)
