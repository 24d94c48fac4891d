"""What a job asks that a framework may have no words for."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.specs.frameworks import Framework
from meshwright.specs.job import Job
from meshwright.specs.model import Model


def quantises_experts(model: Model, job: Job) -> bool:
    """Whether a mixture's experts, which one parameter of a layer may hold, wait in fewer than 16 bits."""
    tune = job.finetune
    return (
        model.experts is not None
        and tune is not None
        and tune.adapts
        and tune.storage not in ("16-bit", "fp8")
    )


def without_master(job: Job) -> bool:
    """Whether 16-bit weights are updated as they are, without a wider copy."""
    return (
        job.precision.compute not in ("fp32", "tf32")
        and job.precision.parameter_bytes == 2
        and (job.precision.master_bytes == 0)
    )


def copies_when_offloaded(job: Job, can: Framework) -> bool:
    """Whether 16-bit weights without a wider copy get one where their optimizer lives in host memory: DeepSpeed's way."""
    return without_master(job) and can.moments_like_master and 0 not in can.zero_without_master


def tunes_whole_fp16(job: Job) -> bool:
    """Whether all weights of a trained model train further in fp16, whose losses are scaled."""
    tune = job.finetune
    return tune is not None and not tune.adapts and job.precision.compute == "fp16"


def job_lacks(job: Job, can: Framework) -> list[tuple[str, object, str]]:
    """What a job asks that a framework has no words for: (field, value, what it does instead)."""
    precision, compute = job.precision, job.precision.compute
    found: list[tuple[str, object, str]] = []
    tune = job.finetune
    if tune is not None and (tune.adapts or tune.partial_text) and not can.adapters:
        words = "trains all weights, without adapters"
        found.append(("job.finetune", tune.label(), words))
    # What trains adapters loads weights in the compute type, and trains them so when asked to.
    masters = {0.0, *can.master_bytes} if can.adapters else set(can.master_bytes)
    if compute not in can.precisions:
        found.append(("job.precision", precision.name, f"trains in {_listed(can.precisions)}"))
    elif compute not in ("fp32", "tf32") and precision.master_bytes not in masters:
        sizes = _listed([f"{size:g}" for size in sorted(masters)])
        words = f"keeps master weights of {sizes} bytes, and {precision.name} asks for {precision.master_bytes:g}"
        found.append(("job.precision", precision.name, words))
    elif can.moments_like_master and without_master(job) and compute == "fp16":
        words = "keeps 32-bit weights beside those of 16 in fp16"
        found.append(("job.precision", precision.name, words))
    elif can.moments_like_master and _narrow(job) and job.optimizer.state_bytes > 4:
        words = "keeps moments of 16 bits where weights have no copy of 32 (adamw-bf16)"
        found.append(("job.optimizer", job.optimizer.name, words))
    narrow = job.optimizer.name == "adamw-bf16" and not can.narrow_moments
    if narrow and not _updates_16_bits(job):
        words = "keeps moments as wide as the weights that it updates, 4 bytes here (adamw)"
        found.append(("job.optimizer", job.optimizer.name, words))
    if job.optimizer.name not in can.optimizers:
        words = f"has the optimizer {_listed(can.optimizers)} here"
        found.append(("job.optimizer", job.optimizer.name, words))
    if job.attention_kernel not in can.attention_kernels:
        words = f"computes attention {_listed(can.attention_kernels)} here"
        found.append(("job.attention_kernel", job.attention_kernel, words))
    if job.loss != "framework" and job.loss not in can.losses:
        found.append(("job.loss", job.loss, f"makes the cross-entropy {_listed(can.losses)} here"))
    if job.dropout and not can.dropout:
        found.append(("job.dropout", job.dropout, "leaves dropout to the model's own code"))
    graphs = str(job.framework_options.get("graphs", "none"))
    if graphs not in can.graphs:
        words = "captures no such CUDA graphs here (`--cuda-graphs`)"
        found.append(("job.framework_options.graphs", graphs, words))
    if job.framework_options.get("optimizer_in_backward") and not can.updates_in_backward:
        words = "updates weights after all gradients are there"
        found.append(("job.framework_options", "optimizer_in_backward", words))
    if job.routing.capacity and not can.capacity_factor:
        found.append(("job.routing", job.routing.capacity, "drops no tokens of experts here"))
    if job.document_masking and not can.document_masking:
        found.append(("job.document_masking", True, "leaves packing to the data's own code"))
    return found


def _narrow(job: Job) -> bool:
    """Whether what the optimizer updates are all of a model's weights, in 16 bits."""
    return without_master(job) and not (job.finetune is not None and job.finetune.adapts)


def _updates_16_bits(job: Job) -> bool:
    """Whether the weights that the optimizer is given have 16 bits: no copy of 32 bits, or adapters of as many."""
    if job.finetune is not None and job.finetune.adapts:
        return job.finetune.adapter_bytes <= 2
    return job.precision.master_bytes == 0 and job.precision.parameter_bytes <= 2


def _listed(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last
