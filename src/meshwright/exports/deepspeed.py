"""DeepSpeed: a plan as `ds_config.json` (0.19.8) with a training script, and back.

Plans with a pipeline come with a script for its pipeline engine; the degree is in the JSON's
`pipeline` table, which the script reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from meshwright.exports.bundle import STAMP_KEY, comment, stamp_data, template
from meshwright.exports.canonical import canonical
from meshwright.exports.hf import hf_config, hf_problems
from meshwright.exports.limits import Limits, Problem
from meshwright.specs.errors import SpecError, nearest
from meshwright.specs.job import OPTIMIZERS, RECIPES, Job, PrecisionRecipe
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model
from meshwright.specs.plan import Plan

KNOWN_KEYS = frozenset({
    STAMP_KEY, "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "optimizer", "scheduler", "zero_optimization", "bf16", "fp16", "bfloat16", "torch_autocast",
    "amp", "gradient_clipping", "steps_per_print", "wall_clock_breakdown", "memory_breakdown",
    "dump_state", "prescale_gradients", "gradient_predivide_factor", "sparse_gradients",
    "communication_data_type", "seq_parallel_communication_data_type", "data_types",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "tensor_parallel", "pipeline",
    "activation_checkpointing", "flops_profiler", "comms_logger", "tensorboard", "wandb",
    "csv_monitor", "comet", "checkpoint", "aio", "autotuning", "elasticity", "data_efficiency",
    "curriculum_learning", "compression_training", "compile", "timers", "zenflow", "eigenvalue",
    "progressive_layer_drop", "sparse_attention", "hybrid_engine", "nebula", "disable_allgather",
    "sequence_parallel_size", "use_data_before_expert_parallelism", "dataloader_drop_last",
    "vocabulary_size", "load_universal_checkpoint", "graph_harvesting", "gradient_allreduce_op",
    "managed_gradient_accumulation", "log_level", "use_node_local_storage", "weight_quantization",
})  # fmt: skip
"""Top-level keys that DeepSpeed reads; it ignores any other without a word, we do not."""


def _problems(model: Model) -> Iterator[Problem]:
    yield from hf_problems(model)


LIMITS = Limits("DeepSpeed", "deepspeed", _problems)
VERSION = LIMITS.can.checked


def config(plan: Plan, command: str = "") -> dict[str, Any]:
    """The content of `ds_config.json`."""
    layout, job = canonical(plan.layout, plan.model), plan.job
    data: dict[str, Any] = {
        STAMP_KEY: stamp_data(plan, command, f"DeepSpeed {VERSION}"),
        "train_batch_size": job.global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.micro_batches(job.global_batch),
        "gradient_clipping": 1.0,
        "steps_per_print": 1,
        "zero_optimization": _zero(layout),
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1, "torch_adam": True},
        },
    }
    if layout.pp > 1:
        data["pipeline"] = {
            "stages": layout.pp,
            "partition": "type:Layer",
            "activation_checkpoint_interval": int(layout.recompute == "full"),
            "use_reentrant": False,
        }
    elif layout.recompute == "full":
        data["activation_checkpointing"] = {"partition_activations": False}
    if layout.tp > 1:
        # DeepSpeed multiplies by all ranks here, tensor-parallel ones too, so its product would
        # contradict the true batch; two of the three numbers are enough.
        del data["train_batch_size"]
        data["tensor_parallel"] = {"autotp_size": layout.tp}
    if job.precision.compute in ("bf16", "fp16"):
        data[job.precision.compute] = {"enabled": True}
        wide = job.precision.gradient_reduce_bytes >= 4
        data["communication_data_type"] = "fp32" if wide else job.precision.compute
        data["data_types"] = {
            "grad_accum_dtype": "fp32" if job.precision.gradient_bytes >= 4
            else job.precision.compute
        }  # fmt: skip
    return data


def _zero(layout: Layout) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": layout.zero}
    if layout.zero in (1, 2):
        zero |= {"reduce_bucket_size": 500_000_000, "allgather_bucket_size": 500_000_000}
    if layout.zero:
        zero["overlap_comm"] = True
    if layout.zero == 2:
        zero["contiguous_gradients"] = True
    if layout.zero == 3:
        zero |= {
            "reduce_bucket_size": 500_000_000,
            "stage3_prefetch_bucket_size": 50_000_000,
            "stage3_param_persistence_threshold": 100_000,
            "stage3_gather_16bit_weights_on_model_save": True,
        }
    return zero


def files(plan: Plan, command: str) -> dict[str, str]:
    """`ds_config.json`, the model's `config.json` and the script that uses them."""
    pipelined = "_pipeline" if canonical(plan.layout, plan.model).pp > 1 else ""
    name = f"train_deepspeed{pipelined}.py"
    stamp = comment(plan, command, f"DeepSpeed {VERSION}").rstrip()
    script = template(name, {"STAMP": stamp, "SEQ_LEN": plan.job.seq_len})
    model = hf_config(plan.model, plan.job.seq_len)
    model[STAMP_KEY] = stamp_data(plan, command, "transformers 5")
    return {
        "ds_config.json": json.dumps(config(plan, command), indent=2) + "\n",
        "config.json": json.dumps(model, indent=2) + "\n",
        "train.py": script,
    }


def read(data: dict[str, Any], world: int, seq_len: int) -> tuple[Job, Layout]:
    """Return the job and layout that a DeepSpeed configuration runs on a world of devices.

    `"auto"` (what the Hugging Face Trainer fills in) counts as absent.

    Raises:
        SpecError: an unknown key, or numbers that contradict each other.
    """
    for key in data:
        if key not in KNOWN_KEYS:
            raise SpecError(
                key, data[key], f"DeepSpeed has no such key; {nearest(key, KNOWN_KEYS)}"
            )
    tensor = _table(data, "tensor_parallel")
    tp = _count(tensor.get("autotp_size"), "tensor_parallel.autotp_size", 0) or 1
    cp = _count(data.get("sequence_parallel_size"), "sequence_parallel_size", 1)
    pipeline = _table(data, "pipeline")
    pp = _count(pipeline.get("stages"), "pipeline.stages", 1) or 1
    if world % (tp * cp * pp):
        raise SpecError("world", world, f"a multiple of {tp * cp * pp} devices is expected")
    dp = world // (tp * cp * pp)
    micro, batch = _batches(data, dp)
    zero = _table(data, "zero_optimization")
    stage = _count(zero.get("stage"), "zero_optimization.stage", 0)
    if stage > 3:
        raise SpecError("zero_optimization.stage", stage, "a stage from 0 to 3 is expected")
    checkpointing = "activation_checkpointing" in data or bool(
        pipeline.get("activation_checkpoint_interval")
    )
    shard = _count(zero.get("zero_hpz_partition_size"), "zero_hpz_partition_size", 1)
    job = Job.parse(
        {
            "seq_len": seq_len, "global_batch": batch, "framework": "deepspeed",
            "precision": _precision(data).model_dump(),
            "optimizer": OPTIMIZERS["adamw"].model_dump(),
        },
        "job",
    )  # fmt: skip
    layout = Layout.parse(
        {
            "dp": dp, "tp": tp, "pp": pp, "cp": cp, "zero": stage, "micro_batch": micro,
            "recompute": "full" if checkpointing else "none",
            "shard": shard if shard > 1 and stage == 3 else 0,
        },
        "layout",
    )  # fmt: skip
    return job, canonical(layout)


def _batches(data: dict[str, Any], dp: int) -> tuple[int, int]:
    """Micro-batch and global batch; DeepSpeed needs any two of its three numbers."""
    batch = _count(data.get("train_batch_size"), "train_batch_size", 0)
    micro = _count(data.get("train_micro_batch_size_per_gpu"), "train_micro_batch_size_per_gpu", 0)
    steps = _count(data.get("gradient_accumulation_steps"), "gradient_accumulation_steps", 0)
    if not micro:
        micro = batch // (dp * max(steps, 1)) if batch else 1
    if not batch:
        batch = micro * dp * max(steps, 1)
    if not steps and micro:
        steps = max(1, batch // (micro * dp))
    if batch != micro * steps * dp:
        raise SpecError(
            "train_batch_size",
            batch,
            f"train_micro_batch_size_per_gpu · gradient_accumulation_steps · data-parallel ranks = "
            f"{micro} · {steps} · {dp} is expected",
        )
    return micro, batch


def _precision(data: dict[str, Any]) -> PrecisionRecipe:
    for name in ("bf16", "bfloat16", "fp16"):
        if _table(data, name).get("enabled") in (True, "auto"):
            compute = "fp16" if name == "fp16" else "bf16"
            wide = _table(data, "data_types").get("grad_accum_dtype") == "fp32"
            sent = data.get("communication_data_type") == "fp32"
            recipe = RECIPES["bf16-fp32-grads" if wide and sent and compute == "bf16" else compute]
            return recipe.but(
                gradient_bytes=4 if wide else 2, gradient_reduce_bytes=4 if sent else 2
            )
    return RECIPES["fp32"]


def _table(data: dict[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key, {})
    if not isinstance(value, dict):
        raise SpecError(key, value, "a table is expected")
    return value


def _count(value: Any, field: str, default: int) -> int:
    if value is None or value == "auto":
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SpecError(field, value, "a whole number is expected")
    return value
