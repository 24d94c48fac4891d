"""Settings that a program computes or takes from where nobody follows it."""

from __future__ import annotations

import ast
import re

from meshwright.imports.code.names import Known
from meshwright.imports.code.syntax import dotted

TOLD_BY_OTHERS = ("per_device_train_batch_size", "gradient_accumulation_steps", "r", "target_modules", "max_length",
                   "max_seq_length", "gradient_checkpointing", "load_in_4bit", "optim", "torch_dtype", "dtype")  # fmt: skip
"""Settings that a reader must not take for absent where the program computes them."""
TAKES_MORE = ("TrainingArguments", "SFTConfig", "DPOConfig", "GRPOConfig", "LoraConfig", "get_peft_model", "BitsAndBytesConfig")  # fmt: skip


def not_followed(call: ast.Call, known: Known) -> str:
    """A table that a configuration takes with two stars, and that the program does not say; empty without one."""
    for keyword in call.keywords:
        if keyword.arg is None and not isinstance(known.value(keyword.value), dict):
            return f"**{ast.unparse(keyword.value)[:50]}"
    return ""


def searches(value: ast.expr, tree: ast.Module, known: Known) -> bool:
    """Whether targets come from a function that goes over the model's layers (`find_all_linear_names`)."""
    if isinstance(value, ast.Name):
        made = [
            one.value for one in ast.walk(tree)
            if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == value.id
        ]  # fmt: skip
        value = made[-1] if made else value
    names = {dotted(one.func).rpartition(".")[2] for one in ast.walk(value) if isinstance(one, ast.Call)}  # fmt: skip
    if isinstance(value, ast.Name):  # a parameter: what any search of the program gives
        names = set(known.functions)
    return any(
        (re.search(r"linear", name) is not None and re.search(r"find|get|all|target", name) is not None)
        or (name in known.functions and "named_modules(" in ast.unparse(known.functions[name]))
        for name in names
    )  # fmt: skip
