"""Counts of configs that were traced before, kept between commands: building a model's modules takes seconds.

Nothing is kept unless `MESHWRIGHT_COUNTS` names a folder: the command line names one in the user's cache, whoever
uses this as a library or as a server none.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from meshwright.specs import foreign
from meshwright.specs.errors import SpecError
from meshwright.specs.writing import write_atomically


def kept(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The answer that was kept for a config under this transformers and this way of counting, or None."""
    place = _place(config)
    if place is None or not place.exists():
        return None
    try:
        answer = foreign.read_data(place, "kept count")
    except SpecError:
        return None
    return dict(answer) if {"total", "layers", "config"} <= set(answer) else None


def keep(config: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    """Keep an answer; a cache that cannot be written is none."""
    place = _place(config)
    if place is None:
        return
    with suppress(OSError, SpecError):
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, json.dumps(dict(answer)))


def _place(config: Mapping[str, Any]) -> Path | None:
    folder = os.environ.get("MESHWRIGHT_COUNTS")
    if not folder:
        return None
    try:
        version = metadata.version("transformers")
    except metadata.PackageNotFoundError:
        return None
    counting = b""
    for module in ("traced", "towers"):
        found = find_spec(f"meshwright.engine.model.{module}")
        if found is None or found.origin is None:
            return None
        counting += Path(found.origin).read_bytes()
    what = json.dumps(dict(config), sort_keys=True, default=str)
    digest = hashlib.sha256(f"{version}\n{what}\n".encode() + counting)
    return Path(folder) / f"{digest.hexdigest()}.json"
