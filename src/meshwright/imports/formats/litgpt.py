"""LitGPT's YAML: pretraining and fine-tuning recipes of its config hub."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.formats import litgpt_model
from meshwright.imports.interpolate import merged, read_table
from meshwright.imports.launch import Launch
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw, torch_moments
from meshwright.imports.tuning import adapters
from meshwright.imports.word_overrides import overridden
from meshwright.specs import SpecError
from meshwright.specs.job import RECIPES

EDITS = {"micro_batch": "train.micro_batch_size"}
_PRECISION = {
    "bf16-true": "pure-bf16", "bf16-mixed": "bf16", "16-mixed": "fp16", "16-true": "pure-bf16", "32-true": "fp32",
    "transformer-engine": "fp8", "transformer-engine-float16": "fp8",  # of Lightning Fabric
}  # fmt: skip
_TARGETS = {
    "lora_query": "q_proj", "lora_key": "k_proj", "lora_value": "v_proj", "lora_projection": "o_proj",
    "lora_mlp": "mlp", "lora_head": "lm_head",
}  # fmt: skip


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is LitGPT's."""
    train = data.get("train")
    return isinstance(train, dict) and "micro_batch_size" in train and "global_batch_size" in train and (
        "checkpoint_dir" in data or "model_name" in data or "model_config" in data
    )  # fmt: skip


_BATCHES = {"devices": 1, "train": {"global_batch_size": 16, "micro_batch_size": 1}}
_COMMANDS: dict[str, dict[str, Any]] = {
    # litgpt/pretrain.py, litgpt/finetune/{full,lora,adapter,adapter_v2}.py: what each takes where nothing is said.
    "pretrain": {"train": {"global_batch_size": 512, "micro_batch_size": 4}},
    "finetune": _BATCHES | {"lora_r": 8, "lora_alpha": 16, "lora_dropout": 0.05},
    "finetune_lora": _BATCHES | {"lora_r": 8, "lora_alpha": 16, "lora_dropout": 0.05},
    "finetune_full": _BATCHES, "finetune_adapter": _BATCHES, "finetune_adapter_v2": _BATCHES,
}  # fmt: skip


_FILES = re.compile(
    r"(?:^|[./])litgpt[./](?:finetune[./])?(pretrain|full|lora|adapter|adapter_v2)(?:\.py)?$"
)
"""Its programs by their places in its package."""


def _verb(launch: Launch) -> str:
    """Which of its trainings a command starts, as its own command calls it; empty where it starts none."""
    if launch.program.startswith("litgpt "):
        verb = launch.program.split()[1]
        return verb if verb in _COMMANDS else ""
    if launch.program.endswith("litgpt/__main__.py") and launch.words:
        return launch.words[0] if launch.words[0] in _COMMANDS else ""
    found = _FILES.search(launch.program)
    named = found.group(1) if found else ""
    return named if named in ("", "pretrain") else f"finetune_{named}"


def reads(launch: Launch) -> bool:
    """Whether a command starts one of its trainings."""
    return bool(_verb(launch))


def read_words(launch: Launch, given: Given, folder: Path | None) -> Reading:
    """Return what `litgpt pretrain` or `litgpt finetune…` runs: its defaults, the file it names, its words.

    Raises:
        SpecError: a value that cannot be.
    """
    verb = _verb(launch)
    words = launch.words[1:] if launch.program.endswith("__main__.py") else list(launch.words)
    if verb == "finetune" and words and f"finetune_{words[0]}" in _COMMANDS:
        verb = f"finetune_{words.pop(0)}"  # as before 0.5
    if "adapter" in verb:
        raise SpecError("litgpt", verb, "LLaMA-Adapter trains vectors before the text, not matrices of the model: not modelled; finetune_lora or finetune_full is expected")  # fmt: skip
    named = words.pop(0) if words and not words[0].startswith("-") else ""
    file = next((after for word, after in pairwise(words) if word == "--config"), "")
    path = beside(folder, file) if file else None
    data = merged(_COMMANDS[verb], {} if path is None else read_table(path, "--config"))
    if named:
        data["model_name" if verb == "pretrain" else "checkpoint_dir"] = named
    data = overridden(data, words)
    reading = read(data, given, pretrains=verb == "pretrain")
    reading.format = "LitGPT command"
    if file and path is None:
        reading.guess("--config", f"{file[-60:]} is not here; the command's own defaults stand for it")  # fmt: skip
    return reading


def read(data: dict[str, Any], given: Given, *, pretrains: bool | None = None) -> Reading:
    """Return what a LitGPT recipe runs.

    Raises:
        SpecError: a value that cannot be.
    """
    flat = flattened(data)
    if pretrains is None:
        pretrains = "checkpoint_dir" not in data
    usual = _COMMANDS["pretrain" if pretrains else "finetune_full"]["train"]
    flat |= {f"train.{n}": one for n, one in usual.items() if flat.get(f"train.{n}") is None}
    options = Options(flat, absent=("auto", ""))
    reading = Reading("LitGPT YAML", options=dict(EDITS))
    reading.model = given.model or litgpt_model.described(options)
    reading.model_name = options.loose("model_name", "checkpoint_dir", "model_config.name")
    reading.hosts = options.whole("num_nodes", default=1) or 1
    reading.per_host = options.whole("devices")
    reading.micro_batch = options.whole("train.micro_batch_size")
    reading.global_batch = options.whole("train.global_batch_size")
    if reading.hosts > 1:
        reading.note("counts the sequences of all hosts; early releases counted them per host", "train.global_batch_size")  # fmt: skip
    reading.seq_len = options.whole("train.max_seq_length") or options.whole(
        "model_config.block_size"
    )
    lora = options.has("lora_r")
    # Several devices run under FSDP: fine-tuning recomputes its blocks, pretraining shards within a host.
    several = reading.world() != 1
    again = several and not pretrains
    reading.layout = {"zero": 3 if several else 0, "recompute": "full" if again else "none"}
    if several and pretrains and reading.hosts > 1:
        reading.shard = reading.per_host
    if several and not reading.per_host:
        more = "shard within a host" if pretrains else "recompute every block"
        reading.note(f"several devices run under FSDP and {more}", "devices")
    kept = options.word("quantize", default="")
    precision = options.word("precision", default="")
    if precision in ("", "none"):
        precision = "bf16-mixed"
        reading.note("bf16-mixed is LitGPT's own where nothing is said", "precision")
    recipe = RECIPES[_PRECISION.get(precision, "bf16")]
    if precision in ("bf16-mixed", "16-mixed") and not several:
        # Autocast: the weights themselves are in 32 bits, those that do not train too.
        recipe = recipe.but(
            name=f"autocast-{recipe.compute}", parameter_bytes=4, gradient_bytes=4,
            master_bytes=0, gradient_reduce_bytes=4,
        )  # fmt: skip
    name = options.text("optimizer.class_path", "optimizer", default="AdamW")
    found = optimizer_or_adamw(reading, name, "optimizer")
    found = torch_moments(found, recipe)
    reading.job = {
        "framework": "litgpt",
        "precision": recipe.model_dump(),
        "optimizer": found.model_dump(),
    }
    if kept and not lora:
        reading.unmodelled("quantize", "weights in few bits train only as adapters' base; all are priced in 16 bits as trained")  # fmt: skip
    if lora:
        targets = [ours for theirs, ours in _TARGETS.items() if options.flag(theirs, default=theirs in ("lora_query", "lora_value"))]  # fmt: skip
        adapters(
            reading, rank=options.whole("lora_r", default=8), alpha=options.number("lora_alpha"), targets=targets,
            bits=4 if "nf4" in kept or "fp4" in kept else 8 if "int8" in kept else 0,
            twice=kept.endswith("-dq"), dropout=options.number("lora_dropout", default=0.05), option="lora_query",
        )  # fmt: skip
    options.finish(reading, "litgpt", "common", strict=given.strict)
    return reading
