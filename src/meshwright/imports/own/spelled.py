"""A command's options by the names that its program's own parser has: short ones (`-p`), and beginnings of long ones."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from meshwright.imports.beside import program_beside
from meshwright.imports.code.syntax import parse_python
from meshwright.specs.foreign import read_text

_SHORT = re.compile(r"-[A-Za-z]\w*")


def spelled_out(words: list[str], program: str, folder: Path | None) -> list[str]:
    """Return a command's words with the options that its program declares by argparse in full."""
    path = program_beside(folder, program)
    text = "" if path is None else read_text(path, "file")
    tree = parse_python(text) if "add_argument(" in text else None
    if tree is None:
        return words
    called = _declared(tree)
    long = sorted({one for ones in called for one in ones if one.startswith("--")})
    short = {one: next(full for full in ones if full.startswith("--")) for ones in called for one in ones
             if _SHORT.fullmatch(one) and any(full.startswith("--") for full in ones)}  # fmt: skip
    found = []
    for word in words:
        bare, equals, value = word.partition("=")
        full = short.get(bare, "")
        if not full and bare.startswith("--") and len(bare) > 3 and bare not in long:
            begins = [one for one in long if one.startswith(bare)]
            full = begins[0] if len(begins) == 1 else ""
        found.append(f"{full}{equals}{value}" if full else word)
    return found


def _declared(tree: ast.Module) -> list[list[str]]:
    """The spellings of every option that a program declares."""
    return [
        [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"
    ]  # fmt: skip
