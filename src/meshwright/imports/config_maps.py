"""Kubernetes objects of which one holds the configuration that another one's container trains with."""

from __future__ import annotations

import re
from typing import Any

from meshwright.imports.formats import axolotl, hf, llama_factory
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import Limits, parse_yaml

_LIMITS = Limits(size_bytes=4_000_000, any_number=True, last_wins=True)
_PARTS = re.compile(r"^---[ \t]*(?:#.*)?$", re.MULTILINE)
_MOST = 20


def documents(text: str) -> list[str]:
    """The YAML documents of a file that hold more than comments."""
    return [one for one in _PARTS.split(text) if re.search(r"^[^\S\n]*[^#\s]", one, re.MULTILINE)]


def held_configuration(text: str, name: str) -> tuple[str, list[dict[str, Any]]] | None:
    """The text of a configuration that a ConfigMap of the file holds, and the file's other objects; None without one."""
    if "kind: ConfigMap" not in text:
        return None
    tables = [_table(one, name) for one in documents(text)[:_MOST]]
    for table in tables:
        held = table.get("data") if table.get("kind") == "ConfigMap" else None
        for inner in held.values() if isinstance(held, dict) else ():
            said = _table(inner, name) if isinstance(inner, str) else {}
            if hf.is_trainer(said) or axolotl.is_config(said) or llama_factory.is_config(said):
                return str(inner), [one for one in tables if one is not table]
    return None


def _table(text: str, name: str) -> dict[str, Any]:
    try:
        found = parse_yaml(text, "file", name, _LIMITS)
    except SpecError:
        return {}
    return found if isinstance(found, dict) else {}
