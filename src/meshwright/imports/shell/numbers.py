"""Whole-number arithmetic of a shell, once its names are replaced."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

_OPERATORS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a // b, ast.FloorDiv: lambda a, b: a // b, ast.Mod: lambda a, b: a % b,
    ast.LShift: lambda a, b: a << b if 0 <= b <= 40 else 0, ast.RShift: lambda a, b: a >> b if 0 <= b <= 64 else 0,
    ast.BitAnd: lambda a, b: a & b, ast.BitOr: lambda a, b: a | b, ast.BitXor: lambda a, b: a ^ b,
    ast.Eq: lambda a, b: int(a == b), ast.NotEq: lambda a, b: int(a != b),
    ast.Lt: lambda a, b: int(a < b), ast.LtE: lambda a, b: int(a <= b),
    ast.Gt: lambda a, b: int(a > b), ast.GtE: lambda a, b: int(a >= b),
}  # fmt: skip


_CALLS: dict[str, Callable[..., int]] = {"min": min, "max": max, "int": int, "abs": abs}
_CHOICE = re.compile(r"^([^?]+)\?(.+)$", re.DOTALL)


def choices(text: str) -> str:
    """C's `a ? b : c` as Python writes it; the first colon that no other choice inside owns divides it."""
    found = _CHOICE.match(text)
    if found is None:
        return text
    test, rest = found.groups()
    opened = 0
    for index, letter in enumerate(rest):
        if letter == "?":
            opened += 1
        elif letter == ":" and not opened:
            return f"(({choices(rest[:index])}) if ({test}) else ({choices(rest[index + 1 :])}))"
        elif letter == ":":
            opened -= 1
    return text


def calculated(text: str) -> str | None:
    """The value of whole-number arithmetic as Python writes it; None for anything else."""
    try:
        return str(whole(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, ValueError, TypeError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def whole(node: ast.expr) -> int:
    """The value of an expression of whole numbers.

    Raises:
        ValueError: anything else.
        ZeroDivisionError: a division by zero.
    """
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp):
        left, right = whole(node.left), whole(node.right)
        if isinstance(node.op, ast.Pow) and 0 <= right <= 64 and abs(left) <= 64:
            return int(left**right)
        if type(node.op) in _OPERATORS and max(abs(left), abs(right)) < 10**18:
            return _OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd, ast.Not)):
        value = whole(node.operand)
        return -value if isinstance(node.op, ast.USub) else value if isinstance(node.op, ast.UAdd) else int(not value)  # fmt: skip
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS and not node.keywords:  # fmt: skip
        return _CALLS[node.func.id](*(whole(one) for one in node.args))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPERATORS:
        return _OPERATORS[type(node.ops[0])](whole(node.left), whole(node.comparators[0]))
    if isinstance(node, ast.IfExp):
        return whole(node.body) if whole(node.test) else whole(node.orelse)
    if isinstance(node, ast.BoolOp):
        values = [bool(whole(value)) for value in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    raise ValueError("not whole-number arithmetic")
