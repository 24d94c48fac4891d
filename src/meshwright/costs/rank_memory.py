"""One rank's memory at its peak, part by part: what it keeps, works on, gathers and reserves.

Every function takes the `Rank` and returns bytes in columns of shape (rows,).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.costs import encoders, pipeline
from meshwright.costs.activations import attention_scores
from meshwright.costs.adapters import largest_matrix
from meshwright.costs.columns import Bools, Floats, Ints, LayoutColumns
from meshwright.costs.frameworks import Behaviour
from meshwright.costs.graph_memory import graph_bytes, iteration_graph_bytes
from meshwright.costs.kernels import ceil_div
from meshwright.costs.loss import loss_memory_bytes
from meshwright.costs.offload import IN_HOST
from meshwright.costs.parameters import LocalParameters
from meshwright.costs.phases import heaviest, phase_parts, total
from meshwright.costs.stages import StageLayers
from meshwright.costs.states import StateBytes, stored_weights, updated_parameters
from meshwright.costs.tables import table
from meshwright.costs.transformers_layer import Kept
from meshwright.specs.job import Job
from meshwright.specs.model import Model

MOVING = ("activations", "recompute_peak", "logits", "gathered_parameters")
"""Parts that come and go within a step, between which an allocator leaves gaps."""


def constants() -> dict[str, dict[str, Any]]:
    """Return the constants of data/memory.toml."""
    return table("memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """The rank of a pipeline that stands for a role, and all that its memory follows from."""

    role: str
    model: Model
    job: Job
    behaviour: Behaviour
    columns: LayoutColumns
    layers: StageLayers
    local: LocalParameters
    state: StateBytes
    kept: dict[bool, Kept]
    """What a dense layer (False) and one of experts (True) keep."""
    micro_batches: Ints
    host_paced: Bools
    stage: Ints
    flight: Floats
    """Micro-batches whose activations are held at the peak."""
    tokens: Ints
    """Tokens of a micro-batch on this rank."""
    has_head: Bools

    @classmethod
    def of(
        cls, role: str, model: Model, job: Job, behaviour: Behaviour, columns: LayoutColumns,
        layers: StageLayers, local: LocalParameters, state: StateBytes, kept: dict[bool, Kept],
        micro_batches: Ints, host_paced: Bools,
    ) -> Rank:  # fmt: skip
        """Add where the rank stands in the pipeline, and what passes through it."""
        stage = {
            "first": np.zeros_like(columns.pp),
            "middle": np.minimum(columns.pp - 1, 1),
            "last": columns.pp - 1,
        }[role]
        on_first = pipeline.head_on_first_rank(columns)
        return cls(
            role=role, model=model, job=job, behaviour=behaviour, columns=columns, layers=layers,
            local=local, state=state, kept=kept, micro_batches=micro_batches,
            host_paced=host_paced, stage=stage,
            flight=pipeline.in_flight(columns, micro_batches, stage),
            tokens=columns.micro_batch * ceil_div(job.seq_len, columns.cp),
            has_head={"first": on_first, "middle": on_first & False, "last": ~on_first}[role],
        )  # fmt: skip

    @property
    def held(self) -> Floats:
        """Its layers."""
        return self.layers.total(self.role)


def rank_parts(rank: Rank) -> dict[str, Floats]:
    """Parts of one rank's memory: all that it holds at some time of a step (see `in_phases`)."""
    behaviour, columns, known = rank.behaviour, rank.columns, constants()
    activations, working = _activations(rank)
    logits = _logits(rank)
    gathered = _gathered(rank)
    if behaviour.modules == "transformers":
        gathered = _gathered_units(rank)
    if behaviour.planned_buffers:
        gathered = _gathered_matrices(rank)
    gathered = gathered + _in_compute_precision(rank)
    moving = activations + working + logits + gathered
    buffers = _buffers(rank) + iteration_graph_bytes(rank, moving)
    if behaviour.modules == "fused":
        copies = behaviour.update_bytes * updated_parameters(columns, rank.state)
        # The update has the place of what came and went before it, unless that is a graph's own.
        shared = 0.0 if behaviour.graphs == "all" else moving
        buffers = buffers + np.maximum(copies - shared, 0.0)
    gaps = float(known["allocator"]["fragmentation"])
    if behaviour.planned_buffers:
        # The logits are gone when the first layer runs backward.
        at_loss = logits > working + gathered
        working, gathered = np.where(at_loss, 0.0, working), np.where(at_loss, 0.0, gathered)
        logits, gaps = np.where(at_loss, logits, 0.0), 0.0
    parts = {
        "parameters": stored_weights(rank.job, behaviour, columns, rank.state.parameters),
        "gradients": _gradients(rank),
        "optimizer": rank.state.optimizer,
        "gathered_parameters": gathered,
        "activations": activations,
        "recompute_peak": working,
        "logits": logits,
        "buffers": buffers,
        "communicators": _groups(columns) * float(known["nccl"]["bytes_per_group"]),
        "context": np.full(columns.rows, float(known["context"]["bytes"])),
        "fragmentation": moving * gaps + _held_bytes(rank),
    }
    if behaviour.optimizer_in_backward:
        each = parts["gradients"] / np.maximum(rank.held, 1.0)
        largest = np.minimum(np.maximum(each, rank.local.embedding_matrix), parts["gradients"])
        # Sums over several micro-batches are whole before the first of them is used.
        parts["gradients"] = np.where(rank.micro_batches > 1, parts["gradients"], largest)
    return parts


def _activations(rank: Rank) -> tuple[Floats, Floats]:
    """What the micro-batches in flight keep, and what one layer's backward works on beside it."""
    columns, model = rank.columns, rank.model
    full = columns.recompute == 2
    kept = np.zeros(columns.rows)
    working = np.zeros(columns.rows)
    share = rank.layers.recomputed_share(rank.role, columns, middle="fewest")
    for moe, count in ((False, rank.layers.dense[rank.role]), (True, rank.layers.moe[rank.role])):
        if moe not in rank.kept:
            continue
        layer = rank.kept[moe]
        recomputed = np.where(full, share, 0.0)
        one = layer.whole
        if layer.selective is not None:
            one = np.where(columns.recompute == 1, layer.selective, layer.whole)
            working = np.maximum(working, np.where(count > 0, layer.whole - one, 0.0))
        kept = kept + rank.flight * count * (recomputed * layer.boundary + (1.0 - recomputed) * one)
        again = np.where(full & (share * count > 0), layer.whole, 0.0)
        again = again + layer.backward * (count > 0)
        working = np.maximum(working, again)
    images, block = _encoder(rank)
    kept, working = kept + rank.flight * images, np.maximum(working, block)
    split = np.where(columns.sequence_parallel > 0, columns.tp, 1)
    element = rank.job.precision.activation_bytes
    width = model.hidden * model.residual_streams
    kept = kept + rank.flight * rank.tokens * width * element / split
    if rank.behaviour.attention_kernel == "unfused" and not rank.behaviour.fused_softmax:
        # The fp32 gradient of one layer's eager softmax, beside what that layer kept.
        working = working + 4.0 * attention_scores(model, rank.job, columns)
    return kept, working


def _encoder(rank: Rank) -> tuple[Floats, Floats]:
    """What one micro-batch leaves in the encoder, on the rank that has it, and what a block of it works on."""
    nothing = np.zeros(rank.columns.rows)
    if rank.role != "first":
        return nothing, nothing
    kept = encoders.kept(rank.model, rank.job, rank.behaviour, rank.columns)
    if kept is None:
        return nothing, nothing
    share = rank.layers.recomputed_share(rank.role, rank.columns, middle="fewest")
    again = np.where(rank.columns.recompute == 2, share, 0.0)
    return again * kept.boundary + (1.0 - again) * kept.whole, kept.backward


def _logits(rank: Rank) -> Floats:
    """The logits of one micro-batch and what their loss holds, where the head is."""
    shards = rank.columns.tp if rank.behaviour.logits_sharded else 1
    whole = loss_memory_bytes(
        rank.model, rank.job, rank.behaviour, rank.tokens, rank.local.vocab / shards
    )
    return np.where(rank.has_head, whole, 0.0)


def _groups(columns: LayoutColumns) -> Floats:
    """Communicators: one for each axis that has several ranks."""
    axes = (columns.tp, columns.pp, columns.dp * columns.cp, columns.ep)
    return sum((np.where(axis > 1, 1.0, 0.0) for axis in axes), np.zeros(columns.rows))


def _buffers(rank: Rank) -> Floats:
    """What the framework reserves to communicate and compute: buckets, workspaces, placeholders."""
    behaviour, columns, state = rank.behaviour, rank.columns, rank.state
    element = rank.job.precision.activation_bytes
    buffers = _bucket_bytes(rank)
    whole_width = behaviour.full_width_buffers * rank.tokens * rank.model.hidden * element
    buffers = buffers + np.where(columns.tp > 1, whole_width, 0.0)
    buffers = buffers + behaviour.workspace_bytes + graph_bytes(rank)
    reduced = behaviour.reducer_bytes * (state.dense_parameters + state.expert_parameters)
    buffers = buffers + np.where((columns.dp > 1) & (columns.zero < 3), reduced, 0.0)
    if behaviour.placeholder_gradients:
        layer, expert = _largest_layer(rank)
        head = np.where(rank.has_head, rank.local.embedding_matrix, 0.0)
        buffers = buffers + rank.job.precision.parameter_bytes * (layer + expert + head)
    return buffers


def _largest_layer(rank: Rank) -> tuple[Floats, Floats]:
    """Parameters of the largest layer that the rank has: without experts, and of its experts."""
    dense, moe = rank.layers.dense[rank.role], rank.layers.moe[rank.role]
    local = rank.local
    layer = np.maximum(local.dense_layer * (dense > 0), local.moe_layer * (moe > 0))
    return layer, local.experts_layer * (moe > 0)


def in_phases(
    rank: Rank, parts: dict[str, Floats], left: dict[str, Floats]
) -> tuple[dict[str, Floats], dict[str, Floats], Floats]:
    """Parts in the heaviest phase, with the gaps that what comes and goes there leaves; bytes of all phases;
    and the blocks that stay cached of what comes and goes in any phase: an eager program's allocator
    reserves them beyond need, and gives them back to whom needs them.

    `left` is what host memory leaves of `parts`. Each phase is relieved by itself: where gradients and
    weights are gone, the loss may be the heaviest moment, which it was not beside them.
    """
    job, behaviour, state = rank.job, rank.behaviour, rank.state
    # The encoder's backward begins when that of all layers is over.
    images = np.minimum(_encoder(rank)[0], parts["activations"])
    one_layer = images + (parts["activations"] - images) / np.maximum(rank.held, 1.0)
    stored_whole = state.dense_gathered + state.expert_gathered
    loads = (rank.columns.zero == 3) & behaviour.loads_whole
    loading = np.where(loads & (left["parameters"] == parts["parameters"]), stored_whole, 0.0)
    update = np.zeros_like(one_layer)
    if not (behaviour.optimizer_fused or job.optimizer.state_bytes <= 2):
        # torch's foreach update writes one list of tensors out, as large as what trains.
        update = np.where(left["optimizer"] == parts["optimizer"], left["gradients"], 0.0)
    known = phase_parts(parts, rank.micro_batches, one_layer, update, loading, job.optimizer.paged)
    gaps = float(constants()["allocator"]["fragmentation"])
    most = np.zeros_like(one_layer)
    for name, phase in known.items():
        phase |= {part: np.minimum(phase[part], left[part]) for part in IN_HOST}
        if name == "loading":
            continue
        phase["fragmentation"] = gaps * sum(
            (phase[name] for name in MOVING), np.zeros_like(one_layer)
        )
        most = np.maximum(most, cached_bytes(phase, behaviour))
    return heaviest(known), {name: total(phase) for name, phase in known.items()}, most


def cached_bytes(parts: dict[str, Floats], behaviour: Behaviour) -> Floats:
    """What the allocator of an eager program keeps cached of parts that come and go together.

    Where lengths vary, a sequence longer than all before it needs blocks of its own, and those of the shorter
    ones stay: segments are never joined. A simulation of the allocator gives the share (benchmarks/allocator.py).
    """
    known = constants()["allocator"]
    share = float(known["varying_cached" if behaviour.lengths_vary else "eager_cached"])
    moved = sum((parts[name] for name in MOVING), np.zeros_like(parts["logits"]))
    return np.asarray(moved * share)


def _gradients(rank: Rank) -> Floats:
    """What a rank holds of gradients: its shards, or the whole sums of what it trains while it accumulates.

    FSDP2 keeps those as wide as it reduces them (torch/distributed/fsdp/_fully_shard/_fsdp_param.py
    to_accumulated_grad_if_needed), FSDP1 as wide as it computes.
    """
    columns, state = rank.columns, rank.state
    if not rank.behaviour.accumulates_whole:
        return state.gradients
    sums = state.dense_parameters + state.expert_parameters
    whole = rank.job.precision.gradient_reduce_bytes * sums
    early = (columns.zero >= 2) & (columns.shard_degree > 1) & (rank.micro_batches > 1)
    if rank.behaviour.pipeline_unsharded:
        early = early & ~((columns.zero == 3) & (columns.pp > 1))  # `_gathered` has them
    return np.where(early, np.maximum(whole, state.gradients), state.gradients)


def _gathered(rank: Rank) -> Floats:
    """ZeRO-3's transient: two layers gathered (one computing, one prefetched) and one's gradient.

    Where a pipeline keeps its parameters gathered: all of them, and the sums of their gradients.
    """
    precision, columns, state = rank.job.precision, rank.columns, rank.state
    dense, expert = _largest_layer(rank)
    root = np.where(rank.held > 0, rank.local.embedding_matrix, 0.0)
    unit = np.maximum(dense + expert, root)
    transient = unit * (2.0 * precision.parameter_bytes + precision.gradient_reduce_bytes)
    if rank.behaviour.pipeline_unsharded:
        sums = state.dense_parameters + state.expert_parameters
        whole = state.dense_gathered + state.expert_gathered
        whole = whole + precision.gradient_reduce_bytes * sums
        transient = np.where(columns.pp > 1, whole, transient)
    return np.where((columns.zero == 3) & (columns.shard_degree > 1), transient, 0.0)


def _gathered_units(rank: Rank) -> Floats:
    """FSDP's units of a transformers model: the root, two layers as stored, one layer's gradient.

    Embedding and head belong to the root, which stays gathered from forward to backward.
    """
    precision, columns, state = rank.job.precision, rank.columns, rank.state
    copies = 1.0 if rank.local.tied else 2.0
    first = rank.role == "first"
    root = precision.parameter_bytes * copies * rank.local.embedding_matrix * first
    count = np.maximum(rank.held, 1.0)
    stored = np.maximum(state.dense_gathered + state.expert_gathered - root, 0.0) / count
    trained = (state.dense_parameters + state.expert_parameters) / count
    unit = 2.0 * stored + trained * precision.gradient_reduce_bytes
    return np.where((columns.zero == 3) & (columns.shard_degree > 1), root + unit, 0.0)


def _gathered_matrices(rank: Rank) -> Floats:
    """What one compiled program gathers: each matrix by itself, one computing and one prefetched.

    XLA gathers every weight where it is used and scatters its gradient where it is made, so that no
    whole layer is ever there (GSPMD, arXiv 2105.04663; its latency-hiding scheduler moves single
    collectives).
    """
    precision, columns, model = rank.job.precision, rank.columns, rank.model
    matrix = model.hidden * float(model.ffn) / columns.tp
    if model.experts:
        of_expert = 3.0 if model.gated else 2.0
        matrix = np.maximum(matrix, rank.local.experts_layer / of_expert)
    matrix = np.maximum(matrix, rank.local.embedding_matrix)
    whole = matrix * (2.0 * precision.parameter_bytes + precision.gradient_reduce_bytes)
    return np.where((columns.zero == 3) & (columns.shard_degree > 1), whole, 0.0)


def _in_compute_precision(rank: Rank) -> Floats:
    """Weights written out in the compute precision for a product.

    A quantised matrix is dequantised whole for each product; fp32 weights under autocast are cast
    once and kept until the step's backward is over.
    """
    tune = rank.job.finetune
    none = np.zeros(rank.columns.rows)
    if tune is not None and tune.storage not in ("16-bit", "fp8"):
        return none + rank.job.precision.activation_bytes * largest_matrix(rank.model)
    return none


def _held_bytes(rank: Rank) -> Floats:
    """Blocks of whole-width tensors that the allocator may not reuse yet.

    An asynchronous reduce-scatter marks its input with `record_stream`: the block is free again
    only when the device has run the collective. A host that is ahead of the device therefore needs
    new blocks for every layer, of the micro-batches in flight and of the next one. It is not ahead
    where its own launches set the pace, unless several forwards of a warm-up follow each other
    without a wait (pp > 2), nor where it reads back what it receives from another stage.
    """
    columns = rank.columns
    waits = rank.host_paced & (columns.pp <= 2)
    waits = waits | ((columns.pp > 1) & rank.behaviour.messages_wait)
    issued = np.minimum(rank.flight + 1.0, rank.micro_batches)
    split = (columns.tp > 1) & (columns.sequence_parallel > 0)
    width = rank.tokens * float(rank.model.hidden) * rank.job.precision.activation_bytes
    held = rank.behaviour.held_widths * rank.held * issued * width
    return np.where(split & ~waits, held, 0.0)


def _bucket_bytes(rank: Rank) -> Floats:
    """Reduction buckets: resident only where gradients themselves are not kept whole (ZeRO-2)."""
    behaviour, columns = rank.behaviour, rank.columns
    whole = rank.state.dense_parameters + rank.state.expert_parameters
    wire = rank.job.precision.gradient_reduce_bytes
    bucket = np.minimum(behaviour.bucket_parameters, whole) * wire
    return np.where((columns.zero == 2) & (columns.shard_degree > 1), bucket, 0.0)
