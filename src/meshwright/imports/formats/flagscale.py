"""FlagScale's YAML: Megatron-LM arguments in three tables, and the experiment that starts them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.formats import megatron
from meshwright.imports.formats.megatron_switches import name_groups
from meshwright.imports.interpolate import merged, read_table, resolved
from meshwright.imports.names import PLANNED
from meshwright.imports.options import Options, counted
from meshwright.imports.reading import Given, Reading
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_text

_OWN = frozenset({
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "num_layers", "hidden_size", "micro_batch_size",
    "global_batch_size", "precision", "use_distributed_optimizer", "no_shared_fs", "checkpoint",
})  # fmt: skip

_TRAINS = frozenset({"num-layers", "micro-batch-size", "global-batch-size", "train-samples", "train-iters"})  # fmt: skip

_SEES = re.compile(
    r"(?i)llava|_vl\b|_vl_|vision|onevision|robo(?:brain|tics)|(?:^|[_/])pi0|emu3|flux|wan\d|qwen_image|minicpm_[vo]"
)


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is FlagScale's, of an experiment or of its training half."""
    task = (data.get("experiment") or {}).get("task") if isinstance(data.get("experiment"), dict) else None  # fmt: skip
    if isinstance(task, dict) and "type" in task:
        return True
    system, model = data.get("system"), data.get("model")
    if not isinstance(system, dict) or not isinstance(model, dict):
        return False
    return any(str(key).replace("-", "_") in _OWN for table in (system, model) for key in table)


def read(data: dict[str, Any], given: Given, folder: Path | None) -> Reading:
    """Return what a FlagScale configuration runs.

    Raises:
        SpecError: it does not train, its training half is not here, or a value cannot be.
    """
    experiment = data.get("experiment") if isinstance(data.get("experiment"), dict) else {}
    assert isinstance(experiment, dict)
    task = experiment.get("task")
    kind = str(task.get("type", "train")) if isinstance(task, dict) else "train"
    if kind != "train":
        raise SpecError("experiment.task.type", kind, "does not train; type: train is expected")
    own = data.get("train")
    if "system" not in data and not (isinstance(own, dict) and "system" in own):
        data = merged(_named(data, folder), data)
    if isinstance(own, dict):  # the training half inside, or what a command says over it
        data = merged(data, own)
    data = resolved(data, dict(given.variables))
    flags: dict[str, Any] = {}
    for table in ("system", "model", "data"):
        part = data.get(table)
        if isinstance(part, dict):
            _flatten(part, flags)
    if "optimizer" in flags and not isinstance(flags["optimizer"], str):
        del flags["optimizer"]
    program = _entrypoint(experiment, folder)
    if re.search(r"rwkv|mamba", program, re.IGNORECASE):
        raise SpecError("experiment.task.entrypoint", program, f"a state-space or recurrent model is not modelled: {PLANNED}")  # fmt: skip
    if _SEES.search(program):
        raise SpecError("experiment.task.entrypoint", program, f"trains a model of images and text: {PLANNED}")  # fmt: skip
    if flags.get("enable-hetero"):
        raise SpecError("enable_hetero", True, "devices of several kinds in one run, or layouts of several kinds, are not modelled")  # fmt: skip
    if not isinstance(task, dict) and not _TRAINS & set(flags) and given.model is None:
        raise SpecError("model", None, "describes no training run: neither layers nor a batch are here; the training half of an experiment is expected")  # fmt: skip
    flags.setdefault("num-query-groups", None)
    options = Options({k: v for k, v in flags.items() if v is not None}, "--")
    method = options.word("peft-type")
    adapted = options.whole("lora-dim", default=32), options.number("lora-alpha", default=32), options.raw("lora-target-modules"), options.number("lora-dropout")  # fmt: skip
    reading = megatron.read(options, given, "FlagScale YAML")
    if method not in ("", "none"):
        adapters(reading, method=method, rank=adapted[0], alpha=adapted[1], targets=adapted[2], dropout=adapted[3], option="lora_target_modules")  # fmt: skip
    name_groups(options, reading)
    reading.options = {k: v.lstrip("-").replace("-", "_") for k, v in reading.options.items()}
    if isinstance(experiment.get("auto_tuner"), dict):
        reading.unmodelled("experiment.auto_tuner", "a search over degrees and micro-batches starts this run again and again; what its training half says is priced")  # fmt: skip
    runner = experiment.get("runner")
    if isinstance(runner, dict):
        reading.hosts = counted(runner.get("nnodes")) or (
            1 if runner.get("hostfile") is None else 0
        )
        reading.per_host = counted(runner.get("nproc_per_node"))
    return reading


def _entrypoint(experiment: dict[str, Any], folder: Path | None) -> str:
    """The program that trains; a training half alone leaves it to the experiments one folder above."""
    task = experiment.get("task")
    if isinstance(task, dict):
        return str(task.get("entrypoint", ""))[-60:]
    if folder is None or folder.name != "train":
        return ""
    for path in sorted(folder.parent.glob("*.yaml"))[:8]:
        found = re.search(r"^[^\S\n]*entrypoint:\s*(\S+)", read_text(path, "file"), re.MULTILINE)
        if found:
            return found.group(1)[-60:]
    return ""


def _named(data: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """The training half that an experiment's defaults name."""
    defaults = data.get("defaults")
    named = next((one["train"] for one in defaults if isinstance(one, dict) and "train" in one), "") if isinstance(defaults, list) else ""  # fmt: skip
    path = beside(folder, f"train/{named}.yaml") if named else None
    if path is None:
        raise SpecError(
            "defaults", f"train: {named}", "this file is not here; import the training half itself"
        )
    return read_table(path)


def _flatten(table: dict[str, Any], flags: dict[str, Any], depth: int = 0) -> None:
    """Megatron-LM's flags: tables inside tables only group them."""
    for key, value in table.items():
        name = str(key).replace("_", "-")
        if isinstance(value, dict):
            if depth < 6:
                _flatten(value, flags, depth + 1)
        elif value is not False and value is not None:
            flags[name] = value
