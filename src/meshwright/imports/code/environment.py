"""What functions of a program's own that ask the environment give where it says nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

_CALLED = re.compile(r"(?:get_|read_)?env(?:_(?:int|float|str|var|bool|or_default|default))?")
"""What such functions are called where they stand in another file."""


def of_environment(
    node: ast.Call, functions: Mapping[str, ast.FunctionDef], value: Callable[[ast.expr], Any]
) -> Any:
    """The default that such a function is called with, as a number where it makes one; None for other calls."""
    function = functions.get(node.func.id) if isinstance(node.func, ast.Name) else None
    if len(node.args) + len(node.keywords) < 2:
        return None
    called = ast.unparse(node.func).rpartition(".")[2]
    if function is None and not _CALLED.fullmatch(called):
        return None
    text = ast.unparse(function) if function is not None else f"getenv() {called}("
    text = text.replace("_int(", " int(").replace("_float(", " float(")
    if not re.search(r"getenv\(|environ", text):
        return None
    given = node.args[1:2] or [one.value for one in node.keywords if one.arg and "default" in one.arg]  # fmt: skip
    said = value(given[0]) if given else None
    if isinstance(said, str) and re.fullmatch(r"-?\d+", said) and "int(" in text:
        return int(said)
    if isinstance(said, str) and "float(" in text and re.fullmatch(r"-?[\d.]+(?:e-?\d+)?", said):
        return float(said)
    return said
