"""Under which conditions a program sets its names, and which calls it comes to."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

from meshwright.imports.code.syntax import defaults_of, dotted

Guards = tuple[tuple[ast.expr, bool], ...]
"""Tests that a statement stands under, each with the branch that it stands in."""


def branches(tree: ast.AST) -> dict[ast.stmt, tuple[Guards, frozenset[str]]]:
    """Assignments that stand under conditions: these, and the parameters of their function that say a value by default."""
    found: dict[ast.stmt, tuple[Guards, frozenset[str]]] = {}
    waiting: list[tuple[ast.AST, Guards, frozenset[str]]] = [(tree, (), frozenset())]
    while waiting:
        node, guards, usual = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            guards, usual = (), _with_defaults(node)
        if isinstance(node, ast.If):
            waiting += [(one, (*guards, (node.test, True)), usual) for one in node.body]
            waiting += [(one, (*guards, (node.test, False)), usual) for one in node.orelse]
            continue
        if guards and isinstance(node, (ast.Assign, ast.AnnAssign, ast.Expr)):
            found[node] = (guards, usual)
        waiting += [
            (one, guards, usual)
            for one in ast.iter_child_nodes(node)
            if not isinstance(one, ast.expr)
        ]
    return found


def _with_defaults(function: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
    """Parameters whose default is a plain value other than None."""
    return frozenset(
        arg.arg
        for arg, default in defaults_of(function)
        if isinstance(default, ast.Constant) and default.value is not None
    )


def ruled_out(
    node: ast.Assign | ast.AnnAssign,
    under: dict[ast.stmt, tuple[Guards, frozenset[str]]],
    value: Callable[[ast.expr], Any],
) -> bool:
    """Whether a name is set in a branch that the program's own values rule out, or that an unknown condition
    guards where the name is a parameter that says something by itself."""
    guards, usual = under.get(node, ((), frozenset()))
    told = [(value(test), branch) for test, branch in guards]
    if any(said is not None and bool(said) != branch for said, branch in told):
        return True
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    unknown = any(said is None for said, _branch in told)
    return unknown and isinstance(target, ast.Name) and target.id in usual


def set_only_in(never: set[ast.Assign], lines: Iterable[ast.AST]) -> set[str]:
    """Names that are set in some lines of a program and in no other one."""
    named = [
        (one, one.targets[0].id)
        for one in lines
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
    ]
    return {name for one, name in named if one in never} - {name for one, name in named if one not in never}  # fmt: skip


def case_of(node: ast.Match, value: Any) -> ast.match_case | None:
    """The case of a `match` that takes a plain value; None where the value is not known, or a pattern is no plain one."""
    for case in node.cases if value is not None else []:
        said = _plain(case.pattern)
        if case.guard is not None or said is None:
            return None
        if value in said or not said:
            return case
    return None


def _plain(pattern: ast.pattern) -> tuple[Any, ...] | None:
    """The values that a pattern takes; none: it takes all; None: it is no plain one."""
    if isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
        return ()
    if isinstance(pattern, ast.MatchOr):
        inner = [_plain(one) for one in pattern.patterns]
        return (
            None
            if None in inner or () in inner
            else tuple(one for each in inner for one in each or ())
        )
    if isinstance(pattern, ast.MatchValue) and isinstance(pattern.value, ast.Constant):
        return (pattern.value.value,)
    return None


def _can(test: ast.expr) -> bool:
    """Whether a test asks first what a model of transformers can: it has what a program asks for before it calls it."""
    while isinstance(test, ast.BoolOp):
        test = test.values[0]
    if not isinstance(test, ast.Call) or dotted(test.func) != "hasattr" or len(test.args) < 2:
        return False
    return dotted(test.args[0]) == "model"


def calls_reached(tree: ast.AST, value: Callable[[ast.expr], Any], certain: bool = False) -> list[ast.Call]:  # fmt: skip
    """Calls of a program by line, without the branches that its own values rule out.

    Args:
        value: what an expression comes to; None where the program does not say it.
        certain: leave out, too, what only an unknown test guards: nobody says that it is called.
    """
    waiting: list[ast.AST] = [tree]
    found = []
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.If, ast.IfExp)):
            test = True if _can(node.test) else value(node.test)
            if test is not None:
                branch = node.body if test else node.orelse
                waiting += branch if isinstance(branch, list) else [branch]
            if test is not None or certain:
                continue
        if isinstance(node, ast.Match):
            case = case_of(node, value(node.subject))
            waiting += case.body if case is not None else []
            if case is not None or certain:
                continue
        if isinstance(node, ast.Call):
            found.append(node)
        waiting += ast.iter_child_nodes(node)
    return sorted(found, key=lambda call: (call.lineno, call.col_offset))


def answers(function: ast.FunctionDef) -> bool:
    """Whether a function generates text and trains nothing."""
    text = ast.unparse(function)
    return ".generate(" in text and "Trainer(" not in text and ".backward(" not in text
