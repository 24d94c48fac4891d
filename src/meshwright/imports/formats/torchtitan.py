"""torchtitan: TOML files of its older releases, and what they share with the registries of newer ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from meshwright.costs.frameworks import UNCOMPILED_BLOCK, UNCOMPILED_LOSS
from meshwright.exports.torchtitan import FLAVORS, SCHEDULES
from meshwright.imports.formats.torchtitan_flavors import at_hand, differs
from meshwright.imports.names import model_named, refuse_other
from meshwright.imports.options import Options, flags_of, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw, torch_moments
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES
from meshwright.specs.model import Model

EDITS = {
    "tp": "tensor_parallel_degree", "pp": "pipeline_parallel_degree", "cp": "context_parallel_degree",
    "ep": "expert_parallel_degree", "micro_batch": "local_batch_size",
}  # fmt: skip
_EFFECTS = {
    "optimizer.early_step_in_backward": "each gradient is freed once its weight is updated; the estimate holds them all",
    "model.norm_type": "another norm than the model's own; the model's is priced",
}
_LOOPED = ("interleaved", "looped-bfs", "zb-auto", "zb-v", "dualpipe-v")


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is a torchtitan job's."""
    model = data.get("model")
    return (isinstance(model, dict) and "flavor" in model) or (
        "training" in data and ("parallelism" in data or "experimental" in data) and "job" in data
    )


def read_toml(
    data: dict[str, Any], given: Given, overrides: list[str], folder: Path | None = None
) -> Reading:
    """Return what a torchtitan TOML runs.

    Raises:
        SpecError: a value that cannot be.
    """
    options = Options(flattened(data) | overridden(overrides))
    reading = Reading("torchtitan TOML", options={k: f"parallelism.{v}" for k, v in EDITS.items()})
    reading.options["micro_batch"] = "training.local_batch_size"
    reading.options["recompute"] = "activation_checkpoint.mode"
    name, flavor = options.text("model.name"), options.text("model.flavor")
    named(reading, given, name, flavor, folder)
    backend = options.loose(
        "hf_transformers.model"
    )  # of transformers' models, whose flavour `full` is as published
    if backend and flavor == "full":
        reading.model_name = backend
        refuse_other(backend)
    if not (name or flavor or given.model):  # flame's: transformers' configuration by its name
        reading.model_name = options.loose("model.config")
        refuse_other(reading.model_name)
    fill(options, reading, "parallelism.", "training.")
    kind = options.word("activation_checkpoint.mode", default="selective")
    checkpointing(options, reading, kind)
    for option, text in _EFFECTS.items():
        if options.has(option) and options.text(option).lower() not in (
            "false",
            "rmsnorm",
            "fused_rmsnorm",
        ):
            reading.unmodelled(option, text)
    reading.count_steps(options, "training.steps")
    converters = str(options.raw("model.converters", "float8.enable_float8_linear") or "").lower()
    eight = "float8" in converters or converters == "true" or "mx" in converters
    if eight:
        reading.job["precision"] = RECIPES["fp8"].model_dump()
    others = [one for one in re.split(r"[\[\]'\",\s]+", converters) if one and not re.search(r"float8|mx|fp8|^true$|^false$|^none$", one)]  # fmt: skip
    if others:
        reading.unmodelled("model.converters", f"{', '.join(others)[:60]} changes the model's modules; not priced")  # fmt: skip
    options.finish(reading, "torchtitan", "flame", "common", strict=given.strict)
    return reading


def overridden(words: list[str]) -> dict[str, Any]:
    """What a command says over its configuration (`--training.seq_len 4096`), by dotted name."""
    return {name.replace("-", "_"): value for name, value in flags_of(words).items() if "." in name}


_DEBUG: dict[str, dict[str, Any]] = {
    # torchtitan/models/{llama3,qwen3}/__init__.py, `_debugmodel`.
    "llama3": {"layers": 6, "hidden": 256, "heads": 16, "kv_heads": 16, "head_dim": 16, "ffn": 768, "vocab": 2048},
    "qwen3": {"layers": 8, "hidden": 256, "heads": 16, "kv_heads": 8, "head_dim": 128, "ffn": 3072, "vocab": 2048,
              "qk_norm": "head", "tied_embeddings": True},
}  # fmt: skip


def named(
    reading: Reading, given: Given, module: str, flavor: str, folder: Path | None = None
) -> None:
    """Set the model that torchtitan registers under a family and a flavour; what a checkout at hand registers counts."""
    names = {(theirs, size): ours for theirs, size, ours in FLAVORS.values()}
    names |= {("llama4", "17bx16e"): "llama4-scout", ("llama4", "17bx128e"): "llama4-maverick"}
    names[("deepseek_v3", "16B")] = "deepseek-v2-lite"  # of DeepSeek-V2-Lite's shape
    names[("deepseek_v3", "236B")] = "deepseek-v2"
    own = at_hand(module, flavor, folder) if given.model is None else None
    if flavor == "debugmodel" and module in _DEBUG and given.model is None and own is None:
        reading.model = Model.parse({"name": f"{module}-debugmodel", **_DEBUG[module]}, "model")
        return
    found = names.get((module, flavor), "")
    if not found:
        family = {"llama3": "llama3.1", "llama3_simple_fsdp": "llama3.1"}.get(module, module)
        for spelled in (f"{family}-{flavor}", f"{module}-{flavor}", flavor) if flavor else ():
            if spelled and model_named(spelled.replace("_", "-")) is not None:
                found = spelled.replace("_", "-")
                break
    known = model_named(found) if found else None
    if own is not None and (known is None or differs(own, known)):
        reading.model = own
        reading.note(f"{flavor} is what the checkout at hand registers for {module}", "model.flavor")  # fmt: skip
        return
    if not found and given.model is None:
        refuse_other(module)
    reading.model = given.model
    reading.model_name = found or f"{module} {flavor}".strip()


def checkpointing(options: Options, reading: Reading, kind: str) -> None:
    """Set what is recomputed by the mode of `activation_checkpoint`.

    Raises:
        SpecError: another mode than torchtitan's.
    """
    option = options.text("activation_checkpoint.selective_ac_option", default="op")
    if kind not in ("none", "selective", "full", "memory_budget"):
        raise SpecError("activation_checkpoint.mode", kind, "none, selective or full is expected")
    reading.layout["recompute"] = kind if kind != "memory_budget" else "selective"
    if kind == "memory_budget":
        reading.unmodelled(
            "activation_checkpoint.mode",
            "a memory budget decides what is recomputed; selective is priced",
        )
    if kind == "selective" and option.isdigit() and int(option) > 0:
        reading.layout["recompute"] = "full"
        reading.unmodelled(
            "activation_checkpoint.selective_ac_option",
            f"every {option}. layer is recomputed in full; all are priced so",
        ) if int(option) > 1 else None


def fill(options: Options, reading: Reading, split: str, train: str) -> None:
    """Add what the parallelism and training tables say.

    Raises:
        SpecError: a value that cannot be.
    """
    experimental = "experimental."
    tp = (
        options.whole(f"{split}tensor_parallel_degree", f"{train}tensor_parallel_degree", default=1)
        or 1
    )
    pp = (
        options.whole(
            f"{split}pipeline_parallel_degree", f"{experimental}pipeline_parallel_degree", default=1
        )
        or 1
    )
    cp = (
        options.whole(
            f"{split}context_parallel_degree", f"{experimental}context_parallel_degree", default=1
        )
        or 1
    )
    replicate = (
        options.whole(
            f"{split}data_parallel_replicate_degree",
            f"{train}data_parallel_replicate_degree",
            default=1,
        )
        or 1
    )
    shard = int(options.number(f"{split}data_parallel_shard_degree", f"{train}data_parallel_shard_degree",
                               f"{train}data_parallel_degree", default=-1))  # fmt: skip
    ep = options.whole(f"{split}expert_parallel_degree", default=1) or 1
    etp = options.whole(f"{split}expert_tensor_parallel_degree", default=1) or 1
    policy = options.word(f"{split}fsdp_reshard_after_forward", default="default")
    sharded = shard != 1 or cp > 1
    zero = 0 if not sharded else 2 if policy == "never" or (policy == "default" and pp > 1) else 3
    reading.replicate = replicate
    if shard > 0:
        reading.dp = replicate * shard
    rotate = options.word(f"{split}context_parallel_rotate_method", default="allgather")
    reading.layout |= {
        "tp": tp, "pp": pp, "cp": cp, "ep": ep, "etp": etp, "zero": zero,
        "cp_method": "ring" if rotate == "alltoall" and cp > 1 else "all-gather",
        "sequence_parallel": options.flag(f"{split}enable_sequence_parallel", default=True)
        if f"{split}enable_sequence_parallel" in options else tp > 1,
    }  # fmt: skip
    reading.layout |= _stages(options, split, pp, _layers(reading))
    _tokens(options, reading, split, train, pp)
    _precision(options, reading, train)
    reading.job["framework"] = "torchtitan"
    balancer = options.word(f"{split}context_parallel_load_balancer", default="headtail")
    if cp > 1 and balancer in ("none", "null"):
        reading.job["framework_options"] = {"context_balanced": False}
    _compiled(options, reading, train)
    if options.flag(f"{train}enable_cpu_offload", f"{split}enable_cpu_offload"):
        reading.offload |= {"optimizer", "parameters"}
    if options.flag(f"{split}enable_async_tensor_parallel", "compile.enable_async_tensor_parallel"):
        reading.unmodelled(
            "enable_async_tensor_parallel",
            "tensor-parallel collectives hide behind products; not priced",
        )


def _compiled(options: Options, reading: Reading, train: str) -> None:
    """Blocks and loss run as torch has them unless `compile.enable` is set, then both by default (config/configs.py)."""
    parts = options.text("compile.components", default="model loss")
    if not options.flag("compile.enable", f"{train}compile"):
        parts = ""
    own = {} if "model" in parts else dict(UNCOMPILED_BLOCK)
    if "loss" not in parts:
        own |= UNCOMPILED_LOSS
    if own:
        reading.job["framework_options"] = reading.job.get("framework_options", {}) | own


def _tokens(options: Options, reading: Reading, split: str, train: str, pp: int) -> None:
    reading.seq_len = options.whole(f"{train}seq_len", f"{train}max_context_length")
    packed = options.whole(f"{train}num_tokens_per_microbatch_per_dp_rank")
    if not reading.seq_len:
        reading.seq_len = packed or 2048
        reading.guess("--seq", f"training.seq_len is not set; {reading.seq_len} is taken")
    local = options.whole(f"{train}local_batch_size", f"{train}batch_size") or max(
        1, packed // reading.seq_len
    )
    if not packed and not options.has(f"{train}local_batch_size", f"{train}batch_size"):
        local = 8
    micro = options.whole(f"{split}pipeline_parallel_microbatch_size")
    micro = micro if pp > 1 else 0
    parts = options.whole(f"{split}num_pp_microbatches", f"{split}pipeline_parallel_microbatches",
                          "experimental.pipeline_parallel_microbatches") if pp > 1 else 0  # fmt: skip
    total = int(options.number(f"{train}global_batch_size", default=-1))
    tokens = int(options.number(f"{train}num_tokens_per_train_step", default=-1))
    reading.batch_tokens = max(tokens, 0)
    steps = options.whole(f"{train}gradient_accumulation_steps", default=1) or 1
    if pp > 1 and parts > 1 and packed:
        # Newer releases: tokens are those of one micro-batch, and the pipeline runs several.
        reading.micro_batch, reading.accumulation = local, parts * steps
    else:
        reading.micro_batch = micro or (max(1, local // parts) if parts else 1 if pp > 1 else local)
        reading.accumulation = max(1, local // reading.micro_batch) * steps
    reading.global_batch = max(total, 0)


def _precision(options: Options, reading: Reading, train: str) -> None:
    half = options.word(f"{train}mixed_precision_param", default="bfloat16").rsplit(".", 1)[-1]
    reduce = options.word(f"{train}mixed_precision_reduce", default="float32").rsplit(".", 1)[-1]
    dtype = options.word(f"{train}dtype", default="float32").rsplit(".", 1)[-1]
    recipe = RECIPES["bf16-fp32-grads" if half == "bfloat16" else "fp32"]
    if reduce == "bfloat16":
        recipe = recipe.but(gradient_reduce_bytes=2)
    if dtype == "bfloat16":
        recipe = RECIPES["pure-bf16"]
    reading.job["precision"] = recipe.model_dump()
    name = options.text("optimizer.name", default="AdamW")
    found = torch_moments(optimizer_or_adamw(reading, name, "optimizer.name"), recipe)
    reading.job["optimizer"] = found.model_dump()


def _layers(reading: Reading) -> int:
    """Layers of the model, where it is known already; 0 where it is asked for later."""
    model = reading.model or (model_named(reading.model_name) if reading.model_name else None)
    return model.layers if model is not None else 0


def _divided(layers: int, stages: int, first: int, last: int) -> tuple[int, ...]:
    """Layers of each stage where embeddings and head count as some (torchtitan/distributed/pipeline_parallel.py)."""
    each, more = divmod(layers + first + last, stages)
    sizes = [each + (stage < more) for stage in range(stages)]
    sizes[0] -= first
    sizes[-1] -= last
    return tuple(sizes)


def _stages(options: Options, split: str, pp: int, depth: int = 0) -> dict[str, Any]:
    theirs = options.text(
        f"{split}pipeline_parallel_schedule",
        "experimental.pipeline_parallel_schedule",
        default="1F1B",
    )
    per_stage = int(options.number(f"{split}pipeline_parallel_layers_per_stage"))
    parts = options.raw(f"{split}module_fqns_per_model_part")
    points = options.raw(
        f"{split}pipeline_parallel_split_points", "experimental.pipeline_parallel_split_points"
    )
    if pp == 1:
        return {}
    ours = {value.lower(): key for key, value in SCHEDULES.items()}.get(theirs.lower())
    if ours is None:
        raise SpecError(
            "pipeline_parallel_schedule", theirs, f"one of {', '.join(SCHEDULES.values())}"
        )
    virtual = 2 if ours in _LOOPED else 1
    if isinstance(parts, list) and parts:
        layers = tuple(sum(str(one).startswith("layers.") for one in part) for part in parts)
        if len(layers) % pp:
            raise SpecError("module_fqns_per_model_part", len(layers), f"a multiple of {pp} parts")
        return {"schedule": ours, "virtual_stages": len(layers) // pp, "stage_layers": layers}
    if isinstance(points, list) and points and (len(points) + 1) % pp == 0:
        virtual = (len(points) + 1) // pp
    less = [f"{split}pipeline_parallel_{end}_stage_less_layers" for end in ("first", "last")]
    first, last = (options.whole(name, default=1) for name in less)
    if depth and per_stage:
        virtual = max(1, -(-(depth + first + last) // per_stage) // pp)
    stages = {"schedule": ours, "virtual_stages": virtual}
    if depth and (per_stage or options.has(*less)):
        sizes = _divided(depth, pp * virtual, first, last)
        if min(sizes) > 0:
            stages["stage_layers"] = sizes
    return stages
