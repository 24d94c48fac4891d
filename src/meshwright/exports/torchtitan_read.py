"""torchtitan's recipes and logs, read back into a job and a layout; nothing is run."""

from __future__ import annotations

import ast
import json
from typing import Any

from meshwright.exports.bundle import STEPS
from meshwright.exports.torchtitan import FLAVORS, LOOPED, SCHEDULES
from meshwright.specs.errors import SpecError, nearest
from meshwright.specs.job import OPTIMIZERS, RECIPES, Job
from meshwright.specs.layout import Layout

_PARALLEL = frozenset({
    "data_parallel_replicate_degree", "data_parallel_shard_degree", "fsdp_reshard_after_forward",
    "enable_fsdp_symm_mem", "tensor_parallel_degree", "enable_sequence_parallel", "spmd_backend",
    "pipeline_parallel_degree", "module_fqns_per_model_part",
    "pipeline_parallel_first_stage_less_layers", "pipeline_parallel_last_stage_less_layers",
    "pipeline_parallel_layers_per_stage", "pipeline_parallel_schedule",
    "pipeline_parallel_schedule_csv", "pipeline_parallel_microbatch_size",
    "context_parallel_degree", "context_parallel_load_balancer", "context_parallel_ptrr_mask_key",
    "expert_parallel_degree",
})  # fmt: skip
_TRAINING = frozenset({
    "local_batch_size", "global_batch_size", "seq_len", "max_norm", "steps", "enable_cpu_offload",
    "disable_cuda_graphs", "dtype", "mixed_precision_param", "mixed_precision_reduce", "gc_freq",
    "gc_debug", "debug_moe_force_load_balance",
})  # fmt: skip


def read(tree: ast.Module, world: int) -> tuple[str, Job, Layout]:
    """Return (preset name of the model, job, layout) of a recipe's source, which is never run.

    Raises:
        SpecError: no such calls, unknown keywords, values that are not literals or contradict.
    """
    split = _keywords(tree, "ParallelismConfig", _PARALLEL)
    train = _keywords(tree, "TrainingConfig", _TRAINING)
    if split is None or train is None:
        raise SpecError(
            "recipe", None, "calls of ParallelismConfig and TrainingConfig are expected"
        )
    fp8 = "Float8LinearConverter" in ast.dump(tree)
    name, job, layout = _read_fields(_registered(tree), split, train, _checkpoint(tree), fp8, world)
    chunked = any(
        isinstance(node, ast.Attribute)
        and ast.dump(node.value).startswith("Name(id='ChunkedLossWrapper'")
        for node in ast.walk(tree)
    )
    return name, job.but(loss="chunked") if chunked else job, layout


def read_log(text: str, world: int) -> tuple[str, Job, Layout] | None:
    """Return what a log says that `debug.print_config` wrote its configuration to, if it did.

    Raises:
        SpecError: values that contradict each other.
    """
    start = text.find(_LOGGED)
    if start < 0:
        return None
    try:
        data, _ = json.JSONDecoder().raw_decode(text[start + len(_LOGGED) :].lstrip())
    except (ValueError, RecursionError):
        raise SpecError("log", _LOGGED, "the configuration in this log is cut short") from None
    split, train = data.get("parallelism"), data.get("training")
    if not isinstance(split, dict) or not isinstance(train, dict):
        raise SpecError("log", _LOGGED, "tables parallelism and training are expected")
    spec = data.get("model_spec") or {}
    names = {(module, size): ours for module, size, ours in FLAVORS.values()}
    name = names.get((str(spec.get("name")), str(spec.get("flavor"))), "")
    saved = data.get("activation_checkpoint")
    kind = "none"
    if isinstance(saved, dict):
        kind = "selective" if "force_recompute_mm_shapes_by_fqns" in saved else "full"
    return _read_fields(name, split, train, kind, "Float8" in text, world)


_LOGGED = "Running with configs:"


def _read_fields(
    name: str, split: dict[str, Any], train: dict[str, Any], kind: str, fp8: bool, world: int
) -> tuple[str, Job, Layout]:
    tp = _degree(split, "tensor_parallel_degree")
    pp = _degree(split, "pipeline_parallel_degree")
    cp = _degree(split, "context_parallel_degree")
    replicate = _degree(split, "data_parallel_replicate_degree")
    shard = split.get("data_parallel_shard_degree", -1)
    if shard == -1:
        rest = replicate * tp * pp * cp
        if world % rest or not world:
            raise SpecError("world", world, f"a multiple of {rest} devices is expected (--cluster)")
        shard = world // rest
    shard = _degree({"data_parallel_shard_degree": shard}, "data_parallel_shard_degree")
    dp = replicate * shard
    sharded = shard * cp > 1
    policy = split.get("fsdp_reshard_after_forward", "default")
    zero = 0 if not sharded else 2 if policy == "never" else 3
    if policy == "default" and pp > 1 and sharded:
        zero = 2  # torchtitan's default keeps weights gathered under a pipeline
    schedule, virtual, stages = _stages(split, pp, name)
    micro = train.get("local_batch_size", 8)
    if pp > 1:
        micro = _degree(split, "pipeline_parallel_microbatch_size")
    batch = train.get("global_batch_size", -1)
    if batch == -1:
        batch = train.get("local_batch_size", 8) * dp
    layout = Layout.parse(
        {
            "dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": _degree(split, "expert_parallel_degree"),
            "zero": zero, "shard": shard * cp if sharded else 0, "micro_batch": micro,
            "sequence_parallel": split.get("enable_sequence_parallel", True),
            "schedule": schedule, "virtual_stages": virtual, "stage_layers": stages,
            "recompute": kind,
            "offload": ["optimizer", "parameters"] if train.get("enable_cpu_offload") else [],
        },
        "parallelism",
    )  # fmt: skip
    half = train.get("mixed_precision_param", "bfloat16") == "bfloat16"
    recipe = RECIPES["fp8" if fp8 else "bf16-fp32-grads" if half else "fp32"]
    narrow = {}
    if half and not fp8 and train.get("dtype") == "bfloat16":
        # Gradients are summed in 32 bits and kept as wide as the weights (FSDP2).
        recipe = RECIPES["pure-bf16"].but(gradient_reduce_bytes=4)
        narrow = {"optimizer": OPTIMIZERS["adamw-bf16"].model_dump()}
    job = Job.parse(
        {
            **narrow,
            "seq_len": train.get("seq_len", 2048),
            "global_batch": batch,
            "framework": "torchtitan",
            "precision": recipe.model_dump(),
        },
        "training",
    )
    if isinstance(train.get("steps"), int) and train["steps"] > STEPS:
        job = job.but(token_budget=float(train["steps"] * job.tokens))
    return name, job, layout


def _stages(split: dict[str, Any], pp: int, name: str) -> tuple[str, int, tuple[int, ...] | None]:
    """Schedule, stages a rank, and layers of each stage if they are spelled out."""
    if pp == 1:
        return "1f1b", 1, None
    theirs = str(split.get("pipeline_parallel_schedule", "1F1B"))
    ours = {value.lower(): key for key, value in SCHEDULES.items()}.get(theirs.lower())
    if ours is None:
        raise SpecError(
            "pipeline_parallel_schedule", theirs, f"one of {', '.join(SCHEDULES.values())}"
        )
    parts = split.get("module_fqns_per_model_part")
    if parts:
        layers = tuple(sum(str(m).startswith("layers.") for m in part) for part in parts)
        if len(layers) % pp:
            raise SpecError("module_fqns_per_model_part", len(layers), f"a multiple of {pp} parts")
        return ours, len(layers) // pp, layers
    per_stage = split.get("pipeline_parallel_layers_per_stage")
    if isinstance(per_stage, int) and per_stage > 0:
        total = next((key[0] for key, value in FLAVORS.items() if value[2] == name), 0)
        ends = sum(
            split.get(f"pipeline_parallel_{end}_stage_less_layers", 1) for end in ("first", "last")
        )
        return ours, max(1, -(-(total + ends) // per_stage) // pp), None
    return ours, 2 if ours in LOOPED else 1, None


def _checkpoint(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "activation_checkpoint":
            text = ast.unparse(node.value)
            return "full" if "FullAC" in text else "selective" if "SelectiveAC" in text else "none"
    return "selective"


def _registered(tree: ast.Module) -> str:
    module = ""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and "model_registry" in {a.name for a in node.names}:
            module = (node.module or "").rsplit(".", 1)[-1]
        if isinstance(node, ast.Call) and _called(node) == "model_registry" and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant):
                for theirs, size, ours in FLAVORS.values():
                    if size == first.value and (not module or theirs == module):
                        return ours
    return ""


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _keywords(tree: ast.Module, name: str, known: frozenset[str]) -> dict[str, Any] | None:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or _called(node) != name:
            continue
        found = {}
        for keyword in node.keywords:
            if keyword.arg not in known:
                raise SpecError(
                    f"{name}.{keyword.arg}",
                    ast.unparse(keyword.value)[:60],
                    f"torchtitan has no such field; {nearest(str(keyword.arg), known)}",
                )
            try:
                found[str(keyword.arg)] = ast.literal_eval(keyword.value)
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                raise SpecError(
                    f"{name}.{keyword.arg}",
                    ast.unparse(keyword.value)[:60],
                    "a literal is expected",
                ) from None
        return found
    return None


def _degree(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name, 1)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SpecError(name, value, "a whole number of at least 1 is expected")
    return value
