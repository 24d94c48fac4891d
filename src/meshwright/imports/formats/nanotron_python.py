"""nanotron's configurations in Python: the program that makes the YAML which `run_train.py` takes."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from meshwright.imports.code.follow import follow_main, parse_module
from meshwright.imports.code.names import Known
from meshwright.imports.code.values import Made, Unknown
from meshwright.imports.formats import nanotron
from meshwright.imports.names import PLANNED
from meshwright.imports.reading import Given, Reading
from meshwright.specs.errors import SpecError

_TABLES = ("parallelism", "model", "tokens", "optimizer", "general", "data_stages")


def is_config(text: str) -> bool:
    """Whether a Python text makes a configuration of nanotron's classes."""
    return "nanotron.config" in text and "ParallelismArgs(" in text and "ModelArgs(" in text


def read(text: str, name: str, given: Given, folder: Path | None) -> Reading | None:
    """Return what such a configuration runs, made by the program's own defaults; None where it cannot be followed.

    Raises:
        SpecError: a value that cannot be, or a model that is no decoder of attention.
    """
    tree = ast.parse(text)
    told = _Told(dict.fromkeys(_options(tree)) | Known(tree).arguments)
    module = parse_module(ast.unparse(told.visit(tree)), name, folder)
    follow_main(module)
    assert module.run is not None
    whole = next((one for one in reversed(module.run.made) if {"parallelism", "model", "tokens"} <= set(one.fields)), None)  # fmt: skip
    if whole is None:
        return None
    shape = whole.get("model.model_config")
    if isinstance(shape, Made) and "mamba" in shape.name.lower():
        raise SpecError("model.model_config", shape.name, f"trains a state-space model: {PLANNED}")
    data = {key: _plain(value) for key, value in whole.fields.items() if key in _TABLES}
    if not isinstance(shape, Made) or not isinstance(data.get("parallelism"), dict):
        return None
    if _is_loaded(tree, shape.name) and given.model is None:
        raise SpecError("--model", None, "the model's sizes are in a file that the program loads: give its config.json")  # fmt: skip
    written = data["model"]["model_config"]
    for empty in [key for key, value in written.items() if value == {}]:
        del written[empty]  # asked for, and said nowhere
    written[f"is_{shape.name.rpartition('.')[2].removesuffix('Config').lower()}_config"] = True  # fmt: skip
    reading = nanotron.read(data, given)
    reading.format = "nanotron configuration in Python"
    if told.replaced:
        reading.guess("program", "started without options: its own defaults are taken")
    return reading


def _is_loaded(tree: ast.Module, called: str) -> bool:
    """Whether the model's configuration is made of a table, not of words."""
    made = (one for one in ast.walk(tree) if isinstance(one, ast.Call) and ast.unparse(one.func) == called)  # fmt: skip
    return any(word.arg is None for one in made for word in one.keywords)


def _options(tree: ast.Module) -> list[str]:
    """The names under which a program's parser keeps what it is told."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".add_argument")]  # fmt: skip
    words = [one.value for node in calls for one in node.args if isinstance(one, ast.Constant)]
    return [word.lstrip("-").replace("-", "_") for word in words if isinstance(word, str) and word.startswith("--")]  # fmt: skip


class _Told(ast.NodeTransformer):
    """Puts what a parser takes by itself where a program asks it."""

    def __init__(self, defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.replaced = False

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if not (isinstance(node.func, ast.Attribute) and node.func.attr == "parse_args"):
            return node
        self.replaced = True
        words = [ast.keyword(key, ast.Constant(value)) for key, value in self.defaults.items() if isinstance(value, (str, int, float, type(None)))]  # fmt: skip
        return ast.copy_location(ast.Call(ast.Name("Namespace", ast.Load()), [], words), node)


def _plain(value: Any) -> Any:
    """A made thing as the table that nanotron writes of it; what is not stated is left out, a type by its name."""
    if isinstance(value, Made):
        return {key: inner for key, one in value.fields.items() if (inner := _plain(one)) is not None}  # fmt: skip
    if isinstance(value, Unknown):
        return value.text.rpartition(".")[2] if value.text.startswith("torch.") else None
    return [_plain(one) for one in value] if isinstance(value, list) else value
