"""Peak memory of the ranks of a pipeline, by named part, in columns.

Three ranks can be the heaviest: the first (embedding, most micro-batches in flight), the heaviest
in between, and the last (head, logits and loss). Each is priced; the largest decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from meshwright.costs import pipeline
from meshwright.costs.adapters import Weights, adapter_state_bytes, largest_matrix, role_weights
from meshwright.costs.columns import Bools, Floats, Ints, LayoutColumns
from meshwright.costs.eager import Held, eager_parts
from meshwright.costs.factored import STATISTIC_BYTES, factored_statistics
from meshwright.costs.frameworks import Behaviour
from meshwright.costs.kernels import ceil_div
from meshwright.costs.loss import loss_memory_bytes
from meshwright.costs.mixers import layer_shares, mixer_bytes
from meshwright.costs.offload import Moved, leave_device
from meshwright.costs.parameters import LocalParameters, local_parameters
from meshwright.costs.phases import heaviest, phase_parts, total
from meshwright.costs.recompute_modules import FfnBytes, dropped_bytes
from meshwright.costs.routing import hottest_rank
from meshwright.costs.selective import selective_bytes
from meshwright.costs.stages import ROLES, StageLayers
from meshwright.costs.tables import table
from meshwright.costs.transformers_layer import Kept, layer_kept
from meshwright.specs.job import Job
from meshwright.specs.layout import CONTEXT_METHODS
from meshwright.specs.model import Model

PARTS = (
    "parameters", "gradients", "optimizer", "gathered_parameters", "activations", "recompute_peak",
    "logits", "buffers", "communicators", "context", "fragmentation",
)  # fmt: skip

RING = CONTEXT_METHODS.index("ring")
MOVING = ("activations", "recompute_peak", "logits", "gathered_parameters")
"""Parts that come and go within a step, between which an allocator leaves gaps."""


def constants() -> dict[str, dict[str, Any]]:
    """Return the constants of data/memory.toml."""
    return table("memory")


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Model states that one rank of a role holds, in bytes; arrays of shape (rows,)."""

    dense_parameters: Floats
    """Parameters that train, before ZeRO; `expert_parameters` likewise."""
    expert_parameters: Floats
    parameters: Floats
    gradients: Floats
    optimizer: Floats
    dense_gathered: Floats
    """Bytes that ranks of a shard group gather from each other; `expert_gathered` likewise."""
    expert_gathered: Floats


def role_parameters(
    local: LocalParameters, layers: StageLayers, columns: LayoutColumns, role: str
) -> tuple[Floats, Floats]:
    """Dense and expert parameters that one rank of a role holds under tp and ep, unsharded by ZeRO."""
    with_head = pipeline.head_on_first_rank(columns)
    exists = _exists(columns, role)
    dense = layers.dense[role] * local.dense_layer + layers.moe[role] * local.moe_layer
    if role == "first":
        dense = dense + local.embedding + np.where(with_head, local.head, 0.0)
    if role == "last":
        # A tied head is a second copy of the embedding on the last rank.
        head = local.embedding_matrix + local.head if local.tied else local.head
        dense = dense + np.where(with_head, 0.0, head)
    copies = pipeline.copies_of_parameters(columns)
    dense = np.where(exists, dense * copies, 0.0)
    expert = np.where(exists, layers.moe[role] * local.experts_layer * copies, 0.0)
    return dense, expert


def _exists(columns: LayoutColumns, role: str) -> Any:
    if role == "first":
        return columns.pp >= 1
    return columns.pp > (1 if role == "last" else 2)


def expert_shard_degree(columns: LayoutColumns) -> Ints:
    """Ranks that hold copies of the same expert: the world of a stage over ep · etp."""
    return np.maximum(columns.dp * columns.cp * columns.tp // (columns.ep * columns.etp), 1)


def state_bytes(
    job: Job,
    columns: LayoutColumns,
    dense: Floats,
    expert: Floats,
    weights: Weights | None = None,
    statistics: tuple[Floats, Floats] | None = None,
) -> StateBytes:
    """Bytes of parameters, gradients and optimizer states after ZeRO.

    ZeRO-1 shards the optimizer's, ZeRO-2 gradients too, ZeRO-3 parameters too (Rajbhandari et al.
    2020, arXiv 1910.02054 §5), each component by its own bytes per parameter. Of frozen weights
    (`weights`; None: all train) there are no gradients and no optimizer states. `statistics` are
    the numbers of factored statistics of the dense and expert parameters (`costs.factored`), where
    the optimizer keeps such; they are sharded with its other states.
    """
    shard = columns.shard_degree.astype(np.float64)
    expert_shard = np.where(columns.zero > 0, expert_shard_degree(columns), 1).astype(np.float64)
    expert_shard = np.minimum(expert_shard, np.where(columns.zero > 0, np.maximum(shard, 1), 1))
    precision = job.precision
    optimizer_bytes = precision.master_bytes + job.optimizer.state_bytes

    def split(of: tuple[Floats, Floats], from_stage: int, bytes_each: float = 1.0) -> Floats:
        whole = columns.zero < from_stage
        return np.asarray(
            bytes_each
            * (of[0] / np.where(whole, 1.0, shard) + of[1] / np.where(whole, 1.0, expert_shard))
        )

    if weights is None:
        each = precision.parameter_bytes
        trains, gathered = (dense, expert), (each * dense, each * expert)
        parameters = split(trains, 3, each)
        gradients = split(trains, 2, precision.gradient_bytes)
        optimizer = split(trains, 1, optimizer_bytes)
    else:
        of_weight, of_gradient, of_states = adapter_state_bytes(job)
        beside = weights.adapters
        trains = (weights.trained[0] + beside[0], weights.trained[1] + beside[1])
        parameters = split(weights.stored, 3) + split(beside, 3, of_weight)
        gradients = split(weights.trained, 2, precision.gradient_bytes)
        gradients = gradients + split(beside, 2, of_gradient)
        optimizer = split(weights.trained, 1, optimizer_bytes) + split(beside, 1, of_states)
        # Under ZeRO-3 frozen weights travel too, as they are stored.
        every = columns.zero == 3
        new = precision.parameter_bytes
        base = [
            np.where(every, stored, new * trained)
            for stored, trained in zip(weights.stored, weights.trained, strict=True)
        ]
        gathered = (base[0] + of_weight * beside[0], base[1] + of_weight * beside[1])
    if statistics is not None:
        share = 1.0
        if weights is not None:
            share = np.sum(trains[0] + trains[1]) / max(np.sum(dense + expert), 1.0)
        optimizer = optimizer + share * split(statistics, 1, STATISTIC_BYTES)
    return StateBytes(trains[0], trains[1], parameters, gradients, optimizer, *gathered)


def activation_bytes_per_layer(
    model: Model, job: Job, behaviour: Behaviour, columns: LayoutColumns, *, moe: bool
) -> tuple[Floats, Floats]:
    """Bytes that one layer keeps per micro-batch: (everything, only what full recomputation keeps).

    The tensors saved for backward, counted one by one. With a two-matrix FFN, dropout and unfused
    attention they add up to Korthikanti's sbh(34 + 5as/h) (arXiv 2205.05198, eq. 1); with flash
    attention the 5as²b go; sequence parallelism divides what tensor parallelism does not.
    """
    element = job.precision.activation_bytes
    tokens = (columns.micro_batch * ceil_div(job.seq_len, columns.cp)).astype(np.float64)
    tp = columns.tp.astype(np.float64)
    split = np.where(columns.sequence_parallel > 0, tp, 1.0)
    hidden = float(model.hidden)
    # A norm written out keeps its input in fp32, the normalised fp32 values and their 16-bit copy.
    norm_inputs = 2.0 * hidden * (1.0 if behaviour.fused_norm else 5.0)
    quantised = _quantised_inputs(job, behaviour)
    of_input = 1.0 if quantised else element
    # A frozen weight needs no input for a gradient; adapters read attention's input only.
    adapted = job.frozen
    matmul_inputs = (1.0 if adapted else 2.0) * hidden
    shared = norm_inputs * element + matmul_inputs * of_input
    if behaviour.dropout:
        shared += 2.0 * hidden
    per_token = shared / split
    mixers = layer_shares(model, moe=moe)
    per_token = per_token + mixers.attention * _attention_bytes(model, element, tp)
    if mixers.linear and model.mixer is not None:
        per_token = per_token + mixers.linear * mixer_bytes(model.mixer, element) / tp
    if quantised:
        # Attention keeps its output in 16 bits; the projection after it keeps its own copy.
        per_token = per_token + of_input * model.attention_width / tp
    per_token = per_token + behaviour.copied_widths * hidden * element / tp
    width = mixers.ffn * model.ffn
    if moe:
        assert model.experts is not None
        width = float(model.experts.shared_ffn)
        hot = hottest_rank(job.routing, model.experts.experts, columns.ep, at_peak=True)
        copies = model.experts.top_k * columns.etp / tp * hot
        each = _ffn_bytes(model, behaviour, element, of_input, adapted)
        expert = each * model.experts.ffn / columns.etp + hidden * (element + of_input)
        per_token = per_token + copies * expert
        per_token = per_token + (model.experts.experts * 4.0 + model.experts.top_k * 12.0) / split
    per_token = per_token + _ffn_bytes(model, behaviour, element, of_input, adapted) * width / tp
    scores = 0.0 * tokens
    if behaviour.attention_kernel == "unfused":
        # The probabilities; eager softmax keeps them in fp32 too; dropout its mask and output.
        bytes_per_score = element + (0.0 if behaviour.fused_softmax else 4.0)
        bytes_per_score += element + 1.0 if behaviour.dropout else 0.0
        scores = _scores(model, job, columns) * bytes_per_score
        scores = np.where(columns.recompute == 1, 0.0, scores)
    whole = tokens * per_token + scores
    boundary = tokens * hidden * element / split
    return whole, boundary


def kept_per_layer(
    model: Model, job: Job, behaviour: Behaviour, columns: LayoutColumns, *, moe: bool
) -> Kept:
    """What one layer keeps, by the modules that the framework runs."""
    if behaviour.modules == "transformers":
        kept = layer_kept(model, job, behaviour, columns, moe=moe)
        if behaviour.attention_kernel == "unfused":
            # Probabilities in 16 bits and softmax's own in fp32.
            scores = _scores(model, job, columns) * (4.0 + job.precision.activation_bytes)
            kept = replace(kept, whole=kept.whole + scores)
        return kept
    whole, boundary = activation_bytes_per_layer(model, job, behaviour, columns, moe=moe)
    tokens = (columns.micro_batch * ceil_div(job.seq_len, columns.cp)).astype(np.float64)
    selective = selective_bytes(model, job, behaviour, columns, tokens, moe=moe)
    if selective is not None:
        selective = np.minimum(selective, whole)
    named = columns.recompute_modules > 0
    if named.any():
        element = job.precision.activation_bytes
        of_input = 1.0 if _quantised_inputs(job, behaviour) else element
        each = FfnBytes(
            _ffn_bytes(model, behaviour, element, of_input, job.frozen),
            0.0 if job.frozen else of_input,
        )
        without = whole - dropped_bytes(model, job, behaviour, columns, each, moe=moe)
        selective = np.where(named, without, whole if selective is None else selective)
    return Kept(whole, boundary, np.zeros(columns.rows), selective)


def _quantised_inputs(job: Job, behaviour: Behaviour) -> bool:
    """Whether products keep their inputs for backward in 8 bits."""
    return behaviour.saves_quantised_inputs and job.precision.compute in ("fp8", "fp4")


def _scores(model: Model, job: Job, columns: LayoutColumns) -> Floats:
    """Attention scores of one layer and micro-batch on one rank: b·s²·a over cp and tp."""
    tokens = (columns.micro_batch * ceil_div(job.seq_len, columns.cp)).astype(np.float64)
    return np.asarray(tokens * job.seq_len * (model.heads / columns.tp))


def _ffn_bytes(
    model: Model, behaviour: Behaviour, element: float, of_input: float, frozen: bool
) -> float:
    """Saved bytes per unit of FFN width: the activation's inputs, and the last product's input.

    The latter has `of_input` bytes and is needed only for that product's weight gradient.
    """
    inputs = 1.0
    if model.gated:
        inputs = 2.0 if behaviour.fused_activation else 3.0
    return inputs * element + (0.0 if frozen else of_input)


def _attention_bytes(model: Model, element: float, tp: Floats) -> Floats:
    """Queries, keys, values and the output of attention, per token, with flash's row statistics."""
    latent = model.latent_attention
    if latent is not None:
        heads = np.ceil(model.heads / tp)
        per_head = 2 * (latent.nope_head_dim + latent.rope_head_dim) + 2 * latent.v_head_dim
        compressed = latent.q_rank * 2 + latent.kv_rank * 2 + latent.rope_head_dim
        return (heads * per_head + compressed) * element + 4.0 * heads
    heads = np.ceil(model.heads / tp)
    kv_heads = np.ceil(model.kv_heads / tp)
    return (2 * heads + 2 * kv_heads) * model.head_dim * element + 4.0 * heads


@dataclass(frozen=True, slots=True)
class MemoryColumns:
    """Peak bytes per role and part; arrays of shape (rows,). Parts of a role add up to its total."""

    parts: dict[str, dict[str, Floats]]
    states: dict[str, StateBytes]
    total: dict[str, Floats]
    peak: Floats
    moved: dict[str, Moved] = field(default_factory=dict)
    """Of each role, what lives in host memory; empty where no row keeps anything there."""
    phases: dict[str, dict[str, Floats]] = field(default_factory=dict)
    """Of each role, bytes per phase of a step, where the framework's are counted (`costs.phases`)."""

    def heaviest(self) -> Ints:
        """Position in ROLES of the heaviest rank."""
        stacked = np.stack([self.total[role] for role in ROLES])
        return np.argmax(stacked, axis=0)


def default_process_bytes() -> float:
    """A rank's process on CPUs before any tensor, where nothing was measured."""
    return float(constants()["process"]["bytes"])


def memory(
    model: Model,
    job: Job,
    behaviour: Behaviour,
    columns: LayoutColumns,
    layers: StageLayers,
    micro_batches: Ints,
    host_paced: Bools | None = None,
    process_bytes: float | None = None,
) -> MemoryColumns:
    """Price the peak memory of the first, the heaviest middle and the last rank.

    `host_paced` says of each row whether the device waits for the host's launches; None: nowhere.
    `process_bytes`: ranks are processes of this size with gloo; None: GPUs with NCCL.
    """
    local = local_parameters(model, columns, behaviour.vocab_multiple)
    counted = (
        factored_statistics(model, columns, behaviour.vocab_multiple)
        if job.optimizer.factored
        else None
    )
    kept = {
        moe: kept_per_layer(model, job, behaviour, columns, moe=moe)
        for moe in ((False, True) if model.experts else (False,))
    }
    paced = np.zeros(columns.rows, dtype=bool) if host_paced is None else host_paced
    parts: dict[str, dict[str, Floats]] = {}
    states: dict[str, StateBytes] = {}
    totals: dict[str, Floats] = {}
    phases: dict[str, dict[str, Floats]] = {}
    moved: dict[str, Moved] = {}
    for role in ROLES:
        dense, expert = role_parameters(local, layers, columns, role)
        weights = None
        if job.finetune is not None:
            weights = role_weights(model, job, columns, layers, local, role, dense, expert)
        statistics = role_parameters(counted, layers, columns, role) if counted else None
        states[role] = state_bytes(job, columns, dense, expert, weights, statistics)
        parts[role], phases[role] = _role_parts(
            model,
            job,
            behaviour,
            columns,
            layers,
            micro_batches,
            role,
            states[role],
            kept,
            local,
            paced,
        )
        if behaviour.eager:
            held = _held(columns, layers, role, micro_batches)
            parts[role] |= eager_parts(model, job, columns, held, micro_batches, local)
            moving = sum((parts[role][name] for name in MOVING), np.zeros(columns.rows))
            parts[role]["fragmentation"] = moving * float(constants()["allocator"]["fragmentation"])
        if columns.offload.any():
            flight = pipeline.in_flight(columns, micro_batches, _stage_of(columns, role))
            gaps = (
                0.0
                if behaviour.planned_buffers
                else float(constants()["allocator"]["fragmentation"])
            )
            parts[role], moved[role] = leave_device(
                model, job, columns, parts[role], layers.total(role), flight, gaps
            )
            phases[role] = {}  # they count what is on the device alone
        # gloo holds next to nothing; no device context, but Python and torch themselves
        if process_bytes is not None:
            parts[role] |= {
                "communicators": np.zeros(columns.rows),
                "context": np.full(columns.rows, process_bytes),
            }
        total = np.zeros(columns.rows)
        for name in PARTS:
            total = total + parts[role][name]
        totals[role] = np.where(_exists(columns, role), total, 0.0)
    peak = np.maximum(np.maximum(totals["first"], totals["middle"]), totals["last"])
    return MemoryColumns(parts, states, totals, peak, moved, phases)


def _held(columns: LayoutColumns, layers: StageLayers, role: str, micro_batches: Ints) -> Held:
    """What the rank of a role holds."""
    on_first = pipeline.head_on_first_rank(columns)
    return Held(
        dense=layers.dense[role], moe=layers.moe[role],
        recomputed=layers.recomputed_share(role, columns),
        embedding=np.full(columns.rows, role == "first"),
        head={"first": on_first, "middle": on_first & False, "last": ~on_first}[role],
        ring=(columns.cp > 1) & (columns.cp_method == RING),
        stage=_stage_of(columns, role),
        flight=pipeline.in_flight(columns, micro_batches, _stage_of(columns, role)),
    )  # fmt: skip


def _stage_of(columns: LayoutColumns, role: str) -> Ints:
    """The pipeline rank that stands for a role."""
    return {
        "first": np.zeros_like(columns.pp),
        "middle": np.minimum(columns.pp - 1, 1),
        "last": columns.pp - 1,
    }[role]


def _role_parts(
    model: Model,
    job: Job,
    behaviour: Behaviour,
    columns: LayoutColumns,
    layers: StageLayers,
    micro_batches: Ints,
    role: str,
    state: StateBytes,
    kept: dict[bool, Kept],
    local: LocalParameters,
    host_paced: Bools,
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Parts of one rank's memory at its peak; and, where they are counted, bytes per phase."""
    element = job.precision.activation_bytes
    flight = pipeline.in_flight(columns, micro_batches, _stage_of(columns, role))
    full = columns.recompute == 2
    activations = np.zeros(columns.rows)
    working = np.zeros(columns.rows)
    stored_whole = state.dense_gathered + state.expert_gathered
    layers_held = np.maximum(layers.total(role), 1.0)
    share = layers.recomputed_share(role, columns, middle="fewest")
    for moe, count in ((False, layers.dense[role]), (True, layers.moe[role])):
        if moe not in kept:
            continue
        whole, boundary, selective = kept[moe].whole, kept[moe].boundary, kept[moe].selective
        recomputed = np.where(full, share, 0.0)
        one = whole
        if selective is not None:
            one = np.where(columns.recompute == 1, selective, whole)
            working = np.maximum(working, np.where(count > 0, whole - one, 0.0))
        activations = activations + flight * count * (
            recomputed * boundary + (1.0 - recomputed) * one
        )
        again = np.where(full & (share * count > 0), whole, 0.0) + kept[moe].backward * (count > 0)
        working = np.maximum(working, again)
    split = np.where(columns.sequence_parallel > 0, columns.tp, 1)
    tokens = columns.micro_batch * ceil_div(job.seq_len, columns.cp)
    activations = activations + flight * tokens * model.hidden * element / split
    on_first = pipeline.head_on_first_rank(columns)
    has_head = {"first": on_first, "middle": on_first & False, "last": ~on_first}[role]
    shards = columns.tp if behaviour.logits_sharded else 1
    logits = loss_memory_bytes(model, job, behaviour, tokens, local.vocab / shards)
    logits = np.where(has_head, logits, 0.0)
    gathered = _gathered(job, columns, local, state, layers, role)
    groups = (
        (columns.tp > 1) * 1.0 + (columns.pp > 1) + (columns.dp * columns.cp > 1) + (columns.ep > 1)
    )
    known = constants()
    buffers = _bucket_bytes(behaviour, columns, state)
    whole_width = behaviour.full_width_buffers * tokens * model.hidden * element
    buffers = buffers + np.where(columns.tp > 1, whole_width, 0.0)
    buffers = buffers + behaviour.workspace_bytes
    reduced = behaviour.reducer_bytes * (state.dense_parameters + state.expert_parameters)
    buffers = buffers + np.where((columns.dp > 1) & (columns.zero < 3), reduced, 0.0)
    if behaviour.attention_kernel == "unfused" and not behaviour.fused_softmax:
        # The fp32 gradient of one layer's eager softmax, beside what that layer kept.
        working = working + 4.0 * _scores(model, job, columns)
    if behaviour.placeholder_gradients:
        layer = np.maximum(
            local.dense_layer * (layers.dense[role] > 0), local.moe_layer * (layers.moe[role] > 0)
        )
        expert = local.experts_layer * (layers.moe[role] > 0)
        head = np.where(has_head, local.embedding_matrix, 0.0)
        buffers = buffers + job.precision.parameter_bytes * (layer + expert + head)
    if behaviour.modules == "transformers":
        gathered = _gathered_units(job, columns, local, state, layers, role)
    gathered = gathered + _in_compute_precision(job, model, local, layers, role)
    moving = activations + working + logits + gathered
    gaps = float(known["allocator"]["fragmentation"])
    if behaviour.planned_buffers:
        # The logits are gone when the first layer runs backward.
        at_loss = logits > working + gathered
        working, gathered = np.where(at_loss, 0.0, working), np.where(at_loss, 0.0, gathered)
        logits, gaps = np.where(at_loss, logits, 0.0), 0.0
    held = _held_bytes(
        job, model, behaviour, columns, layers.total(role), flight, micro_batches, host_paced
    )
    parts = {
        "parameters": state.parameters,
        "gradients": state.gradients,
        "optimizer": state.optimizer,
        "gathered_parameters": gathered,
        "activations": activations,
        "recompute_peak": working,
        "logits": logits,
        "buffers": buffers,
        "communicators": groups * float(known["nccl"]["bytes_per_group"]),
        "context": np.full(columns.rows, float(known["context"]["bytes"])),
        "fragmentation": moving * gaps + held,
    }
    if behaviour.modules == "transformers":
        if behaviour.optimizer_in_backward:
            largest = np.maximum(parts["gradients"] / layers_held, local.embedding_matrix)
            parts["gradients"] = np.minimum(parts["gradients"], largest)
        loading = np.where((columns.zero == 3) & behaviour.loads_whole, stored_whole, 0.0)
        one_layer = activations / layers_held
        return _in_phases(job, behaviour, parts, micro_batches, one_layer, loading)
    return parts, {}


def _in_phases(
    job: Job, behaviour: Behaviour, parts: dict[str, Floats], micro_batches: Ints,
    one_layer: Floats, loading: Floats,
) -> tuple[dict[str, Floats], dict[str, Floats]]:  # fmt: skip
    """Parts in the heaviest phase, with the gaps that what comes and goes there leaves; all phases."""
    update = np.zeros_like(one_layer)
    if not (behaviour.optimizer_fused or job.optimizer.state_bytes <= 2):
        # torch's foreach update writes one list of tensors out, as large as what trains.
        update = parts["gradients"]
    known = phase_parts(parts, micro_batches, one_layer, update, loading, job.optimizer.paged)
    gaps = float(constants()["allocator"]["fragmentation"])
    for name, phase in known.items():
        if name == "loading":
            continue
        moving = sum((phase[name] for name in MOVING), np.zeros_like(one_layer))
        phase["fragmentation"] = moving * gaps
    return heaviest(known), {name: total(phase) for name, phase in known.items()}


def _gathered_units(
    job: Job, columns: LayoutColumns, local: LocalParameters, state: StateBytes,
    layers: StageLayers, role: str,
) -> Floats:  # fmt: skip
    """FSDP's units of a transformers model: the root, two layers as stored, one layer's gradient.

    Embedding and head belong to the root, which stays gathered from forward to backward.
    """
    copies = 1.0 if local.tied else 2.0
    root = job.precision.parameter_bytes * copies * local.embedding_matrix * (role == "first")
    count = np.maximum(layers.total(role), 1.0)
    stored = np.maximum(state.dense_gathered + state.expert_gathered - root, 0.0) / count
    trained = (state.dense_parameters + state.expert_parameters) / count
    unit = 2.0 * stored + trained * job.precision.gradient_reduce_bytes
    return np.where((columns.zero == 3) & (columns.shard_degree > 1), root + unit, 0.0)


def _in_compute_precision(
    job: Job, model: Model, local: LocalParameters, layers: StageLayers, role: str
) -> Floats:
    """Weights written out in the compute precision for a product.

    A quantised matrix is dequantised whole for each product; fp32 weights under autocast are cast
    once and kept until the step's backward is over.
    """
    tune = job.finetune
    none = np.zeros_like(layers.dense[role])
    if tune is not None and tune.storage not in ("16-bit", "fp8"):
        return none + job.precision.activation_bytes * largest_matrix(model)
    return none


def _held_bytes(
    job: Job,
    model: Model,
    behaviour: Behaviour,
    columns: LayoutColumns,
    layers: Floats,
    flight: Floats,
    micro_batches: Ints,
    host_paced: Bools,
) -> Floats:
    """Blocks of whole-width tensors that the allocator may not reuse yet.

    An asynchronous reduce-scatter marks its input with `record_stream`: the block is free again
    only when the device has run the collective. A host that is ahead of the device therefore needs
    new blocks for every layer, of the micro-batches in flight and of the next one. It is not ahead
    where its own launches set the pace, unless several forwards of a warm-up follow each other
    without a wait (pp > 2), nor where every message between stages blocks it.
    """
    waits = (host_paced & (columns.pp <= 2)) | (
        (columns.pp > 1) & (behaviour.blocking_message_s > 0)
    )
    issued = np.minimum(flight + 1.0, micro_batches)
    split = (columns.tp > 1) & (columns.sequence_parallel > 0)
    tokens = columns.micro_batch * ceil_div(job.seq_len, columns.cp)
    width = tokens * float(model.hidden) * job.precision.activation_bytes
    held = behaviour.held_widths * layers * issued * width
    return np.where(split & ~waits, held, 0.0)


def _gathered(
    job: Job,
    columns: LayoutColumns,
    local: LocalParameters,
    state: StateBytes,
    layers: StageLayers,
    role: str,
) -> Floats:
    """ZeRO-3's transient: two layers gathered (one computing, one prefetched) and one's gradient."""
    dense = np.maximum(
        local.dense_layer * (layers.dense[role] > 0), local.moe_layer * (layers.moe[role] > 0)
    )
    expert = local.experts_layer * (layers.moe[role] > 0)
    unit = np.maximum(dense + expert, np.where(layers.total(role) > 0, local.embedding_matrix, 0.0))
    bytes_each = 2.0 * job.precision.parameter_bytes + job.precision.gradient_reduce_bytes
    return np.where((columns.zero == 3) & (columns.shard_degree > 1), unit * bytes_each, 0.0)


def _bucket_bytes(behaviour: Behaviour, columns: LayoutColumns, state: StateBytes) -> Floats:
    """Reduction buckets: resident only where gradients themselves are not kept whole (ZeRO-2)."""
    whole = state.dense_parameters + state.expert_parameters
    bucket = np.minimum(behaviour.bucket_parameters, whole) * behaviour.gradient_reduce_bytes
    return np.where((columns.zero == 2) & (columns.shard_degree > 1), bucket, 0.0)
