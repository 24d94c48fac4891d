"""Programs that hold verl's configuration as a dictionary of their own (Agent Lightning's examples and their like)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshwright.imports.beside import program_beside
from meshwright.imports.code.follow import call_function, functions, parse_module
from meshwright.imports.code.values import Made, Module, is_open
from meshwright.imports.formats.verl import read_verl_data
from meshwright.imports.options import flags_of
from meshwright.imports.reading import Given, Reading
from meshwright.specs.foreign import read_text

_MODEL = ("model", "model-path", "model-name")
"""How such programs let their command replace the model."""


def is_program(text: str) -> bool:
    """Whether a Python file may hold such a dictionary."""
    return '"actor_rollout_ref"' in text or "'actor_rollout_ref'" in text


def started(program: str, folder: Path | None) -> tuple[Module, Path] | None:
    """The program that a command starts, followed, where it is at hand and holds such a dictionary."""
    path = program_beside(folder, program)
    if path is None or not is_program(text := read_text(path, "file")):
        return None
    module = parse_module(text, str(path), path.parent)
    return (module, path) if _tables(module) else None


def read(module: Module, name: str, given: Given, words: list[str] | None = None) -> Reading | None:
    """Return what the actor of a program's dictionary trains; None where it holds none.

    Args:
        words: of the command that starts it, which may name another model.

    Raises:
        SpecError: it holds several and none is chosen, or a value cannot be.
    """
    found = _tables(module)
    if not found:
        return None
    table = found[given.chosen(found, "the program holds {} configurations of verl's")]
    flags = flags_of(words or [])
    model = next((str(flags[one]) for one in _MODEL if one in flags), "")
    if model:
        actor = table["actor_rollout_ref"]
        table = table | {"actor_rollout_ref": actor | {"model": actor.get("model", {}) | {"path": model}}}  # fmt: skip
    reading = read_verl_data(table, given, program=Path(name).stem)
    reading.format = "verl configuration in a program"
    return reading


def _tables(module: Module) -> dict[str, dict[str, Any]]:
    """The whole configurations that a file's constants hold or its functions return, by name."""
    values = {name: value for name, value in module.names.items() if isinstance(value, dict)}
    for function in functions(module):
        if not function.args.args or len(function.args.defaults) == len(function.args.args):
            values[function.name] = call_function(module, function, [], {})
    found = {name: _plain(value) for name, value in values.items() if isinstance(value, dict)}
    return {name: table for name, table in found.items() if _whole(table)}


def _plain(value: Any) -> Any:
    """A table without what the file does not state."""
    if not isinstance(value, dict):
        return value
    return {str(key): _plain(one) for key, one in value.items() if not (is_open(one) or isinstance(one, Made))}  # fmt: skip


def _whole(table: dict[str, Any]) -> bool:
    """Whether a table says what trains and in which batches."""
    actor = table.get("actor_rollout_ref")
    return isinstance(actor, dict) and isinstance(actor.get("actor"), dict) and isinstance(table.get("data"), dict)  # fmt: skip
