"""Public architectures by the names that tables print: `Llama-3.1 (8B)`, `LLaMA V2 7B`, `llama3_1_8b`, `GPT3-355M`."""

from __future__ import annotations

import math
import re
import tomllib
from functools import cache
from importlib import resources
from typing import Any

from meshwright.specs import presets
from meshwright.specs.models import load_model, model_names

_RUN_TOGETHER = re.compile(r"\b(llama|qwen)[-_ ]?([123])_?(\d)(?=[-_ ])", re.IGNORECASE)
"""A version without its dot: `Llama31-8B`, `Qwen25-7B`, `llama3_1_8b`."""

_VERSION = re.compile(r"\b((?:llama|qwen)[-_ ]?)v(?=\d)()", re.IGNORECASE)
"""A version with its letter: `LLaMA V2 7B`."""


@cache
def _architectures() -> list[dict[str, Any]]:
    file = resources.files("meshwright.evidence").joinpath("data/architectures.toml")
    return list(tomllib.loads(file.read_text("utf-8"))["architecture"])


def known_architecture(name: str) -> dict[str, Any] | None:
    """Return the fields of the public architecture that a printed name means, if any.

    The names that tables use come first (data/architectures.toml), then those of the model presets:
    the longest preset whose name is printed whole.
    """
    found = _known(name)
    return None if found is None else dict(found)


@cache
def _known(name: str) -> dict[str, Any] | None:
    name = re.sub(r"[\s()\[\]{}]+", " ", name).strip()  # `Llama 3.1 (8B)`
    name = re.sub(r"\bopenllama(?![a-z])", "open_llama", name, flags=re.IGNORECASE)
    name = _VERSION.sub(r"\1\2", name)
    name = _RUN_TOGETHER.sub(r"\1\2.\3", name)
    for entry in _architectures():
        if re.search(entry["match"], name, re.IGNORECASE) and not (
            "exclude" in entry and re.search(entry["exclude"], name, re.IGNORECASE)
        ):
            return {k: v for k, v in entry.items() if k not in ("match", "exclude")}
    squeezed = _squeeze(name)
    for pattern, spelling in _printed_names():
        if pattern.search(squeezed):
            return load_model(spelling).model_dump(exclude_defaults=True)
    return None


@cache
def _printed_names() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Each preset's spellings as they are found in a printed name, the longest first."""
    return tuple(
        (re.compile(rf"(?<![a-z0-9]){re.escape(_squeeze(spelling))}(?![0-9.+])"), spelling)
        for spelling in sorted(_spellings(), key=len, reverse=True)
    )


@cache
def _spellings() -> tuple[str, ...]:
    """Names of the model presets and the other names that each goes by."""
    table = presets.table("models")
    other = (alias for name in model_names() for alias in table[name].get("aliases", ()))
    return (*model_names(), *other)


@cache
def _squeezed_spellings() -> tuple[tuple[str, str], ...]:
    """Each of them without what differs from hand to hand, and as it stands."""
    return tuple((_squeeze(spelling), spelling) for spelling in _spellings())


def _squeeze(name: str) -> str:
    """`Llama 3.1-8B`, `meta-llama/Llama-3.1-8B` and `llama3.1-8b` spelled alike."""
    text = name.lower().rsplit("/", 1)[-1]
    return re.sub(r"(?<=[a-z])(?=\d)|[-_ ]+", "-", text)


NEAR_SIZE = 1.03
"""Factor between a printed size and a preset's up to which they are one model of one family: GPT-3 355M and 350M."""


def of_a_near_size(name: str, size_b: float | None) -> dict[str, Any] | None:
    """The preset of the family that a name begins with whose size is next to the printed one."""
    found = re.match(r"(.*?[a-z].*?)-?(\d+(?:\.\d+)?)[mb](?![a-z])", _squeeze(name))
    if found is None or not size_b:
        return None
    near: list[tuple[float, str]] = []
    for squeezed, spelling in _squeezed_spellings():
        if not squeezed.startswith(found[1]):
            continue
        other = re.fullmatch(r"-?(\d+(?:\.\d+)?)([mb])", squeezed.removeprefix(found[1]))
        if other is not None:
            size = float(other[1]) * (1e-3 if other[2] == "m" else 1.0)
            if size:
                near.append((abs(math.log(size / size_b)), spelling))
    off, spelling = min(near, default=(math.inf, ""))
    return (
        load_model(spelling).model_dump(exclude_defaults=True)
        if off < math.log(NEAR_SIZE)
        else None
    )
