"""Launchers of slime and miles in Python: the words that `execute_train` is given, read as its scripts are."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from meshwright.exports.stamp import Stamp
from meshwright.imports.code.expressions import evaluate
from meshwright.imports.code.follow import functions
from meshwright.imports.code.values import Made, Module, Unknown
from meshwright.imports.reading import Given, Reading
from meshwright.specs.errors import SpecError


def read(
    module: Module, name: str, given: Given, folder: Path | None, stamp: Stamp
) -> tuple[Reading, Stamp]:
    """Return what a Python launcher starts.

    Raises:
        SpecError: no function starts a training, or its words cannot be followed.
    """
    from meshwright.imports import scripts

    for node in functions(module):
        call = next((one for one in ast.walk(node) if isinstance(one, ast.Call)
                     and ast.unparse(one.func).endswith("execute_train")), None)  # fmt: skip
        if call is None:
            continue
        local: dict[str, Any] = {arg.arg: _settings(module) for arg in node.args.args}
        for statement in node.body:
            _follow(module, statement, local)
        given_words = {one.arg: one.value for one in call.keywords}
        text = _text(module, given_words.get("train_args"), local)
        if not text.strip():
            break
        devices = _text(module, given_words.get("num_gpus_per_node"), local).strip()
        more = (
            f" --actor-num-gpus-per-node {devices}"
            if devices.isdigit() and "--actor-num-gpus-per-node" not in text
            else ""
        )
        kind = _text(module, given_words.get("megatron_model_type"), local).strip()
        before = after = ""
        if re.fullmatch(r"[\w.-]+", kind) and "--num-layers" not in text:
            # What the model is described by has a file of its own, which the launcher reads.
            before, after = f"source scripts/models/{kind}.sh\n", " ${MODEL_ARGS[@]}"
        return scripts.read(
            f"{before}python3 train.py {text}{more}{after}\n", name, given, folder, stamp
        )
    raise SpecError(
        "file", name, "describes no training run: no function that starts one can be followed"
    )


def _settings(module: Module) -> Made:
    """The launcher's own settings: the fields of its dataclass with their defaults."""
    made = Made("settings")
    for one in module.tree.body:
        if isinstance(one, ast.ClassDef):
            for field in one.body:
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                    and field.value is not None
                ):
                    value = evaluate(module, field.value, {})
                    if isinstance(value, (str, int, float, bool)):
                        made.fields[field.target.id] = value
    return made


def _follow(module: Module, node: ast.stmt, local: dict[str, Any]) -> None:
    """Assignments, `+=` and tests that the settings decide; every other statement is passed over."""
    if (
        isinstance(node, ast.Assign)
        and len(node.targets) == 1
        and isinstance(node.targets[0], ast.Name)
    ):
        target = node.targets[0].id
        value = evaluate(module, node.value, local)
        local[target] = (
            _text(module, node.value, local) if isinstance(value, (str, Unknown)) else value
        )
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        before = local.get(node.target.id, "")
        local[node.target.id] = f"{before} {_text(module, node.value, local)}"
    elif isinstance(node, ast.If):
        test = evaluate(module, node.test, local)
        for one in node.orelse if isinstance(test, Unknown) or not test else node.body:
            _follow(module, one, local)


def _text(module: Module, node: ast.expr | None, local: dict[str, Any]) -> str:
    """A text as far as it is known: a setting that is not becomes a variable, anything else a blank."""
    if node is None:
        return ""
    if isinstance(node, ast.JoinedStr):
        parts = [one.value if isinstance(one, ast.FormattedValue) else one for one in node.values]
        return "".join(_text(module, part, local) for part in parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(module, node.left, local) + _text(module, node.right, local)
    value = evaluate(module, node, local)
    if not isinstance(value, (str, int, float)) and isinstance(node, ast.Attribute):
        return f"${{{node.attr}}}"  # of a class of another file: --set gives it
    return str(value) if isinstance(value, (str, int, float)) else ""
