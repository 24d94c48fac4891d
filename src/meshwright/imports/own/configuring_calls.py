"""Which calls of a program make what its training is configured with, and which of them change nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from meshwright.imports.code.branches import calls_reached
from meshwright.imports.code.names import Known
from meshwright.imports.code.syntax import dotted

_CALLS = ("Config", "Arguments", "from_pretrained", "prepare_model", "get_peft_model",
          "Args", "Trainer", "Accelerator", "DataLoader", "TextDataset", "deepspeed.initialize")  # fmt: skip
_OTHERS = ("basicConfig", "GenerationConfig", "AutoConfig", "okenizer", "Processor", "parse_args", "TrainerState", "Callback",
           "Sampling")  # fmt: skip
_OF_LORA = re.compile(r"(?:^|\.)LoraConfig$")


def configuring_calls(tree: ast.AST, known: Known) -> Iterator[ast.Call]:
    """Calls that make what a training is configured with, by line; what never runs is left out."""
    idle = _idle(tree) | _unused_adapters(tree, known)
    datasets = {one.name for one in ast.walk(tree) if isinstance(one, ast.ClassDef) and one.name.endswith(("Dataset", "Collator"))}  # fmt: skip
    for call in calls_reached(tree, known.holds):
        if call in idle:
            continue
        called = dotted(call.func)
        cuts = re.search(r"[tT]okenizer$", called) is not None
        made = any(word in called for word in _CALLS) and not any(w in called for w in _OTHERS)
        made = made or _hands_on(known.functions.get(called)) or called in datasets
        if made or cuts:
            yield call


def makes_lora(call: ast.Call) -> bool:
    """Whether a call describes LoRA's adapters."""
    return _OF_LORA.search(dotted(call.func)) is not None


def _unused_adapters(tree: ast.AST, known: Known) -> set[ast.expr]:
    """Descriptions of adapters where every call that would put them into the model stands in a branch that is not taken."""
    calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call)]
    puts = [one for one in calls if dotted(one.func).endswith("get_peft_model")]
    if not puts:
        return set()
    taken = list(calls_reached(tree, known.holds))
    handed = any(key.arg == "peft_config" for one in taken for key in one.keywords)
    if handed or any(one in taken for one in puts):
        return set()
    return {one for one in calls if makes_lora(one)}


def _idle(tree: ast.AST) -> set[ast.expr]:
    """What a program makes under a name that nothing reads: a configuration that changes nothing."""
    read = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}  # fmt: skip
    return {
        one.value
        for one in ast.walk(tree)
        if isinstance(one, ast.Assign)
        and isinstance(one.value, ast.Call)
        and isinstance(one.targets[0], ast.Name)
        and one.targets[0].id not in read
        and ast.unparse(one.value.func).endswith("Config")
    }


def _hands_on(function: ast.FunctionDef | None) -> bool:
    """Whether a function of the program makes a configuration of whatever words it is given."""
    if function is None or function.args.kwarg is None:
        return False
    return any(
        isinstance(node, ast.Call)
        and dotted(node.func).endswith(("Config", "Arguments"))
        and any(word.arg is None for word in node.keywords)
        for node in ast.walk(function)
    )
