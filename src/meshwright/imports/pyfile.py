"""Follow a Python recipe statically: what its functions would return. Nothing is imported or run.

A call of what is not in the file becomes a `Made` that remembers its name, arguments and whatever
the recipe sets on it afterwards; a name that nothing defines becomes an `Unknown`.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_text

MAX_STEPS = 40_000
MAX_DEPTH = 24


@dataclass(slots=True)
class Unknown:
    """A value that the file does not state, by the text that leads to it."""

    text: str

    def __bool__(self) -> bool:
        return False


@dataclass(slots=True, eq=False)
class Made:
    """What a call of something outside the file makes."""

    name: str
    args: list[Any] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    parent: Any = None

    def get(self, path: str, default: Any = None) -> Any:
        """A field by its dotted path; the default where it is not stated."""
        current: Any = self
        for part in path.split("."):
            if isinstance(current, Made):
                current = current.fields.get(part)
            elif isinstance(current, dict):
                current = current.get(part)
            else:
                return default
        return default if current is None or isinstance(current, Unknown) else current


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


@dataclass
class Module:
    """A parsed file: its functions, classes and constants, and what it imports."""

    tree: ast.Module
    folder: Path | None
    names: dict[str, Any] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    run: Run | None = None


@dataclass
class Run:
    """The budget of one evaluation, and the modules it has read."""

    steps: int = 0
    depth: int = 0
    modules: dict[Path, Module] = field(default_factory=dict)
    made: list[Made] = field(default_factory=list)


def parse_module(text: str, name: str, folder: Path | None, run: Run | None = None) -> Module:
    """Parse a file and follow its top level.

    Raises:
        SpecError: not valid Python, or too long to be followed.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpecError("file", name, "is not valid Python") from None
    module = Module(tree, folder, run=run or Run())
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
    run = _run(module)
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
        local[name] = _evaluate(module, defaults[at], {}) if at >= 0 else Unknown(name)
    for only, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
        local[only.arg] = Unknown(only.arg) if default is None else _evaluate(module, default, {})
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


def _run(module: Module) -> Run:
    assert module.run is not None
    return module.run


def _body(module: Module, body: list[ast.stmt], local: dict[str, Any]) -> None:
    for node in body:
        _statement(module, node, local)


def _statement(module: Module, node: ast.stmt, local: dict[str, Any]) -> None:
    run = _run(module)
    run.steps += 1
    if run.steps > MAX_STEPS:
        raise SpecError("file", None, "this recipe is too long to be followed")
    if isinstance(node, ast.Return):
        raise _Return(None if node.value is None else _evaluate(module, node.value, local))
    if isinstance(node, ast.Assign):
        value = _evaluate(module, node.value, local)
        for target in node.targets:
            _assign(module, target, value, local)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        _assign(module, node.target, _evaluate(module, node.value, local), local)
    elif isinstance(node, ast.AugAssign):
        value = _binary(
            node.op, _evaluate(module, node.target, local), _evaluate(module, node.value, local)
        )
        _assign(module, node.target, value, local)
    elif isinstance(node, ast.If):
        test = _evaluate(module, node.test, local)
        if not isinstance(test, Unknown):
            _body(module, node.body if test else node.orelse, local)
        else:
            _body(module, node.orelse, local)
    elif isinstance(node, ast.For):
        items = _evaluate(module, node.iter, local)
        for item in list(items)[:40] if isinstance(items, (list, tuple, dict)) else []:
            _assign(module, node.target, item, local)
            _body(module, node.body, local)
    elif isinstance(node, (ast.With, ast.Try)):
        _body(module, node.body, local)
    elif isinstance(node, ast.Expr):
        _evaluate(module, node.value, local)
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
    subject = _evaluate(module, node.subject, local)
    for case in node.cases:
        pattern = case.pattern
        if (
            isinstance(pattern, ast.MatchValue)
            and _evaluate(module, pattern.value, local) == subject
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
        owner = _evaluate(module, target.value, local)
        if isinstance(owner, Made):
            owner.fields[target.attr] = value
    elif isinstance(target, ast.Subscript):
        owner = _evaluate(module, target.value, local)
        key = _evaluate(module, target.slice, local)
        if isinstance(owner, dict) and isinstance(key, (str, int)):
            owner[key] = value


def _evaluate(module: Module, node: ast.expr, local: dict[str, Any]) -> Any:
    run = _run(module)
    run.steps += 1
    if run.steps > MAX_STEPS:
        raise SpecError("file", None, "this recipe is too long to be followed")
    handler = _EXPRESSIONS.get(type(node))
    return handler(module, node, local) if handler is not None else Unknown(_text(node))


def _text(node: ast.AST) -> str:
    try:
        return ast.unparse(node)[:60]
    except (ValueError, RecursionError):
        return "?"


def _name(module: Module, node: ast.Name, local: dict[str, Any]) -> Any:
    if node.id in local:
        return local[node.id]
    if node.id in module.names:
        return module.names[node.id]
    return {"True": True, "False": False, "None": None}.get(node.id, Unknown(node.id))


def _attribute(module: Module, node: ast.Attribute, local: dict[str, Any]) -> Any:
    owner = _evaluate(module, node.value, local)
    if isinstance(owner, Made):
        if node.attr not in owner.fields:
            # A part that the recipe sets fields of, made by what is outside the file.
            owner.fields[node.attr] = Made(f"{owner.name}.{node.attr}", parent=owner)
        return owner.fields[node.attr]
    if isinstance(owner, Unknown):
        return Unknown(f"{owner.text}.{node.attr}")
    return Unknown(f"{_text(node.value)}.{node.attr}")


def _call(module: Module, node: ast.Call, local: dict[str, Any]) -> Any:
    args: list[Any] = []
    for arg in node.args:
        if isinstance(arg, ast.Starred):
            more = _evaluate(module, arg.value, local)
            args += list(more) if isinstance(more, (list, tuple)) else []
        else:
            args.append(_evaluate(module, arg, local))
    kwargs: dict[str, Any] = {}
    for keyword in node.keywords:
        value = _evaluate(module, keyword.value, local)
        if keyword.arg is not None:
            kwargs[keyword.arg] = value
        elif isinstance(value, dict):
            kwargs |= {str(key): one for key, one in value.items()}
    return _called(module, node.func, args, kwargs, local)


def _called(
    module: Module, func: ast.expr, args: list[Any], kwargs: dict[str, Any], local: dict[str, Any]
) -> Any:
    if isinstance(func, ast.Attribute):
        owner = _evaluate(module, func.value, local)
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
        if isinstance(owner, Made):
            if func.attr.startswith("with_") or func.attr in ("merge", "validate", "finalize"):
                return owner
            return _make(module, f"{owner.name}.{func.attr}", args, kwargs, owner)
        name = (
            owner.text if isinstance(owner, Unknown) else getattr(owner, "name", _text(func.value))
        )
        return _outside(module, f"{name}.{func.attr}", args, kwargs)
    callee = _evaluate(module, func, local)
    if isinstance(callee, ast.FunctionDef):
        return call_function(module, callee, args, kwargs)
    if isinstance(callee, ast.ClassDef):
        return _make(module, callee.name, args, {**_class_fields(module, callee), **kwargs})
    name = callee.text if isinstance(callee, Unknown) else _text(func)
    if name in module.imports:
        return _imported(module, name, args, kwargs)
    return _outside(module, name, args, kwargs)


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
            found[inner.target.id] = _evaluate(module, inner.value, {})
        elif isinstance(inner, ast.Assign) and isinstance(inner.targets[0], ast.Name):
            found[inner.targets[0].id] = _evaluate(module, inner.value, {})
    return found


def _imported(module: Module, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Follow a function of another file of the same project, where that file is at hand."""
    source, original = module.imports[name]
    other = _other(module, source)
    target = other.names.get(original) if other is not None else None
    if other is not None and isinstance(target, ast.FunctionDef):
        return call_function(other, target, args, kwargs)
    if other is not None and original in other.imports and other.imports[original][0] != source:
        return _imported(other, original, args, kwargs)
    return _outside(module, original, args, kwargs)


def _other(module: Module, source: str) -> Module | None:
    run = _run(module)
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
            found = beside(module.folder, str(tail)) if len(parts) > 1 else None
        if found is None:
            continue
        if found not in run.modules:
            run.modules[found] = Module(ast.Module([], []), found.parent, run=run)
            try:
                run.modules[found] = parse_module(read_text(found), str(found), found.parent, run)
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
    builtin = _BUILTINS.get(name)
    if builtin is not None:
        try:
            return builtin(*args, **kwargs)
        except (TypeError, ValueError, OverflowError, ZeroDivisionError):
            return Unknown(f"{name}(…)")
    if short in ("replace", "deepcopy", "copy") and args and isinstance(args[0], Made):
        return Made(args[0].name, args[0].args, {**args[0].fields, **kwargs}, args[0].parent)
    return _make(module, name, args, kwargs)


def _make(
    module: Module, name: str, args: list[Any], kwargs: dict[str, Any], parent: Any = None
) -> Made:
    made = Made(name, args, dict(kwargs), parent)
    _run(module).made.append(made)
    return made


def _number(value: Any) -> Any:
    if isinstance(value, (Unknown, Made)) or value is None:
        raise TypeError
    return value


_BUILTINS: dict[str, Callable[..., Any]] = {
    "int": lambda value=0: int(_number(value)), "float": lambda value=0.0: float(_number(value)),
    "str": lambda value="": str(_number(value)), "bool": lambda value=False: bool(_number(value)),
    "max": lambda *v: max(map(_number, v[0] if len(v) == 1 else v)),
    "min": lambda *v: min(map(_number, v[0] if len(v) == 1 else v)),
    "abs": lambda v: abs(_number(v)), "round": lambda v, n=None: round(_number(v), n),
    "len": lambda v: len(_number(v)), "dict": lambda *a, **k: {**(a[0] if a else {}), **k},
    "list": lambda v=(): list(_number(v))[:1000], "tuple": lambda v=(): list(_number(v))[:1000],
    "range": lambda *v: list(range(*[min(int(_number(one)), 1000) for one in v])),
    "math.ceil": lambda v: math.ceil(_number(v)), "math.floor": lambda v: math.floor(_number(v)),
    "print": lambda *v, **k: None, "isinstance": lambda *v: Unknown("isinstance"),
    "sum": lambda v: sum(map(_number, v)),
}  # fmt: skip


def _binary(op: ast.operator, left: Any, right: Any) -> Any:
    plain = (int, float, str, list)
    if not isinstance(left, plain) or not isinstance(right, plain):
        return Unknown("…")
    if isinstance(op, ast.Mult) and (
        isinstance(left, (str, list)) or isinstance(right, (str, list))
    ):
        count = left if isinstance(left, int) else right if isinstance(right, int) else 0
        repeated = right if isinstance(left, int) else left
        if count > 1000 or (isinstance(repeated, (str, list)) and len(repeated) * count > 100_000):
            return Unknown("…")
    if isinstance(op, ast.Mod) and isinstance(left, str) and re.search(r"%\D{0,9}\d{4}", left):
        return Unknown("…")  # a width of its own making
    if isinstance(op, ast.Pow) and not (
        isinstance(right, (int, float))
        and abs(right) < 64
        and isinstance(left, (int, float))
        and abs(left) < 10**6
    ):
        return Unknown("…")
    try:
        made = _OPERATORS[type(op)](left, right)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError):
        return Unknown("…")
    return made if not isinstance(made, int) or abs(made) < 10**24 else Unknown("…")


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b, ast.FloorDiv: lambda a, b: a // b, ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a**b, ast.LShift: lambda a, b: a << min(b, 64),
}  # fmt: skip


_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: lambda a, b: a == b, ast.NotEq: lambda a, b: a != b, ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b, ast.Gt: lambda a, b: a > b, ast.GtE: lambda a, b: a >= b,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip


def _compare(module: Module, node: ast.Compare, local: dict[str, Any]) -> Any:
    left = _evaluate(module, node.left, local)
    for op, right_node in zip(node.ops, node.comparators, strict=True):
        right = _evaluate(module, right_node, local)
        if isinstance(op, (ast.Is, ast.IsNot)) and not isinstance(left, Unknown):
            holds = (left is right) == isinstance(op, ast.Is)
        elif isinstance(left, (Unknown, Made)) or isinstance(right, (Unknown, Made)):
            return Unknown(_text(node))
        else:
            try:
                holds = _COMPARISONS[type(op)](left, right)
            except (KeyError, TypeError):
                return Unknown(_text(node))
        if not holds:
            return False
        left = right
    return True


def _boolean(module: Module, node: ast.BoolOp, local: dict[str, Any]) -> Any:
    value: Any = None
    for one in node.values:
        value = _evaluate(module, one, local)
        truth = bool(value) if not isinstance(value, Made) else True
        if truth != isinstance(node.op, ast.And):
            return value
    return value


def _conditional(module: Module, node: ast.IfExp, local: dict[str, Any]) -> Any:
    test = _evaluate(module, node.test, local)
    return _evaluate(module, node.body if test else node.orelse, local)


def _dictionary(module: Module, node: ast.Dict, local: dict[str, Any]) -> Any:
    found: dict[Any, Any] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        made = _evaluate(module, value, local)
        if key is None:
            found |= made if isinstance(made, dict) else {}
            continue
        name = _evaluate(module, key, local)
        found[name if isinstance(name, (str, int)) else _text(key)] = made
    return found


def _subscript(module: Module, node: ast.Subscript, local: dict[str, Any]) -> Any:
    owner, key = _evaluate(module, node.value, local), _evaluate(module, node.slice, local)
    try:
        if isinstance(owner, (dict, list, str)) and isinstance(key, (str, int)):
            return owner[key]  # type: ignore[index]
    except (KeyError, IndexError, TypeError):
        pass
    return Unknown(_text(node))


def _unary(module: Module, node: ast.UnaryOp, local: dict[str, Any]) -> Any:
    value = _evaluate(module, node.operand, local)
    if isinstance(node.op, ast.Not):
        return Unknown(_text(node)) if isinstance(value, Unknown) else not value
    if isinstance(node.op, ast.USub) and isinstance(value, (int, float)):
        return -value
    return value


def _joined(module: Module, node: ast.JoinedStr, local: dict[str, Any]) -> Any:
    parts: list[str] = []
    for one in node.values:
        value = _evaluate(module, one.value if isinstance(one, ast.FormattedValue) else one, local)
        parts.append(str(value) if isinstance(value, (str, int, float)) else "")
    return "".join(parts)[:2000]


_EXPRESSIONS: dict[type[ast.expr], Callable[[Module, Any, dict[str, Any]], Any]] = {
    ast.Constant: lambda m, n, v: n.value, ast.Name: _name, ast.Attribute: _attribute, ast.Call: _call,
    ast.BinOp: lambda m, n, v: _binary(n.op, _evaluate(m, n.left, v), _evaluate(m, n.right, v)),
    ast.UnaryOp: _unary, ast.Compare: _compare, ast.BoolOp: _boolean, ast.IfExp: _conditional, ast.Dict: _dictionary,
    ast.List: lambda m, n, v: [_evaluate(m, one, v) for one in n.elts if not isinstance(one, ast.Starred)],
    ast.Tuple: lambda m, n, v: [_evaluate(m, one, v) for one in n.elts if not isinstance(one, ast.Starred)],
    ast.Subscript: _subscript, ast.JoinedStr: _joined,
}  # fmt: skip
