"""Settings that a program computes or takes from where nobody follows it."""

from __future__ import annotations

import ast
import re
from typing import Any

from meshwright.imports.code.names import Known
from meshwright.imports.code.syntax import assigned, dotted

TOLD_BY_OTHERS = ("per_device_train_batch_size", "gradient_accumulation_steps", "r", "target_modules", "max_length",
                   "max_seq_length", "gradient_checkpointing", "load_in_4bit", "optim", "torch_dtype", "dtype", "bf16", "fp16")  # fmt: skip
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
        value = [value, *assigned(value.id, tree)][-1]
    names = {dotted(one.func).rpartition(".")[2] for one in ast.walk(value) if isinstance(one, ast.Call)}  # fmt: skip
    if isinstance(value, ast.Name):  # a parameter: what any search of the program gives
        names = set(known.functions)
    return any(
        (re.search(r"linear", name) is not None and re.search(r"find|get|all|target", name) is not None)
        or (name in known.functions and "named_modules(" in ast.unparse(known.functions[name]))
        for name in names
    )  # fmt: skip


def handed_on(value: ast.expr, tree: ast.Module, known: Known) -> str:
    """The text that a call of one argument takes its targets from (`split_targets(args.targets)`); empty without one."""
    if isinstance(value, ast.Name):
        made = assigned(value.id, tree)
        value = made[0] if len(made) == 1 else value
    if not (isinstance(value, ast.Call) and len(value.args) == 1 and not value.keywords):
        return ""
    said = known.value(value.args[0])
    return said if isinstance(said, str) and re.search(r"_proj|linear|c_attn|query", said) else ""


_OF_COMMANDS = ("per_device_train_batch_size", "gradient_accumulation_steps", "max_prompt_length", "max_completion_length", "max_length",
                "max_seq_length", "optim", "bf16", "fp16", "beta", "num_generations")  # fmt: skip
"""TrainingArguments' and TRL's own names."""


def take_from_command(found: dict[str, Any], known: Known) -> None:
    """Take what a program's own parser says by TrainingArguments' names, where it hands them to what is not followed."""
    batch = found.get("batch_size")
    if "_trainer" in found and isinstance(batch, int) and not isinstance(batch, bool):
        found.setdefault("per_device_train_batch_size", batch)  # of a trainer of one's own
    more = any(key.startswith("more of ") for key in found.get("_open") or {})
    away = "_trainer" in found and "per_device_train_batch_size" not in found
    if not (more or away) or not known.arguments:
        return
    for key in _OF_COMMANDS:
        if known.arguments.get(key) not in (None, ""):
            found.setdefault(key, known.arguments[key])
    off = known.arguments.get("no_lora") or known.arguments.get("use_lora") is False or known.arguments.get("use_peft") is False  # fmt: skip
    if "lora_r" in known.arguments and not off and not {"r", "use_peft"} & set(found):
        found["use_peft"] = True
        found.setdefault("_open", {}).setdefault("target_modules", "a file that is not followed")
        for key in ("lora_r", "lora_alpha", "lora_dropout"):
            if known.arguments.get(key) is not None:
                found.setdefault(key, known.arguments[key])
