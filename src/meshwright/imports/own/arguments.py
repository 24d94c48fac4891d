"""Defaults of a program's own parser, or of the dataclasses that it hands to HfArgumentParser."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside, program_beside
from meshwright.imports.code.names import Known
from meshwright.imports.code.syntax import parse_python
from meshwright.imports.interpolate import read_table
from meshwright.imports.shell.words import unmarked
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_text

HEARS = re.compile(
    r"\bfire\.Fire\(|\bFire\(|\btyper\.|\bclick\.option\(|\btyro\.cli\(|auto_cli\(|\bdefopt\.run\("
)
"""A program whose functions hear the command line by their parameters' names."""
_PARSERS = ("HfArgumentParser", "TrlParser")
_MOST_FILES = 12


def own_defaults(program: str, folder: Path | None) -> dict[str, Any]:
    """What a program's own dataclasses take where its command line says nothing; empty where it has none at hand."""
    path = program_beside(folder, program)
    if path is None:
        return {}
    text = read_text(path, "file")
    if not any(parser in text for parser in _PARSERS):
        tree = parse_python(text)
        if tree is None:
            return {}
        if "add_argument(" in text or HEARS.search(text):
            return _declared(tree)
        return _imported_parsers(tree, path) if "import" in text else {}
    tree = parse_python(text)
    if tree is None:
        return {}
    classes = _dataclasses(tree, path)
    found: dict[str, Any] = {}
    for name in _parsed(tree) or list(classes):
        for key, value in _with_bases(name, classes).items():
            found.setdefault(key, value)
    return found


_ADAPTS = re.compile(r"lora|peft|use_rotary|use_rope")
"""Switches that decide, off, that the rank beside them says nothing, or which positions a model has."""


def _imported_parsers(tree: ast.Module, path: Path) -> dict[str, Any]:
    """What the parsers of the files that a program imports from take, where its text has none."""
    found: dict[str, Any] = {}
    named = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    named.sort(
        key=lambda node: "parse" not in " ".join(one.name for one in node.names)
    )  # its own first
    files = [imported_file(node, path.parent) for node in named]
    for package in [one for one in files if one is not None and one.name == "__init__.py"]:
        inside = parse_python(read_text(package, "file"))
        handed = [one for one in inside.body if isinstance(one, ast.ImportFrom)] if inside is not None else []  # fmt: skip
        files += [imported_file(node, package.parent) for node in handed]
    for inner in [one for one in files if one is not None][:_MOST_FILES]:
        text = read_text(inner, "file")
        parsed = parse_python(text) if "add_argument(" in text else None
        if parsed is not None:
            found = _declared(parsed) | found
    return found


def _declared(tree: ast.Module) -> dict[str, Any]:
    """Defaults of a program's own parser, those that say something."""
    given = Known(tree).arguments
    return {
        name: value for name, value in given.items()
        if value not in (None, "") and (value is not False or _ADAPTS.search(name))
    }  # fmt: skip


def own_deepspeed(program: str, folder: Path | None, said: dict[str, Any]) -> dict[str, Any]:
    """The table that a program at hand hands to `deepspeed.initialize`, as far as it says it; empty without."""
    path = program_beside(folder, program)
    text = "" if path is None else read_text(path, "file")
    tree = parse_python(text) if "deepspeed.initialize(" in text else None
    if tree is None:
        return {}
    known = known_by(tree, said)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "deepspeed.initialize":
            words = dict(known.keywords(node))
            found = words.get("config") or words.get("config_params")
            return found if isinstance(found, dict) else {}
    return {}


def typed(value: Any) -> Any:
    """A word of a command line as a program's parser would take it: a number, a truth, or text."""
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(value)
    return unmarked(value)


def known_by(tree: ast.AST, said: Mapping[str, Any]) -> Known:
    """What a program's names stand for under a command line's words, or under defaults beside them."""
    return Known(tree, {name: typed(value) for name, value in said.items()})


def tables_beside(folder: Path | None) -> Callable[[str], dict[str, Any] | None]:
    """A reader of tables that a program loads from files at hand: None for one that is not there or no table."""

    def read(named: str) -> dict[str, Any] | None:
        path = beside(folder, named)
        with contextlib.suppress(SpecError):
            return None if path is None else read_table(path)
        return None

    return read


def folder_of(program: str, folder: Path | None) -> str:
    """The folder in which a program at hand lies (`step2_reward_model_finetuning`); empty where it is not."""
    path = program_beside(folder, program)
    return "" if path is None else path.parent.name


def _parsed(tree: ast.Module) -> list[str]:
    """The names of the dataclasses that the parser is made of, in order."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(_PARSERS):
            given = [*node.args, *(one.value for one in node.keywords)][:1]
            for one in given:
                inner = one.elts if isinstance(one, (ast.Tuple, ast.List)) else [one]
                return [ast.unparse(each).rpartition(".")[2] for each in inner]
    return []


def _dataclasses(tree: ast.Module, path: Path) -> dict[str, ast.ClassDef]:
    """Dataclasses of a program and of the files beside it that it imports, by name."""
    found: dict[str, ast.ClassDef] = {}
    waiting: list[tuple[ast.Module, Path]] = [(tree, path)]
    seen = {path}
    while waiting and len(seen) < _MOST_FILES:
        module, where = waiting.pop(0)
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, node)
            elif isinstance(node, ast.ImportFrom):
                inner = imported_file(node, where.parent)
                if inner is not None and inner not in seen:
                    seen.add(inner)
                    text = read_text(inner, "file")
                    parsed = parse_python(text) if "dataclass" in text else None
                    if parsed is not None:
                        waiting.append((parsed, inner))
    return found


def imported_file(node: ast.ImportFrom, folder: Path) -> Path | None:
    """The file at hand that a program's `from … import` takes its names from."""
    parts = (node.module or "").split(".")
    named = "/".join(part for part in parts if part)
    if not named:
        return None
    start = folder
    for _ in range(max(0, node.level - 1)):
        start = start.parent
    if node.level:
        near = [start / f"{named}.py", start / named / "__init__.py"]
        return next((one for one in near if one.is_file()), None)
    for place in (f"{named}.py", f"src/{named}.py"):
        path = beside(folder, place)
        if path is not None and path.name == f"{parts[-1]}.py":
            return path
    # `transformers` or `trl` as a folder beside the program would be another project's own copy.
    if parts[0] in LIBRARIES:
        return None
    for place in (f"{named}/__init__.py", f"src/{named}/__init__.py"):
        path = beside(folder, place)
        if path is not None and path.parent.name == parts[-1]:
            return path
    return None


LIBRARIES = frozenset({
    "torch", "transformers", "trl", "peft", "accelerate", "deepspeed", "datasets", "numpy", "megatron", "nemo", "lightning", "litgpt", "jax", "flax",
})  # fmt: skip


def _with_bases(name: str, classes: dict[str, ast.ClassDef], depth: int = 0) -> dict[str, Any]:
    """Defaults of a class, over those of the classes that it is built on."""
    node = classes.get(name)
    if node is None or depth > 6:
        return {}
    found: dict[str, Any] = {}
    for base in reversed(node.bases):
        found |= _with_bases(ast.unparse(base).rpartition(".")[2], classes, depth + 1)
    alone = ast.Module(body=[node], type_ignores=[])
    return found | Known(alone).declared
