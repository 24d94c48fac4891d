"""What well-known functions give back for values that a program says, without running it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

_LONGEST = 10_000

_SAME = (
    "os.path.expanduser", "os.path.expandvars", "os.path.abspath", "os.path.realpath", "os.path.normpath",
    "os.fspath", "Path", "pathlib.Path", "expanduser", "abspath",
)  # fmt: skip
"""Functions of paths: what they add to a name is of the machine and no part of what it names."""

_KINDS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "str": str, "bool": bool}
_NUMBERS: dict[str, Callable[..., Any]] = {
    "max": max, "min": min, "abs": abs, "round": round, "math.ceil": math.ceil, "math.floor": math.floor,
}  # fmt: skip
NUMBERS = {"math.pi": math.pi, "math.e": math.e, "np.pi": math.pi, "numpy.pi": math.pi}
"""Numbers by the names that their modules give them."""
_OF_TEXT = ("lower", "upper", "strip", "lstrip", "rstrip", "replace", "split", "rsplit", "removeprefix", "removesuffix",
            "startswith", "endswith")  # fmt: skip


def given_back(called: str, args: list[Any]) -> Any:
    """What a function of that name returns; None where it is not known, or an argument is not."""
    if not args or any(one is None for one in args):
        return None
    if called in _SAME and isinstance(args[0], str):
        return args[0]
    if called in ("os.path.join", "posixpath.join") and all(isinstance(one, str) for one in args):
        return "/".join(one.rstrip("/") for one in args)
    does = _KINDS.get(called) if len(args) == 1 else None
    if called in _NUMBERS and all(isinstance(one, (int, float)) for one in args):
        does = _NUMBERS[called]
    try:
        return None if does is None else does(*args)
    except (ValueError, TypeError, OverflowError):
        return None


def of_text(text: object, method: str, args: list[Any]) -> Any:
    """What a method of a text returns; None where it is not known."""
    if method == "join" and isinstance(text, str) and len(args) == 1 and isinstance(args[0], list):
        return text.join(args[0])[:_LONGEST] if all(isinstance(one, str) for one in args[0]) else None  # fmt: skip
    plain = all(isinstance(one, (str, int)) and len(str(one)) < 100 for one in args)
    if method not in _OF_TEXT or not isinstance(text, str) or not plain or len(text) > _LONGEST:
        return None
    try:
        return getattr(text, method)(*args)
    except (TypeError, ValueError):
        return None
