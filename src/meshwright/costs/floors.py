"""Floors: least times and bytes of whole families of layouts, for leaving them out unpriced.

A layout that recomputes nothing, without its bubble and all that its schedule and its shards add, is
no slower than any other layout with the same degrees and micro-batch; and what its ranks hold of
parameters, gradients and optimizer states none of them holds less of.
"""

from __future__ import annotations

import numpy as np

from meshwright.costs.columns import Floats, LayoutColumns, strides
from meshwright.costs.frameworks import behaviour
from meshwright.costs.parameters import local_parameters
from meshwright.costs.pessimism import PESSIMISM
from meshwright.costs.setting import Setting
from meshwright.costs.stage_parts import stage_parts_by_role
from meshwright.costs.stages import ROLES, stage_layers
from meshwright.costs.states import exists, role_parameters, state_bytes, stored_weights
from meshwright.specs.cluster import Cluster
from meshwright.specs.job import Job
from meshwright.specs.layout import OFFLOADS
from meshwright.specs.model import Model

ROUNDING = 1.0 - 1e-9
"""Sums in another order differ by less than this."""
_NOT_MONOTONE = ("launch", "recompute")
"""Waiting for launches shrinks where recomputation keeps the device busy: both together do not."""


def pace_floor_s(model: Model, cluster: Cluster, job: Job, columns: LayoutColumns) -> Floats:
    """Least pessimistic time of a step with these degrees and micro-batches; shape (rows,).

    The rows are to recompute nothing. Zero where a machine was measured: its steps are priced otherwise.
    """
    if cluster.device.vendor == "cpu":
        return np.zeros(columns.rows)
    setting = Setting.of(model, cluster, job)
    layers = stage_layers(model, columns)
    parts = stage_parts_by_role(setting, columns, layers, strides(columns))
    pace = np.zeros(columns.rows)
    extra = np.full(columns.rows, np.inf)
    for role in ROLES:
        nominal, more = np.zeros(columns.rows), np.zeros(columns.rows)
        for name, (forward, backward) in parts[role].items():
            nominal = nominal + forward + backward
            if name not in _NOT_MONOTONE:
                more = more + PESSIMISM.get(name, 0.0) * (forward + backward)
        held = exists(columns, role)
        pace = np.maximum(pace, np.where(held, nominal, 0.0))
        extra = np.where(held, np.minimum(extra, more), extra)
    micro_batches = np.maximum(job.global_batch // (columns.dp * columns.micro_batch), 1)
    return np.asarray(micro_batches * (pace + extra) * ROUNDING)


def state_floor_bytes(model: Model, job: Job, columns: LayoutColumns) -> Floats:
    """Least bytes of model states that the heaviest rank holds on its device; shape (rows,).

    The rows are to be sharded as far as they may be. Zero where states are counted by phase.
    """
    software = behaviour(job)
    if job.finetune is not None or software.modules != "fused" or software.eager:
        return np.zeros(columns.rows)
    local = local_parameters(model, columns, software.vocab_multiple, job.framework)
    layers = stage_layers(model, columns)
    least = np.zeros(columns.rows)

    def gone(*names: str) -> Floats:
        code = sum(1 << OFFLOADS.index(name) for name in names)
        return np.where(columns.offload & code, 0.0, 1.0)

    for role in ROLES:
        dense, expert = role_parameters(local, layers, columns, role)
        held = state_bytes(job, columns, dense, expert)
        total = stored_weights(job, software, columns, held.parameters) * gone("parameters")
        total = total + held.gradients * gone("parameters", "optimizer")
        total = total + held.optimizer * gone("optimizer")
        least = np.maximum(least, total)
    return least * ROUNDING
