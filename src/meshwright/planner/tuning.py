"""Tools that train a model further: the precision and the loss that each takes where none is named."""

from __future__ import annotations

from meshwright.specs.cluster import Device
from meshwright.specs.finetune import Finetune
from meshwright.specs.frameworks import framework
from meshwright.specs.job import OPTIMIZERS, Job, Loss
from meshwright.specs.jobs import precision_recipe

TUNED_PRECISION = "pure-bf16"
"""Weights as published, in 16 bits, without an fp32 copy: what fine-tuning tools load."""
_BY_DEEPSPEED = ("trl", "axolotl", "llama-factory")
"""Tools whose exported files shard by DeepSpeed, which keeps 32-bit weights and moments beside those of 16."""
_LOAD_32_BITS = ("llama-factory", "verl")
"""Tools that train 32-bit weights under autocast on one device, too (verl: `engine.model_dtype`)."""
_LOSSES: dict[str, Loss] = {"trl": "chunked"}
"""What a tool's loss is in the version that its files are written for, where it was another when runs were measured."""


def usual_precision(
    tune: Finetune, tool: str, device: Device | None, devices: int = 1
) -> str | None:
    """The recipe that a tool takes where nobody names one; None: what the framework takes in training from scratch.

    Args:
        tune: what is trained.
        tool: a framework's name.
        device: what it runs on; None: any with units for bf16.
        devices: how many.
    """
    if device is not None and not device.has_bf16:
        return "fp16"  # T4 and V100 have no units for bf16
    if _copies(tune, tool, devices):
        return "bf16"
    return None if _always_copies(tune, tool) else TUNED_PRECISION


def usual_loss(tool: str) -> Loss:
    """The loss that a tool makes where nobody names one."""
    return _LOSSES.get(tool, "framework")


def as_tuned(job: Job, tool: str, device: Device | None, devices: int) -> Job:
    """The job with a tool's own loss and precision, and moments as wide as weights without a copy, where it names none."""
    tune = job.finetune
    if tune is None:
        return job
    if job.loss == "framework":
        job = job.but(loss=usual_loss(tool))
    if "precision" in job.model_fields_set:
        return job
    name = usual_precision(tune, tool, device, devices)
    if name is None:
        return job
    changes: dict[str, object] = {"precision": precision_recipe(name, "--precision")}
    if name == TUNED_PRECISION and not tune.adapts and "optimizer" not in job.model_fields_set:
        changes["optimizer"] = OPTIMIZERS["adamw-bf16"]
    return job.but(**changes)


def _copies(tune: Finetune, tool: str, devices: int) -> bool:
    """Whether a tool keeps 32-bit weights where all of a model's weights train further.

    exports/finetuning.py says where each is read.
    """
    sharded = devices > 1 and tool in _BY_DEEPSPEED
    return not tune.adapts and (sharded or tool in _LOAD_32_BITS)


def _always_copies(tune: Finetune, tool: str) -> bool:
    """Whether a framework has no words for weights of 16 bits without a 32-bit copy, where all of them train.

    What trains adapters loads weights in 16 bits, and trains them so when asked to.
    """
    can = framework(tool)
    return not tune.adapts and not can.adapters and 0 not in can.master_bytes
