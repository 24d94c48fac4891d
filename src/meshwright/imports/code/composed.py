"""What an expression of Python comes to by its parts, as far as these are known."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from meshwright.imports.code.operators import binary, compared

Value = Callable[[ast.expr], Any]
"""What an expression stands for; None where that is not known."""
_LARGEST = 1 << 40
_OF_FILES = (".yaml", ".yml", ".json", ".toml")


class Larger(int):
    """The larger of two numbers that a program chooses between."""


def composed(node: ast.expr, value: Value) -> Any:
    """What a table, a list, a text with values in it, an operation or a choice comes to.

    Args:
        value: what its parts stand for.

    Returns:
        None where the parts do not say it, or for another kind of expression.
    """
    handler = _KINDS.get(type(node))
    return handler(node, value) if handler else None


def _dict(node: ast.Dict, value: Value) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, its in zip(node.keys, node.values, strict=True):
        name, said = (None if key is None else value(key)), value(its)
        if key is None and isinstance(said, dict):
            found |= said  # a table spread into this one
        elif isinstance(name, (str, int)) and said is not None:
            found[name] = said
    return found


def _list(node: ast.List | ast.Tuple, value: Value) -> Any:
    """A list of which every part is known."""
    said: list[Any] = []
    for one in node.elts:
        inner = value(one.value if isinstance(one, ast.Starred) else one)
        if inner is None:
            return None
        said += inner if isinstance(one, ast.Starred) and isinstance(inner, list) else [inner]
    return said


def _unary(node: ast.UnaryOp, value: Value) -> Any:
    said = value(node.operand)
    if isinstance(node.op, ast.USub) and isinstance(said, (int, float)):
        return -said
    return not said if isinstance(node.op, ast.Not) and isinstance(said, bool) else None


def _compare(node: ast.Compare, value: Value) -> Any:
    """Whether two things are equal, or one is in a list, where the program says both."""
    if len(node.ops) != 1:
        return None
    left, kind, other = value(node.left), node.ops[0], node.comparators[0]
    if isinstance(kind, (ast.Is, ast.IsNot)) and isinstance(other, ast.Constant) and other.value is None:  # fmt: skip
        return None if left is None else isinstance(kind, ast.IsNot)
    right = value(other)
    if left is None or right is None:
        return None
    return compared(kind, left, right)


def _either(node: ast.BoolOp, value: Value) -> Any:
    said = [one for one in map(value, node.values) if one is not None]
    if isinstance(node.op, ast.Or):
        return next((one for one in said if one), said[-1] if said else None)
    if any(not one for one in said):
        return False
    return said[-1] if len(said) == len(node.values) else None


def _if(node: ast.IfExp, value: Value) -> Any:
    test = value(node.test)
    if test is not None:
        return value(node.body if test else node.orelse)
    asked = node.test.left if isinstance(node.test, ast.Compare) else node.test
    if ast.dump(asked) == ast.dump(node.body) and value(node.body) is None:
        return value(node.orelse)  # `x if x else y`: nothing says x
    both = value(node.body), value(node.orelse)
    whole = all(isinstance(one, int) and not isinstance(one, bool) for one in both)
    return Larger(max(both)) if whole else None


def _binary(node: ast.BinOp, value: Value) -> Any:
    left, right = value(node.left), value(node.right)
    texts = isinstance(left, str) and isinstance(right, str)
    if texts and isinstance(node.op, (ast.Add, ast.Div)):
        return f"{left}{'/' if isinstance(node.op, ast.Div) else ''}{right}"[:10_000]
    if isinstance(node.op, ast.Div) and left is None and str(right).endswith(_OF_FILES):
        return right  # a place on the machine: what lies there has a name of its own
    if isinstance(left, list) and isinstance(right, list) and isinstance(node.op, ast.Add):
        return (left + right)[:1000]
    numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
    if not numbers or max(abs(left), abs(right)) > _LARGEST:
        return None
    made = binary(node.op, left, right)
    return made if isinstance(made, (int, float)) and abs(made) <= _LARGEST else None


def _text(node: ast.JoinedStr, value: Value) -> Any:
    parts = [
        value(one.value) if isinstance(one, ast.FormattedValue) else value(one)
        for one in node.values
    ]
    if None in parts[:-1] and str(parts[-1]).startswith("/"):
        parts = parts[-1:]  # a place on the machine: what lies there has a name of its own
    return None if None in parts else "".join(map(str, parts))


_KINDS: dict[type, Callable[[Any, Value], Any]] = {
    ast.Dict: _dict, ast.List: _list, ast.Tuple: _list, ast.UnaryOp: _unary, ast.Compare: _compare,
    ast.BoolOp: _either, ast.IfExp: _if, ast.BinOp: _binary, ast.JoinedStr: _text,
}  # fmt: skip
