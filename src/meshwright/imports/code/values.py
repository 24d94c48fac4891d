"""What following a Python file makes: values, the calls of what is outside it, and what it has read."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshwright.specs.errors import SpecError

MAX_STEPS = 40_000
MAX_DEPTH = 24


@dataclass(slots=True)
class Unknown:
    """A value that the file does not state, by the text that leads to it."""

    text: str

    def __bool__(self) -> bool:
        return False


@dataclass(slots=True, eq=False)
class Made:
    """What a call of something outside the file makes."""

    name: str
    args: list[Any] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    parent: Any = None
    home: Any = None
    """Its class and the module of that, where the project's own files define it."""
    of_field: bool = False
    """Whether it only stands for a field that was asked of another."""

    def get(self, path: str, default: Any = None) -> Any:
        """A field by its dotted path; the default where it is not stated."""
        current: Any = self
        for part in path.split("."):
            if isinstance(current, Made):
                current = current.fields.get(part)
            elif isinstance(current, dict):
                current = current.get(part)
            else:
                return default
        return default if current is None or isinstance(current, Unknown) else current


def is_open(value: Any) -> bool:
    """Whether a value is not stated: unknown, or a field that something outside the file would fill."""
    if isinstance(value, Made):
        return value.parent is not None and not value.args and not value.fields and value.of_field
    return isinstance(value, Unknown)


@dataclass
class Module:
    """A parsed file: its functions, classes and constants, and what it imports."""

    tree: ast.Module
    folder: Path | None
    names: dict[str, Any] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    run: Run | None = None
    options: Made | None = None
    """What its own parser gives, once that is asked for."""


@dataclass
class Run:
    """The budget of one evaluation, the modules it has read, and how functions and files are followed."""

    steps: int = 0
    depth: int = 0
    modules: dict[Path, Module] = field(default_factory=dict)
    made: list[Made] = field(default_factory=list)
    call: Callable[[Module, ast.FunctionDef, list[Any], dict[str, Any]], Any] | None = None
    parse: Callable[[str, str, Path | None, Run], Module] | None = None
    said: dict[str, Any] = field(default_factory=dict)
    """Options of the command that starts the program, by the names that its parser gives them."""

    def step(self) -> None:
        """Count one statement or expression.

        Raises:
            SpecError: too many of them.
        """
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise SpecError("file", None, "this recipe is too long to be followed")


def run_of(module: Module) -> Run:
    """The evaluation that a module belongs to."""
    assert module.run is not None
    return module.run


def text_of(node: ast.AST) -> str:
    """The beginning of a node's source."""
    try:
        return ast.unparse(node)[:60]
    except (ValueError, RecursionError):
        return "?"
