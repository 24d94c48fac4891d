"""What classes and parsers of a program declare: fields with their defaults, options of a command line."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from meshwright.imports.code.syntax import dotted

_TYPER = ("typer.Option", "typer.Argument", "Option", "Argument")
"""What stands for a parameter's default in a function that typer starts."""


def fields_of(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """Fields of a class that say a default, with it."""
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and one.value:
            name, value = one.target.id, one.value
        elif isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
            name, value = one.targets[0].id, one.value
        else:
            continue
        default = _of_field(value)
        if default is not None:
            yield name, default


def _of_field(value: ast.expr) -> ast.expr | None:
    """The default that a field is made with (`field(default=…)`, `Field(…)`), or the value itself."""
    if not (isinstance(value, ast.Call) and ast.unparse(value.func).endswith(("field", "Field"))):
        return value
    given = {key.arg: key.value for key in value.keywords}
    factory = given.get("default_factory")
    if isinstance(factory, ast.Lambda):
        return factory.body
    return given.get("default", value.args[0] if value.args else None)


def is_command(function: ast.FunctionDef) -> bool:
    """Whether typer or click starts a function with a command line's words for its parameters."""
    return any(ast.unparse(one).partition("(")[0].endswith(".command") for one in function.decorator_list)  # fmt: skip


def default_said(default: ast.expr) -> ast.expr:
    """What a parameter is where nobody says it: `typer.Option(8, "--rank")` declares 8."""
    if isinstance(default, ast.Call) and dotted(default.func) in _TYPER:
        return default.args[0] if default.args else next((one.value for one in default.keywords if one.arg == "default"), default)  # fmt: skip
    return default


@dataclass(frozen=True)
class Option:
    """An option of a command line, as a program declares it."""

    name: str
    default: Any
    """None where it has none, or none that is known."""
    switches_off: bool
    """Whether saying it makes it false."""
    is_handed_on: bool
    """Whether the function that it decorates hears it as a parameter of that name (click)."""


def option_of(node: ast.Call, value: Callable[[ast.expr], Any]) -> Option:
    """The option that `add_argument`, `click.option` or a parameter's `typer.Option` declares."""
    words = [word for word in map(value, node.args) if isinstance(word, str)]
    given = {key.arg: value(key.value) for key in node.keywords}
    long = next((word for word in words if word.startswith("--")), words[0] if words else "")
    name = given.get("dest") or long.partition("/")[0].lstrip("-").replace("-", "_")
    default, action = given.get("default"), str(given.get("action"))
    if dotted(node.func) in _TYPER and node.args:
        default = value(node.args[0])
    if default is None:
        default = {"store_true": False, "store_false": True}.get(action)
    return Option(str(name), default, action == "store_false", dotted(node.func) == "click.option")


def without_default(call: ast.Call) -> str:
    """The name of an option that is None where nothing is said; empty for others."""
    words = {one.arg: one.value for one in call.keywords}
    usual = words.get("default")
    said = usual is not None and not (isinstance(usual, ast.Constant) and usual.value is None)
    if said or {"action", "required", "dest", "nargs"} & set(words) or not dotted(call.func).endswith(".add_argument"):  # fmt: skip
        return ""
    long = [one.value for one in call.args if isinstance(one, ast.Constant) and str(one.value).startswith("--")]  # fmt: skip
    return str(long[0])[2:].replace("-", "_") if long else ""
