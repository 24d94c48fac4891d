"""An export for Megatron-Bridge whose model its own bridge builds, read back: overrides, and the config.json beside them."""

from __future__ import annotations

from pathlib import Path

from meshwright.exports.bridged import PROGRAM
from meshwright.imports.formats import bridge
from meshwright.imports.model_files import exported
from meshwright.imports.reading import Given, Reading
from meshwright.specs.huggingface import model_from_config


def found(program: str, folder: Path | None) -> Path | None:
    """The configuration of such an export, where a command starts its program and it lies beside that."""
    if folder is None or program.rsplit("/", 1)[-1] != PROGRAM:
        return None
    path = folder / "config.json"
    return path if path.is_file() else None


def read(words: list[str], given: Given, path: Path) -> Reading:
    """Return what the overrides lay out; the model is the configuration's, or the one that the user gave.

    Raises:
        SpecError: a file is no longer what was exported.
    """
    reading = bridge.read_words(words, given, path.parent, model_from_config(exported(path)))
    reading.format = "Megatron-Bridge export"
    return reading
