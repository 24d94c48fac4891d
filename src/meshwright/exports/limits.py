"""What each target can express, and the nearest plan it can.

The table of frameworks (`specs.frameworks`) says what a framework has words for; `limit_rules` holds a plan
against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from meshwright.exports import limit_rules as rules
from meshwright.exports.canonical import canonical
from meshwright.exports.limit_rules import Problem
from meshwright.exports.seeing import words_beside
from meshwright.planner.dispatchers import not_written
from meshwright.specs.cluster import Cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.frameworks import Framework, framework
from meshwright.specs.job import Job
from meshwright.specs.job_words import job_lacks, without_master
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model
from meshwright.specs.plan import Plan


@dataclass(frozen=True, slots=True)
class Limits:
    """What the configuration of a target has words for.

    `framework` is its name in the table of frameworks, under which `meshwright plan --framework`
    keeps to these limits. `extra` yields what the table has no cell for: architectures; `asked` what no
    layout mends of a model, a job and devices together; `together` degrees that each have words, but not at once.
    """

    title: str
    framework: str
    extra: Callable[[Model], Iterator[Problem]] | None = None
    together: Callable[[Layout], Iterator[Problem]] | None = None
    asked: Callable[[Model, Job, Cluster], Iterator[Problem]] | None = None

    @property
    def can(self) -> Framework:
        """The framework's row in the table."""
        return framework(self.framework)


def problems(plan: Plan, limits: Limits) -> list[Problem]:
    """Everything in a plan that a target has no words for, in the order a person should fix it."""
    layout, can = canonical(plan.layout, plan.model), limits.can
    found = [
        *rules.axes(layout, can),
        *rules.splits(plan, layout, can),
        *rules.sharding(plan, layout, can),
    ]
    found += [
        *rules.pipeline(plan, layout, can),
        *rules.recompute(layout, can),
        *rules.ranks(plan, layout, can),
    ]
    found += [*_devices(plan.cluster, can), *_units(plan.job, plan.cluster, can)]
    found += [] if limits.together is None else limits.together(layout)
    found += _unwritten(plan.job, can)
    if layout.pp > 1 and can.makes_whole_logits(plan.job):
        says, flat = "makes whole logits in its pipeline", {"pp": 1, "schedule": "1f1b"}
        found.append(Problem("job.loss", plan.job.loss, says, rules.FLAT | flat))
    found += _unusual(plan.model, can)
    if plan.job.global_batch % (layout.dp * layout.micro_batch):
        found.append(Problem("micro_batch", layout.micro_batch, "needs whole micro-batches a rank"))
    if limits.extra is not None:
        found += limits.extra(plan.model)
    if limits.asked is not None:
        found += limits.asked(plan.model, plan.job, plan.cluster)
    return found


def _unwritten(job: Job, can: Framework) -> Iterator[Problem]:
    """What a job asks that the framework lacks, or that its exported files leave out."""
    for asked in (*job_lacks(job, can), *not_written(job, can.name)):
        yield Problem(*asked)
    yield from rules.loss(job, can)


def _unusual(model: Model, can: Framework) -> Iterator[Problem]:
    parts = words_beside(model, can)
    if parts:
        says = "is exported for plain decoders with attention in every layer"
        yield Problem("model", f"{model.name} with {', '.join(parts)}", says)


def _devices(cluster: Cluster, can: Framework) -> Iterator[Problem]:
    """Devices that no image, package or kernel behind the exported files is for."""
    if can.exported and not can.is_exported_on(cluster.device.vendor):
        says = f"is exported for devices of {', '.join(can.exported_on)}"
        yield Problem("cluster", cluster.name, says)


_FLASH = ("megatron", "megatron-fsdp", "nemo", "primus", "nanotron", "axolotl", "llama-factory", "verl")  # fmt: skip
"""Frameworks whose exported files ask FlashAttention or Transformer Engine for attention without scores."""


def _units(job: Job, cluster: Cluster, can: Framework) -> Iterator[Problem]:
    """What NVIDIA's devices before Ampere lack (READMEs of FlashAttention 2 and Transformer Engine)."""
    device = cluster.device
    if not can.exported or device.has_bf16:
        return
    if job.precision.compute in ("bf16", "fp8", "fp4"):
        says = f"would compute it on {device.name}, which has no units for it: plan with --precision fp16"
        yield Problem("job.precision", job.precision.name, says)
    if job.attention_kernel == "flash" and can.name in _FLASH:
        says = f"computes attention by kernels that need Ampere or newer, not {device.name}"
        yield Problem("cluster", cluster.name, says)


def gradient_notes(plan: Plan, limits: Limits) -> tuple[str, ...]:
    """What a framework does to gradients where it has no words for the width that was priced."""
    precision, can = plan.job.precision, limits.can
    asked = (precision.gradient_bytes, precision.gradient_reduce_bytes)
    pairs = [(float(held), float(sent)) for held, sent in can.gradients]
    if precision.compute in ("fp32", "tf32") or not pairs or asked in pairs:
        return ()
    if without_master(plan.job) and can.moments_like_master:
        return ()  # gradients are as wide as the weights, as priced
    held, sent = min(pairs, key=lambda pair: (abs(pair[0] - asked[0]), abs(pair[1] - asked[1])))
    more = "" if held <= asked[0] else ": more memory than priced (plan with --precision bf16-fp32-grads to count it)"  # fmt: skip
    return (
        f"the plan prices gradients of {8 * asked[0]:g} bits, reduced in {8 * asked[1]:g}; "
        f"{can.title} holds them in {8 * held:g} and reduces them in {8 * sent:g}{more}",
    )


def unplannable(model: Model, job: Job, cluster: Cluster, limits: Limits) -> Problem | None:
    """The first thing about a model, a job or devices that no layout makes a target able to express."""
    found = [*_unwritten(job, limits.can), *_unusual(model, limits.can)]
    found += limits.extra(model) if limits.extra is not None else ()
    found += limits.asked(model, job, cluster) if limits.asked is not None else ()
    found += [*_devices(cluster, limits.can), *_units(job, cluster, limits.can)]
    return next(iter(found), None)


def require(plan: Plan, limits: Limits) -> None:
    """Refuse a plan that a target cannot express.

    Raises:
        SpecError: what is missing, the nearest layout that works, and how to plan for the target.
    """
    found = problems(plan, limits)
    if not found:
        return
    # That a tool only fine-tunes comes first: no other layout mends it.
    first, *others = sorted(found, key=lambda problem: problem.field != "finetune")
    remedy = f"{limits.title} {first.lacks}"
    if others:
        remedy += f" (and {len(others)} more: {', '.join(other.field for other in others)})"
    closest = nearest_layout(plan, limits)
    if closest is not None:
        remedy += f"; the nearest layout it can express is {closest.label()} (--nearest writes it)"
    asked = plan.job.but(framework=limits.framework, loss="framework")
    if closest is not None or unplannable(plan.model, asked, plan.cluster, limits) is None:
        remedy += f"; `meshwright plan --framework {limits.framework}` keeps to what it can"
    field = f"layout.{first.field}" if hasattr(plan.layout, first.field) else first.field
    raise SpecError(field, first.value, remedy)


def nearest_layout(plan: Plan, limits: Limits) -> Layout | None:
    """Apply the change of every problem in turn; None where no change of layout helps.

    Devices freed by an axis that the target lacks go to data parallelism, so the world stays.
    """
    current = plan
    for _ in range(16):
        found = problems(current, limits)
        if not found:
            return canonical(current.layout, current.model)
        change = next((problem.change for problem in found if problem.change), None)
        if change is None:
            return None
        try:
            current = current.but(layout=_changed(current, change))
        except SpecError:
            return None
    return None


def _changed(plan: Plan, change: dict[str, Any]) -> dict[str, Any]:
    fields = plan.layout.model_dump() | change
    if "dp" not in change:
        fields["dp"] = plan.layout.world // (fields["tp"] * fields["pp"] * fields["cp"])
    if fields["shard"] and (fields["dp"] * fields["cp"]) % fields["shard"]:
        fields["shard"] = 0
    if fields["stage_layers"] is not None and (
        len(fields["stage_layers"]) != fields["pp"] * fields["virtual_stages"]
    ):
        fields |= {"stage_layers": None, "stage_recompute_layers": None}
    if fields["tp"] == 1:
        fields["sequence_parallel"] = False
    while plan.job.global_batch % (fields["dp"] * fields["micro_batch"]) and (
        fields["micro_batch"] > 1
    ):
        fields["micro_batch"] -= 1
    return fields
