"""What a mixture of experts adds to the host's work: launches before and after its wait for the experts' counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.costs.columns import Floats, LayoutColumns
from meshwright.costs.experts import dispatch_may_hide
from meshwright.costs.kernels import ceil_div
from meshwright.costs.setting import Setting

EXPERT_KERNELS = 2
"""Kernels that each local expert adds to a layer's forward: its two products, which Transformer
Engine's grouped linear launches one by one."""
EXPERT_KERNELS_8BIT = 8
"""The same with 8-bit operands, where each product's input is cast by rows and by columns and its
scales are rearranged."""

COUNTED = 0.6
"""Share of the host's work on a mixture, beside its products, that it has done when it waits for the experts'
counts. Counted in Megatron-Core (transformer/moe/router.py, moe_utils.py, token_dispatcher.py): before the wait 37
operations of gate, choice, loss and sizes, 3 of a permutation and a collective of counts; after it 6 more operations
and three collectives, each worth about nine. CUDA graphs of layers replay the former (moe_router, moe_preprocess)."""


OF_SHAPES = 0.4
"""Share of what is done before the wait that finds out sizes: counts, their gathering and copies to the host (11
operations and a collective of 49 units). Where inputs are padded to a capacity there is nothing to find out."""


OVERLAP_NODES = 4
"""Pieces into which a layer is cut so that one micro-batch's traffic runs beside another's compute: before the dispatch,
dispatch, experts, combine (Megatron-Core, models/common/model_chunk_schedule_plan.py)."""
NODE_FORWARD = 10
"""Operations that the host issues around one such piece in forward, counted in pipeline_parallel/utils.py, ScheduleNode:
an event to wait for and one to record, a stream set and set back, two inputs detached and made whole, outputs made whole,
one input freed."""
NODE_BACKWARD = 20
"""The same in backward: events and streams, two gradients recorded, fetched and accumulated at the detached inputs, and a
run of autograd's engine of its own, another thread's work that counts as a collective does, ten operations."""


@dataclass(frozen=True, slots=True)
class ExpertLaunches:
    """Host time of one mixture layer and micro-batch, in seconds; shape (rows,).

    The host issues `before`, waits until the device has told how many tokens each expert gets, and issues `after`:
    dispatch, products and what brings tokens back. Where nothing is to be waited for, `after` is zero.
    """

    before: Floats
    after: Floats
    backward: Floats


def expert_launches(setting: Setting, columns: LayoutColumns) -> ExpertLaunches:
    """Host time that one layer's experts add, with frameworks and graphs as the job has them.

    Nothing is waited for where experts' inputs are padded to a capacity; where one micro-batch's forward runs beside
    another's backward the device has that one's kernels to go on with, but the host issues each layer in pieces.
    """
    framework, experts = setting.behaviour, setting.model.experts
    nothing = np.zeros(columns.rows)
    if experts is None or framework.graphs == "all":
        return ExpertLaunches(nothing, nothing, nothing)
    eight = setting.job.precision.compute in ("fp8", "fp4")
    each = EXPERT_KERNELS_8BIT if eight else EXPERT_KERNELS
    local = ceil_div(experts.experts, columns.ep).astype(np.float64)
    own: Floats = local * (each * framework.host_kernel_s)
    counted = COUNTED * framework.host_mixture_s * (framework.graphs == "none")
    if framework.experts_padded:
        counted = (1.0 - OF_SHAPES) * counted
    moving = (1.0 - COUNTED) * framework.host_mixture_s
    after = own + moving
    waits = np.full(columns.rows, not framework.experts_padded)
    paired = np.zeros(columns.rows)
    if framework.expert_overlapped:
        hides = dispatch_may_hide(columns)
        waits = waits & ~hides
        paired = np.where(hides, OVERLAP_NODES * framework.host_kernel_s, 0.0)
    return ExpertLaunches(
        before=counted + NODE_FORWARD * paired + np.where(waits, 0.0, after),
        after=np.where(waits, after, 0.0),
        backward=2.0 * own + counted + moving + NODE_BACKWARD * paired,
    )
