"""Settings that a program imports from files at hand: classes that it makes, objects made of them, constants."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from meshwright.imports.code.names import Known
from meshwright.imports.code.syntax import parse_python
from meshwright.imports.own.arguments import LIBRARIES, imported_file
from meshwright.specs.foreign import read_text

_SETTINGS = re.compile(
    r"(?i:cfg|hparams|hyperparameters|constants)$|Config$|Settings$|Args$|Arguments$|Params$|^config$|^settings$"
)
_MOST_FILES = 12


def imported_settings(text: str, folder: Path | None) -> dict[str, Any]:
    """What files at hand say of the names that a program imports from them, by the names that it reads.

    A class of settings that it makes without arguments and an object of such a class (`cfg = Config()`) say
    their fields, a constant itself, and a module that is imported as a whole (`import config`) its constants.
    """
    tree = parse_python(text) if folder is not None else None
    if tree is None or folder is None:
        return {}
    made = {
        ast.unparse(node.func) for node in ast.walk(tree)
        if isinstance(node, ast.Call) and not node.args and _SETTINGS.search(ast.unparse(node.func))
    } | {
        node.value.id for node in ast.walk(tree)  # a class that is read as it is
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and _SETTINGS.search(node.value.id)
    }  # fmt: skip
    found: dict[str, Any] = {}
    modules: dict[Path, ast.Module | None] = {}
    for node, names in _imports(tree):
        path = imported_file(node, folder)
        if path is None or (path not in modules and len(modules) >= _MOST_FILES):
            continue
        if path not in modules:
            modules[path] = parse_python(read_text(path, "file"))
        inner = modules[path]
        if inner is not None:
            short = {one.rpartition(".")[2] for one in made if "." in one}
            whole = {one: one for one in short} if not names else {}
            found |= _said(inner, names or whole, made | short if whole else made)
            found |= _constants(inner) if not names else {}
    return found


def imported_constants(tree: ast.AST, others: Iterable[ast.Module]) -> dict[str, Any]:
    """Constants of files at hand that a program takes in by name, under the name that it gives them.

    `from settings import BATCH` and `from settings import *` count, and `settings.BATCH` after `import settings`.
    """
    named: dict[str, str] = {}
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for one in node.names:
                named[one.name] = one.asname or one.name
                modules.add(one.asname or one.name)
    named |= {
        node.attr: node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules
    }  # fmt: skip
    found: dict[str, Any] = {}
    for other in others:
        for name, value in _constants(other).items():
            if name in named or "*" in named:
                found.setdefault(named.get(name, name), value)
    return found


def _imports(tree: ast.Module) -> Iterator[tuple[ast.ImportFrom, dict[str, str]]]:
    """Imports of files, with the names that they take under the names that the program gives them; no names: the
    module as a whole."""
    read = {one.value.id for one in ast.walk(tree) if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] not in LIBRARIES:  # fmt: skip
            names = {one.name: one.asname or one.name for one in node.names}
            yield node, {} if "*" in names else names
            for one in node.names:  # `from package import config`
                if (one.asname or one.name) in read and one.name.islower():
                    module = f"{node.module}.{one.name}" if node.module else one.name
                    yield ast.ImportFrom(module=module, names=[], level=node.level), {}
        elif isinstance(node, ast.Import):
            for one in node.names:
                if (one.asname or one.name) in read and one.name.partition(".")[0] not in LIBRARIES:
                    yield ast.ImportFrom(module=one.name, names=[], level=0), {}


def _said(inner: ast.Module, names: dict[str, str], made: set[str]) -> dict[str, Any]:
    """What a file says of classes that the program makes, of objects made of a class, and of constants."""
    classes = {one.name: one for one in inner.body if isinstance(one, ast.ClassDef)}
    wanted = [one for one in names if names[one] in made]
    constants = [one for one in names if one not in classes]
    for one in inner.body:
        if isinstance(one, ast.Assign) and isinstance(one.value, ast.Call):
            target, called = ast.unparse(one.targets[0]), ast.unparse(one.value.func)
            wanted += [called] if target in names else []
    found: dict[str, Any] = {}
    for name in wanted:
        if name in classes:
            found |= Known(ast.Module(body=[classes[name]], type_ignores=[])).fields
    told = _constants(inner) if constants else {}
    for one in inner.body:  # what adds options to the program's parser
        if isinstance(one, ast.FunctionDef) and one.name in names and "add_argument(" in ast.unparse(one):  # fmt: skip
            found |= Known(ast.Module(body=[one], type_ignores=[])).arguments
    return found | {names[one]: told[one] for one in constants if one in told}


def _constants(inner: ast.Module) -> dict[str, Any]:
    """What the top of a file sets its names to."""
    top = ast.Module(
        body=[one for one in inner.body if isinstance(one, (ast.Assign, ast.AnnAssign))],
        type_ignores=[],
    )
    return {name: one for name, one in Known(top).names.items() if not name.startswith("_")}
