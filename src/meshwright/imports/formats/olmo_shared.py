"""What scripts around OLMo-core share: a module of theirs that makes the parts which a script then changes."""

from __future__ import annotations

import ast
from typing import Any

from meshwright.imports.code.expressions import evaluate, module_of
from meshwright.imports.code.follow import call_function
from meshwright.imports.code.values import Made, Module, Unknown

_MAKER = "build_common_components"


def shared_parts(module: Module) -> Made | None:
    """What the imported maker of common parts returns, by the arguments that the script starts its run with."""
    for source in dict.fromkeys(source for source, _name in module.imports.values()):
        other = module_of(module, source)
        node = other.names.get(_MAKER) if other is not None else None
        if other is None or not isinstance(node, ast.FunctionDef):
            continue
        taken = {one.arg for one in (*node.args.args, *node.args.kwonlyargs)}
        said = {name: value for name, value in _said(module).items() if name in taken}
        made = call_function(other, node, [], said)
        if isinstance(made, Made):
            return made
    return None


def _said(module: Module) -> dict[str, Any]:
    """Keyword arguments of the call that builds the script's run."""
    found: dict[str, Any] = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("build_experiment_config", "build_config")):  # fmt: skip
            for keyword in node.keywords:
                value = evaluate(module, keyword.value, {})
                if keyword.arg and not isinstance(value, Unknown):
                    found[keyword.arg] = value
    return found
