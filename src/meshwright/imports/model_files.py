"""A model that a run names by a file: a config.json at hand, or a folder that has one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from meshwright.exports.bundle import STAMP_KEY
from meshwright.imports.beside import beside
from meshwright.imports.reading import Given, Reading
from meshwright.imports.shell.words import unmarked
from meshwright.specs.foreign import Limits, parse_json, read_text
from meshwright.specs.huggingface import READERS, model_from_config

_LIMITS = Limits(any_number=True, last_wins=True)
_BUILDS_ON = re.compile(r"[-_](llama|mistral|qwen2|qwen3)$")
"""A family of a program's own, named for the one that it changes (`lckv-llama`)."""
_SHAPE = frozenset({"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"})  # fmt: skip
_BESIDE = frozenset({"num_key_value_heads", "head_dim", "tie_word_embeddings", "max_position_embeddings", "hidden_act", "rms_norm_eps", "rope_theta"})  # fmt: skip


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
    name = path.parent.name if path.name == "config.json" else path.stem
    built = _BUILDS_ON.search(data["model_type"])
    if built is not None and data["model_type"] not in READERS and set(data) >= _SHAPE:
        reading.guess("--model", f"{data['model_type'][:40]} is read as the {built[1]} that it builds on by its name; what it does otherwise is not priced")  # fmt: skip
        data = {field: data[field] for field in data if field in _SHAPE | _BESIDE} | {"model_type": built[1]}  # fmt: skip
    reading.model = model_from_config(data, name, path.name)
    reading.note(f"is described by {path.parent.name}/{path.name}", "--model")


def _config(named: str, folder: Path | None) -> Path | None:
    """The file that a name means: itself, or config.json in the folder of that name."""
    if named.endswith(".json"):
        return beside(folder, named)
    last = named.rstrip("/").rpartition("/")[2]
    path = beside(folder, f"{named.rstrip('/')}/config.json") if last not in ("", ".", "..") else None  # fmt: skip
    # Only by the whole of its last part: any folder above may hold a config.json of something else.
    return path if path is not None and path.parent.name == last else None


def exported(path: Path) -> dict[str, Any]:
    """The config.json of an export of ours, without its stamp.

    Raises:
        SpecError: it is no longer JSON.
    """
    config: dict[str, Any] = parse_json(read_text(path), "file", path.name)
    config.pop(STAMP_KEY, None)
    return config
