"""DeepSpeed: a plan as `ds_config.json` (0.19.8) with a training script, and back.

Plans with a pipeline come with a script for its pipeline engine; the degree is in the JSON's
`pipeline` table, which the script reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from meshwright.exports.bundle import STAMP_KEY, comment, learning_rate, stamp_data, steps, template
from meshwright.exports.canonical import canonical
from meshwright.exports.hf import (
    attention_problems,
    config_file,
    first_norm,
    first_numbers,
    hf_problems,
)
from meshwright.exports.limit_rules import Problem
from meshwright.exports.limits import Limits
from meshwright.exports.scripts import beside
from meshwright.specs.job_words import without_master
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
            "params": {
                "lr": learning_rate(job),
                "betas": [0.9, 0.95],
                "weight_decay": 0.1,
                "torch_adam": True,
            },
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
    if "optimizer" in layout.offload:
        # Then DeepSpeed brings its own Adam for processors, which the plan prices.
        del data["optimizer"]["params"]["torch_adam"]
    if layout.cp > 1:
        data["sequence_parallel_size"] = layout.cp
    if layout.tp > 1:
        # DeepSpeed multiplies by all ranks here, tensor-parallel ones too, so its product would
        # contradict the true batch; two of the three numbers are enough.
        del data["train_batch_size"]
        data["tensor_parallel"] = {"autotp_size": layout.tp}
    if job.precision.compute in ("bf16", "fp16"):
        data[job.precision.compute] = {"enabled": True}
        if without_master(job):
            data["bf16"] |= {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
        wide = job.precision.gradient_reduce_bytes >= 4
        data["communication_data_type"] = "fp32" if wide else job.precision.compute
        data["data_types"] = {
            "grad_accum_dtype": "fp32"
            if job.precision.gradient_bytes >= 4
            else job.precision.compute
        }
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
    # Weights can leave only where every rank holds a share of each.
    held = {"optimizer": "offload_optimizer", "parameters": "offload_param"}
    zero |= {held[what]: {"device": "cpu", "pin_memory": True} for what in layout.offload}
    return zero


def _together(layout: Layout) -> Iterator[Problem]:
    """What lives in host memory needs the ZeRO stage that shards it (runtime/zero/config.py)."""
    if "optimizer" in layout.offload and layout.zero < 1 and layout.dp * layout.cp == 1:
        says = "keeps optimizer in host memory from ZeRO stage 1 on"
        yield Problem("offload", list(layout.offload), says, {"zero": 1})


LIMITS = Limits("DeepSpeed", "deepspeed", _problems, _together, attention_problems)
VERSION = LIMITS.can.checked


def notes(plan: Plan) -> tuple[str, ...]:
    """What DeepSpeed does at its first start that looks like a run that hangs."""
    if "optimizer" not in plan.layout.offload:
        return ()
    return (
        "DeepSpeed compiles its Adam for processors at the first start, for minutes; a start that is ended meanwhile leaves "
        "cpu_adam/lock in TORCH_EXTENSIONS_DIR (~/.cache/torch_extensions), for which later ones wait without a word: remove it",
    )


def files(plan: Plan, command: str) -> dict[str, str]:
    """`ds_config.json`, the model's `config.json` and the script that uses them."""
    pipelined = "_pipeline" if canonical(plan.layout, plan.model).pp > 1 else ""
    name = f"train_deepspeed{pipelined}.py"
    target = f"DeepSpeed {VERSION}"
    words = {
        "STAMP": comment(plan, command, target).rstrip(),
        "CHECKPOINTS": template("deepspeed_checkpoints", {}).rstrip(),
        "SEQ_LEN": plan.job.seq_len,
        "NORM": first_norm(plan.model),
        "FIRST_NUMBERS": first_numbers(plan.model, deepspeed=True),
        "STEPS": steps(plan.job),
        "LIGER": plan.job.loss == "liger",
    }
    script = template(name, words)
    return {
        "ds_config.json": json.dumps(config(plan, command), indent=2) + "\n",
        "config.json": config_file(plan, command),
        "train.py": script,
    } | beside(plan, command, target)
