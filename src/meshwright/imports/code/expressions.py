"""Evaluate a Python expression statically: names, attributes, calls and what they make."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.code.operators import (
    BUILTINS,
    COMPARISONS,
    TEXT_METHODS,
    binary,
    text_method,
)
from meshwright.imports.code.parsed import PARSES, parsed
from meshwright.imports.code.values import Made, Module, Unknown, is_open, run_of, text_of
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_text

_PARTIAL = ("partial", "functools.partial")
"""A call that waits for the rest of its arguments."""


def evaluate(module: Module, node: ast.expr, local: dict[str, Any]) -> Any:
    """The value of an expression; what the file does not state is an `Unknown`."""
    run_of(module).step()
    handler = _EXPRESSIONS.get(type(node))
    return handler(module, node, local) if handler is not None else Unknown(text_of(node))


def _name(module: Module, node: ast.Name, local: dict[str, Any]) -> Any:
    if node.id in local:
        return local[node.id]
    if node.id in module.names:
        return module.names[node.id]
    return {"True": True, "False": False, "None": None}.get(node.id, Unknown(node.id))


def _attribute(module: Module, node: ast.Attribute, local: dict[str, Any]) -> Any:
    owner = evaluate(module, node.value, local)
    if isinstance(owner, Made):
        if node.attr not in owner.fields and owner.home is not None:
            home, kind = owner.home
            method = _method(home, kind, node.attr)
            if method is not None and any(
                ast.unparse(d) == "property" for d in method.decorator_list
            ):
                return _follow(home, method, [owner], {})
        if node.attr not in owner.fields:
            # A part that the recipe sets fields of, made by what is outside the file.
            owner.fields[node.attr] = Made(f"{owner.name}.{node.attr}", parent=owner, of_field=True)
        return owner.fields[node.attr]
    if isinstance(owner, Unknown):
        return Unknown(f"{owner.text}.{node.attr}")
    return Unknown(f"{text_of(node.value)}.{node.attr}")


def _call(module: Module, node: ast.Call, local: dict[str, Any]) -> Any:
    args: list[Any] = []
    for arg in node.args:
        if isinstance(arg, ast.Starred):
            more = evaluate(module, arg.value, local)
            args += list(more) if isinstance(more, (list, tuple)) else []
        else:
            args.append(evaluate(module, arg, local))
    kwargs: dict[str, Any] = {}
    for keyword in node.keywords:
        value = evaluate(module, keyword.value, local)
        if keyword.arg is not None:
            kwargs[keyword.arg] = value
        elif isinstance(value, dict):
            kwargs |= {str(key): one for key, one in value.items()}
    return _called(module, node.func, args, kwargs, local)


def _called(
    module: Module, func: ast.expr, args: list[Any], kwargs: dict[str, Any], local: dict[str, Any]
) -> Any:
    if isinstance(func, ast.Attribute):
        owner = evaluate(module, func.value, local)
        if isinstance(owner, dict) and func.attr in ("get", "pop", "setdefault") and args:
            key = args[0]
            found = owner.get(key) if isinstance(key, (str, int)) else None
            return found if found is not None else args[1] if len(args) > 1 else None
        if isinstance(owner, dict) and func.attr == "update":
            owner |= args[0] if args and isinstance(args[0], dict) else {}
            owner |= kwargs
            return None
        if isinstance(owner, list) and func.attr in ("append", "extend"):
            owner += (
                [args[0]]
                if func.attr == "append"
                else list(args[0])
                if args and isinstance(args[0], list)
                else []
            )
            return None
        if isinstance(owner, str) and func.attr in TEXT_METHODS:
            return text_method(owner, func.attr, args)
        if isinstance(owner, ast.ClassDef):
            method = _method(module, owner, func.attr)
            if method is not None:
                bound = any(ast.unparse(one) == "classmethod" for one in method.decorator_list)
                return _follow(module, method, [owner, *args] if bound else args, kwargs)
        if func.attr in PARSES and isinstance(owner, (Made, Unknown)):
            options = parsed(module)
            return options if func.attr == PARSES[0] else [options, []]
        if isinstance(owner, Made):
            if func.attr.startswith("with_") or func.attr in ("merge", "validate", "finalize"):
                return owner
            return _make(module, f"{owner.name}.{func.attr}", args, kwargs, owner)
        if isinstance(owner, Unknown) and owner.text in module.imports:
            source, original = module.imports[owner.text]
            other = module_of(module, f"{source}.{original}")
            target = other.names.get(func.attr) if other is not None else None
            if other is not None and isinstance(target, ast.FunctionDef):
                return _follow(other, target, args, kwargs)
        if text_of(func) == "importlib.import_module" and args and isinstance(args[0], str):
            return module_of(module, args[0]) or Unknown(args[0])
        name = (
            owner.text
            if isinstance(owner, Unknown)
            else getattr(owner, "name", text_of(func.value))
        )
        return _outside(module, f"{name}.{func.attr}", args, kwargs)
    callee = evaluate(module, func, local)
    while isinstance(callee, Made) and callee.name in _PARTIAL and callee.args:
        args, kwargs = [*callee.args[1:], *args], {**callee.fields, **kwargs}
        callee = callee.args[0]
    if isinstance(callee, ast.FunctionDef):
        return _follow(module, callee, args, kwargs)
    if isinstance(callee, ast.ClassDef):
        return _instance(module, callee, args, kwargs)
    name = callee.text if isinstance(callee, Unknown) else text_of(func)
    if name == "getattr" and len(args) > 1 and isinstance(args[0], Module):
        return _member(args[0], str(args[1]), args[2] if len(args) > 2 else Unknown("getattr"))
    if name in module.imports:
        return _imported(module, name, args, kwargs)
    if isinstance(func, ast.Subscript) and isinstance(callee, Unknown):
        return Unknown(f"{name}(…)")  # of a table that is filled elsewhere
    return _outside(module, name, args, kwargs)


def _follow(module: Module, node: ast.FunctionDef, args: list[Any], kwargs: dict[str, Any]) -> Any:
    call = run_of(module).call
    return Unknown(node.name) if call is None else call(module, node, args, kwargs)


def _method(module: Module, node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    """A method of a class of this file, or of the classes below it in this file."""
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef) and inner.name == name:
            return inner
    for base in node.bases:
        parent = module.names.get(base.id) if isinstance(base, ast.Name) else None
        if isinstance(parent, ast.ClassDef) and parent is not node:
            found = _method(module, parent, name)
            if found is not None:
                return found
    return None


def _instance(module: Module, node: ast.ClassDef, args: list[Any], kwargs: dict[str, Any]) -> Made:
    """An object of a class of this file; what its `__post_init__` computes is followed."""
    made = _make(module, node.name, args, {**_class_fields(module, node), **kwargs})
    made.home = module, node
    after = _method(module, node, "__post_init__")
    if after is not None:
        _follow(module, after, [made], {})
    return made


def _class_fields(module: Module, node: ast.ClassDef) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for base in node.bases:
        parent = module.names.get(base.id) if isinstance(base, ast.Name) else None
        if isinstance(parent, ast.ClassDef) and parent is not node:
            found |= _class_fields(module, parent)
    for inner in node.body:
        if (
            isinstance(inner, ast.AnnAssign)
            and isinstance(inner.target, ast.Name)
            and inner.value is not None
        ):
            found[inner.target.id] = evaluate(module, inner.value, {})
        elif isinstance(inner, ast.Assign) and isinstance(inner.targets[0], ast.Name):
            found[inner.targets[0].id] = evaluate(module, inner.value, {})
    return found


CONVERTED = "converted by"
"""Under which a configuration keeps the name of the function that made it another trainer's."""
_CONVERTS = re.compile(r"to_\w*trainer_config")


def _imported(module: Module, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Follow a function of another file of the same project, where that file is at hand."""
    source, original = module.imports[name]
    if args and isinstance(args[0], Made) and _CONVERTS.fullmatch(original):
        first = args[0]  # the same run for another trainer, which changes some of it
        return Made(first.name, first.args, {**first.fields, CONVERTED: original}, first.parent, first.home)  # fmt: skip
    other = module_of(module, source)
    target = other.names.get(original) if other is not None else None
    if other is not None and isinstance(target, ast.FunctionDef):
        found = _follow(other, target, args, kwargs)
        # What cannot be followed to its end is known by its name and arguments, at least.
        return _outside(module, original, args, kwargs) if isinstance(found, Unknown) else found
    ours = source.split(".")[0] not in ("megatron", "nemo", "torchtitan", "olmo_core")
    if ours and other is not None and isinstance(target, ast.ClassDef) and _is_table(target):
        return _instance(other, target, args, kwargs)
    if other is not None and original in other.imports and other.imports[original][0] != source:
        return _imported(other, original, args, kwargs)
    return _outside(module, original, args, kwargs)


def _is_table(node: ast.ClassDef) -> bool:
    """Whether a class only holds fields: a dataclass on nothing else."""
    return not node.bases and any("dataclass" in ast.unparse(d) for d in node.decorator_list)


def _member(module: Module, name: str, default: Any) -> Any:
    """What a module of the project calls so, in its own file or in one that it imports from."""
    if name in module.names:
        return module.names[name]
    source, original = module.imports.get(name, ("", ""))
    other = module_of(module, source) if source else None
    return other.names.get(original, default) if other is not None else default


def module_of(module: Module, source: str) -> Module | None:
    """A file of the same project by its dotted name, followed once; None where it is not at hand."""
    run = run_of(module)
    if module.folder is None or len(run.modules) > 12:
        return None
    dots = len(source) - len(source.lstrip("."))
    folder = module.folder
    for _ in range(max(dots - 1, 0)):
        folder = folder.parent
    parts = [part for part in source.lstrip(".").split(".") if part]
    tries = [
        Path(*parts).with_suffix(".py") if parts else Path("__init__.py"),
        Path(*parts) / "__init__.py",
    ]
    for tail in tries:
        if dots:
            path = folder / tail
            found = path if path.is_file() else None
        else:
            # Looked for by as much of the path as fits: below `src` first, and another package's `__init__` is none.
            found = beside(module.folder, str(Path("src") / tail)) if len(parts) > 1 else None
            if found is not None and found.stem == "__init__" and found.parent.name != parts[-1]:
                found = None
        if found is None:
            continue
        if found not in run.modules:
            run.modules[found] = Module(ast.Module([], []), found.parent, run=run)
            if run.parse is None:
                return None
            try:
                run.modules[found] = run.parse(read_text(found), str(found), found.parent, run)
            except SpecError:
                return None
        return run.modules[found]
    return None


def _outside(module: Module, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    short = name.rsplit(".", 1)[-1]
    if short in ("Config", "Partial") and name.split(".")[0] in ("run", "fdl") and args:
        inner = args[0]
        called = (
            inner.name
            if isinstance(inner, (Made, ast.ClassDef, ast.FunctionDef))
            else getattr(inner, "text", str(inner))
        )
        base = _class_fields(module, inner) if isinstance(inner, ast.ClassDef) else {}
        return _make(module, called, args[1:], base | kwargs)
    if name in ("os.environ.get", "os.getenv", "environ.get", "getenv") and len(args) > 1:
        return args[1]  # what somebody gets who sets nothing
    builtin = BUILTINS.get(name)
    if builtin is not None:
        try:
            return builtin(*args, **kwargs)
        except (TypeError, ValueError, OverflowError, ZeroDivisionError):
            return Unknown(f"{name}(…)")
    if short == "deepcopy" and args and isinstance(args[0], (dict, list)):
        return copy.deepcopy(args[0])
    if short in ("replace", "deepcopy", "copy") and args and isinstance(args[0], Made):
        first = args[0]
        return Made(first.name, first.args, {**first.fields, **kwargs}, first.parent, first.home)
    return _make(module, name, args, kwargs)


def _make(
    module: Module, name: str, args: list[Any], kwargs: dict[str, Any], parent: Any = None
) -> Made:
    made = Made(name, args, dict(kwargs), parent)
    run_of(module).made.append(made)
    return made


def _compare(module: Module, node: ast.Compare, local: dict[str, Any]) -> Any:
    left = evaluate(module, node.left, local)
    for op, right_node in zip(node.ops, node.comparators, strict=True):
        right = evaluate(module, right_node, local)
        if isinstance(op, (ast.Is, ast.IsNot)) and not isinstance(left, Unknown):
            holds = (left is right) == isinstance(op, ast.Is)
        elif isinstance(left, (Unknown, Made)) or isinstance(right, (Unknown, Made)):
            return Unknown(text_of(node))
        else:
            try:
                holds = COMPARISONS[type(op)](left, right)
            except (KeyError, TypeError):
                return Unknown(text_of(node))
        if not holds:
            return False
        left = right
    return True


def _boolean(module: Module, node: ast.BoolOp, local: dict[str, Any]) -> Any:
    value: Any = None
    for one in node.values:
        value = evaluate(module, one, local)
        truth = bool(value) if not isinstance(value, Made) else True
        if truth != isinstance(node.op, ast.And):
            return value
    return value


def _conditional(module: Module, node: ast.IfExp, local: dict[str, Any]) -> Any:
    test = evaluate(module, node.test, local)
    return evaluate(module, node.body if test else node.orelse, local)


def _dictionary(module: Module, node: ast.Dict, local: dict[str, Any]) -> Any:
    found: dict[Any, Any] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        made = evaluate(module, value, local)
        if key is None:
            found |= made if isinstance(made, dict) else {}
            continue
        name = evaluate(module, key, local)
        found[name if isinstance(name, (str, int)) else text_of(key)] = made
    return found


def _subscript(module: Module, node: ast.Subscript, local: dict[str, Any]) -> Any:
    owner, key = evaluate(module, node.value, local), evaluate(module, node.slice, local)
    try:
        if isinstance(owner, (dict, list, str)) and isinstance(key, (str, int)):
            return owner[key]  # type: ignore[index]
    except (KeyError, IndexError, TypeError):
        pass
    return Unknown(text_of(node))


def _unary(module: Module, node: ast.UnaryOp, local: dict[str, Any]) -> Any:
    value = evaluate(module, node.operand, local)
    if isinstance(node.op, ast.Not):
        if isinstance(value, Made) and is_open(value):
            return True  # a setting that nobody makes is off
        return Unknown(text_of(node)) if isinstance(value, Unknown) else not value
    if isinstance(node.op, ast.USub) and isinstance(value, (int, float)):
        return -value
    return value


def _joined(module: Module, node: ast.JoinedStr, local: dict[str, Any]) -> Any:
    parts: list[str] = []
    for one in node.values:
        value = evaluate(module, one.value if isinstance(one, ast.FormattedValue) else one, local)
        parts.append(str(value) if isinstance(value, (str, int, float)) else "")
    return "".join(parts)[:2000]


_EXPRESSIONS: dict[type[ast.expr], Callable[[Module, Any, dict[str, Any]], Any]] = {
    ast.Constant: lambda m, n, v: n.value, ast.Name: _name, ast.Attribute: _attribute, ast.Call: _call,
    ast.BinOp: lambda m, n, v: binary(n.op, evaluate(m, n.left, v), evaluate(m, n.right, v)),
    ast.UnaryOp: _unary, ast.Compare: _compare, ast.BoolOp: _boolean, ast.IfExp: _conditional, ast.Dict: _dictionary,
    ast.List: lambda m, n, v: [evaluate(m, one, v) for one in n.elts if not isinstance(one, ast.Starred)],
    ast.Tuple: lambda m, n, v: [evaluate(m, one, v) for one in n.elts if not isinstance(one, ast.Starred)],
    ast.Subscript: _subscript, ast.JoinedStr: _joined,
}  # fmt: skip
