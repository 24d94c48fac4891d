"""EasyR1, a fork of verl with its own names: they become verl's, whose reader does the rest.

Names and defaults: verl/trainer/config.py, verl/workers/actor/config.py and examples/config.yaml of EasyR1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.interpolate import merged, read_table, words_to_table
from meshwright.imports.options import flattened
from meshwright.imports.reading import Given, Reading
from meshwright.specs.job import OPTIMIZERS

_ACTOR = "actor_rollout_ref.actor."
_MODEL = "actor_rollout_ref.model."
_NAMES = {
    "worker.actor.global_batch_size": f"{_ACTOR}ppo_mini_batch_size",
    "worker.actor.micro_batch_size_per_device_for_update": f"{_ACTOR}ppo_micro_batch_size_per_gpu",
    "worker.actor.ulysses_size": f"{_ACTOR}ulysses_sequence_parallel_size",
    "worker.actor.ulysses_sequence_parallel_size": f"{_ACTOR}ulysses_sequence_parallel_size",
    "worker.actor.padding_free": f"{_MODEL}use_remove_padding",
    "worker.actor.fsdp.enable_full_shard": f"{_ACTOR}fsdp_config.reshard_after_forward",
    "worker.actor.fsdp.enable_cpu_offload": f"{_ACTOR}fsdp_config.cpu_offload",
    "worker.actor.fsdp.fsdp_size": f"{_ACTOR}fsdp_config.fsdp_size",
    "worker.actor.fsdp.torch_dtype": f"{_ACTOR}fsdp_config.model_dtype",
    "worker.actor.offload.offload_params": f"{_ACTOR}fsdp_config.param_offload",
    "worker.actor.offload.offload_optimizer": f"{_ACTOR}fsdp_config.optimizer_offload",
    "worker.actor.optim.strategy": f"{_ACTOR}optim.optimizer",
    "worker.actor.model.model_path": f"{_MODEL}path",
    "worker.actor.model.enable_gradient_checkpointing": f"{_MODEL}enable_gradient_checkpointing",
    "worker.actor.model.lora.rank": f"{_MODEL}lora_rank",
    "worker.actor.model.lora.alpha": f"{_MODEL}lora_alpha",
    "worker.actor.model.lora.target_modules": f"{_MODEL}target_modules",
    "worker.rollout.n": "actor_rollout_ref.rollout.n",
    "algorithm.use_kl_loss": f"{_ACTOR}use_kl_loss",
    "worker.ref.fsdp.enable_cpu_offload": "actor_rollout_ref.ref.fsdp_config.param_offload",
}
_OWN: dict[str, Any] = {
    "worker.actor.global_batch_size": 256, "worker.actor.micro_batch_size_per_device_for_update": 4,
    "worker.actor.model.enable_gradient_checkpointing": True, "worker.actor.padding_free": True, "worker.rollout.n": 1,
    "data.max_prompt_length": 512, "data.max_response_length": 512, "trainer.nnodes": 1, "trainer.n_gpus_per_node": 8,
}  # fmt: skip
"""What EasyR1 takes where nothing is said."""


_ANY_PRECISION_BYTES = 6.0
"""Of its `AnyPrecisionAdamW` a parameter, whatever the weights' width: two moments and what rounding lost, each in bf16."""


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is EasyR1's."""
    worker = data.get("worker")
    return isinstance(worker, dict) and "actor" in worker and "actor_rollout_ref" not in data


def is_command(words: list[str]) -> bool:
    """Whether words of a command are EasyR1's."""
    return any(word.startswith(("worker.actor.", "worker.rollout.")) for word in words)


def read_words(words: list[str], given: Given, folder: Path | None) -> Reading:
    """Return the training half of an EasyR1 command: the file that it names, its own words over it.

    Raises:
        SpecError: a value that cannot be.
    """
    data = words_to_table(words)
    named = data.pop("config", "")
    path = beside(folder, str(named)) if named else None
    reading = read(merged(read_table(path), data) if path is not None else data, given)
    if named and path is None:
        reading.guess("config", f"{str(named)[-60:]} is not here; EasyR1's own defaults are taken for what it says")  # fmt: skip
    return reading


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return the training half of an EasyR1 configuration.

    Raises:
        SpecError: a value that cannot be.
    """
    from meshwright.imports.formats.verl import read_verl_data

    flat = _OWN | flattened(data)
    lora = flat.get("worker.actor.model.lora.rank")
    found: dict[str, Any] = {}
    for name, value in flat.items():
        if name == "worker.actor.optim.strategy" and str(value).endswith("_bf16"):
            value = str(value).removesuffix("_bf16")
        if not (name.startswith("worker.actor.model.lora.") and not lora):
            found[_NAMES.get(name, name)] = value
    reading = read_verl_data(_nested(found), given, "EasyR1", tables=("easyr1", "rl", "common"))
    reading.format = "EasyR1 configuration"
    if str(flat.get("worker.actor.optim.strategy")).endswith("_bf16"):
        reading.job["optimizer"] = OPTIMIZERS["adamw-bf16"].but(state_bytes=_ANY_PRECISION_BYTES).model_dump()  # fmt: skip
    frozen = flat.get("worker.actor.model.freeze_vision_tower")
    reading.encoder_frozen = str(frozen).lower() == "true"
    reading.options = {"micro_batch": "micro_batch_size_per_device_for_update"}
    return reading


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Tables of dotted names."""
    found: dict[str, Any] = {}
    for name, value in flat.items():
        *tables, last = name.split(".")
        inner = found
        for table in tables:
            inner = inner.setdefault(table, {})
        inner[last] = value
    return found
