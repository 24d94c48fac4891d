"""TrainingArguments in YAML or JSON: alone, or inside a file of one's own that says more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.imports.formats import accelerate, deepspeed, hf, hf_programs, trl_command
from meshwright.imports.formats.hf_nested import METHODS, PEFT_NAMES, raised
from meshwright.imports.not_training import says_training
from meshwright.imports.options import Options, counted, flattened
from meshwright.imports.own.option_names import NAMES
from meshwright.imports.reading import Given, Reading
from meshwright.imports.tasks import name_task
from meshwright.imports.tuning import refuse_vector_tables
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import parse_yaml, read_text
from meshwright.specs.huggingface import model_from_config


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table has TrainingArguments' words, outside or in a table of its own."""
    if {"batch_size", "total_batch_size"} <= set(
        data
    ) and "per_device_train_batch_size" not in data:
        return False  # words of a program of one's own around transformers' models
    return hf_programs.is_swift_table(data) or hf.is_trainer(data) or hf.is_trainer(nested(data)[1])


def nested(data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """(its name, the table) of TrainingArguments inside a file that has more; empty where none is."""
    for name in (
        "training_args",
        "training_arguments",
        "training_config",
        "run_args",
        "train_args",
    ):
        if isinstance(inner := data.get(name), dict):
            return name, inner
    for name in ("training", "train"):
        inner = data.get(name)
        if isinstance(inner, dict) and "per_device_train_batch_size" in inner:
            return name, inner
    return "", {}


def _with_model(data: dict[str, Any]) -> dict[str, Any]:
    """A table of the model's name and length as TrainingArguments say them."""
    place = next(
        (one for one in ("model", "base_model", "model_config") if isinstance(data.get(one), dict)),
        "",
    )
    model = data.get(place)
    if not isinstance(model, dict):
        return data
    names = ("model_name_or_path", "name_or_path", "model_name", "name", "base_model", "path", "model_id", "base_model_id", "base_model_name",
             "base_model_name_or_path", "pretrained_model_name_or_path", "id", "hf_id", "checkpoint")  # fmt: skip
    named = next((model[n] for n in names if isinstance(model.get(n), str)), "")
    rest = {n: v for n, v in model.items() if model.get(n) != named}
    return {**{n: v for n, v in data.items() if n != place}, **rest, "model_name_or_path": named}


_OF_MODELS = ("model_args", "model_arguments", "model_config", "model", "architecture")


def _described(data: dict[str, Any], given: Given) -> tuple[Given, dict[str, Any]]:
    """What is known with the model that a table of sizes describes, and the file without these.

    Raises:
        SpecError: a shape that cannot be.
    """
    for name in _OF_MODELS:
        table = data.get(name)
        if not isinstance(table, dict) or not all(counted(table.get(one)) for one in _SIZES[:3]):
            continue
        family = str(table.get("model_type") or "llama")
        fields = {key: one for key, one in table.items() if key in (*_SIZES, *_KINDS)}  # fmt: skip
        rest = {key: one for key, one in table.items() if key not in fields and key not in ("model_type", *NAMES)}  # fmt: skip
        made = model_from_config({"model_type": family, **fields}, "imported", name)
        return given if given.model else replace(given, model=made), {**data, name: rest}
    return given, data


_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size", "max_position_embeddings", "head_dim")  # fmt: skip
_KINDS = ("tie_word_embeddings", "hidden_act", "num_local_experts", "num_experts", "num_experts_per_tok", "moe_intermediate_size", "sliding_window",
          "layer_types", "use_parallel_residual")  # fmt: skip
"""What else of a model's configuration says how it is built."""


def _with_width(data: dict[str, Any]) -> dict[str, Any]:
    """A file with the width of its products outside, where a table beside TrainingArguments says it."""
    if {"bf16", "fp16", "mixed_precision"} & set(data):
        return data
    words = [str(one.get("mixed_precision", "")) for one in data.values() if isinstance(one, dict)]
    said = next((one for one in words if one in ("bf16", "fp16")), "")
    return {**data, said: True} if said else data


def _length_of_data(data: dict[str, Any]) -> int:
    """Tokens of a sequence, where the table of the data says them; 0 where it does not."""
    tables = [data.get(one) for one in ("dataset", "data", "data_args", "tokenizer", "dataset_config", "tokenization", "preprocessing")]  # fmt: skip
    names = ("max_seq_length", "max_seq_len", "max_length", "cutoff_len", "block_size", "sequence_length", "seq_len", "seq_length", "max_len", "max_tokens")  # fmt: skip
    said = [one[name] for one in tables if isinstance(one, dict) for name in names if isinstance(one.get(name), int)]  # fmt: skip
    return next((one for one in said if one > 1), 0)


_BESIDE = {"attention_bias", "rotary_pct"}
"""What a model's configuration says beside that changes nothing that is priced."""
_ASIDE = ("container", "slurm", "paths", "logging", "checkpointing", "wandb", "accelerate")


def _wrapped(data: dict[str, Any], reading: Reading, given: Given) -> dict[str, Any]:
    """A file of one's own around TrainingArguments: its method's table, DeepSpeed's, and its size."""
    data = dict(data)
    config = data.get("deepspeed")
    if isinstance(config, dict) and "zero_optimization" in config:
        deepspeed.apply(data.pop("deepspeed"), reading, given, prefix="deepspeed.")
    size = data.get("slurm")
    if isinstance(size, dict) and not reading.world():
        counts = [size.get(n) for n in ("num_nodes", "nodes", "gpus_per_node")]
        hosts, per_host = counts[0] or counts[1] or 1, counts[2]
        if isinstance(hosts, int) and isinstance(per_host, int):
            reading.hosts, reading.per_host = hosts, per_host
    for method in METHODS:
        if isinstance(data.get(method), dict):
            data |= data.pop(method)
    for name in _ASIDE:
        if isinstance(data.get(name), dict):
            data.pop(name)
    for name in ("backend", "method", "offline"):
        data.pop(name, None)
    for table in ("training", "train"):
        inner = data.get(table)
        if isinstance(inner, dict) and "effective_batch_size" in inner:
            inner = dict(inner)
            inner["global_batch_size"] = inner.pop("effective_batch_size")
            data[table] = inner
    return data


_OF_PEFT = (
    "r",
    "lora_alpha",
    "lora_dropout",
    "target_modules",
    "peft_type",
    "use_dora",
    "modules_to_save",
    "init_r",
)


def _launched(data: dict[str, Any], reading: Reading, given: Given, folder: Path | None) -> None:
    """What accelerate's configuration of the same export says, where it lies beside; else that it is needed."""
    if not data.get("pad_to_multiple_of") or data.get("deepspeed"):
        return
    path = folder / "accelerate.yaml" if folder is not None else None
    text = read_text(path) if path is not None and path.is_file() else ""
    launcher = parse_yaml(text, "file", "accelerate.yaml") if "made by meshwright" in text else None
    if isinstance(launcher, dict):
        accelerate.apply(launcher, reading, given, folder)
        del data["pad_to_multiple_of"]  # which the split sequences say already
    else:
        reading.note(
            "rows are padded to pieces of this size, as split sequences need: what splits them is in accelerate's "
            "own configuration, which is not here", "pad_to_multiple_of",
        )  # fmt: skip


_OPEN_INSTRUCT = {"with_tracking", "dataset_mix_dir", "use_slow_tokenizer", "checkpointing_steps", "dataset_mixer_list"}  # fmt: skip
"""Words of open-instruct's finetune.py that TrainingArguments lack."""


_FILTERS = ("pass_rate_min", "pass_rate_max", "output_dataset_name")
"""Words of open-r1's program that keeps what a model answers rightly, but not always."""
_LEARNS = {"learning_rate", "max_steps", "num_train_epochs", "gradient_accumulation_steps"}


def _refuse_without_training(data: dict[str, Any], title: str) -> None:
    """Refuse a table that names a model, and only answers with it.

    Raises:
        SpecError: it does.
    """
    names = set(flattened(data))
    if not any(map(says_training, names)):
        raise SpecError("file", title, "does not train: it names a model, and no batch, rate of learning or length of a run")  # fmt: skip
    filters = next((name for name in _FILTERS if name in data), "")
    if filters and not _LEARNS & names:
        raise SpecError(filters, data[filters], "filters a data set by how often a model answers rightly; it does not train")  # fmt: skip


def _with_trl_s(
    data: dict[str, Any], reading: Reading, given: Given, folder: Path | None
) -> dict[str, Any]:
    """A table with what TRL takes where it says nothing: its command, or a program that has TRL's words."""
    if "accelerate_config" in data:  # TRL's command reads it
        data = dict(data)
        trl_command.configured(data, reading, given, folder)
        hf_programs.trl_defaults(data, reading)
    elif reading.format == "TRL YAML":
        data = dict(data)
        hf_programs.trl_precision(data, reading)
        hf_programs.trl_packing(data, reading)
    elif not {"tuner_type", "train_type", "template", "template_name"} & set(data):  # other tools'
        data = dict(data)
        hf_programs.trl_packing(data, reading)
    return data


def read(data: dict[str, Any], given: Given, folder: Path | None, title: str) -> Reading:
    """Return what a YAML of TrainingArguments runs.

    Raises:
        SpecError: a value that cannot be.
    """
    _refuse_without_training(data, title)
    refuse_vector_tables(data)
    reading = Reading(title, options=dict(hf.EDITS))
    if len(_OPEN_INSTRUCT & set(data)) > 1 and not {"bf16", "fp16", "mixed_precision"} & set(data):
        reading.format = "open-instruct YAML"
        data = {**data, "bf16": True}
        alone = "" if "deepspeed_stage" in data else ", without sharding,"
        reading.guess("--mixed_precision", f"is the launcher's: bf16, as open-instruct's scripts have it{alone} is taken")  # fmt: skip
    place, inner = nested(data)
    if not inner:
        data, method = raised(data)
        name_task(reading, method)
        given, data = _described(data, given)
        if isinstance(data.get("model_config"), dict) and not set(data["model_config"]) - _BESIDE:
            data = {name: one for name, one in data.items() if name != "model_config"}
    if inner:
        given, data = _described(_wrapped(data, reading, given), given)
        data = _with_width(_with_model(data))
        peft: dict[str, Any] = next(
            (
                data[n]
                for n in ("peft_config", "lora", "adapter_config")
                if isinstance(data.get(n), dict)
            ),
            {},
        )
        if "adapter_config" in data:  # as PEFT saves it, with the defaults of every method
            peft = {n: v for n, v in peft.items() if n in _OF_PEFT}
            data.pop("adapter_config")
        on = bool(peft) and peft.get("enabled", True) is not False
        adapted = {"use_lora": on, "lora_rank": peft.get("r", 8)} if peft else {}
        peft = peft if on else {}
        lengths = [data.get(name, 0) for name in ("max_input_length", "max_output_length")]
        total = sum(one for one in lengths if isinstance(one, int))
        inner = data[place]
        total = total or _length_of_data(data)
        named = {PEFT_NAMES.get(n, n) if n in ("alpha", "dropout", "targets") else n: v for n, v in peft.items()}  # fmt: skip
        data = {**data, **({"max_length": total} if total else {}), **inner, **named, **adapted}
        if peft.get("bias") == "none":
            data.pop("bias")
        for name in (
            place,
            "peft_config",
            "lora",
            "max_input_length",
            "max_output_length",
            "r",
            "task_type",
        ):
            data.pop(name, None)
    if "template_name" in data and "train_mode" not in data and "use_lora" not in data:
        # Firefly's own default; its full runs say so.
        data = {**data, "train_mode": "qlora"}
    if data.get("train_mode") == "qlora":
        data = {**data, "use_lora": True, "load_in_4bit": True}
    _launched(data, reading, given, folder)
    data = _with_trl_s(data, reading, given, folder)
    processes = data.get("num_processes")
    if isinstance(processes, int) and processes > 0:
        data = {name: one for name, one in data.items() if name != "num_processes"}
        reading.devices = processes  # what its launcher is to start
    if "tuner_type" in data or "train_type" in data:
        data = dict(data)
        hf_programs.swift_defaults(data, reading)
    return hf.fill(Options(flattened(data)), reading, given, folder)
