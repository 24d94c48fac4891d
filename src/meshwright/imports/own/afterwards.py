"""What a program changes of a trainer's arguments after it has made or parsed them, and what it goes over in turn."""

from __future__ import annotations

import ast
import re
from typing import Any

from meshwright.imports.code.names import Known
from meshwright.imports.code.syntax import dotted

_MAKES = re.compile(r"(?:^|\.)\w*(?:TrainingArguments|(?:SFT|DPO|GRPO|KTO|ORPO|CPO|Reward|RLOO|PPO)Config)$")  # fmt: skip
_PARSES = re.compile(r"\.parse_(?:args|json|yaml|dict)\w*$")
_SETTINGS = frozenset({
    "per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing", "activation_checkpointing", "bf16", "fp16", "optim",
    "deepspeed", "fsdp", "fsdp_config", "max_length", "max_seq_length", "packing", "packing_strategy", "padding_free", "use_liger_kernel", "torch_compile",
    "learning_rate", "max_grad_norm", "weight_decay", "neftune_noise_alpha", "gradient_checkpointing_kwargs", "model_init_kwargs", "max_prompt_length",
    "max_completion_length", "num_generations", "tf32", "auto_find_batch_size", "precompute_ref_log_probs", "beta",
})  # fmt: skip
"""Fields of TrainingArguments and of TRL's configurations that change memory, time or numbers."""


def changed_afterwards(tree: ast.AST, known: Known, found: dict[str, Any]) -> None:
    """Take `args.bf16 = True` over what the arguments were made with, where no unknown test guards the line.

    So is `args = dataclasses.replace(args, bf16=True)`.
    """
    lines = sorted((one for one in ast.walk(tree) if isinstance(one, ast.Assign)), key=lambda one: one.lineno)  # fmt: skip
    made = {name for one in lines for name in _arguments(one)}
    for one in lines:
        target = one.targets[0]
        if (words := _replaced(one, made)) and known.sure(one) is not False:
            if isinstance(target, ast.Name):
                made.add(target.id)
            told = {word.arg: known.value(word.value) for word in words if word.arg in _SETTINGS}
            found |= {name: value for name, value in told.items() if value is not None}
        if not (isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)):
            continue
        if target.value.id not in made or target.attr not in _SETTINGS or known.sure(one) is False:
            continue
        said = known.value(one.value)
        if said is not None:
            found[target.attr] = said


def _replaced(line: ast.Assign, made: set[str]) -> list[ast.keyword]:
    """What `dataclasses.replace` puts in place of fields of arguments that were made."""
    call = line.value
    if not isinstance(call, ast.Call) or dotted(call.func) not in (
        "replace",
        "dataclasses.replace",
    ):
        return []
    of = call.args[0] if call.args else None
    return call.keywords if isinstance(of, ast.Name) and of.id in made else []


def gone_over(tree: ast.AST, known: Known) -> dict[str, int]:
    """Names under which a program trains with one of several values after the other, with how many."""
    found: dict[str, int] = {}
    for one in [one for one in ast.walk(tree) if isinstance(one, ast.For)]:
        many = known.value(one.iter)
        if not isinstance(one.target, ast.Name) or not isinstance(many, (list, dict)) or len(many) < 2:  # fmt: skip
            continue
        trains = any(isinstance(call, ast.Call) and re.search(r"Trainer$|\.train$", dotted(call.func)) for call in ast.walk(one))  # fmt: skip
        if trains:
            found[one.target.id] = len(many)
    return found


def _arguments(line: ast.Assign) -> list[str]:
    """Names that a line sets to a trainer's arguments, made or parsed."""
    if not isinstance(line.value, ast.Call):
        return []
    called, target = dotted(line.value.func), line.targets[0]
    if isinstance(target, ast.Name) and _MAKES.search(called):
        return [target.id]
    if isinstance(target, ast.Tuple) and _PARSES.search(called):
        return [one.id for one in target.elts if isinstance(one, ast.Name) and "train" in one.id]
    return []
