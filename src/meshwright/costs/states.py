"""Model states of the ranks of a pipeline: parameters, gradients and optimizer states, in columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.costs import pipeline
from meshwright.costs.adapters import Weights, adapter_state_bytes
from meshwright.costs.columns import Floats, Ints, LayoutColumns
from meshwright.costs.factored import STATISTIC_BYTES
from meshwright.costs.frameworks import Behaviour
from meshwright.costs.parameters import LocalParameters
from meshwright.costs.stages import StageLayers
from meshwright.specs.job import Job


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
    held = exists(columns, role)
    dense = layers.dense[role] * local.dense_layer + layers.moe[role] * local.moe_layer
    if role == "first":
        dense = dense + local.embedding + np.where(with_head, local.head, 0.0)
    if role == "last":
        # A tied head is a second copy of the embedding on the last rank, which further tokens need too.
        head = local.head + local.embedding_matrix * (local.tied or local.further)
        dense = dense + np.where(with_head, 0.0, head)
    copies = pipeline.copies_of_parameters(columns)
    dense = np.where(held, dense * copies, 0.0)
    expert = np.where(held, layers.moe[role] * local.experts_layer * copies, 0.0)
    return dense, expert


def exists(columns: LayoutColumns, role: str) -> Any:
    """Rows whose pipeline has a rank of a role; one stage is the first and the last."""
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
    the numbers of factored or projected statistics of the dense and expert parameters (`costs.factored`),
    where the optimizer keeps such; they are sharded with its other states.
    """
    shard = columns.shard_degree.astype(np.float64)
    expert_shard = np.where(columns.zero > 0, expert_shard_degree(columns), 1).astype(np.float64)
    expert_shard = np.minimum(expert_shard, np.where(columns.zero > 0, np.maximum(shard, 1), 1))
    precision = job.precision
    # Moments of projected gradients are among the statistics.
    moments = 0.0 if job.optimizer.low_rank else job.optimizer.state_bytes
    optimizer_bytes = precision.master_bytes + moments

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
        # Under ZeRO-3 frozen weights travel too, as they are stored or as they compute.
        every = columns.zero == 3
        travelling = weights.travelling or weights.stored
        new = precision.parameter_bytes
        base = [
            np.where(every, stored, new * trained)
            for stored, trained in zip(travelling, weights.trained, strict=True)
        ]
        gathered = (base[0] + of_weight * beside[0], base[1] + of_weight * beside[1])
    if statistics is not None:
        share = 1.0
        if weights is not None:
            share = np.sum(trains[0] + trains[1]) / max(np.sum(dense + expert), 1.0)
        optimizer = optimizer + share * split(statistics, 1, STATISTIC_BYTES)
    return StateBytes(trains[0], trains[1], parameters, gradients, optimizer, *gathered)


def stored_weights(
    job: Job, behaviour: Behaviour, columns: LayoutColumns, parameters: Floats
) -> Floats:
    """Bytes of weights that are stored beside the optimizer's fp32 ones, of the `parameters` a rank has.

    A compiled program casts those where it uses them, torch's FSDP as it gathers them: they store no others.
    """
    if not job.precision.master_bytes or job.finetune is not None:
        return parameters
    if behaviour.planned_buffers:
        return np.zeros(columns.rows)
    if behaviour.zero3_shards_are_masters:
        return np.where((columns.zero == 3) & (columns.shard_degree > 1), 0.0, parameters)
    return parameters


def updated_parameters(columns: LayoutColumns, state: StateBytes) -> Floats:
    """Parameters that a rank updates: its stage's, or its share of them under ZeRO."""
    shard = columns.shard_degree.astype(np.float64)
    expert_shard = np.where(columns.zero > 0, np.minimum(expert_shard_degree(columns), shard), 1.0)
    dense = state.dense_parameters / np.where(columns.zero > 0, shard, 1.0)
    return np.asarray(dense + state.expert_parameters / np.maximum(expert_shard, 1.0))
