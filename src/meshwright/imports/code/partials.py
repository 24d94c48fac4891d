"""Calls through `functools.partial`, written out as what they call."""

from __future__ import annotations

import ast
import copy

from meshwright.imports.code.syntax import dotted


def written_out(tree: ast.Module) -> ast.Module:
    """A program in which `make(b, y=2)` after `make = partial(X, a, x=1)` reads `X(a, b, x=1, y=2)`.

    A name that is also set to something else stays as it is: which of the two a line calls is not known.
    """
    values: dict[str, list[ast.expr]] = {}
    for one in ast.walk(tree):
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
            values.setdefault(one.targets[0].id, []).append(one.value)
    partials = {
        name: only[0]
        for name, only in values.items()
        if len(only) == 1
        and isinstance(only[0], ast.Call)
        and dotted(only[0].func) in ("partial", "functools.partial")
        and only[0].args
    }
    return _Written(partials).visit(copy.deepcopy(tree)) if partials else tree


class _Written(ast.NodeTransformer):
    def __init__(self, partials: dict[str, ast.Call]) -> None:
        self.partials = partials

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        made = self.partials.get(node.func.id) if isinstance(node.func, ast.Name) else None
        if made is None:
            return node
        called, *first = copy.deepcopy(made.args)
        own = {word.arg for word in node.keywords}
        before = [copy.deepcopy(word) for word in made.keywords if word.arg not in own]
        call = ast.Call(called, [*first, *node.args], [*before, *node.keywords])
        return ast.copy_location(call, node)
