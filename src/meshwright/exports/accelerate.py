"""Hugging Face accelerate: a plan as its YAML (1.15, FSDP2 and ParallelismConfig), and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from meshwright.exports.bundle import STAMP_KEY, comment, stamp_data, template
from meshwright.exports.canonical import canonical
from meshwright.exports.fabric import check_hosts
from meshwright.exports.hf import hf_config, hf_problems, layer_class
from meshwright.exports.limits import Limits, Problem
from meshwright.specs.errors import SpecError, nearest
from meshwright.specs.job import RECIPES, Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model
from meshwright.specs.plan import Plan

_TOP = frozenset({
    "compute_environment", "distributed_type", "mixed_precision", "use_cpu", "debug", "downcast_bf16",
    "num_processes", "machine_rank", "num_machines", "gpu_ids", "main_process_ip",
    "main_process_port", "rdzv_backend", "same_network", "main_training_function",
    "enable_cpu_affinity", "fp8_config", "deepspeed_config", "fsdp_config", "parallelism_config",
    "megatron_lm_config", "mpirun_config", "tpu_name", "tpu_zone", "tpu_use_cluster",
    "tpu_use_sudo", "command_file", "commands", "tpu_vm", "tpu_env", "dynamo_config",
})  # fmt: skip
_FSDP = frozenset("fsdp_" + name for name in (
    "version", "offload_params", "min_num_params", "sharding_strategy", "reshard_after_forward",
    "auto_wrap_policy", "transformer_layer_cls_to_wrap", "backward_prefetch", "state_dict_type",
    "forward_prefetch", "use_orig_params", "cpu_ram_efficient_loading", "sync_module_states",
    "activation_checkpointing", "activation_checkpointing_offload", "ignored_modules",
))  # fmt: skip
_PARALLEL = frozenset("parallelism_config_" + name for name in (
    "dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "cp_backend", "cp_comm_strategy",
    "sp_size", "sp_backend", "sp_seq_length", "sp_seq_length_is_variable",
    "sp_attn_implementation",
))  # fmt: skip
STRATEGIES = {"all-gather": "allgather", "ring": "alltoall"}
"""Context-parallel method → cp_comm_strategy (torch's all-to-all passes keys round a ring)."""
KNOWN_KEYS = {"": _TOP, "fsdp_config": _FSDP, "parallelism_config": _PARALLEL}
"""Keys by table; accelerate checks the first level only, we check the tables too."""


def _problems(model: Model) -> Iterator[Problem]:
    yield from hf_problems(model)


LIMITS = Limits("accelerate", "accelerate", _problems)
VERSION = LIMITS.can.checked


def config(plan: Plan) -> dict[str, Any]:
    """The content of the YAML file."""
    layout, job = canonical(plan.layout, plan.model), plan.job
    hosts, _ = check_hosts(plan)
    sharded = layout.zero > 0
    data: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if sharded else "MULTI_GPU",
        "mixed_precision": "no" if job.precision.compute == "fp32" else job.precision.compute,
        "num_machines": hosts,
        "num_processes": layout.world,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    if layout.world == 1:
        data["distributed_type"] = "NO"
    if plan.cluster.device.vendor == "cpu":
        data |= {"use_cpu": True, "distributed_type": "FSDP" if sharded else "MULTI_CPU"}
    if sharded:
        data["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": layout.zero == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_transformer_layer_cls_to_wrap": layer_class(plan.model),
            "fsdp_activation_checkpointing": layout.recompute == "full",
            "fsdp_cpu_ram_efficient_loading": False,
            "fsdp_offload_params": False,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
    if sharded or layout.tp > 1:
        data["parallelism_config"] = _parallelism(layout)
    return data


def _parallelism(layout: Layout) -> dict[str, Any]:
    degree = layout.shard_degree
    sizes: dict[str, Any] = {
        "parallelism_config_dp_replicate_size": layout.dp * layout.cp // degree,
        "parallelism_config_dp_shard_size": max(1, degree // layout.cp),
        "parallelism_config_tp_size": layout.tp,
        "parallelism_config_cp_size": layout.cp,
    }
    if layout.cp > 1:
        sizes["parallelism_config_cp_comm_strategy"] = STRATEGIES[layout.cp_method]
    return sizes


def files(plan: Plan, command: str) -> dict[str, str]:
    """`accelerate.yaml`, the model's `config.json` and the script that uses them."""
    layout, stamp = canonical(plan.layout, plan.model), f"accelerate {VERSION}"
    text = comment(plan, command, stamp) + yaml.safe_dump(config(plan), sort_keys=False)
    values = {
        "STAMP": comment(plan, command, stamp).rstrip(),
        "SEQ_LEN": plan.job.seq_len,
        "MICRO_BATCH": layout.micro_batch,
        "ACCUMULATION": layout.micro_batches(plan.job.global_batch),
    }
    script = template("train_accelerate.py", values)
    model = hf_config(plan.model, plan.job.seq_len)
    model[STAMP_KEY] = stamp_data(plan, command, "transformers 5")
    return {
        "accelerate.yaml": text,
        "config.json": json.dumps(model, indent=2) + "\n",
        "train.py": script,
    }


def read(data: dict[str, Any], seq_len: int, micro: int, batch: int | None) -> tuple[Job, Layout]:
    """Return the job and layout of an accelerate configuration.

    The YAML holds neither batch nor sequence: they come from the caller.

    Raises:
        SpecError: an unknown key at any depth, or sizes whose product is not num_processes.
    """
    for table, known in KNOWN_KEYS.items():
        part = data if not table else data.get(table) or {}
        if not isinstance(part, dict):
            raise SpecError(table, part, "a table is expected")
        for key in part:
            if key not in known:
                where = f"{table}.{key}" if table else str(key)
                raise SpecError(
                    where, part[key], f"accelerate has no such key; {nearest(str(key), known)}"
                )
    if data.get("deepspeed_config") or data.get("megatron_lm_config"):
        raise SpecError(
            "distributed_type", data.get("distributed_type"),
            "import the DeepSpeed JSON or the Megatron-LM flags themselves",
        )  # fmt: skip
    world = _size(data, "num_processes", 1)
    sizes = data.get("parallelism_config") or {}
    names = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size")
    replicate, shard, tp, cp, sp = (_size(sizes, f"parallelism_config_{n}", 1) for n in names)
    if sp > 1:
        raise SpecError(
            "parallelism_config_sp_size", sp, "Ulysses sequence parallelism is not modelled"
        )
    fsdp = data.get("fsdp_config") or {}
    sharded = data.get("distributed_type") == "FSDP"
    if not sizes:
        replicate, shard = (1, world) if sharded else (world, 1)
    product = replicate * shard * tp * cp
    if product != world:
        raise SpecError(
            "num_processes", world,
            f"dp_replicate · dp_shard · tp · cp = {replicate} · {shard} · {tp} · {cp} is expected",
        )  # fmt: skip
    zero = 0
    if sharded:
        zero = (
            3 if fsdp.get("fsdp_reshard_after_forward", True) in (True, "true", "FULL_SHARD") else 2
        )
    dp = replicate * shard
    methods = {theirs: ours for ours, theirs in STRATEGIES.items()}
    layout = Layout.parse(
        {
            "dp": dp, "tp": tp, "cp": cp, "zero": zero, "micro_batch": micro,
            "shard": shard * cp if zero else 0,
            "cp_method": methods.get(str(sizes.get("parallelism_config_cp_comm_strategy")), "all-gather"),
            "recompute": "full" if fsdp.get("fsdp_activation_checkpointing") else "none",
        },
        "layout",
    )  # fmt: skip
    precision = str(data.get("mixed_precision", "no")).lower()
    if precision not in ("no", "bf16", "fp16", "fp8"):
        raise SpecError("mixed_precision", precision, "no, bf16, fp16 or fp8 is expected")
    job = Job.parse(
        {
            "seq_len": seq_len, "global_batch": batch or dp * micro, "framework": "fsdp",
            "precision": RECIPES["fp32" if precision == "no" else precision].model_dump(),
        },
        "job",
    )  # fmt: skip
    return job, canonical(layout)


def _size(data: dict[str, Any], key: str, default: int) -> int:
    value = data.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SpecError(key, value, "a whole number of at least 1 is expected")
    return value
