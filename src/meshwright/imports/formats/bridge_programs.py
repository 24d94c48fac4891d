"""Programs around Megatron-Bridge: the configuration that their `main` hands to `pretrain` or `finetune`."""

from __future__ import annotations

import ast
import copy
import re
from typing import Any

from meshwright.imports.code.follow import call_function, functions
from meshwright.imports.code.values import Made, Module
from meshwright.imports.reading import Reading

_STARTS = frozenset({"pretrain", "finetune"})


def started(module: Module) -> Made | None:
    """The configuration that a program of this file trains with; None where none of its functions starts a training.

    Raises:
        SpecError: too long to be followed.
    """
    for node in functions(module):
        ended = _EndAtTraining()
        whole = ended.visit(copy.deepcopy(node))
        if ended.found:
            made = call_function(module, whole, [], {})
            return made if isinstance(made, Made) else None
    return None


class _EndAtTraining(ast.NodeTransformer):
    """Let a function return what it would train with."""

    found = False

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        """`pretrain(config=cfg, …)` becomes `return cfg`."""
        call = node.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in _STARTS:  # fmt: skip
            return node
        named = next((one.value for one in call.keywords if one.arg in ("config", "cfg")), None)
        config = named or (call.args[0] if call.args else None)
        if config is None:
            return node
        self.found = True
        return ast.copy_location(ast.Return(config), node)


def recipe_of(made: Made) -> str:
    """The recipe that a program's configuration begins with, by its function's name."""
    while isinstance(made.parent, Made):
        made = made.parent
    name = made.name.rsplit(".", 1)[-1]
    return name if name.isidentifier() else ""


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
