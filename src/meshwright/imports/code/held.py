"""Tables and objects that a program fills step by step, and where its files lie."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from meshwright.imports.code.branches import Guards

_HOLDERS = frozenset({"SimpleNamespace", "Namespace", "EasyDict", "edict", "AttrDict", "AttrDefault", "DotMap", "Box", "Munch", "munchify", "ConfigDict", "Dotdict"})  # fmt: skip
"""Classes and functions that make an object of the words that they are given."""
_OF_PLACES = ("read_text", "open", "resolve", "absolute", "expanduser", "as_posix")
"""Methods of a path that say no other file."""
_SUFFIXES = (".yaml", ".yml", ".json", ".toml")


def of_holder(called: str, args: list[Any], words: Mapping[str, Any]) -> dict[str, Any] | None:
    """What an object holds that is made of words or of a table; None for other calls."""
    name = called.rpartition(".")[2]
    if name not in _HOLDERS and called not in ("OmegaConf.create", "omegaconf.OmegaConf.create"):
        return None
    table = args[0] if args and isinstance(args[0], dict) else {}
    return {**table, **words}


def of_place(node: ast.Call, called: str, args: list[Any], value: Callable[[ast.expr], Any]) -> str | None:  # fmt: skip
    """The file that a path says, wherever the program lies; None where a call makes no path."""
    if isinstance(node.func, ast.Attribute) and node.func.attr in _OF_PLACES:
        place = value(node.func.value)
        return place if isinstance(place, str) and place.endswith(_SUFFIXES) else None
    last = args[-1] if args and called in ("os.path.join", "posixpath.join", "Path", "pathlib.Path") else None  # fmt: skip
    return last if isinstance(last, str) and last.endswith(_SUFFIXES) else None


def _is_start(test: ast.expr) -> bool:
    """Whether a test asks whether the file is started itself (`__name__ == "__main__"`)."""
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"  # fmt: skip


def decided(guards: Guards, value: Callable[[ast.expr], Any]) -> bool | None:
    """Whether the tests that a line stands under are known to hold; None where it stands under none but its own start."""
    tests = [(test, branch) for test, branch in guards if not _is_start(test)]
    told = [(value(test), branch) for test, branch in tests]
    return all(said is not None and bool(said) == branch for said, branch in told) if told else None


def put(table: Any, key: Any, said: Any, sure: bool | None) -> None:
    """Note what a line sets a table's field to; under a test that nobody knows, only where it says nothing yet."""
    if isinstance(table, dict) and isinstance(key, (str, int)) and said is not None:
        table[key] = table.get(key, said) if sure is False else said


def update(call: ast.expr, value: Callable[[ast.expr], Any], sure: bool | None) -> None:
    """Note what `table.update(…)` sets, where no unknown test guards it."""
    if sure is False or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return
    table = value(call.func.value) if call.func.attr == "update" else None
    for more in [value(one) for one in call.args] if isinstance(table, dict) else ():
        for name, said in more.items() if isinstance(more, dict) else ():
            put(table, name, said, sure)
    for one in call.keywords:
        put(table, one.arg, value(one.value), sure)


def first_of(node: ast.For, value: Callable[[ast.expr], Any]) -> tuple[str, Any] | None:
    """The first of the values that a loop goes over, under its name; None where they are not known."""
    if not isinstance(node.target, ast.Name):
        return None
    many = value(node.iter)
    first = next(iter(many), None) if isinstance(many, (list, tuple, dict)) else None
    return None if first is None else (node.target.id, first)
