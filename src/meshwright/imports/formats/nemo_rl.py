"""NeMo RL's YAML: the training half of it."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.formats.megatron import split_stages
from meshwright.imports.interpolate import merged, read_table, resolved
from meshwright.imports.names import PLANNED, model_named
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_named
from meshwright.imports.tasks import name_task
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES


def with_inherited(data: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """A recipe of NeMo RL's that holds nothing of its policy, with the files that it begins with.

    Raises:
        SpecError: one of them cannot be parsed.
    """
    below = _below(data.get("defaults"))
    of_files = all(one.endswith((".yaml", ".yml")) for one in below)  # Hydra's own name no endings
    if not below or "policy" in data or not (of_files or _RL & set(data)):
        return data
    whole = _inherited(dict(data), folder, Reading(""))
    return whole if "policy" in whole else data


_RL = frozenset({"cluster", "checkpointing", "logger", "grpo", "sft", "dpo", "ppo", "rm", "distillation", "loss_fn"})  # fmt: skip
_DEEPEST = 6


def _below(said: Any) -> list[str]:
    """Files that `defaults` names, each over the one before it: one, or a list of nothing else."""
    named = said if isinstance(said, list) else [said]
    return named if all(isinstance(one, str) for one in named) else []


def _inherited(
    data: dict[str, Any], folder: Path | None, reading: Reading, depth: int = 0
) -> dict[str, Any]:
    """A table over the files that its `defaults` name, one below the other; one that is not here is said."""
    below: dict[str, Any] = {}
    for named in _below(data.pop("defaults", None)) if depth < _DEEPEST else []:
        path = beside(folder, named)
        if path is None:
            reading.guess("defaults", f"{named[-60:]} is not here; what it says is left out")
            continue
        below = _over(below, _inherited(read_table(path), path.parent, reading, depth + 1))
    return _over(below, data)


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Two tables, the second one's values counting; one of its parts that says `_override_` stands alone."""
    alone = {
        key
        for key, part in above.items()
        if isinstance(part, dict) and part.pop("_override_", False)
    }
    return merged({key: part for key, part in below.items() if key not in alone}, above)


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is NeMo RL's."""
    return "policy" in data and (
        "cluster" in data or "grpo" in data or "sft" in data or "dpo" in data or "defaults" in data
    )


def read(data: dict[str, Any], given: Given, folder: Path | None) -> Reading:
    """Return the training half of a NeMo RL configuration.

    Raises:
        SpecError: a value that cannot be.
    """
    reading = Reading("NeMo RL YAML", options={"micro_batch": "policy.train_micro_batch_size"})
    data = _inherited(data, folder, reading)
    options = Options(flattened(resolved(data, dict(given.variables))))
    reading.model, reading.model_name = given.model, options.loose("policy.model_name")
    if options.flag("policy.is_vlm"):
        raise SpecError("policy.is_vlm", True, f"trains a vision-language model: {PLANNED}")
    reading.hosts, reading.per_host = (
        options.whole("cluster.num_nodes"),
        options.whole("cluster.gpus_per_node"),
    )
    reading.counts_itself = (
        reading.hosts > 0 and reading.per_host > 0
    )  # Ray's devices, whatever a script counts
    if options.raw("policy.generation.colocated.enabled") is False:
        away = "policy.generation.colocated.resources."
        taken, cards = options.whole(f"{away}num_nodes"), options.whole(f"{away}gpus_per_node")
        if taken and reading.hosts > taken:
            reading.hosts -= taken
        elif reading.hosts == 1 and reading.per_host > cards:
            reading.per_host -= cards  # on one host generation takes a part of its devices
    megatron_on = options.flag("policy.megatron_cfg.enabled")
    second = options.flag("policy.dtensor_v2_cfg.enabled")
    get = f"policy.{'megatron_cfg' if megatron_on else 'dtensor_v2_cfg' if second else 'dtensor_cfg'}."
    reading.layout = {
        "tp": options.whole(f"{get}tensor_model_parallel_size", f"{get}tensor_parallel_size", default=1) or 1,
        "cp": options.whole(f"{get}context_parallel_size", default=1) or 1,
        "pp": options.whole(f"{get}pipeline_model_parallel_size", f"{get}pipeline_parallel_size", default=1) or 1,
        "ep": options.whole(f"{get}expert_model_parallel_size", f"{get}expert_parallel_size", default=1) or 1,
        "sequence_parallel": options.flag(f"{get}sequence_parallel"),
        "zero": 1 if megatron_on else 3,
        "recompute": "full" if options.flag(f"{get}activation_checkpointing") else "none",
    }  # fmt: skip
    if options.flag(f"{get}cpu_offload"):
        reading.offload |= {"optimizer", "parameters"}
    reading.micro_batch = options.whole("policy.train_micro_batch_size")
    reading.global_batch = options.whole("policy.train_global_batch_size")
    reading.seq_len = options.whole("policy.max_total_sequence_length")
    precision = options.word("policy.precision", default="bfloat16")
    reading.job = {
        "framework": "megatron" if megatron_on else "fsdp",
        "precision": RECIPES["bf16-fp32-grads" if "bf" in precision else "fp32"].model_dump(),
    }
    ddp = "policy.megatron_cfg.distributed_data_parallel_config."
    if megatron_on and options.has(f"{ddp}grad_reduce_in_fp32") and "bf" in precision:
        wide = options.flag(f"{ddp}grad_reduce_in_fp32")
        reading.job["precision"] = RECIPES["bf16-fp32-grads" if wide else "bf16"].model_dump()
    for field, what in (("overlap_grad_reduce", "reduce_overlapped"), ("overlap_param_gather", "gather_overlapped")):  # fmt: skip
        if megatron_on and options.has(f"{ddp}{field}") and not options.flag(f"{ddp}{field}"):
            reading.job["framework_options"] = {**reading.job.get("framework_options", {}), what: False}  # fmt: skip
    name = options.loose(
        "policy.megatron_cfg.optimizer.optimizer" if megatron_on else "policy.optimizer.name"
    )
    try:
        reading.job["optimizer"] = optimizer_named(
            name or "adamw", "policy.optimizer.name"
        ).model_dump()
    except SpecError:
        reading.unmodelled(
            "policy.optimizer.name", f"the state of {name} is not known; AdamW's is priced"
        )
    _engine(options, reading, get, megatron_on)
    reading.note("the training half is priced, not generation")
    for stage in ("dpo", "rm"):
        name_task(reading, stage if stage in data else "")
    if options.has("teacher.model_name"):
        reading.unmodelled(
            "teacher.model_name",
            f"{options.loose('teacher.model_name')}, frozen, runs and is held beside it; not priced",
        )
    if any(name.startswith("value.") for name in options.values):
        options.read |= {name for name in options.values if name.startswith("value.")}
        reading.unmodelled("value", "a value model trains, too, and is held beside the policy, which alone is priced")  # fmt: skip
    _filled(options, reading)
    options.within = (
        f"{get}optimizer.", f"{get}distributed_data_parallel_config.", "policy.megatron_cfg.", "policy.dtensor_cfg.",
    )  # fmt: skip
    tables = ("rl", "nemo_rl", *(("megatron",) if megatron_on else ()), "common")
    options.finish(reading, *tables, strict=given.strict)
    return reading


def _filled(options: Options, reading: Reading) -> None:
    """Micro-batches that are filled with whole sequences up to a number of tokens, and hold no more than a replica has."""
    for way in ("sequence_packing", "dynamic_batching"):
        if not options.flag(f"policy.{way}.enabled"):
            continue
        if way == "sequence_packing":
            reading.job["document_masking"] = True
        tokens = options.whole(f"policy.{way}.train_mb_tokens")
        if tokens and reading.seq_len and tokens // reading.seq_len != reading.micro_batch:
            reading.micro_batch = max(1, tokens // reading.seq_len)
            reading.guess("--micro-batch", f"micro-batches are filled to {tokens} tokens; {reading.micro_batch} sequences are taken")  # fmt: skip
        elif way == "dynamic_batching":
            reading.unmodelled(f"policy.{way}", "micro-batches are filled to a number of tokens; a fixed one is priced")  # fmt: skip
        ranks = prod(reading.layout[axis] for axis in ("tp", "cp", "pp"))
        share = reading.global_batch * ranks // max(1, reading.hosts * reading.per_host)
        if 0 < share < reading.micro_batch:
            reading.guess("--micro-batch", f"a replica's share of a step is {share} sequences, fewer than the {reading.micro_batch} of a micro-batch; {share} are taken")  # fmt: skip
            reading.micro_batch = share


def _engine(options: Options, reading: Reading, get: str, megatron_on: bool) -> None:
    """What the engine that is on adapts, copies and moves; the tables of those that are off say nothing."""
    engines = ("policy.megatron_cfg.", "policy.dtensor_cfg.", "policy.dtensor_v2_cfg.")
    options.read |= {n for n in options.values if n.startswith(engines) and not n.startswith(get)}
    tune = f"{get}{'peft' if megatron_on else 'lora_cfg'}."
    if options.flag(f"{tune}enabled"):
        every = options.flag(f"{tune}match_all_linear")
        adapters(
            reading, rank=options.whole(f"{tune}dim", default=8), alpha=options.number(f"{tune}alpha"),
            targets=None if every else options.raw(f"{tune}target_modules"), dropout=options.number(f"{tune}dropout"),
            option=f"{tune}target_modules",
        )  # fmt: skip
        if options.raw(f"{tune}exclude_modules"):
            reading.unmodelled(f"{tune}exclude_modules", "these get no adapters; all that are named do")  # fmt: skip
    options.read |= {n for n in options.values if n.startswith(tune)}
    if options.word(f"{get}cuda_graph_impl", default="none") == "none":
        options.read |= {n for n in options.values if n.startswith(f"{get}cuda_graph_")}
    if not options.flag("policy.draft.enabled"):
        options.read |= {n for n in options.values if n.startswith("policy.draft.")}
    first, last = (options.whole(f"{get}num_layers_in_{end}_pipeline_stage") for end in ("first", "last"))  # fmt: skip
    granularity = options.word(f"{get}recompute_granularity", default="full")
    if reading.layout["recompute"] == "full" and granularity == "selective":
        reading.layout["recompute"] = "selective"
        modules = options.raw(f"{get}recompute_modules")
        if isinstance(modules, list) and modules:
            reading.layout["recompute_modules"] = [str(one) for one in modules]
    model = reading.model or model_named(reading.model_name)
    if (first or last) and model is not None and reading.layout["pp"] > 1:
        said = Options({f"decoder-{end}-pipeline-num-layers": count for end, count in (("first", first), ("last", last)) if count})  # fmt: skip
        _stages, split = split_stages(said, model, reading.layout["pp"])
        reading.layout |= {"stage_layers": split} if split is not None else {}
    if (etp := options.whole(f"{get}expert_tensor_parallel_size", default=1)) > 1:
        reading.layout["etp"] = etp
    reading.replicate = options.whole(f"{get}dp_replicate_size")
    if not options.flag(f"{get}optimizer.use_distributed_optimizer", default=True):
        reading.layout["zero"] = 0
    if options.flag(f"{get}optimizer.optimizer_cpu_offload"):
        reading.offload.add("optimizer")
    if options.flag(f"{get}fp8_cfg.enabled"):
        reading.job["precision"] = RECIPES["fp8"].model_dump()
        if options.flag(f"{get}fp8_cfg.fp8_param"):
            reading.unmodelled(f"{get}fp8_cfg.fp8_param", "weights are held and gathered in 8 bits; 16 are priced")  # fmt: skip
    options.read |= {n for n in options.values if n.startswith(f"{get}fp8_cfg.")}
