"""What a short function of a program gives back for the arguments of one call, without running it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from meshwright.imports.code.syntax import defaults_of

_SKIPPED = (ast.Expr, ast.Pass, ast.Assert, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)


def bound(function: ast.FunctionDef, call: ast.Call, value: Callable[[ast.expr], Any]) -> dict[str, Any]:  # fmt: skip
    """What a call hands to the parameters of a function, or else their defaults; those that nobody says are left out."""
    parameters = function.args.args
    first = 1 if parameters and parameters[0].arg in ("self", "cls") else 0
    handed = {arg.arg: one for arg, one in zip(parameters[first:], call.args, strict=False)}
    handed |= {one.arg: one.value for one in call.keywords if one.arg}
    usual = {arg.arg: one for arg, one in defaults_of(function)}
    said = {name: value(one) for name, one in (usual | handed).items()}
    return {name: one for name, one in said.items() if one is not None}


def outcome(body: list[ast.stmt], value: Callable[[ast.expr], Any], names: dict[str, Any]) -> tuple[bool, Any]:  # fmt: skip
    """Whether some lines give anything back, and what: None where it depends on what nobody says.

    A line that would only raise an error is taken not to.

    Args:
        value: what an expression stands for, by `names` first.
        names: of the function's own; lines that set a name change it.
    """
    for line in body:
        if isinstance(line, _SKIPPED):
            continue
        if isinstance(line, ast.Return):
            return True, None if line.value is None else value(line.value)
        if isinstance(line, ast.If) and (test := value(line.test)) is not None:
            done, given = outcome(line.body if test else line.orelse, value, names)
        elif isinstance(line, (ast.Try, ast.With)):
            done, given = outcome(line.body, value, names)
        else:
            _set(line, value, names)
            done, given = any(isinstance(one, ast.Return) for one in ast.walk(line)), None
        if done:
            return True, given
    return False, None


def _set(line: ast.stmt, value: Callable[[ast.expr], Any], names: dict[str, Any]) -> None:
    """Note what a line sets names to; one that is set where nobody follows is not known any more."""
    plain = isinstance(line, (ast.Assign, ast.AnnAssign)) and line.value is not None
    said = value(line.value) if plain else None  # type: ignore[attr-defined]
    for one in ast.walk(line):
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            names.pop(one.id, None)
    target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
    if said is not None and isinstance(target, ast.Name):
        names[target.id] = said
