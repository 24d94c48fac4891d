"""AutoTrain's YAML and its command: their words become TrainingArguments', whose reader does the rest.

Names and defaults: autotrain-advanced, trainers/clm/{params,utils}.py, parser.py and cli/run_llm.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshwright.imports.formats import hf
from meshwright.imports.formats.hf_launcher import launcher
from meshwright.imports.launch import Launch
from meshwright.imports.names import PLANNED
from meshwright.imports.options import Options, flags_of
from meshwright.imports.reading import Given, Reading
from meshwright.imports.shell.state import Script
from meshwright.imports.tasks import name_task
from meshwright.specs.errors import SpecError

_NAMES = {
    "model": "model_name_or_path", "batch_size": "per_device_train_batch_size", "gradient_accumulation": "gradient_accumulation_steps",
    "optimizer": "optim", "lr": "learning_rate", "epochs": "num_train_epochs", "log": "report_to", "scheduler": "lr_scheduler_type",
}  # fmt: skip
_OLD = {
    "train_batch_size": "batch_size", "learning_rate": "lr", "num_train_epochs": "epochs", "gradient_accumulation_steps": "gradient_accumulation",
    "use_peft": "peft", "model_name": "model",
}  # fmt: skip
"""What earlier releases called otherwise."""
_OF_DATA = {
    "data_path", "train_split", "valid_split", "padding", "chat_template", "text_column", "prompt_text_column", "rejected_text_column",
    "project_name", "username", "token", "push_to_hub", "repo_id", "backend", "train", "add_eos_token", "merge_adapter", "trainer",
    "model_max_length", "max_prompt_length", "max_completion_length", "dpo_beta", "model_ref", "disable_gradient_checkpointing",
    "mixed_precision", "quantization", "peft", "unsloth", "distributed_backend", "block_size", "auto_find_batch_size",
}  # fmt: skip
"""What is read here, or says nothing of memory, time or numerics."""
_LONGEST = 1024
"""Tokens where no length is said: the tokenizer's, and never more."""
EDITS = {"micro_batch": "batch_size", "accumulation": "gradient_accumulation"}


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is AutoTrain's."""
    return {"task", "base_model", "project_name"} <= set(data) and isinstance(data.get("params", {}), dict)  # fmt: skip


def reads(launch: Launch) -> bool:
    """Whether a command trains with AutoTrain."""
    return launch.program == "autotrain llm"


def read(data: dict[str, Any], given: Given, folder: Path | None) -> Reading:
    """Return what an AutoTrain configuration trains.

    Raises:
        SpecError: another task than a language model's, or a value that cannot be.
    """
    task = str(data["task"])
    if not task.startswith(("llm", "lm")):
        raise SpecError("task", task, f"trains no decoder of text: {PLANNED}")
    of_data = data.get("data") or {}
    said = {"model": data["base_model"], "trainer": task.partition("-")[2], "valid_split": of_data.get("valid_split")}  # fmt: skip
    reading = Reading("AutoTrain YAML", options=dict(EDITS))
    return _fill({**said, **(data.get("params") or {})}, reading, given, folder)


def read_words(script: Script, launch: Launch, given: Given, folder: Path | None) -> Reading:
    """Return what `autotrain llm --train …` trains.

    Raises:
        SpecError: a value that cannot be.
    """
    reading = Reading("AutoTrain command", options={key: f"--{one.replace('_', '-')}" for key, one in EDITS.items()})  # fmt: skip
    launcher(script, launch, reading, given, folder)
    said = {name.replace("-", "_"): one for name, one in flags_of(launch.words).items()}
    return _fill(said, reading, given, folder)


def _fill(said: dict[str, Any], reading: Reading, given: Given, folder: Path | None) -> Reading:
    said = {_OLD.get(name, name): one for name, one in said.items()}
    switches = Options(said)
    found = {_NAMES.get(name, name): one for name, one in said.items() if name not in _OF_DATA and one is not None}  # fmt: skip
    for name, usual in (("per_device_train_batch_size", 2), ("gradient_accumulation_steps", 4), ("optim", "adamw_torch")):  # fmt: skip
        found.setdefault(name, usual)
    found["gradient_checkpointing"] = not switches.flag("disable_gradient_checkpointing")
    mixed = next((one for one in ("fp16", "bf16") if switches.flag(one)), "")
    mixed = switches.word("mixed_precision", default=mixed)
    found |= {name: name == mixed for name in ("fp16", "bf16")}
    found |= _adapted(switches, found)
    length = switches.whole("block_size", default=0, least=-1)
    found["max_length"] = length if length > 0 else _LONGEST
    trainer = switches.word("trainer", default="default")
    if trainer in ("sft", "default"):
        found["packing"] = True
        found["packing_strategy"] = "wrapped"  # texts are joined and cut at the length
    if switches.flag("unsloth"):
        reading.unmodelled("unsloth", "its own kernels run where it is installed; transformers' layers are priced")  # fmt: skip
    if switches.flag("auto_find_batch_size"):
        reading.unmodelled("auto_find_batch_size", "halves the micro-batch until it fits; the one that is said is priced")  # fmt: skip
    backend = switches.word("distributed_backend")
    if backend == "deepspeed":
        found["deepspeed"] = {"zero_optimization": {"stage": 3}}
    reading = hf.fill(Options(found), reading, given, folder)
    name_task(reading, trainer)
    return reading


def _adapted(switches: Options, found: dict[str, Any]) -> dict[str, Any]:
    """Adapters by TrainingArguments' names; weights are quantised only beside them, in 4 bits unless told otherwise."""
    if not switches.flag("peft"):
        for name in ("lora_r", "lora_alpha", "lora_dropout", "target_modules", "use_int4", "use_int8"):  # fmt: skip
            found.pop(name, None)
        return {}
    old = next((one for one in ("int4", "int8") if found.pop(f"use_{one}", False)), "")
    usual_width = "none" if "quantization" in switches and not old else old or "int4"
    stored = switches.word("quantization", default=usual_width)  # `null` turns it off
    usual = {"lora_r": 16, "lora_alpha": 32, "lora_dropout": 0.05, "target_modules": "all-linear"}
    made = {name: found.get(name) or one for name, one in usual.items()}
    return made | {"use_lora": True, "load_in_4bit": stored == "int4", "load_in_8bit": stored == "int8", "bnb_4bit_use_double_quant": False}  # fmt: skip
