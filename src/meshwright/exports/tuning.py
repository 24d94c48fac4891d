"""Reads the file that a fine-tuning run is started with, as it is: what will it hold in memory?

axolotl, LLaMA-Factory, TRL and transformers' Trainer (YAML, JSON, shell commands and Python
scripts), torchtune, verl, accelerate and DeepSpeed. Nothing in a file is executed. Every key that
changes memory and is not understood is said in `unread`; every value that a file leaves to its
tool's default is said in `assumed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.exports.model_names import plainer_name, size_in
from meshwright.exports.tuning_files import settings_of
from meshwright.exports.tuning_others import accelerate, deepspeed, torchtune, verl
from meshwright.exports.tuning_run import Data, Tuning
from meshwright.exports.tuning_trainers import axolotl, llama_factory, llama_factory_v1, trl
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import parse_json, read_text

__all__ = ["Tuning", "plainer_name", "read_tuning", "size_in", "tool_of"]


def read_tuning(path: str | Path, gpus: int = 0) -> Tuning:
    """Read a file.

    Args:
        path: of the file.
        gpus: devices that it will be started on; 0: what the file says, else 1.

    Raises:
        SpecError: not a file of a tool known here, or a value that no tool accepts.
    """
    name = Path(path).name
    text = read_text(path, "config")
    data = settings_of(text, Path(path).suffix.lower(), name)
    tool = tool_of(data, name)
    _with_file_beside(data, Path(path))
    found = READERS[tool](data)
    found.gpus = gpus or found.gpus or 1
    if found.gpus > 1 and not found.zero and found.tool not in ("accelerate", "deepspeed"):
        found.assumed.append("no DeepSpeed or FSDP is named: every device holds everything (DDP)")
    if found.gpus % found.cp:
        raise SpecError(
            "config", f"{found.cp} ranks a sequence", f"{found.gpus} devices are no multiple of it"
        )
    batch = found.micro_batch * found.accumulate * found.gpus // found.cp
    found.job = found.job.but(global_batch=batch)
    return found


def _with_file_beside(data: dict[str, Any], path: Path) -> None:
    """Put the DeepSpeed file that a run names in its place, where it lies beside the run's own."""
    named = data.get("deepspeed")
    if not isinstance(named, str):
        return
    beside = path.parent / Path(named).name
    if beside.is_file() and beside != path:
        read = parse_json(read_text(beside, "deepspeed"), "deepspeed", beside.name)
        if isinstance(read, dict):
            data["deepspeed"] = read


def tool_of(data: Data, name: str) -> str:
    """Which tool a file belongs to.

    Raises:
        SpecError: none that is known here.
    """
    marks: tuple[tuple[str, bool], ...] = (
        ("verl", "actor_rollout_ref" in data),
        ("axolotl", "base_model" in data),
        ("llama-factory-v1", "model_class" in data and "model" in data),
        ("llama-factory", "finetuning_type" in data or ("stage" in data and "template" in data)),
        ("torchtune", isinstance(data.get("model"), Mapping) and "_component_" in data["model"]),
        ("accelerate", "distributed_type" in data or "compute_environment" in data),
        ("deepspeed", "zero_optimization" in data or "train_micro_batch_size_per_gpu" in data),
        ("trl", "model_name_or_path" in data or "per_device_train_batch_size" in data
         or "model_name" in data or "use_peft" in data),
    )  # fmt: skip
    for tool, there in marks:
        if there:
            return tool
    raise SpecError(
        "config",
        name,
        "not a file of axolotl, LLaMA-Factory, TRL, transformers' Trainer, torchtune, verl, accelerate "
        "or DeepSpeed: no key of theirs is in it",
    )


READERS = {
    "axolotl": axolotl, "llama-factory": llama_factory, "llama-factory-v1": llama_factory_v1, "trl": trl, "torchtune": torchtune,
    "verl": verl, "accelerate": accelerate, "deepspeed": deepspeed,
}  # fmt: skip
