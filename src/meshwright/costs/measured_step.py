"""A step of the engine on measured processors: counts times seconds, messages, shared cores.

Where a cluster file has `[device.measured]`, runs of this project's own engine are priced here
instead of by the kernel model: `synchronous.py` counts, the file has the seconds. Communication is
read off the measured curves, and what leaves a host is priced by the network's own bandwidth.
Ranks that share cores (`Cluster.shared_cores`) take turns: a step is never shorter than what all
ranks of a host compute, divided by what its cores do in a second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.costs import pipeline
from meshwright.costs import synchronous as count
from meshwright.costs.columns import Bools, Floats, Ints, LayoutColumns
from meshwright.costs.eager import embedding_with_root
from meshwright.costs.measured_machine import Machine
from meshwright.costs.memory import MemoryColumns
from meshwright.costs.pipeline import CODE
from meshwright.costs.stages import ROLES, StageLayers
from meshwright.specs.job import Job
from meshwright.specs.model import Model

PART_OF = {
    "linear": "matmul", "mixture": "matmul", "attention": "attention",
    "attention_grouped": "attention", "attention_masked": "attention",
}  # fmt: skip
"""Named part of each module's time; the others are elementwise."""

AXIS_PART = {"tp": "tensor_parallel", "cp": "context_parallel", "ep": "expert_parallel"}

SPLIT_BACKWARD = (
    "zb-h1", "zb-h2", "zb-auto", "zb-v", "v-half", "v-min", "dualpipe", "dualpipe-v",
)  # fmt: skip
"""Schedules that compute the weights' gradients apart from the inputs'."""

BUCKET_BYTES = 25 * 2.0**20
"""Of the engine's gradient reducer (engine/parallel/reducer.py)."""


@dataclass(frozen=True)
class Setup:
    """What every part of a measured step needs."""

    machine: Machine
    model: Model
    job: Job
    columns: LayoutColumns
    layers: StageLayers
    distances: dict[str, Ints]
    micro_batches: Ints

    @property
    def crowd(self) -> Floats:
        """Ranks of one host, as far as the layout fills it."""
        world = self.columns.dp * self.columns.tp * self.columns.pp * self.columns.cp
        return np.minimum(world, self.machine.cluster.gpus_per_node).astype(np.float64)

    @property
    def cores_crowd(self) -> Floats:
        """Ranks on the cores of one host, as far as the layout fills it and those that share its machine."""
        shared, host = self.machine.cluster.shared_cores, self.machine.cluster.gpus_per_node
        world = self.columns.dp * self.columns.tp * self.columns.pp * self.columns.cp
        return np.minimum(world, host * (shared.hosts if shared else 1)).astype(np.float64)

    @property
    def cores_stage_crowd(self) -> Floats:
        """Of those, ranks that certainly compute at once: of one pipeline stage."""
        own = self.cores_crowd / self.crowd  # hosts of this machine, which hold other stages first
        apart = self.columns.pp / self.host_stages
        return np.maximum(self.stage_crowd * own / np.minimum(own, apart), 1.0)

    @property
    def host_stages(self) -> Floats:
        """Pipeline stages that share a host."""
        pp, stride = self.columns.pp.astype(np.float64), self.distances["pp"].astype(np.float64)
        return self.machine.local_members(pp, stride)

    @property
    def stage_crowd(self) -> Floats:
        """Ranks of one host that certainly compute at once: those of one pipeline stage."""
        return np.maximum(self.crowd / self.host_stages, 1.0)

    def message_s(self, collective: str, axis: str, size: Floats) -> Floats:
        """Time of one collective over an axis."""
        columns = self.columns
        degrees = {
            "tp": columns.tp, "cp": columns.cp, "ep": columns.ep, "dp": columns.dp * columns.cp,
            "shard": columns.shard_degree,
            "replicas": columns.dp * columns.cp // np.maximum(columns.shard_degree, 1),
        }  # fmt: skip
        near = np.where(
            columns.cp > 1,
            np.minimum(self.distances["dp"], self.distances["cp"]),
            self.distances["dp"],
        )
        strides = {
            "dp": near,
            "shard": near,
            "replicas": near * columns.shard_degree,
            **{name: self.distances[name] for name in ("tp", "cp", "ep")},
        }
        # Stages of a pipeline are at different points of their layers: a collective inside one meets
        # those of its own stage. Gradients are exchanged when all of them are done.
        crowd = self.stage_crowd if axis in AXIS_PART else self.crowd
        return self.machine.message_s(
            collective, size, degrees[axis].astype(np.float64),
            strides[axis].astype(np.float64), crowd,
        )  # fmt: skip


def stage_parts(setup: Setup) -> dict[str, dict[str, tuple[Floats, Floats]]]:
    """(forward, backward) seconds per part of one micro-batch on a rank of each role."""
    shapes = count.Shapes.of(setup.model, setup.job, setup.columns)
    one = {moe: _layer(setup, shapes, moe) for moe in kinds(setup.model)}
    on_first = pipeline.head_on_first_rank(setup.columns)
    crowding = setup.machine.slowdown(setup.cores_stage_crowd)
    found = {}
    for role in ROLES:
        counts = {False: setup.layers.dense[role], True: setup.layers.moe[role]}
        share = setup.layers.recomputed_share(role, setup.columns)
        forward: dict[str, Floats] = {}
        backward: dict[str, Floats] = {}
        again = np.zeros(setup.columns.rows)
        for moe, (there, back, mix) in one.items():
            for into, times in ((forward, there), (backward, back)):
                for part, time in times.items():
                    into[part] = into.get(part, 0.0) + counts[moe] * time
            whole = sum(there.values(), np.zeros(setup.columns.rows))
            repeated = np.where(setup.columns.recompute == 2, share * whole, 0.0)
            repeated = np.where(setup.columns.recompute == 1, mix, repeated)
            again = again + counts[moe] * repeated
        has_head = {"first": on_first, "last": ~on_first}.get(role, np.zeros_like(on_first))
        ends = _ends(setup, shapes, has_head, role == "first")
        own = setup.machine.own_s({"micro_batch": np.ones(setup.columns.rows)}, setup.columns.rows)
        own = own + _pipeline_own(setup)
        zero = np.zeros(setup.columns.rows)
        parts = {
            name: (forward.get(name, zero), backward.get(name, zero))
            for name in ("matmul", "attention", "elementwise", *AXIS_PART.values())
        }
        parts["recompute"] = (zero, again)
        parts["embedding_and_head"] = ends
        host = forward["launch"], backward["launch"]
        parts["launch"] = (host[0] + own * crowding / 3.0, host[1] + own * crowding * 2.0 / 3.0)
        there_is = (setup.layers.total(role) > 0) | has_head
        found[role] = {
            name: (np.where(there_is, a, 0.0), np.where(there_is, b, 0.0))
            for name, (a, b) in parts.items()
        }
    return found


def kinds(model: Model) -> tuple[bool, ...]:
    """Of layers: dense ones, and those of experts."""
    return (False, True) if model.experts else (False,)


def _pipeline_own(setup: Setup) -> Floats:
    """Python of torch's pipeline runtime, per micro-batch: an action each way for every chunk.

    Schedules that put the weights' gradients off walk the graph once more for them (torch's
    `stage_backward_weight`).
    """
    chunks = np.maximum(setup.columns.virtual_stages, 1)
    actions = np.where(setup.columns.pp > 1, 2.0 * chunks, 0.0)
    split = np.isin(setup.columns.schedule, [CODE[name] for name in SPLIT_BACKWARD])
    return setup.machine.own_s(
        {"action": actions, "weight_action": np.where(split, chunks, 0.0)}, setup.columns.rows
    )


def _layer(
    setup: Setup, shapes: count.Shapes, moe: bool
) -> tuple[dict[str, Floats], dict[str, Floats], Floats]:
    """(forward, backward, attention again) of one layer and micro-batch, by part."""
    ledgers = [layer_ledger(shapes, moe, backward=backward) for backward in (False, True)]
    mix = shapes.ledger()
    count.mixing(shapes, mix)
    again = sum(_compute(setup, mix, backward=False).values(), np.zeros(setup.columns.rows))
    return _parts(setup, ledgers[0], False), _parts(setup, ledgers[1], True), again


def layer_ledger(shapes: count.Shapes, moe: bool, *, backward: bool) -> count.Ledger:
    """What a layer computes and exchanges in one direction."""
    ledger = count.layer_forward(shapes, moe=moe)
    count.tensor_messages(shapes, ledger, pairs=1.0 if moe else 2.0)
    count.context_messages(shapes, ledger, backward=backward)
    if moe:
        count.expert_messages(shapes, ledger, backward=backward)
    return ledger


def _compute(setup: Setup, ledger: count.Ledger, *, backward: bool) -> dict[str, Floats]:
    """Modules' seconds among the ranks of one stage, by part."""
    cold_s = setup.machine.engine_s.get("cold_call", 0.0)
    crowding = setup.machine.slowdown(setup.cores_stage_crowd)
    found: dict[str, Floats] = {}
    for module, time in count.seconds(ledger, setup.machine.modules, backward=backward).items():
        part = PART_OF.get(module, "elementwise")
        time = crowding * (time + cold_s * ledger.work[module]["call"])
        found[part] = found.get(part, np.zeros(setup.columns.rows)) + time
    return found


def _parts(setup: Setup, ledger: count.Ledger, backward: bool) -> dict[str, Floats]:
    found = _compute(setup, ledger, backward=backward)
    crowding = setup.machine.slowdown(setup.cores_stage_crowd)
    found["launch"] = crowding * setup.machine.own_s(ledger.own, setup.columns.rows)
    for axis, time in messages_s(setup, ledger).items():
        part = AXIS_PART[axis]
        found[part] = found.get(part, np.zeros(setup.columns.rows)) + time
    return found


def messages_s(setup: Setup, ledger: count.Ledger) -> dict[str, Floats]:
    """Seconds of a ledger's collectives, by axis."""
    found: dict[str, Floats] = {}
    for collective, axis, size, calls in ledger.messages:
        if np.any(calls > 0):
            time = calls * setup.message_s(collective, axis, size)
            found[axis] = found.get(axis, np.zeros(setup.columns.rows)) + time
    return found


def _ends(
    setup: Setup, shapes: count.Shapes, has_head: Bools, has_embedding: bool
) -> tuple[Floats, Floats]:
    times = []
    for backward in (False, True):
        total = np.zeros(setup.columns.rows)
        parts = _parts(setup, count.head(shapes, backward=backward), backward)
        total = total + np.where(has_head, sum(parts.values(), np.zeros(setup.columns.rows)), 0.0)
        if has_embedding:
            parts = _parts(setup, count.embedding(shapes, backward=backward), backward)
            total = total + sum(parts.values(), np.zeros(setup.columns.rows))
        times.append(total)
    return times[0], times[1]


def hop_s(setup: Setup, *, both_ways: bool = False) -> Floats:
    """Time of one message to the next pipeline rank; `both_ways`: of one to it and one from it at once."""
    columns = setup.columns
    tokens = columns.micro_batch * setup.job.seq_len / columns.cp
    split = np.where(columns.sequence_parallel > 0, columns.tp, 1)
    size = tokens * setup.model.hidden * setup.job.precision.activation_bytes / split
    pair = np.minimum(columns.pp, 2).astype(np.float64)
    leaves = columns.pp > setup.host_stages
    stride = np.where(leaves, setup.machine.cluster.gpus_per_node, setup.distances["pp"])
    # Two neighbouring stages of a host talk; between hosts each rank of a stage uses its host's card.
    near = np.minimum(pair * setup.stage_crowd, setup.crowd)
    crowd = np.where(leaves, setup.stage_crowd, near)
    distance = stride.astype(np.float64)
    one_way = setup.machine.message_s("send_recv", size, pair, distance, crowd)
    if not both_ways:
        return one_way
    curves = [c for c in setup.machine.cluster.collectives if c.collective == "exchange"]
    exchange = setup.machine.message_s("exchange", size, pair, distance, crowd)
    # Where no exchange was timed: the two directions of a pair were seen to take turns.
    timed = np.where(leaves, any(c.level for c in curves), any(not c.level for c in curves))
    return np.where(timed, exchange, 2.0 * one_way)


def exposed_hops_s(setup: Setup) -> Floats:
    """Time that messages between stages add to a step: each is waited for (`synchronous.serial_hops`)."""
    single, both_ways = count.serial_hops(setup.columns, setup.micro_batches)
    return single * hop_s(setup) + both_ways * hop_s(setup, both_ways=True)


def data_parallel_s(setup: Setup, used: MemoryColumns) -> Floats:
    """Gradients' reduction, parameters' gathering, and the engine's own work around them.

    Plain replicas reduce in buckets (engine/parallel/reducer.py); ZeRO and mixed precision go
    through FSDP2 unit by unit, layer by layer, with the embedding and the root as units.
    """
    columns, worst = setup.columns, np.zeros(setup.columns.rows)
    m = setup.micro_batches.astype(np.float64)
    several = columns.dp * columns.cp > 1
    precision = setup.job.precision
    stored = max(precision.master_bytes, precision.parameter_bytes)
    mixed = precision.parameter_bytes != stored or precision.gradient_reduce_bytes != stored
    wrapped = (several & (columns.zero > 0)) | mixed
    for role in ROLES:
        state, layers = used.states[role], setup.layers.total(role)
        parameters = state.dense_parameters + state.expert_parameters
        gradient = parameters * precision.gradient_reduce_bytes
        buckets = np.maximum(np.ceil(gradient / BUCKET_BYTES), 1.0)
        plain = buckets * setup.message_s("all_reduce", "dp", gradient / buckets)
        ends = 1.0 + (not embedding_with_root(setup.model) or role != "first")
        units = layers + ends
        # ZeRO-3 gathers for each forward and backward, others once a step; ZeRO-2 and 3 reduce
        # every micro-batch.
        gathers = np.where(columns.zero == 3, 2.0 * m, 1.0)
        reductions = np.where(columns.zero >= 2, m, 1.0)
        gather = setup.message_s(
            "all_gather", "shard", parameters * precision.parameter_bytes / units
        )
        scatter = setup.message_s("reduce_scatter", "shard", gradient / units)
        replicas = setup.message_s(
            "all_reduce", "replicas", gradient / units / np.maximum(columns.shard_degree, 1)
        )
        sharded = units * (gathers * gather + reductions * (scatter + replicas))
        whole = units * setup.message_s("all_reduce", "dp", gradient / units)
        messages = np.where(wrapped, np.where(columns.zero > 0, sharded, whole), plain)
        copied = count.copied_bytes(
            parameters, columns.shard_degree, setup.job,
            gathers=np.where(columns.zero > 0, gathers, m), reductions=reductions, bucketed=~wrapped,
        )  # fmt: skip
        fresh = count.fresh_exchanged_bytes(
            setup.model, parameters, columns.shard_degree, setup.job,
            gathers=gathers, reductions=reductions, bucketed=~wrapped,
        )  # fmt: skip
        own = setup.machine.own_s(
            {
                "unit": np.where(wrapped, units * m, 0.0),
                "gather": np.where(wrapped, units * gathers, 0.0),
                "reduction": np.where(wrapped, units * reductions, 0.0),
                "copied_byte": np.where(wrapped | several, copied, 0.0),
                "fresh_byte": np.where(wrapped | several, fresh, 0.0),
            },
            columns.rows,
        )
        there = np.where(several, messages, 0.0)
        there = there + own * setup.machine.slowdown(setup.cores_crowd)
        worst = np.maximum(worst, np.where(layers > 0, there, 0.0))
    return worst


def update_s(setup: Setup, used: MemoryColumns) -> tuple[Floats, Floats]:
    """(norm, clipping and update; fixed work of a step) in seconds."""
    columns, rows = setup.columns, setup.columns.rows
    m = setup.micro_batches.astype(np.float64)
    most, tensors = np.zeros(rows), np.zeros(rows)
    each = 9.0 if setup.model.gated else 8.0
    accumulated = np.zeros(rows)
    for role in ROLES:
        state, layers = used.states[role], setup.layers.total(role)
        whole = state.dense_parameters + state.expert_parameters
        most = np.maximum(most, whole / columns.shard_degree)
        accumulated = np.maximum(accumulated, whole)
        tensors = np.maximum(tensors, each * layers + 3.0)
    own = setup.machine.own_s(
        {
            "parameter": most,
            "tensor": tensors,
            "accumulated_parameter": accumulated * np.maximum(m - 1.0, 0.0),
            "fresh_byte": count.fresh_gradient_bytes(
                setup.model, accumulated, columns.micro_batch, m, setup.job
            ),
        },
        rows,
    )
    crowding = setup.machine.slowdown(setup.cores_crowd)
    world = (columns.dp * columns.tp * columns.pp * columns.cp).astype(np.float64)
    norm = setup.machine.message_s(
        "all_reduce", np.full(rows, 16.0), world, np.ones(rows), setup.crowd
    )
    step = setup.machine.own_s({"step": np.ones(rows)}, rows)
    return own * crowding + norm, step * crowding
