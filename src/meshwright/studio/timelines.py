"""A plan's step as a timeline that the page links to its other views.

Every operation of every pipeline rank, with what it sends over which link, which parts of the estimate
it is made of, and the memory of every rank beneath. It is what `meshwright simulate plan.toml` runs.
"""

from __future__ import annotations

from typing import Annotated, Any, cast

import numpy as np
from fastapi import Body
from numpy.typing import NDArray
from typing_extensions import TypedDict

from meshwright.schedules.ops import Kind, Schedule
from meshwright.schedules.registry import family
from meshwright.simulator.memory import memory_over_time
from meshwright.simulator.plan_step import plan_step
from meshwright.simulator.timeline import Timeline
from meshwright.specs.errors import SpecError
from meshwright.specs.layout import Layout
from meshwright.specs.plan import Plan
from meshwright.studio.commands import AskedInQuery
from meshwright.studio.planning import best_plan, read_asked
from meshwright.studio.questions import read_model
from meshwright.studio.sims.placement import axis_link
from meshwright.studio.sims.traffic import axis_traffic_bytes

MOST_OPERATIONS = 50_000
COMPUTED = (
    "matmul", "attention", "elementwise", "launch", "tensor_parallel", "context_parallel",
    "expert_parallel", "embedding_and_head", "encoder",
)  # fmt: skip
"""Time parts that forwards and backwards are made of."""
AFTER = {"D": ("data_parallel",), "O": ("optimizer", "offload", "shared_cores", "step_overhead")}
"""What follows the last backward on every rank, and the time parts of each."""


class PlanOperations(TypedDict):
    """Operations rank by rank, as columns; `kind` indexes `kinds`, `stage` counts model chunks."""

    rank: list[int]
    stage: list[int]
    micro: list[int]
    kind: list[int]
    start_s: list[float]
    end_s: list[float]


class Carried(TypedDict):
    """What one device sends along an axis, and over which link.

    `each_bytes` is by one forward of one chunk (tensor), one message (pipeline) or one step (data);
    null where the closed forms do not say it.
    """

    axis: str
    degree: int
    link: str
    bandwidth_bytes_s: float
    crosses_nodes: bool
    each_bytes: float | None


class RankOverTime(TypedDict):
    """One rank's memory: activations from each moment on, over what is there all the time."""

    time_s: list[float]
    activations_bytes: list[float]
    resident_bytes: dict[str, float]
    peak_bytes: float
    peak_s: float


class StepTimeline(TypedDict):
    """A plan's step, operation by operation."""

    label: str
    schedule: str
    ranks: int
    micro_batches: int
    kinds: list[str]
    op: PlanOperations
    parts: dict[str, list[str]]
    makespan_s: float
    step_s: float
    closed_form_s: float
    idle_fraction: float
    causes: dict[str, float]
    carried: list[Carried]
    memory: list[RankOverTime]
    capacity_bytes: float
    critical: list[int]


class DrawnPlan(TypedDict):
    """A plan, as `/api/plan` or `/api/price` gave it."""

    plan: dict[str, Any]


def timeline_by_query(asked: AskedInQuery) -> StepTimeline:
    """Simulate the step of the plan for a question.

    Raises:
        SpecError: a name or quantity is not accepted, or the step is too long to draw.
        DoesNotFitError: nothing fits.
    """
    return _simulated(best_plan(read_asked(read_model(asked.model), asked), asked.objective))


def timeline_by_body(request: Annotated[DrawnPlan, Body()]) -> StepTimeline:
    """Simulate the step of a plan.

    Raises:
        SpecError: not a plan, a schedule that cannot run it, or a step too long to draw.
    """
    return _simulated(Plan.parse(request["plan"]))


def _simulated(made: Plan) -> StepTimeline:
    layout = made.layout
    units = layout.micro_batches(made.job.global_batch) * layout.pp * layout.virtual_stages
    # A forward and a backward, or the backward in its two halves.
    if (3 if family(layout.schedule).split_backward else 2) * units > MOST_OPERATIONS:
        raise SpecError(
            "plan",
            layout.label(),
            f"at most {MOST_OPERATIONS:,} operations are drawn; `meshwright simulate` takes any",
        )
    step = plan_step(made.model, made.cluster, made.job, layout)
    timeline = step.run()
    estimate = step.closed_form
    held = memory_over_time(timeline, step.memory)
    drawn = timeline.schedule
    return {
        "label": layout.label(),
        "schedule": drawn.name,
        "ranks": drawn.pp,
        "micro_batches": drawn.micro_batches,
        "kinds": [*(kind.name for kind in Kind), *AFTER],
        "op": _operations(timeline, estimate.time_parts),
        "parts": _parts(estimate.time_parts),
        "makespan_s": timeline.makespan_s,
        "step_s": timeline.step_s,
        "closed_form_s": estimate.step_time_s,
        "idle_fraction": timeline.bubble.makespan,
        "causes": timeline.bubble.attribution,
        "carried": _carried(made, drawn),
        "memory": [
            {
                "time_s": rank.time_s.round(7).tolist(),
                "activations_bytes": rank.activations_bytes.round().tolist(),
                "resident_bytes": rank.resident_bytes,
                "peak_bytes": rank.peak_bytes,
                "peak_s": rank.peak_s,
            }
            for rank in held
        ],
        "capacity_bytes": estimate.capacity_bytes,
        "critical": [int(node) for node in timeline.critical_path if node < len(drawn)],
    }


def _operations(timeline: Timeline, time_parts: dict[str, float]) -> PlanOperations:
    """The schedule's operations, then on every rank what follows the last backward."""
    drawn, ranks = timeline.schedule, np.arange(timeline.schedule.pp)
    columns: dict[str, NDArray[Any]] = {
        "rank": drawn.rank, "stage": drawn.stage, "micro": drawn.unit // drawn.slices,
        "kind": drawn.kind, "start_s": timeline.start, "end_s": timeline.end,
    }  # fmt: skip
    at, nothing = timeline.makespan_s, np.full(len(ranks), -1)
    for number, names in enumerate(AFTER.values(), len(Kind)):
        long = sum(time_parts.get(name, 0.0) for name in names)
        if long > 0:
            added = (
                ranks, nothing, nothing, nothing * 0 + number, nothing * 0.0 + at,
                nothing * 0.0 + at + long,
            )  # fmt: skip
            columns = {
                name: np.concatenate([old, new])
                for (name, old), new in zip(columns.items(), added, strict=True)
            }
        at += long
    for name in ("start_s", "end_s"):
        columns[name] = columns[name].round(7)
    return cast(PlanOperations, {name: column.tolist() for name, column in columns.items()})


def _parts(time_parts: dict[str, float]) -> dict[str, list[str]]:
    """The time parts that each kind of operation is made of, of those that this step has."""
    backward = (*COMPUTED, "recompute")
    table = {
        "F": COMPUTED, "B": backward, "I": backward, "W": ("matmul",), **AFTER,
        "message": ("pipeline_p2p",), "idle": ("pipeline_bubble",),
    }  # fmt: skip
    return {
        kind: [name for name in names if time_parts.get(name, 0.0) > 0]
        for kind, names in table.items()
    }


def _carried(made: Plan, drawn: Schedule) -> list[Carried]:
    layout = made.layout
    sent = axis_traffic_bytes(made.model, made.job, layout)
    chunks = drawn.micro_batches * drawn.virtual_stages
    # A micro-batch's activation crosses each border once a direction, whatever the chunks are.
    each = {"tp": sent["tp"] / (2 * chunks), "pp": sent["pp"] / (2 * drawn.micro_batches)}
    found: list[Carried] = []
    for axis in ("tp", "pp", "dp"):
        degree = getattr(layout, axis)
        if degree == 1:
            continue
        link, crosses = axis_link(made.cluster, layout, axis)
        found.append(
            {
                "axis": axis, "degree": degree, "link": link.name,
                "bandwidth_bytes_s": link.bandwidth_bytes_s, "crosses_nodes": crosses,
                "each_bytes": each.get(axis, sent["dp"] if _plain_states(layout) else None),
            }
        )  # fmt: skip
    return found


def _plain_states(layout: Layout) -> bool:
    """Whether weights are copied along the data axis alone: experts and contexts have axes of their own."""
    return layout.ep == 1 and layout.cp == 1


ROUTES = (
    ("GET", "/api/timeline", timeline_by_query, StepTimeline),
    ("POST", "/api/timeline", timeline_by_body, StepTimeline),
)
"""Method, path, function and answer type of each endpoint."""
