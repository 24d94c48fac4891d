"""Messages between neighbouring ranks of a pipeline: the time of one, and what sticks out of a step."""

from __future__ import annotations

import numpy as np

from meshwright.costs.collectives import send_recv
from meshwright.costs.columns import Floats, Ints, LayoutColumns
from meshwright.costs.data_parallel import overlap_slowdown
from meshwright.costs.fabric import place
from meshwright.costs.kernels import ceil_div
from meshwright.costs.setting import Setting

TENSORS_AHEAD, TENSORS_BACK = 2, 1
"""Tensors that a stage of nanotron's Llama sends on for a micro-batch, hidden states and the sequence's mask,
and the gradient that comes back (models/llama.py, module_output_keys of a layer)."""

POLLED_MESSAGES = 2
"""Messages before each tensor that its sender and its receiver poll for: its shape's length, then its shape
(nanotron at 67c5ebb6, pipeline_parallel/p2p.py, _send_meta and _recv_meta)."""


def hop_s(setting: Setting, columns: LayoutColumns, distances: dict[str, Ints]) -> Floats:
    """Time of sending one micro-batch's activations to the next rank, over the slowest hop."""
    tokens = columns.micro_batch * ceil_div(setting.job.seq_len, columns.cp)
    shares = (columns.sequence_parallel > 0) | setting.behaviour.p2p_scattered
    split = np.where(shares, columns.tp, 1)
    model = setting.model
    size = (
        tokens
        * float(model.hidden * model.residual_streams)
        * setting.job.precision.activation_bytes
        / split
    )
    # The slowest hop counts: a pipeline that leaves a link domain anywhere pays for leaving it.
    distance = distances["pp"]
    for level in setting.fabric.levels[:-1]:
        leaves = columns.pp * distances["pp"] > level.domain
        distance = np.where(leaves, level.domain, distance)
    pair = place(setting.fabric, np.minimum(columns.pp, 2), stride=distance)
    time = send_recv(setting.fabric, size, pair)
    return np.where(columns.pp > 1, time, 0.0)


def exposed_hops_s(
    setting: Setting, columns: LayoutColumns, hop: Floats, micro_batches: Ints
) -> Floats:
    """Stage-to-stage time on the critical path.

    Fill and drain wait for every hop. In the steady state a rank sends and receives once per
    micro-batch, chunk and direction: hidden where the framework overlaps it and has another chunk
    to work on, which slows what it hides behind as any other traffic does, but issuing the pair of
    kernels always takes host time.
    """
    v = np.maximum(columns.virtual_stages, 1)
    fill = 2.0 * (columns.pp - 1) * hop
    messages = 2.0 * micro_batches * v
    steady = messages * hop
    if setting.behaviour.p2p_overlapped:
        steady = np.where(v > 1, overlap_slowdown() * steady, steady)
    issue = messages * 2.0 * setting.behaviour.host_kernel_s
    polled = polled_s(setting.behaviour.message_poll_s, columns.pp, micro_batches)
    return np.where(columns.pp > 1, fill + steady + issue + polled, 0.0)


def polled_s(poll_s: float, pp: Ints, micro_batches: Ints) -> Floats:
    """Time of a step that hosts sleep between looks at whether messages have passed (`message_poll_s`).

    Whoever comes last to a message of a few bytes finds it unfinished once, so each costs one sleep, on its sender
    and on its receiver at the same time. A rank exchanges tensors with one neighbour or, inside the pipeline, with
    two, one after another; the last rank but one starts later by what fills the stages before it. The device's
    work runs on meanwhile: what a micro-batch leaves behind the host when it sends is less than a sleep.
    """
    tensor = POLLED_MESSAGES * poll_s
    each = (TENSORS_AHEAD + TENSORS_BACK) * tensor
    neighbours = np.where(pp > 2, 2, 1)
    return np.where(pp > 1, each * (neighbours * micro_batches + np.maximum(pp - 3, 0)), 0.0)
