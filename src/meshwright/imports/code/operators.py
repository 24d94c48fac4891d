"""Operators, comparisons and the harmless functions of Python on values that are known."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from typing import Any

from meshwright.imports.code.values import Made, Unknown


def _number(value: Any) -> Any:
    if isinstance(value, (Unknown, Made)) or value is None:
        raise TypeError
    return value


KINDS: dict[str, type] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "list": list,
    "dict": dict,
}
"""Builtin classes that `isinstance` is asked for, by their names."""


def _is_of(value: Any, kind: Any) -> Any:
    """Whether a known value is of a builtin class; unknown for any other."""
    names = [getattr(one, "text", "") for one in (kind if isinstance(kind, list) else [kind])]
    if isinstance(value, (Unknown, Made)) or not all(name in KINDS for name in names):
        return Unknown("isinstance")
    return isinstance(value, tuple(KINDS[name] for name in names))


BUILTINS: dict[str, Callable[..., Any]] = {
    "int": lambda value=0: int(_number(value)), "float": lambda value=0.0: float(_number(value)),
    "str": lambda value="": str(_number(value)), "bool": lambda value=False: bool(_number(value)),
    "max": lambda *v: max(map(_number, v[0] if len(v) == 1 else v)),
    "min": lambda *v: min(map(_number, v[0] if len(v) == 1 else v)),
    "abs": lambda v: abs(_number(v)), "round": lambda v, n=None: round(_number(v), n),
    "len": lambda v: len(_number(v)), "dict": lambda *a, **k: {**(a[0] if a else {}), **k},
    "list": lambda v=(): list(_number(v))[:1000], "tuple": lambda v=(): list(_number(v))[:1000],
    "range": lambda *v: list(range(*[min(int(_number(one)), 1000) for one in v])),
    "math.ceil": lambda v: math.ceil(_number(v)), "math.floor": lambda v: math.floor(_number(v)),
    "print": lambda *v, **k: None, "isinstance": lambda v, kind: _is_of(v, kind),
    "sum": lambda v: sum(map(_number, v)),
}  # fmt: skip


TEXT_METHODS = ("lower", "upper", "strip", "lstrip", "rstrip", "startswith", "endswith", "replace", "split",
                "rsplit", "removeprefix", "removesuffix", "isdigit", "title", "rpartition", "partition")  # fmt: skip
"""Methods of a text that neither grow it without bound nor look at anything else."""


def text_method(text: str, name: str, args: list[Any]) -> Any:
    """What a method of a text returns; unknown where an argument is."""
    if any(not isinstance(one, (str, int)) for one in args) or len(text) > 10_000:
        return Unknown(f"{name}(…)")
    if name == "replace" and len(args) > 1 and len(str(args[1])) > 100:
        return Unknown(f"{name}(…)")
    try:
        made = getattr(text, name)(*args)
    except (TypeError, ValueError):
        return Unknown(f"{name}(…)")
    return list(made) if isinstance(made, tuple) else made


def binary(op: ast.operator, left: Any, right: Any) -> Any:
    """A binary operation; unknown where a side is, or where the result would grow without bound."""
    plain = (int, float, str, list)
    if not isinstance(left, plain) or not isinstance(right, plain):
        return Unknown("…")
    if isinstance(op, ast.Mult) and (
        isinstance(left, (str, list)) or isinstance(right, (str, list))
    ):
        count = left if isinstance(left, int) else right if isinstance(right, int) else 0
        repeated = right if isinstance(left, int) else left
        if count > 1000 or (isinstance(repeated, (str, list)) and len(repeated) * count > 100_000):
            return Unknown("…")
    if isinstance(op, ast.Mod) and isinstance(left, str) and re.search(r"%\D{0,9}\d{4}", left):
        return Unknown("…")  # a width of its own making
    if isinstance(op, ast.Pow) and not (
        isinstance(right, (int, float))
        and abs(right) < 64
        and isinstance(left, (int, float))
        and abs(left) < 10**6
    ):
        return Unknown("…")
    try:
        made = _OPERATORS[type(op)](left, right)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError):
        return Unknown("…")
    return made if not isinstance(made, int) or abs(made) < 10**24 else Unknown("…")


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b, ast.FloorDiv: lambda a, b: a // b, ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a**b, ast.LShift: lambda a, b: a << min(b, 64),
}  # fmt: skip

COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: lambda a, b: a == b, ast.NotEq: lambda a, b: a != b, ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b, ast.Gt: lambda a, b: a > b, ast.GtE: lambda a, b: a >= b,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip


def compared(kind: ast.cmpop, left: Any, right: Any) -> bool | None:
    """What a comparison of two known values gives; None where it says nothing."""
    numbers = all(isinstance(one, (int, float)) for one in (left, right))
    held = isinstance(right, (list, tuple, set, dict, str))
    if isinstance(kind, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) and not numbers:
        return None
    if isinstance(kind, (ast.In, ast.NotIn)) and not held:
        return None
    try:
        return bool(COMPARISONS[type(kind)](left, right)) if type(kind) in COMPARISONS else None
    except TypeError:
        return None


def literal(value: Any) -> Any:
    """A word of a command line that is written as a list of Python's, as that list."""
    if not isinstance(value, str) or not value.strip().startswith(("[", "(")):
        return value
    try:
        found = ast.literal_eval(value.strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return value
    return list(found) if isinstance(found, tuple) else found
