"""Sweeps of Weights & Biases: the command that an agent starts, with the first values that it tries."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from meshwright.exports.stamp import Stamp
from meshwright.imports.reading import Given, Reading
from meshwright.specs.errors import SpecError

_AGENT = ["${env}", "${interpreter}", "${program}", "${args}"]
"""What an agent starts where a sweep says no command (docs.wandb.ai, sweep configuration)."""
_MOST = 400


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is a sweep: parameters that are tried, by a method, with a program or a command that hears them."""
    heard = isinstance(data.get("program"), str) or isinstance(data.get("command"), list)
    return heard and isinstance(data.get("parameters"), dict) and isinstance(data.get("method"), str)  # fmt: skip


def read(
    data: dict[str, Any], name: str, given: Given, stamp: Stamp, folder: Path | None
) -> tuple[Reading, Stamp]:
    """Read the command that a sweep starts.

    Raises:
        SpecError: a parameter says no value, or what the command runs cannot be read.
    """
    from meshwright.imports import scripts

    tried: list[str] = []
    arguments = _arguments(data["parameters"], "", tried)
    said = data.get("command") if isinstance(data.get("command"), list) else _AGENT
    words: list[str] = []
    for word in map(str, said if isinstance(said, list) else []):
        if word in ("${args}", "${args_no_hyphens}"):
            plain = word.endswith("no_hyphens}")
            words += [one.lstrip("-") if plain else one for one in arguments]
        elif word == "${args_no_boolean_flags}":
            words += arguments
        elif word not in ("${env}", "/usr/bin/env"):
            program = str(data.get("program", ""))
            words.append({"${interpreter}": "python", "${program}": program}.get(word, word))
    script = " ".join(_quoted(word) for word in words) + "\n"
    reading, stamp = scripts.read(script, name, given, folder, stamp)
    if tried:
        reading.guess("parameters", f"the sweep tries several values of {', '.join(tried)[:120]}; the first of each is taken")  # fmt: skip
    return reading, stamp


def _quoted(word: str) -> str:
    """A word as a shell takes it; variables that the sweep leaves to its environment stay open."""
    return word if "$" in word and " " not in word else shlex.quote(word)


def _arguments(parameters: dict[str, Any], outer: str, tried: list[str]) -> list[str]:
    """`--name=value` of every parameter: its value, the first of its values, or the least of its range."""
    found: list[str] = []
    for name, told in list(parameters.items())[:_MOST]:
        full = f"{outer}{name}"
        if not isinstance(told, dict):
            raise SpecError(full, str(told)[:60], "a sweep's parameter says value, values, or min and max")  # fmt: skip
        inner = told.get("parameters")
        if isinstance(inner, dict):
            found += _arguments(inner, f"{full}.", tried)
            continue
        several = told.get("values")
        value = told.get("value", told.get("min"))
        if isinstance(several, list) and several:
            value = several[0]
        if (isinstance(several, list) and len(several) > 1) or "min" in told:
            tried.append(full)
        if value is not None:
            found.append(f"--{full}={value}")
    return found
