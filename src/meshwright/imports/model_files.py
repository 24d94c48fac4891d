"""A model that a run names by a file: a config.json at hand, or a folder that has one."""

from __future__ import annotations

from pathlib import Path

from meshwright.imports.beside import beside
from meshwright.imports.reading import Given, Reading
from meshwright.imports.shell.words import unmarked
from meshwright.specs.foreign import Limits, parse_json, read_text
from meshwright.specs.huggingface import model_from_config

_LIMITS = Limits(any_number=True, last_wins=True)


def describe(reading: Reading, given: Given, folder: Path | None) -> None:
    """Take the model of a reading from the config.json that it names, where that lies beside the file.

    Raises:
        SpecError: the file describes no model that is known.
    """
    if given.model is not None or reading.model is not None or not reading.model_name:
        return
    path = _config(unmarked(reading.model_name).strip("\"' "), folder)
    if path is None:
        return
    data = parse_json(read_text(path, "file"), "file", path.name, _LIMITS)
    if not isinstance(data, dict) or not isinstance(data.get("model_type"), str):
        return
    reading.model = model_from_config(data, path.parent.name if path.name == "config.json" else path.stem, path.name)  # fmt: skip
    reading.note(f"is described by {path.parent.name}/{path.name}", "--model")


def _config(named: str, folder: Path | None) -> Path | None:
    """The file that a name means: itself, or config.json in the folder of that name."""
    if named.endswith(".json"):
        return beside(folder, named)
    last = named.rstrip("/").rpartition("/")[2]
    path = beside(folder, f"{named.rstrip('/')}/config.json") if last not in ("", ".", "..") else None  # fmt: skip
    # Only by the whole of its last part: any folder above may hold a config.json of something else.
    return path if path is not None and path.parent.name == last else None
