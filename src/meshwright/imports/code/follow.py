"""Follow a Python recipe statically: what its functions would return. Nothing is imported or run.

A call of what is not in the file becomes a `Made` that remembers its name, arguments and whatever
the recipe sets on it afterwards; a name that nothing defines becomes an `Unknown`.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from meshwright.imports.code.expressions import evaluate
from meshwright.imports.code.operators import binary
from meshwright.imports.code.parsed import HANDED, declares, parsed
from meshwright.imports.code.syntax import parse_python
from meshwright.imports.code.values import MAX_DEPTH, Made, Module, Run, Unknown, is_open, run_of
from meshwright.specs.errors import SpecError

MAX_ROUNDS = 40


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


def parse_module(text: str, name: str, folder: Path | None, run: Run | None = None) -> Module:
    """Parse a file and follow its top level.

    Raises:
        SpecError: not valid Python, or too long to be followed.
    """
    tree = parse_python(text)
    if tree is None:
        raise SpecError("file", name, "is not valid Python")
    run = run or Run()
    run.call, run.parse = call_function, parse_module
    module = Module(tree, folder, run=run)
    try:
        _top_level(module)
    except RecursionError:
        raise SpecError("file", name, "is nested too deeply to be followed") from None
    return module


def _top_level(module: Module) -> None:
    for node in module.tree.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                source = "." * node.level + (node.module or "")
                module.imports[alias.asname or alias.name] = (source, alias.name)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            module.names[node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            _statement(module, node, module.names)
        elif isinstance(node, ast.If) and "__main__" not in ast.unparse(node.test):
            for inner in node.body:
                if isinstance(inner, (ast.Assign, ast.FunctionDef)):
                    _statement(module, inner, module.names)


def follow_main(module: Module) -> None:
    """Follow what a program does when it is started: calls at its top level and below its `__main__`."""
    local: dict[str, Any] = module.names
    for node in module.tree.body:
        try:
            if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test):
                _body(module, node.body, local)
            elif isinstance(node, (ast.Expr, ast.Assign, ast.For, ast.With)):
                _statement(module, node, local)
        except (_Return, RecursionError):
            continue


def functions(module: Module) -> list[ast.FunctionDef]:
    """The functions at a file's top level, in order."""
    return [node for node in module.tree.body if isinstance(node, ast.FunctionDef)]


def call_function(
    module: Module, node: ast.FunctionDef, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """Follow a function with these arguments; parameters without a value are unknown.

    Raises:
        SpecError: too long to be followed.
    """
    run = run_of(module)
    run.depth += 1
    if run.depth > MAX_DEPTH:
        run.depth -= 1
        return Unknown(node.name)
    local: dict[str, Any] = {}
    spec = node.args
    names = [a.arg for a in [*spec.posonlyargs, *spec.args]]
    defaults = spec.defaults
    for index, name in enumerate(names):
        at = index - (len(names) - len(defaults))
        local[name] = evaluate(module, defaults[at], {}) if at >= 0 else _unsaid(module, name)
    for only, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
        local[only.arg] = Unknown(only.arg) if default is None else evaluate(module, default, {})
    local |= dict(zip(names, args, strict=False))
    extra = {key: value for key, value in kwargs.items() if key not in local}
    local |= {key: value for key, value in kwargs.items() if key in local}
    if spec.kwarg is not None:
        local[spec.kwarg.arg] = extra
    if spec.vararg is not None:
        local[spec.vararg.arg] = list(args[len(names) :])
    try:
        _body(module, node.body, local)
    except _Return as returned:
        return returned.value
    finally:
        run.depth -= 1
    return None


def _unsaid(module: Module, name: str) -> Any:
    """A parameter that nobody says: what the file's own parser gives, where it takes that by its name."""
    return parsed(module) if HANDED.fullmatch(name) and declares(module) else Unknown(name)


def _body(module: Module, body: list[ast.stmt], local: dict[str, Any]) -> None:
    for node in body:
        _statement(module, node, local)


def _statement(module: Module, node: ast.stmt, local: dict[str, Any]) -> None:
    run_of(module).step()
    if isinstance(node, ast.Return):
        raise _Return(None if node.value is None else evaluate(module, node.value, local))
    if isinstance(node, ast.Assign):
        value = evaluate(module, node.value, local)
        for target in node.targets:
            _assign(module, target, value, local)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        _assign(module, node.target, evaluate(module, node.value, local), local)
    elif isinstance(node, ast.AugAssign):
        value = binary(
            node.op, evaluate(module, node.target, local), evaluate(module, node.value, local)
        )
        _assign(module, node.target, value, local)
    elif isinstance(node, ast.If):
        test = evaluate(module, node.test, local)
        if not is_open(test):
            _body(module, node.body if test else node.orelse, local)
        else:
            _body(module, node.orelse, local)
    elif isinstance(node, ast.For):
        items = evaluate(module, node.iter, local)
        for item in list(items)[:40] if isinstance(items, (list, tuple, dict)) else []:
            _assign(module, node.target, item, local)
            _body(module, node.body, local)
    elif isinstance(node, ast.While):
        for _ in range(MAX_ROUNDS):
            test = evaluate(module, node.test, local)
            if isinstance(test, (Unknown, Made)) or not test:
                break
            _body(module, node.body, local)
    elif isinstance(node, (ast.With, ast.Try)):
        _body(module, node.body, local)
    elif isinstance(node, ast.Expr):
        evaluate(module, node.value, local)
    elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        local[node.name] = node
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            module.imports[alias.asname or alias.name] = (
                "." * node.level + (node.module or ""),
                alias.name,
            )
    elif isinstance(node, ast.Match):
        _match(module, node, local)


def _match(module: Module, node: ast.Match, local: dict[str, Any]) -> None:
    subject = evaluate(module, node.subject, local)
    for case in node.cases:
        pattern = case.pattern
        if (
            isinstance(pattern, ast.MatchValue)
            and evaluate(module, pattern.value, local) == subject
        ):
            _body(module, case.body, local)
            return
        if (
            isinstance(pattern, ast.MatchAs)
            and pattern.pattern is None
            and not isinstance(subject, Unknown)
        ):
            _body(module, case.body, local)
            return


def _assign(module: Module, target: ast.expr, value: Any, local: dict[str, Any]) -> None:
    if isinstance(target, ast.Name):
        local[target.id] = value
    elif isinstance(target, (ast.Tuple, ast.List)):
        values = list(value) if isinstance(value, (list, tuple)) else []
        for index, one in enumerate(target.elts):
            _assign(module, one, values[index] if index < len(values) else Unknown("?"), local)
    elif isinstance(target, ast.Attribute):
        owner = evaluate(module, target.value, local)
        if isinstance(owner, Made):
            owner.fields[target.attr] = value
    elif isinstance(target, ast.Subscript):
        owner = evaluate(module, target.value, local)
        key = evaluate(module, target.slice, local)
        if isinstance(owner, dict) and isinstance(key, (str, int)):
            owner[key] = value
