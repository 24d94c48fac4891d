"""Arithmetic with fractions of the small programs that shell scripts ask for it: `bc`, `awk`, `python -c`."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable

from meshwright.imports.code.operators import compared

_MOST = 1e18
_CALLS: dict[str, Callable[..., float]] = {
    "int": math.trunc, "round": round, "abs": abs, "min": min, "max": max, "ceil": math.ceil, "floor": math.floor,
    "math.ceil": math.ceil, "math.floor": math.floor, "float": float,
}  # fmt: skip
_SCALE = re.compile(r"^\s*scale\s*=\s*(\d{1,2})\s*[;\n]")


def said_by_python(code: str) -> str | None:
    """What `python -c "print(…)"` prints of a number; None for any other program."""
    code = re.sub(r"^\s*(?:import math|from math import [\w, ]+)\s*[;\n]", "", code)
    found = re.fullmatch(r"\s*print\((.*)\)\s*;?\s*", code, re.DOTALL)
    if found is None or re.search(r"[<>]|==|!=", found.group(1)):
        return None
    return _shown(_value(found.group(1), None))


def said_by_bc(text: str, *, library: bool = False) -> str | None:
    """What `bc` prints of one expression; divisions keep `scale` digits, none unless the text or `-l` says so."""
    scale = _SCALE.match(text)
    digits = int(scale.group(1)) if scale else 20 if library else 0
    expression = text[scale.end() :] if scale else text
    value = _value(expression.strip().rstrip(";").replace("^", "**"), digits)
    if value is None or isinstance(value, int) or not digits:
        return _shown(value)
    return f"{value:.{min(digits, 12)}f}" if "/" in expression else _shown(value)


def said_by_awk(code: str) -> str | None:
    """What `awk 'BEGIN {print …}'` prints of a number, plain or by one `%d`, `%f` or `%g`; None for any other program."""
    chosen = re.fullmatch(
        r"\s*BEGIN\s*\{\s*print\b([^?]+)\?([^?:]+):([^?:}]+?);?\s*\}\s*", code, re.DOTALL
    )
    if chosen is not None:
        asked, *answers = (_value(part, None) for part in chosen.groups())
        return None if asked is None else _shown(answers[0] if asked else answers[1])
    found = re.fullmatch(r"\s*BEGIN\s*\{\s*(printf?)\b\s*\(?(.*?)\)?\s*;?\s*\}\s*", code, re.DOTALL)
    if found is None:
        return None
    verb, rest = found.groups()
    if verb == "print":
        return _shown(_value(f"({rest.strip()})" if rest.count(")") == rest.count("(") else f"({rest})", None))  # fmt: skip
    written = re.fullmatch(r"\"(%(?:\.\d)?[dfg])(?:\\n)?\"\s*,\s*(.*)", rest.strip(), re.DOTALL)
    value = _value(written.group(2), None) if written else None
    if written is None or value is None:
        return None
    return written.group(1) % (int(value) if written.group(1) == "%d" else value)


def _shown(value: float | None) -> str | None:
    if value is None or not math.isfinite(value) or abs(value) > _MOST:
        return None
    return str(value) if isinstance(value, int) or not float(value).is_integer() else f"{value:g}" if abs(value) < 1e6 else str(int(value))  # fmt: skip


def _value(text: str, digits: int | None) -> float | None:
    """A number; `digits` is what a division keeps, None all of them. None where it is no plain arithmetic."""
    if len(text) > 200:
        return None
    try:
        return _of(ast.parse(text.strip(), mode="eval").body, digits)
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError):
        return None


def _of(node: ast.expr, digits: int | None) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_of(node.operand, digits)
    if isinstance(node, ast.BinOp):
        return _combined(type(node.op), _of(node.left, digits), _of(node.right, digits), digits)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        said = compared(node.ops[0], _of(node.left, digits), _of(node.comparators[0], digits))
        if said is not None:
            return int(said)  # one or zero, as `bc` and `awk` print it
    if isinstance(node, ast.Call) and not node.keywords and ast.unparse(node.func) in _CALLS:
        return _CALLS[ast.unparse(node.func)](*(_of(one, digits) for one in node.args))
    raise ValueError("not plain arithmetic")


def _combined(operator: type[ast.operator], left: float, right: float, digits: int | None) -> float:
    if operator is ast.Add:
        return left + right
    if operator is ast.Sub:
        return left - right
    if operator is ast.Mult:
        return left * right
    if operator is ast.FloorDiv:
        return left // right
    if operator is ast.Mod:
        return left % right
    if operator is ast.Pow and abs(left) <= 64 and 0 <= right <= 64:
        return float(left**right) if isinstance(left, float) else left**right
    if operator is ast.Div:
        if digits is None:
            return left / right
        made = math.trunc(left / right * 10**digits + math.copysign(1e-9, left)) / 10**digits
        return int(made) if not digits else made
    raise ValueError("not plain arithmetic")
