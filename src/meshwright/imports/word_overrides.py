"""The words of a command over the configuration that it names: `a.b=2`, `--a.b 2`, `--a-b=2`."""

from __future__ import annotations

import copy
import re
from typing import Any

from meshwright.imports.options import flags_of
from meshwright.imports.own.arguments import typed

_PLAIN = re.compile(r"(?:\+{1,2})?([A-Za-z_][\w.\-]*)=(.*)", re.DOTALL)
_GONE = re.compile(r"~([A-Za-z_][\w.]*)(?:=.*)?")
_NOT = frozenset({
    "config", "config_file", "config_path", "config_name", "c", "launcher", "debug", "num_processes", "num_machines",
    "nproc_per_node", "nnodes", "no_accelerate", "accelerate", "cloud", "main_process_port", "local_rank", "local_process_index",
    "preprocess", "verbose", "log_level", "help", "yes",
})  # fmt: skip
"""Words of the command itself, not of what it configures."""


def overridden(data: dict[str, Any], words: list[str] | None) -> dict[str, Any]:
    """A configuration with what a command's words set, or take out (`~a.b`), over it; later words count over earlier ones."""
    said: dict[str, Any] = {}
    for word in words or []:
        if plain := _PLAIN.fullmatch(word):
            said[plain.group(1).replace("-", "_")] = typed(_plainly(plain.group(2)))
    flags = flags_of([word for word in words or [] if not _PLAIN.fullmatch(word)])
    for name, value in flags.items():
        short = name.replace("-", "_")
        if short not in _NOT:
            said[short] = [typed(one) for one in value] if isinstance(value, list) else typed(value)
    gone = [found.group(1) for word in words or [] if (found := _GONE.fullmatch(word))]
    if not said and not gone:
        return data
    made = copy.deepcopy(data)
    for name in gone:
        _put(made, name.split("."), None)
    for name, value in said.items():
        _put(made, name.split("."), value)
    return made


def _plainly(text: str) -> Any:
    """A word in brackets as a list, `null` as nothing; other words as they are."""
    text = text.strip()
    if text in ("null", "None", ""):
        return None
    if text.startswith("[") and text.endswith("]"):
        return [typed(one.strip().strip("\"'")) for one in text[1:-1].split(",") if one.strip()]
    return text.strip("\"'")


def _put(table: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        inner = table.get(name)
        if not isinstance(inner, dict):
            inner = table[name] = {}
        table = inner
    table[path[-1]] = value
