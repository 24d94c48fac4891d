"""What well-known names and calls of Python's and torch's own come to in a program that is followed."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

from meshwright.exports.program_calls import NUMBERS, given_back, of_text
from meshwright.imports.code.operators import KINDS
from meshwright.imports.code.syntax import dotted

ASKED_OF_DEVICE = r"\b(?:is_(?:torch_)?(?:bf16|bfloat16)_\w+|(?:has_)?(?:bf16|bfloat16)_support\w*)|\bcuda\.is_available"
"""What a program asks of its device; a device that trains today has both."""
_DEVICE = re.compile(rf"(?:{ASKED_OF_DEVICE})$")
_WIDTHS = {"bfloat16": "bfloat16", "float16": "float16", "float32": "float32", "half": "float16", "float": "float32"}  # fmt: skip
"""torch's names of a number's width, its short ones included."""


def of_name(node: ast.Attribute) -> Any:
    """What an attribute of a library's stands for (`torch.half`, `math.pi`); None for any other."""
    if node.attr in _WIDTHS and ast.unparse(node.value) == "torch":
        return _WIDTHS[node.attr]
    return NUMBERS.get(ast.unparse(node)) if node.attr in ("pi", "e") else None


def of_call(node: ast.Call, called: str, args: list[Any], value: Callable[[ast.expr], Any]) -> Any:
    """What a library's function gives for what its arguments come to; None for any other, or where that is not known."""
    made = given_back(called, args)
    if made is None and isinstance(node.func, ast.Attribute):
        made = of_text(value(node.func.value), node.func.attr, args)
    if made is not None:
        return made
    if _DEVICE.search(called):
        return True
    if called == "getattr" and len(args) > 1 and dotted(node.args[0]) == "torch":
        return _WIDTHS.get(str(args[1]))
    if called == "isinstance" and args[:1] != [None] and dotted(node.args[-1]) in KINDS:
        return isinstance(args[0], KINDS[dotted(node.args[-1])])
    return None
