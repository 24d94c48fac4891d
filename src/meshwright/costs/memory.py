"""Peak memory of the ranks of a pipeline, by named part, in columns.

Three ranks can be the heaviest: the first (embedding, most micro-batches in flight), the heaviest
in between, and the last (head, logits and loss). Each is priced; the largest decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from meshwright.costs.activations import kept_per_layer
from meshwright.costs.adapters import role_weights
from meshwright.costs.columns import Bools, Floats, Ints, LayoutColumns
from meshwright.costs.eager import Held, eager_parts
from meshwright.costs.factored import factored_statistics
from meshwright.costs.frameworks import Behaviour
from meshwright.costs.offload import Moved, leave_device, modules_in_host
from meshwright.costs.offload_modules import input_bytes
from meshwright.costs.parameters import local_parameters
from meshwright.costs.rank_memory import MOVING, Rank, constants, in_phases, rank_parts
from meshwright.costs.stages import ROLES, StageLayers, roles_in, with_further
from meshwright.costs.states import StateBytes, exists, role_parameters, state_bytes
from meshwright.specs.job import Job
from meshwright.specs.layout import CONTEXT_METHODS
from meshwright.specs.model import Model

PARTS = (
    "parameters", "gradients", "optimizer", "gathered_parameters", "activations", "recompute_peak",
    "logits", "buffers", "communicators", "context", "fragmentation",
)  # fmt: skip

RING = CONTEXT_METHODS.index("ring")


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
    cached: dict[str, Floats] = field(default_factory=dict)
    """Of each role, what the allocator reserves beyond `total` while nothing else asks for it."""

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
    `process_bytes`: ranks take this beside tensors (processes with gloo, chips under XLA); None: GPUs with NCCL.
    """
    if not behaviour.eager:  # which counts them by itself
        layers = with_further(model, columns, layers)
    local = local_parameters(model, columns, behaviour.vocab_multiple, job.framework)
    counted = (
        factored_statistics(model, columns, behaviour.vocab_multiple, job.optimizer)
        if job.optimizer.factored or job.optimizer.low_rank
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
    cached: dict[str, Floats] = {}
    there = roles_in(columns)
    for role in ROLES:
        if role not in there:
            nothing = np.zeros(columns.rows)
            parts[role], states[role] = dict.fromkeys(PARTS, nothing), StateBytes(*(nothing,) * 7)
            totals[role], phases[role], cached[role] = nothing, {}, nothing
            continue
        dense, expert = role_parameters(local, layers, columns, role)
        weights = None
        if job.finetune is not None:
            weights = role_weights(
                model, job, columns, layers, local, role, dense, expert, behaviour.frozen_bytes
            )
        statistics = role_parameters(counted, layers, columns, role) if counted else None
        states[role] = state_bytes(job, columns, dense, expert, weights, statistics)
        rank = Rank.of(
            role, model, job, behaviour, columns, layers, local, states[role], kept, micro_batches,
            paced,
        )  # fmt: skip
        parts[role], phases[role], cached[role], gone = _on_device(rank)
        if gone is not None:
            moved[role] = gone
        # gloo holds next to nothing; no device context, but Python and torch themselves
        if process_bytes is not None:
            parts[role] |= {
                "communicators": np.zeros(columns.rows),
                "context": np.full(columns.rows, process_bytes),
            }
        total = np.zeros(columns.rows)
        for name in PARTS:
            total = total + parts[role][name]
        totals[role] = np.where(exists(columns, role), total, 0.0)
    peak = np.maximum(np.maximum(totals["first"], totals["middle"]), totals["last"])
    return MemoryColumns(parts, states, totals, peak, moved, phases, cached)


def _on_device(rank: Rank) -> tuple[dict[str, Floats], dict[str, Floats], Floats, Moved | None]:
    """A rank's parts at its peak, bytes of each phase and cached ones where they are counted, and what
    lives in host memory instead, where any row keeps something there."""
    model, job, behaviour, columns = rank.model, rank.job, rank.behaviour, rank.columns
    gaps = float(constants()["allocator"]["fragmentation"])
    held = rank_parts(rank)
    if behaviour.eager:
        held |= eager_parts(model, job, columns, _held(rank), rank.micro_batches, rank.local)
        moving = sum((held[name] for name in MOVING), np.zeros(columns.rows))
        held["fragmentation"] = moving * gaps
    left, moved = held, None
    if columns.offload.any():
        planned = 0.0 if behaviour.planned_buffers else gaps
        named = _named_parts(rank) if modules_in_host(columns) else 0.0
        left, moved = leave_device(
            model, job, columns, held, rank.held, rank.flight, planned, named
        )
    if behaviour.modules == "transformers":
        return *in_phases(rank, held, left), moved
    return left, {}, np.zeros(columns.rows), moved


def _named_parts(rank: Rank) -> Floats:
    """Inputs of the parts that rows name for host memory, of the rank's layers that do not run again whole."""
    columns, layers = rank.columns, rank.layers
    counts = {False: layers.dense[rank.role], True: layers.moe[rank.role]}
    whole = np.where(columns.recompute == 2, layers.recomputed_share(rank.role, columns), 0.0)
    total = np.zeros(columns.rows)
    for moe in (False, True) if rank.model.experts else (False,):
        each = input_bytes(rank.model, rank.job, rank.behaviour, columns, moe=moe)
        total = total + counts[moe] * each
    return total * (1.0 - whole)


def _held(rank: Rank) -> Held:
    """What the rank of a role holds, as the eager count wants it."""
    columns, layers, role = rank.columns, rank.layers, rank.role
    return Held(
        dense=layers.dense[role],
        moe=layers.moe[role],
        recomputed=layers.recomputed_share(role, columns),
        embedding=np.full(columns.rows, role == "first"),
        head=rank.has_head,
        ring=(columns.cp > 1) & (columns.cp_method == RING),
        stage=rank.stage,
        flight=rank.flight,
    )
