"""transformers' Trainer: a plan as TrainingArguments in a YAML, a script that reads them, and a config.json.

The arguments are the ones of `training_args.py` (transformers 5); what no argument says (the model's
shape, the length of a sequence) stands beside them under names of the script's own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import yaml

from meshwright.exports import accelerate
from meshwright.exports.bundle import comment, learning_rate, steps, template, warmup
from meshwright.exports.canonical import canonical
from meshwright.exports.hf import config_file, first_norm, first_numbers, layer_class
from meshwright.exports.inputs import SAVED_EVERY
from meshwright.exports.scripts import beside
from meshwright.specs.plan import Plan

LIMITS = replace(accelerate.LIMITS, title="transformers' Trainer", framework="trainer")
VERSION = LIMITS.can.checked
OPTIMIZERS = {"adamw": "adamw_torch", "adafactor": "adafactor", "sgd": "sgd"}
"""Our name of an optimizer → `optim`."""


def arguments(plan: Plan) -> dict[str, Any]:
    """The content of the YAML: what the script adds, then TrainingArguments."""
    layout, job = canonical(plan.layout, plan.model), plan.job
    compute = job.precision.compute
    data: dict[str, Any] = {
        "config_name": "config.json",
        "block_size": job.seq_len,
        "output_dir": "checkpoints",
        "per_device_train_batch_size": layout.micro_batch,
        "gradient_accumulation_steps": layout.micro_batches(job.global_batch),
        "max_steps": steps(job),
        "bf16": compute == "bf16",
        "fp16": compute == "fp16",
        "optim": OPTIMIZERS[job.optimizer.name],
        "learning_rate": learning_rate(job),
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
        "warmup_steps": warmup(job),
        "weight_decay": 0.1,
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "max_grad_norm": 1.0,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": SAVED_EVERY,
        "save_total_limit": 2,
        "report_to": "none",
        # Recomputation is the shards' own where there are any (fsdp_config).
        "gradient_checkpointing": layout.recompute == "full" and layout.zero == 0,
    }
    if job.loss == "liger":
        data["use_liger_kernel"] = True
    if layout.zero:
        data |= {"fsdp": True, "fsdp_config": _sharding(plan)}
        if data["gradient_accumulation_steps"] > 1:
            # Else it sums whole gradients on every device until the last micro-batch (trainer.py, no_sync).
            each = {"sync_each_batch": True}
            data["accelerator_config"] = {"gradient_accumulation_kwargs": each}
    if plan.cluster.device.vendor == "cpu":
        data["use_cpu"] = True
    return data


def _sharding(plan: Plan) -> dict[str, Any]:
    layout, named = plan.layout, layer_class(plan.model)
    return {
        "version": 2,
        "reshard_after_forward": layout.zero == 3,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        **({"transformer_layer_cls_to_wrap": [named]} if named else {}),
        "activation_checkpointing": layout.recompute == "full",
        **({"cpu_offload": True} if "parameters" in layout.offload else {}),
        "state_dict_type": "SHARDED_STATE_DICT",
    }


def notes(plan: Plan) -> tuple[str, ...]:
    """What the plan prices otherwise than the Trainer does it: under FSDP gradients cross in 16 bits."""
    precision = plan.job.precision
    wide = precision.gradient_reduce_bytes == 4 and precision.compute in ("bf16", "fp16")
    if not (plan.layout.zero and wide):
        return ()
    return (
        "the plan prices gradients reduced in 32 bits; under FSDP the Trainer reduces them in 16 (accelerate's policy, "
        "which no argument changes): half the traffic, and less exact",
    )


def files(plan: Plan, command: str) -> dict[str, str]:
    """`trainer.yaml`, the script that reads it, and the model's `config.json`."""
    stamp = f"transformers' Trainer {VERSION}"
    text = yaml.safe_dump(arguments(plan), sort_keys=False)
    words = {
        "STAMP": comment(plan, command, stamp).rstrip(),
        "NORM": first_norm(plan.model),
        "FIRST_NUMBERS": first_numbers(plan.model),
    }
    return {
        "trainer.yaml": comment(plan, command, stamp) + text,
        "config.json": config_file(plan, command),
        "train_trainer.py": template("train_trainer.py", words),
    } | beside(plan, command, stamp)
