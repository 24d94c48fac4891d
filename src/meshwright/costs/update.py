"""Time of the optimizer's update, and of making 8- or 4-bit copies of the new weights."""

from __future__ import annotations

import numpy as np

from meshwright.costs.columns import Floats, LayoutColumns
from meshwright.costs.kernels import stream_time_s
from meshwright.costs.memory import MemoryColumns
from meshwright.costs.setting import Setting
from meshwright.costs.stages import ROLES
from meshwright.costs.states import updated_parameters


def optimizer_s(setting: Setting, columns: LayoutColumns, used: MemoryColumns) -> Floats:
    """Time of the optimizer's update and the gradient norm, by bytes over bandwidth."""
    job = setting.job
    most = np.zeros(columns.rows)
    for role in ROLES:
        most = np.maximum(most, updated_parameters(columns, used.states[role]))
    states = job.precision.master_bytes + job.optimizer.state_bytes
    update = 2.0 * states + 2.0 * job.precision.gradient_bytes + job.precision.parameter_bytes
    passes = 1.0 if setting.behaviour.optimizer_fused else 2.5
    moved = most * (update * passes) + _weight_cast_bytes(setting, used)
    return stream_time_s(setting.kernels, moved, 30.0)


def _weight_cast_bytes(setting: Setting, used: MemoryColumns) -> Floats | float:
    """Bytes moved to make a rank's weights 8- or 4-bit, once a step: they change once a step.

    Every micro-batch reads the same 8-bit copy. Frozen weights were made so before the first step.
    """
    if setting.kernels.fp8_quantize == 0.0 or setting.job.frozen:
        return 0.0
    trained = [used.states[role] for role in ROLES]
    most = np.maximum.reduce([s.dense_parameters + s.expert_parameters for s in trained])
    return np.asarray(most * setting.kernels.fp8_quantize)
