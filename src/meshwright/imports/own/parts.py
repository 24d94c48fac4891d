"""Functions of files at hand that a program calls and that make what it trains, as lines of the program's own."""

from __future__ import annotations

import ast
import copy
import re
from pathlib import Path

from meshwright.imports.code.syntax import dotted, parse_python
from meshwright.imports.own.arguments import imported_file
from meshwright.specs.foreign import read_text

_MAKES = re.compile(
    r"\b(?:BitsAndBytesConfig|LoraConfig|TrainingArguments|(?:SFT|DPO|GRPO|KTO|ORPO|Reward|RLOO|CPO)Config|get_peft_model"
    r"|prepare_model_for_(?:kbit|int8)_training|FastLanguageModel\.\w+|\w*(?:CausalLM|LMHeadModel)\.from_pretrained|gradient_checkpointing_enable)\("
)
"""What a function has that says how a model is loaded, adapted or trained."""
_ASIDE = re.compile(r"(?i)eval|generat|infer|predict|judge|reward|teacher|ref_|_ref\b|reference|merge|test|push|upload")  # fmt: skip
"""Functions whose model is another than the one that is trained, by their names."""
_SHORT = 30
"""Lines of a function that only computes what it gives back."""
_MOST = 12
_LATER = 1_000_000
"""Lines on: what the program says itself counts before what its parts say."""


def parts_of(text: str, folder: Path | None) -> list[ast.stmt]:
    """Functions and objects that a program imports from files at hand, where they make a model or its configuration.

    What of the same file they call in turn comes along, and the constants that they read.
    """
    tree = parse_python(text) if folder is not None and "import" in text else None
    if tree is None or folder is None:
        return []
    called = _called(tree)
    own = {one.name for one in ast.walk(tree) if isinstance(one, (ast.FunctionDef, ast.ClassDef))}
    found: dict[str, ast.stmt] = {}
    for node in [one for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)]:
        for name in node.names:
            alias = name.asname or name.name
            if alias in own or _ASIDE.search(alias) or len(found) >= _MOST:
                continue
            made = _defined(node, name.name, alias, folder) if alias in called else _made(node, name.name, alias, folder)  # fmt: skip
            found = made | found
    return [one for name, one in found.items() if name not in own]


def _called(tree: ast.AST) -> set[str]:
    return {dotted(one.func) for one in ast.walk(tree) if isinstance(one, ast.Call)}


def _defined(node: ast.ImportFrom, name: str, alias: str, folder: Path, hops: int = 2) -> dict[str, ast.stmt]:  # fmt: skip
    """A function that an import takes in, under its alias, with what it needs of its file; empty where it makes nothing."""
    path = imported_file(node, folder)
    inner = parse_python(read_text(path, "file")) if path is not None else None
    if path is None or inner is None:
        return {}
    functions = {one.name: one for one in inner.body if isinstance(one, ast.FunctionDef)}
    if name not in functions:
        again = [one for one in inner.body if isinstance(one, ast.ImportFrom)]
        further = ((one, key.name) for one in again for key in one.names if (key.asname or key.name) == name)  # fmt: skip
        one, theirs = next(further, (None, ""))
        return _defined(one, theirs, alias, path.parent, hops - 1) if one is not None and hops else {}  # fmt: skip
    taken = _with_those_called(name, functions)
    if not _computes(functions[name]) and not any(
        _MAKES.search(ast.unparse(one)) for one in taken.values()
    ):
        return {}
    read = {one.id for each in taken.values() for one in ast.walk(each) if isinstance(one, ast.Name)}  # fmt: skip
    lines: dict[str, ast.stmt] = {}
    for line in inner.body:
        target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
        if isinstance(target, ast.Name) and target.id in read:
            lines[target.id] = line
    lines |= {alias if key == name else key: one for key, one in taken.items()}
    return {key: _moved(one, key) for key, one in lines.items()}


def _computes(function: ast.FunctionDef) -> bool:
    """Whether a function is short and gives something back (`resolve_dtype`)."""
    gives = any(isinstance(one, ast.Return) and one.value is not None for one in ast.walk(function))
    return gives and (function.end_lineno or 0) - function.lineno <= _SHORT


def _made(node: ast.ImportFrom, name: str, alias: str, folder: Path) -> dict[str, ast.stmt]:
    """The lines by which a file at hand makes what a program takes from it: a model (`from load import model`) or a configuration
    (`from settings import lora_config`), with the constants that they read."""
    path = imported_file(node, folder)
    inner = parse_python(read_text(path, "file")) if path is not None else None
    lines = [] if inner is None else [one for one in inner.body if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)]  # fmt: skip
    making = [one for one in lines if ast.unparse(one.targets[0]) == name and _MAKES.search(ast.unparse(one.value))]  # fmt: skip
    if not making:
        return {}
    if (
        alias == name and "model" in name.lower()
    ):  # line by line: what is made first is changed by those after it
        return {f"{ast.unparse(one.targets[0])} {one.lineno}": _moved(one, "") for one in lines}
    read = {one.id for one in ast.walk(making[-1].value) if isinstance(one, ast.Name)}
    under = {ast.unparse(one.targets[0]): one for one in lines if ast.unparse(one.targets[0]) in read}  # fmt: skip
    made = _moved(making[-1], alias)
    return {key: _moved(one, key) for key, one in under.items()} | {alias: made}


def _with_those_called(name: str, functions: dict[str, ast.FunctionDef]) -> dict[str, ast.FunctionDef]:  # fmt: skip
    """A function and those of its file that it calls, and they in turn."""
    taken: dict[str, ast.FunctionDef] = {}
    waiting = [name]
    while waiting and len(taken) < _MOST:
        one = waiting.pop(0)
        if one in functions and one not in taken and not (taken and _ASIDE.search(one)):
            taken[one] = functions[one]
            waiting += sorted(_called(functions[one]))
    return taken


def _moved(line: ast.stmt, name: str) -> ast.stmt:
    """A copy of a line or function further down, a function under the name that the program calls it by."""
    moved = copy.deepcopy(line)
    ast.increment_lineno(moved, _LATER)
    if isinstance(moved, ast.FunctionDef):
        moved.name = name
    elif isinstance(moved, ast.Assign) and isinstance(moved.targets[0], ast.Name) and name:
        moved.targets[0].id = name
    return moved
