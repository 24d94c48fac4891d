"""Programs around Megatron-Bridge: the configuration that their `main` hands to `pretrain` or `finetune`."""

from __future__ import annotations

import ast
import copy
import re
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.code.follow import call_function, functions
from meshwright.imports.code.syntax import dotted
from meshwright.imports.code.values import Made, Module
from meshwright.imports.interpolate import read_table
from meshwright.imports.reading import Reading

_STARTS = frozenset({"pretrain", "finetune", "distill"})
_LAYS_OVER = "process_config_with_overrides"


def started(module: Module) -> tuple[Made, str] | None:
    """The configuration that a program of this file trains with, and what it hands that to; None where none of its functions starts a training.

    Raises:
        SpecError: too long to be followed.
    """
    for node in functions(module):
        ended = _EndAtTraining()
        whole = ended.visit(copy.deepcopy(node))
        if ended.found:
            made = call_function(module, whole, [], {})
            if isinstance(made, Made) and _LAYS_OVER in module.imports:
                first = made.args[0] if made.name.endswith(_LAYS_OVER) and made.args else made
                made = first if isinstance(first, Made) else made
                _overlay(made, _own_table(module))
            return (made, ended.found) if isinstance(made, Made) else None
    return None


def _own_table(module: Module) -> dict[str, Any]:
    """The YAML that a program lays over its recipe unless it is told another: the default of `--config-file`."""
    for node in ast.walk(module.tree):
        if not (
            isinstance(node, ast.Call) and dotted(node.func).endswith(".add_argument") and node.args
        ):
            continue
        flag = node.args[0]
        if (
            not isinstance(flag, ast.Constant)
            or str(flag.value).replace("_", "-") != "--config-file"
        ):
            continue
        default = next((one.value for one in node.keywords if one.arg == "default"), None)
        parts = _texts(module, default, 0) if default is not None else []
        path = (
            beside(module.folder, "/".join(parts))
            if parts and parts[-1].endswith((".yaml", ".yml"))
            else None
        )
        return read_table(path) if path is not None else {}
    return {}


def _texts(module: Module, node: ast.AST, depth: int) -> list[str]:
    """The texts of an expression in their order, through names of the file (`str(HERE / "conf" / "x.yaml")`)."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.Name):
        held = next(
            (
                one.value
                for one in module.tree.body
                if isinstance(one, ast.Assign) and dotted(one.targets[0]) == node.id
            ),
            None,
        )
        return _texts(module, held, depth + 1) if held is not None and depth < 4 else []
    return [text for child in ast.iter_child_nodes(node) for text in _texts(module, child, depth)]


def _overlay(made: Made, table: dict[str, Any]) -> None:
    """Set a configuration's fields to those of a table, tables inside it field by field."""
    for key, value in table.items():
        held = made.fields.get(key)
        if isinstance(value, dict) and isinstance(held, Made):
            _overlay(held, value)
        elif isinstance(value, dict) and isinstance(held, dict):
            held.update(value)
        elif value is not None:
            made.fields[key] = value


class _EndAtTraining(ast.NodeTransformer):
    """Let a function return what it would train with."""

    found = ""

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        """`pretrain(config=cfg, …)` becomes `return cfg`."""
        call = node.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in _STARTS:  # fmt: skip
            return node
        named = next((one.value for one in call.keywords if one.arg in ("config", "cfg")), None)
        config = named or (call.args[0] if call.args else None)
        if config is None:
            return node
        self.found = call.func.id
        return ast.copy_location(ast.Return(config), node)


def recipe_of(made: Made) -> str:
    """The recipe that a program's configuration begins with, by its function's name."""
    while isinstance(made.parent, Made):
        made = made.parent
    name = made.name.rsplit(".", 1)[-1]
    return name if name.isidentifier() and not name[:1].isupper() else ""  # a class is no recipe


def by_name(recipe: str, reading: Reading) -> None:
    """Devices that a recipe's name states (`…_pretrain_64gpu_h100_bf16_config`)."""
    device = re.search(r"_(gb[23]00|b[23]00|h[12]00|a100)(?:_|$)", recipe)
    if device:
        reading.likely = device.group(1)
    said = re.search(r"_(\d{1,5})gpu_([a-z]+\d+)", recipe)
    if said:
        reading.devices = int(said.group(1))
        reading.likely = said.group(2)
        reading.guess("--config", f"the recipe's name says {said.group(1)} devices; they are taken")


def layout_letters(stages: list[list[Any]]) -> str:
    """A pipeline layout of names, one list a stage, in Megatron-LM's letters."""
    letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
    return "|".join("".join(letters.get(str(part), "") for part in stage) for stage in stages)


def library_layout(module: Module, flags: dict[str, Any]) -> str:
    """The stages that Megatron-Bridge's own function for DeepSeek-V3's 61 layers gives a model, where a program calls it; empty otherwise.

    recipes/deepseek/deepseek_v3.py has them for 4, 8 and 16 stages, chunks of one device counted apart; the last holds what is left.
    """
    calls = (dotted(one.func) for one in ast.walk(module.tree) if isinstance(one, ast.Call))
    if not any(one.endswith("set_deepseek_v3_pipeline_model_parallel_layout") for one in calls):
        return ""
    chunks = 1
    for name in ("pipeline-model-parallel-size", "num-virtual-stages-per-pipeline-rank"):
        chunks *= int(flags[name]) if str(flags.get(name, "")).isdigit() else 1
    if chunks not in (4, 8, 16):
        return ""
    held = -(-61 // chunks)
    last = "t" * (61 - held * (chunks - 1))
    ahead = str(flags.get("mtp-num-layers", ""))
    end = "m" * int(ahead) if ahead in ("1", "2") else ""
    return "|".join(["E" + "t" * held, *["t" * held] * (chunks - 2), f"{last}{end}L"])
