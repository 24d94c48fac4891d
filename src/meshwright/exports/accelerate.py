"""Hugging Face accelerate: a plan as its YAML (1.15, FSDP2 and ParallelismConfig), and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from meshwright.exports.bundle import comment, learning_rate, steps, template
from meshwright.exports.canonical import canonical
from meshwright.exports.fabric import check_hosts
from meshwright.exports.hf import (
    attention_problems,
    config_file,
    first_norm,
    first_numbers,
    hf_family,
    hf_problems,
    layer_class,
)
from meshwright.exports.limit_rules import Problem
from meshwright.exports.limits import Limits
from meshwright.exports.scripts import beside
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


LIMITS = Limits("accelerate", "accelerate", _problems, asked=attention_problems)
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
            **_units(plan.model),
            "fsdp_activation_checkpointing": layout.recompute == "full",
            "fsdp_cpu_ram_efficient_loading": False,
            "fsdp_offload_params": "parameters" in layout.offload,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
    if sharded or layout.tp > 1:
        data["parallelism_config"] = _parallelism(layout)
    return data


def deepspeed_config(plan: Plan, file: str) -> dict[str, Any]:
    """The YAML under which DeepSpeed's engine shards and splits sequences by Ulysses (`sp_size`).

    Args:
        plan: cp > 1, by Ulysses.
        file: DeepSpeed's own, beside this one.
    """
    layout = canonical(plan.layout, plan.model)
    hosts, _ = check_hosts(plan)
    return {
        "compute_environment": "LOCAL_MACHINE", "distributed_type": "DEEPSPEED", "num_machines": hosts,
        "num_processes": layout.world, "machine_rank": 0, "main_training_function": "main",
        "rdzv_backend": "static", "same_network": True, "use_cpu": False,
        # The file says its precision itself: accelerate takes none beside it.
        "deepspeed_config": {
            "deepspeed_config_file": file, "zero3_init_flag": layout.zero == 3,
            # Each host starts its own processes; another launcher would log in to all of them.
            "deepspeed_multinode_launcher": "standard",
        },
        "parallelism_config": {
            # accelerate multiplies these for the batch that DeepSpeed checks.
            "parallelism_config_dp_replicate_size": 1,
            "parallelism_config_dp_shard_size": layout.dp,
            "parallelism_config_sp_size": layout.cp,
            "parallelism_config_sp_backend": "deepspeed",
            "parallelism_config_sp_seq_length_is_variable": True,
            "parallelism_config_sp_attn_implementation": "sdpa",
        },
    }  # fmt: skip


def _units(model: Model) -> dict[str, str]:
    """The class of layers that FSDP shards one by one; accelerate takes a model's own where none is named."""
    named = layer_class(model) if hf_family(model) else None
    return {"fsdp_transformer_layer_cls_to_wrap": named} if named else {}


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
        "VERSION": VERSION,
        "SEQ_LEN": plan.job.seq_len,
        "NORM": first_norm(plan.model),
        "FIRST_NUMBERS": first_numbers(plan.model),
        "STEPS": steps(plan.job),
        "MICRO_BATCH": layout.micro_batch,
        "ACCUMULATION": layout.micro_batches(plan.job.global_batch),
        "RATE": learning_rate(plan.job),
        "LIGER": plan.job.loss == "liger",
        "REDUCE_FP32": plan.job.precision.gradient_reduce_bytes >= 4,
    }
    script = template("train_accelerate.py", values)
    return {
        "accelerate.yaml": text,
        "config.json": config_file(plan, command),
        "train.py": script,
    } | beside(plan, command, stamp)
