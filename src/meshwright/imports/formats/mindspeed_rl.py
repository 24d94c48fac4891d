"""MindSpeed-RL: reinforcement learning on Ascend NPUs; the actor's update by Megatron-LM's arguments in a YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.formats import megatron
from meshwright.imports.formats.megatron_tables import flags_in_table
from meshwright.imports.interpolate import read_table, resolved
from meshwright.imports.options import Options, counted
from meshwright.imports.reading import Given, Reading
from meshwright.imports.tasks import name_task

_PARTS = ("megatron_training", "actor_config", "rl_config")
# What `rlxf` says among an actor's arguments of how answers are made and weighed.
_SAMPLING = {
    "do_sample", "ppo_mini_batch_size", "num_samples_per_step", "max_prompt_length", "ppo_epochs", "clip_ratio", "entropy_coeff",
    "shuffle_minibatch", "use_kv_cache", "num_gpus_for_infer", "pad_to_multiple_of", "kl_coef", "cliprange_value", "dpo_beta",
}  # fmt: skip


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is one of its experiments, or of MindSpeed-LLM's `rlxf`, which came before it."""
    return isinstance(data.get("megatron_training"), dict) or _is_early(data)


def _is_early(data: dict[str, Any]) -> bool:
    policy = data.get("actor_rollout_ref")
    return (
        isinstance(policy, dict)
        and isinstance(policy.get("actor_rollout"), dict)
        and isinstance(data.get("training"), dict)
    )


def _later(data: dict[str, Any]) -> dict[str, Any]:
    """An experiment of `rlxf` in MindSpeed-RL's words: its small batch is a data-parallel rank's."""
    actor = dict(data["actor_rollout_ref"]["actor_rollout"])
    devices = counted(actor.pop("num_gpus_for_train", None))
    ranks = 1
    for axis in ("tensor_model", "pipeline_model", "context"):
        ranks *= counted(actor.get(f"{axis}_parallel_size")) or 1
    policy: dict[str, Any] = {"use_integrated_worker": "ref" in data["actor_rollout_ref"]}
    if devices:
        policy["actor_resource"] = {"num_npus": devices}
    if batch := counted(actor.get("ppo_mini_batch_size")):
        policy["mini_batch_size"] = batch * max((devices or ranks) // ranks, 1)
    kept = {name: value for name, value in actor.items() if name not in _SAMPLING}
    later = {"megatron_training": data["training"], "actor_config": kept, "rl_config": policy}
    return later | ({"critic_config": data["critic"]} if "critic" in data else {})


def read(data: dict[str, Any], given: Given, folder: Path | None) -> Reading:
    """Return what the actor's update runs.

    Raises:
        SpecError: an argument is missing, impossible, or of a model that is not modelled.
    """
    data = resolved(data, dict(given.variables))
    if _is_early(data):
        data = _later(data)
    training, actor, policy = (data[part] if isinstance(data.get(part), dict) else {} for part in _PARTS)  # fmt: skip
    named = str(actor.get("model") or training.get("model") or "")
    model = _model(folder, named)
    table = {**model, **training, **actor}
    table.pop("model", None)
    # The update's own batch counts samples, the table's global batch the prompts that are sampled from.
    if batch := counted(policy.get("mini_batch_size")):
        table["global_batch_size"] = batch
    flags = flags_in_table(table)
    for name, value in flags.items():
        if isinstance(value, list):
            flags[name] = " ".join(map(str, value))
    options = Options(flags, "--")
    options.read |= {"stage", "dataset-additional-keys", "full-shuffle-instruction-dataset", "use-mcore-models"}  # fmt: skip
    options.values.setdefault("reuse-fp32-param", False)  # a sign of MindSpeed's words
    reading = megatron.read(options, given, "MindSpeed-RL YAML")
    reading.options = {axis: name.lstrip("-").replace("-", "_") for axis, name in reading.options.items()}  # fmt: skip
    reading.device = reading.device or "ascend-910b"
    resource = policy.get("actor_resource")
    if count := counted(resource.get("num_npus") if isinstance(resource, dict) else None):
        reading.devices, reading.counts_itself = count, True
    name_task(reading, str(training.get("stage", "")))
    reading.reference |= bool(policy.get("use_integrated_worker")) or "ref_config" in data
    _lengths(data, policy, reading)
    if named and not model:
        reading.note(f"the model's file {named}.yaml is not here", "defaults")
    if isinstance(data.get("critic_config"), dict):
        reading.unmodelled("critic_config", "a critic trains beside the actor; only the actor is priced")  # fmt: skip
    if policy:
        reading.note("sampling and scoring by the same devices are not priced", "generate_config")
    return reading


def _model(folder: Path | None, named: str) -> dict[str, Any]:
    """What the model's own file says; empty where it is not at hand."""
    path = beside(folder, f"model/{named}.yaml") if named else None
    table = read_table(path) if path is not None else {}
    inner = table.get(named)
    return inner if isinstance(inner, dict) else table


def _lengths(data: dict[str, Any], policy: dict[str, Any], reading: Reading) -> None:
    """A sequence of the update is a prompt with its answer."""
    generate = data.get("generate_config")
    sampling = generate.get("sampling_config") if isinstance(generate, dict) else None
    answer = counted(sampling.get("max_tokens") if isinstance(sampling, dict) else None)
    prompt = counted(policy.get("max_prompt_length"))
    if answer and prompt:
        reading.seq_len = prompt + answer
        reading.guess("--seq", f"sequences have at most {prompt + answer} tokens; that is taken for all")  # fmt: skip
