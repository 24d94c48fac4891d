"""Options of a parser of one's own that rule each other out, and defaults that are set after them."""

from __future__ import annotations

import ast
from typing import Any

from meshwright.imports.code.syntax import dotted


def set_afterwards(tree: ast.AST) -> dict[str, Any]:
    """What `parser.set_defaults(name=value)` gives, as far as it is written out."""
    return {
        one.arg: one.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and dotted(node.func).endswith(".set_defaults")
        for one in node.keywords
        if one.arg and isinstance(one.value, ast.Constant)
    }


def excluded(tree: ast.AST, said: frozenset[str]) -> set[str]:
    """Switches of a mutually exclusive group of which a command says another one."""
    groups: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Assign) else None
        if isinstance(value, ast.Call) and dotted(value.func).endswith(".add_mutually_exclusive_group"):  # fmt: skip
            groups |= {ast.unparse(one): set() for one in node.targets}  # type: ignore[attr-defined]
    for node in ast.walk(tree) if groups else []:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":  # fmt: skip
            words = [one.value for one in node.args if isinstance(one, ast.Constant)]
            named = next((str(one).lstrip("-").replace("-", "_") for one in words if str(one).startswith("--")), "")  # fmt: skip
            if named and (members := groups.get(ast.unparse(node.func.value))) is not None:
                members.add(named)
    return {name for members in groups.values() if members & said for name in members - said}
