"""The performance scripts of NeMo and Megatron-Bridge: a recipe by name, and its degrees as options."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from meshwright.imports.formats.bridge import guess_or_ask
from meshwright.imports.formats.bridge import megatron as read_flags
from meshwright.imports.formats.bridge_flags import flags_of as overrides_of
from meshwright.imports.names import model_named
from meshwright.imports.options import flags_of
from meshwright.imports.reading import Given, Reading
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError

_LONG = {
    # Short options of scripts/performance → their long names.
    "-m": "--model_family_name", "-mr": "--model_recipe_name", "-s": "--model_recipe_name", "-g": "--gpu", "-ng": "--num_gpus",
    "-gn": "--gpus_per_node", "-c": "--compute_dtype", "-mb": "--micro_batch_size", "-gb": "--global_batch_size",
    "-tp": "--tensor_model_parallel_size", "-pp": "--pipeline_model_parallel_size",
    "-cp": "--context_parallel_size", "-vp": "--virtual_pipeline_model_parallel_size",
    "-ep": "--expert_model_parallel_size", "-et": "--expert_tensor_parallel_size", "-sl": "--seq_length",
    "-rl": "--recompute_num_layers", "-ol": "--activation_offload_layers", "-ms": "--max_steps", "-cv": "--config_variant",
}  # fmt: skip
_LONGER = ("llama3", "nemotron-h-", "nemotronh")
"""Families whose recipes train on 8192 tokens (Megatron-Bridge recipes/llama, recipes/nemotronh); the others' on 4096."""
_OVERRIDE = re.compile(r"[+~]{0,2}[a-z_]+(?:\.\w+)+=")
"""Fields of the recipe's configuration, which stand after the options."""
_DEGREES = {
    "tensor-model-parallel-size": "-tp", "pipeline-model-parallel-size": "-pp", "context-parallel-size": "-cp",
    "expert-model-parallel-size": "-ep", "micro-batch-size": "-mb", "global-batch-size": "-gb",
}  # fmt: skip
_OF_THE_JOB = (
    "container-image", "container-mounts", "custom-mounts", "custom-env-vars", "custom-srun-args", "time-limit", "packager", "offline", "enable-pct-binding",
    "hf-token", "additional-slurm-params", "gres", "detach", "dryrun", "account", "partition",
)  # fmt: skip
"""What asks for hosts and containers, not for a step."""
_PRECISION: dict[str, dict[str, Any]] = {
    "bf16": {"bf16": True},
    "fp8": {"bf16": True, "fp8-format": "hybrid"},
    "nvfp4": {"bf16": True, "fp8-format": "hybrid", "fp4-format": "e2m1"},
}


def is_performance(words: list[str]) -> bool:
    """Whether a command starts one of the performance scripts."""
    long = {_LONG.get(word, word).partition("=")[0].replace("-", "_") for word in words}
    kind = next((after for word, after in pairwise(words) if word in ("-g", "--gpu")), "")
    named = not kind[:1].isdigit()  # of a device; other programs count devices so
    return bool({"__model_recipe_name", "__model_size"} & long) and "__gpu" in long and named


def read_words(words: list[str], given: Given) -> Reading:
    """Return what a performance script runs.

    Raises:
        SpecError: a value that cannot be, or a model that is not known.
    """
    overrides = [word for word in words if _OVERRIDE.match(word)]
    flags = flags_of([_LONG.get(word, word) for word in words if word not in overrides])
    recipe = str(flags.pop("model-recipe-name", "")) or (
        f"{flags.get('model-family-name', '')}-{flags.pop('model-size', '')}"
    )
    device, world = str(flags.pop("gpu", "")), _whole(flags.pop("num-gpus", ""))
    per_host = _whole(flags.pop("gpus-per-node", ""))
    task = str(flags.pop("task", "pretrain"))
    flags |= _precision(str(flags.pop("compute-dtype", "bf16")))
    flags["grad-reduce-in-bf16"] = True
    flags |= overrides_of(overrides)
    if _whole(flags.get("tensor-model-parallel-size")) > 1:
        flags["sequence-parallel"] = True
    if str(flags.pop("moe-a2a-overlap", "")).lower() in ("true", "1"):
        flags["overlap-moe-expert-parallel-comm"] = True
    for name in (
        "max-step",
        "max-steps",
        "config-variant",
        "model-family-name",
        "domain",
        "data",
        "log-dir",
        *_OF_THE_JOB,
    ):
        flags.pop(name, None)
    if str(flags.get("enable-vboost", "")).lower() == "false":
        del flags["enable-vboost"]
    virtual = flags.pop("virtual-pipeline-model-parallel-size", None)
    if virtual is not None and str(virtual).isdigit():
        flags["num-virtual-stages-per-pipeline-rank"] = virtual
    if str(flags.get("use-megatron-fsdp", "")).lower() in ("true", "1"):
        flags.setdefault("data-parallel-sharding-strategy", "optim_grads_params")
    layers = _whole(flags.pop("activation-offload-layers", ""))
    if layers:
        flags["cpu-offloading-num-layers"] = str(layers)
    if "recompute-num-layers" in flags and "recompute-granularity" not in flags:
        flags |= {"recompute-granularity": "full", "recompute-method": "block"}
    named = _spelled(recipe)
    unsaid = [short for flag, short in _DEGREES.items() if flag not in flags and flag != "expert-model-parallel-size"]  # fmt: skip
    model = given.model or model_named(named) or guess_or_ask(named, given)
    reading = read_flags(flags, given, model, named, "performance recipe")
    reading.devices, reading.per_host = world, per_host
    reading.hosts = world // per_host if per_host and world % per_host == 0 else 0
    reading.device = device.lower()
    if unsaid:
        reading.guess(
            "--model_recipe_name",
            f"what the command leaves to the recipe is not here: {', '.join(unsaid)} count as 1",
        )
    if not reading.seq_len and task == "pretrain" and named.startswith(_LONGER):
        reading.seq_len = given.seq_len or 8192
        if given.seq_len is None:
            reading.guess("--seq", "the recipe's length is not here; 8192, as this family's have it, is taken")  # fmt: skip
    if task in ("lora", "peft"):
        adapters(reading, rank=32)
        reading.guess("--task", "the rank of the adapters is the recipe's; 32 is taken")
    return reading


def _whole(value: Any) -> int:
    return int(value) if isinstance(value, str) and value.isdigit() and len(value) < 8 else 0


def _precision(kind: str) -> dict[str, Any]:
    base = kind.lower().partition("_")[0]
    if base not in _PRECISION:
        raise SpecError("--compute_dtype", kind, f"one of {', '.join(_PRECISION)} is expected")
    return dict(_PRECISION[base])


def _spelled(recipe: str) -> str:
    """A recipe's name as models are called: `llama31_405b` is llama3.1-405b."""
    bare = recipe.strip("-_").replace("_", "-").lower()
    return re.sub(r"^(llama|qwen|nemotron)(\d)(\d)(?=-)", r"\1\2.\3", bare)
