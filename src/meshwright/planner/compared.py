"""Frameworks and tools that a plan compares where nobody names one."""

from __future__ import annotations

from meshwright.specs.finetune import Finetune
from meshwright.specs.job import Framework, Job

UPPER_BOUND = "any"
"""What stands for the union of all frameworks: a bound on what one could reach, not a stack."""

STACKS: dict[str, tuple[Framework, ...]] = {
    "nvidia": ("megatron", "torchtitan", "megatron-fsdp", "deepspeed", "nanotron", "maxtext"),
    "amd": ("megatron", "torchtitan", "deepspeed", "maxtext"),
    "google": ("maxtext",),
    "aws": ("torchtitan", "maxtext"),
    "intel": ("deepspeed", "torchtitan"),
    "huawei": ("megatron", "deepspeed"),
    "cpu": ("meshwright",),
}
"""Frameworks compared on a vendor's devices; meshwright's own engine only where nothing else runs."""
TUNING_STACKS: tuple[Framework, ...] = ("trl", "axolotl", "llama-factory", "torchtune", "verl")
"""Tools to compare where nobody names one; of those that cost alike the first is taken."""
PARTIAL_STACK: Framework = "llama-factory"
"""The one for some weights that wait: the others have no words for which."""


def asked_for(job: Job) -> bool:
    """Whether the job names its framework."""
    return "framework" in job.model_fields_set


def stacks_for(vendor: str, job: Job) -> tuple[Framework, ...]:
    """Frameworks to compare for a job on a vendor's devices."""
    if job.finetune is None:
        return STACKS.get(vendor, ())
    return tuning_stacks(job.finetune)


def tuning_stacks(tune: Finetune) -> tuple[Framework, ...]:
    """Tools to compare for one way to train further."""
    return (PARTIAL_STACK,) if tune.partial_text else TUNING_STACKS
