"""Better stages for a plan: its layers priced one by one, cut exactly, and simulated again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.costs import pipeline
from meshwright.costs.columns import from_layouts
from meshwright.costs.stages import stage_layers
from meshwright.costs.step import capacity_bytes, estimate_of, price
from meshwright.schedules.balance import LayerCost, Partition, balance
from meshwright.simulator.evaluate import Simulator
from meshwright.simulator.plan_step import PlanStep, plan_step
from meshwright.simulator.times import StageTimes
from meshwright.specs.cluster import Cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model

STATES = ("parameters", "gradients", "optimizer")


@dataclass(frozen=True, eq=False)
class Balanced:
    """A partition of a plan's layers, and its simulated step beside the plan's own."""

    partition: Partition
    step_s: float
    plan_step_s: float


@dataclass(frozen=True)
class _Rank:
    """What one rank of a role costs, and how many layers that is."""

    layers: float
    forward_s: float
    backward_s: float
    state_bytes: float
    activation_bytes: float
    fixed_bytes: float


def balance_plan(model: Model, cluster: Cluster, job: Job, layout: Layout) -> Balanced:
    """Cut a plan's layers into stages of equal time, within every stage's memory.

    A transformer layer costs what it costs on a middle rank; what the first and the last rank cost
    beyond their layers is the embedding and the head. If the plan recomputes nothing, full
    recomputation of single layers is allowed where memory asks for it.

    Raises:
        SpecError: the layout has no pipeline of single stages, or a mixture of experts (its layers
            are of two kinds, which roles do not tell apart).
        DoesNotFitError: no partition fits.
    """
    if layout.pp < 2 or layout.virtual_stages > 1:
        raise SpecError(
            "--balance", layout.label(), "a pipeline with one stage per rank is expected"
        )
    if model.experts is not None:
        raise SpecError("--balance", model.name, "models with one kind of layer are balanced")
    original = plan_step(model, cluster, job, layout)
    schedule = original.schedule
    if schedule.chains > 1:
        raise SpecError("--balance", layout.schedule, "schedules of one direction are balanced")
    roles = _roles(model, cluster, job, layout)
    again = None
    if layout.recompute == "none":
        again = _roles(model, cluster, job, layout.but(recompute="full"))
    layers = _layers(model, roles, again)
    flights = np.array(Simulator(schedule).run(attribute=False).peak_in_flight)
    capacity = capacity_bytes(cluster)
    fixed = [roles[_role(rank, layout.pp)].fixed_bytes for rank in range(layout.pp)]
    partition = balance(
        layers,
        layout.pp,
        memory_bytes=[capacity - held for held in fixed],
        in_flight=flights.tolist(),
    )
    return Balanced(partition, _step_s(original, partition, roles), original.run().step_s)


def _role(rank: int, pp: int) -> str:
    return "first" if rank == 0 else "last" if rank == pp - 1 else "middle"


def _roles(model: Model, cluster: Cluster, job: Job, layout: Layout) -> dict[str, _Rank]:
    columns = from_layouts([layout])
    table = price(model, cluster, job, columns)
    counts = stage_layers(model, columns)
    estimate = estimate_of(model, cluster, job, columns, table, 0)
    by_stage = {stage.stage: stage.parts for stage in estimate.stages}
    times = table.stage_times
    roles = {}
    for role, stage, forward, backward in (
        ("first", 0, times.first_forward, times.first_backward),
        ("middle", 1, times.middle_forward, times.middle_backward),
        ("last", layout.pp - 1, times.last_forward, times.last_backward),
    ):
        if role == "middle" and layout.pp < 3:
            continue
        parts = by_stage[stage]
        flight = float(pipeline.in_flight(columns, table.micro_batches, np.array([stage]))[0])
        state = sum(parts[name] for name in STATES)
        activations = parts["activations"]
        roles[role] = _Rank(
            layers=float(counts.total(role)[0]),
            forward_s=float(forward[0]),
            backward_s=float(backward[0]),
            state_bytes=state,
            activation_bytes=activations / flight,
            fixed_bytes=sum(parts.values()) - state - activations,
        )
    return roles


def _one_layer(roles: dict[str, _Rank]) -> _Rank:
    """Return the cost of one transformer layer: a middle rank's, or the first one's if there is none."""
    rank = roles.get("middle", roles["first"])
    n = rank.layers
    return _Rank(
        1.0, rank.forward_s / n, rank.backward_s / n, rank.state_bytes / n,
        rank.activation_bytes / n, 0.0,
    )  # fmt: skip


def _layers(
    model: Model, roles: dict[str, _Rank], again: dict[str, _Rank] | None
) -> list[LayerCost]:
    one = _one_layer(roles)
    redone = _one_layer(again) if again else None
    layer = LayerCost(
        "t",
        one.forward_s + one.backward_s,
        one.state_bytes,
        one.activation_bytes,
        redone.backward_s - one.backward_s if redone else 0.0,
        redone.activation_bytes if redone else None,
    )

    def beyond(role: str, letter: str) -> LayerCost:
        rank = roles[role]
        time = rank.forward_s + rank.backward_s - rank.layers * layer.time_s
        return LayerCost(
            letter,
            max(time, 0.0),
            max(rank.state_bytes - rank.layers * one.state_bytes, 0.0),
            max(rank.activation_bytes - rank.layers * one.activation_bytes, 0.0),
        )

    return [beyond("first", "E"), *[layer] * model.layers, beyond("last", "L")]


def _step_s(original: PlanStep, partition: Partition, roles: dict[str, _Rank]) -> float:
    """Simulate the plan's step with the partition's stages."""
    one = _one_layer(roles)
    forward_share = one.forward_s / (one.forward_s + one.backward_s)
    recompute = np.array(
        [sum(partition.layers[i].recompute_s for i in s.recomputed) for s in partition.stages]
    )
    work = np.array([stage.time_s for stage in partition.stages]) - recompute
    backward = work * (1 - forward_share) + recompute
    given = original.times
    total = given.backward_input + given.backward_weight
    weight = float(given.backward_weight.sum() / total.sum())
    times = StageTimes.of(work * forward_share, backward * (1 - weight), backward * weight)
    timeline = Simulator(original.schedule).run(
        times, original.comm_s, optimizer_s=original.tail_s, attribute=False
    )
    return timeline.step_s
