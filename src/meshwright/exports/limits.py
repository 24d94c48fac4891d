"""What each target can express, and the nearest plan it can.

A rule looks at one thing a plan asks for and either passes or yields a `Problem`: what the target
lacks, and the layout or job fields that would remove it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dataclasses import field as default_of
from typing import Any

from meshwright.exports.canonical import DEFAULT_ORDER, canonical
from meshwright.specs.errors import SpecError
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.plan import Plan


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that a target cannot express, and the change of layout that removes it."""

    field: str
    value: object
    lacks: str
    change: dict[str, Any] = default_of(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the configuration of a target has words for.

    `framework` is the name under which `meshwright plan --framework` keeps to these limits, empty
    where the planner has none. `without` names axes that must be 1.
    """

    title: str
    framework: str
    without: tuple[str, ...] = ()
    zero: tuple[int, ...] = (0, 1, 2, 3)
    zero_with_pipeline: tuple[int, ...] | None = None
    zero_with_tensor: tuple[int, ...] | None = None
    hybrid_shard: bool = True
    schedules: tuple[str, ...] = ("1f1b", "interleaved")
    orders: tuple[str, ...] = (DEFAULT_ORDER,)
    stage_layers: bool = False
    recompute: tuple[str, ...] = ("none", "selective", "full")
    recompute_layers: bool = False
    sequence_parallel: str = "free"
    dropout: bool = False
    document_masking: bool = False
    extra: Callable[[Plan], Iterator[Problem]] | None = None


_AXIS = {
    "tp": "tensor parallelism", "pp": "pipeline parallelism", "cp": "context parallelism",
    "ep": "expert parallelism", "etp": "tensor parallelism inside experts",
    "virtual_stages": "virtual pipeline stages",
}  # fmt: skip


def problems(plan: Plan, limits: Limits) -> list[Problem]:
    """Everything in a plan that a target has no words for, in the order a person should fix it."""
    layout = canonical(plan.layout, plan.model)
    found = [*_axes(layout, limits), *_sharding(layout, limits), *_pipeline(layout, limits)]
    found += _details(layout, limits)
    found += _training(plan.job, limits)
    if limits.extra is not None:
        found += limits.extra(plan)
    return found


def require(plan: Plan, limits: Limits) -> None:
    """Refuse a plan that a target cannot express.

    Raises:
        SpecError: what is missing, the nearest layout that works, and how to plan for the target.
    """
    found = problems(plan, limits)
    if not found:
        return
    first = found[0]
    remedy = f"{limits.title} {first.lacks}"
    if len(found) > 1:
        remedy += f" (and {len(found) - 1} more: {', '.join(p.field for p in found[1:])})"
    closest = nearest_layout(plan, limits)
    if closest is not None:
        remedy += f"; the nearest layout it can express is {closest.label()}"
    if limits.framework:
        remedy += f"; `meshwright plan --framework {limits.framework}` keeps to what it can"
    field = first.field if "." in first.field else f"layout.{first.field}"
    raise SpecError(field, first.value, remedy)


def nearest_layout(plan: Plan, limits: Limits) -> Layout | None:
    """Apply the change of every problem in turn; None where no change of layout helps.

    Devices freed by an axis that the target lacks go to data parallelism, so the world stays.
    """
    current = plan
    for _ in range(12):
        found = problems(current, limits)
        if not found:
            return canonical(current.layout, current.model)
        if not found[0].change:
            return None
        try:
            current = current.but(layout=_changed(current, found[0].change))
        except SpecError:
            return None
    return None


def _changed(plan: Plan, change: dict[str, Any]) -> dict[str, Any]:
    fields = plan.layout.model_dump() | change
    if "dp" not in change:
        fields["dp"] = plan.layout.world // (fields["tp"] * fields["pp"] * fields["cp"])
    if fields["shard"] and (fields["dp"] * fields["cp"]) % fields["shard"]:
        fields["shard"] = 0
    while plan.job.global_batch % (fields["dp"] * fields["micro_batch"]) and (
        fields["micro_batch"] > 1
    ):
        fields["micro_batch"] -= 1
    return fields


def _axes(layout: Layout, limits: Limits) -> Iterator[Problem]:
    for axis in limits.without:
        value = getattr(layout, axis)
        if value > 1:
            change: dict[str, Any] = {axis: 1}
            if axis in ("pp", "virtual_stages"):
                change |= {
                    "virtual_stages": 1, "stage_layers": None, "stage_recompute_layers": None,
                    "schedule": "1f1b",
                }  # fmt: skip
            yield Problem(axis, value, f"has no {_AXIS[axis]}", change)


def _sharding(layout: Layout, limits: Limits) -> Iterator[Problem]:
    if layout.dp * layout.cp == 1:
        return
    allowed, why = limits.zero, ""
    if limits.zero_with_pipeline is not None and layout.pp > 1:
        allowed, why = limits.zero_with_pipeline, " with a pipeline"
    if limits.zero_with_tensor is not None and layout.tp > 1:
        allowed, why = limits.zero_with_tensor, " with tensor parallelism"
    if layout.zero not in allowed:
        closest = min(allowed, key=lambda stage: (abs(stage - layout.zero), -stage))
        yield Problem(
            "zero",
            layout.zero,
            f"expresses ZeRO stage {', '.join(map(str, allowed))}{why}",
            {"zero": closest, "shard": 0 if closest == 0 else layout.shard},
        )
    if layout.shard and not limits.hybrid_shard:
        yield Problem(
            "shard", layout.shard, "shards over all data-parallel ranks or none", {"shard": 0}
        )


def _pipeline(layout: Layout, limits: Limits) -> Iterator[Problem]:
    if layout.pp == 1 or "pp" in limits.without:
        return
    if layout.schedule not in limits.schedules:
        closest = "interleaved" if layout.virtual_stages > 1 else "1f1b"
        yield Problem(
            "schedule",
            layout.schedule,
            f"runs the schedules {', '.join(limits.schedules)}",
            {"schedule": closest},
        )
    if layout.stage_layers is not None and not limits.stage_layers:
        yield Problem(
            "stage_layers",
            list(layout.stage_layers),
            "splits the layers into stages itself",
            {"stage_layers": None},
        )


def _training(job: Job, limits: Limits) -> Iterator[Problem]:
    if job.dropout and not limits.dropout:
        yield Problem("job.dropout", job.dropout, "leaves dropout to the model's own code")
    if job.document_masking and not limits.document_masking:
        yield Problem("job.document_masking", True, "leaves packing to the data's own code")


def _details(layout: Layout, limits: Limits) -> Iterator[Problem]:
    if layout.rank_order not in limits.orders:
        yield Problem(
            "rank_order",
            layout.rank_order,
            f"orders ranks as {' or '.join(limits.orders)}",
            {"rank_order": limits.orders[0]},
        )
    if layout.recompute not in limits.recompute:
        closest = "full" if "full" in limits.recompute else "none"
        yield Problem(
            "recompute",
            layout.recompute,
            f"recomputes {' or '.join(limits.recompute)}",
            {"recompute": closest, "recompute_layers": 0, "stage_recompute_layers": None},
        )
    if layout.stage_recompute_layers is not None:
        yield Problem(
            "stage_recompute_layers",
            list(layout.stage_recompute_layers),
            "recomputes alike in every stage",
            {"stage_recompute_layers": None},
        )
    if layout.recompute_layers and not limits.recompute_layers:
        yield Problem(
            "recompute_layers",
            layout.recompute_layers,
            "recomputes all layers or none",
            {"recompute_layers": 0},
        )
    if layout.tp > 1 and limits.sequence_parallel != "free":
        wanted = limits.sequence_parallel == "always"
        if layout.sequence_parallel != wanted:
            word = "always runs tensor parallelism with" if wanted else "has no"
            yield Problem(
                "sequence_parallel",
                layout.sequence_parallel,
                f"{word} sequence parallelism",
                {"sequence_parallel": wanted},
            )
