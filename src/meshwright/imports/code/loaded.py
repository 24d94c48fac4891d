"""Tables that a program loads from files beside it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_LOADS = re.compile(
    r"(?:^|\.)(?:safe_load|full_load|load|load_\w*|read_\w*|from_yaml|from_json|from_file)$"
)
_OF_TABLES = (".yaml", ".yml", ".json", ".toml")


def loads_table(called: str) -> bool:
    """Whether a function of this name reads a table out of a file."""
    return _LOADS.search(called) is not None


def loaded_table(
    called: str, place: Any, tables: Callable[[str], dict[str, Any] | None]
) -> dict[str, Any] | str | None:
    """The table at a place, as `tables` reads it; of `json.load` the place itself, where no such file is at hand."""
    named = place if isinstance(place, str) else ""
    found = tables(named) if named.endswith(_OF_TABLES) else None
    return named if found is None and called == "json.load" and named else found
