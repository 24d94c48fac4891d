"""Time of an encoder of images or sound on the pipeline's first rank, for one micro-batch."""

from __future__ import annotations

import numpy as np

from meshwright.costs.columns import Floats, Ints, LayoutColumns, distinct, strides
from meshwright.costs.encoder_parameters import encoder_split
from meshwright.costs.encoders import Seen, seen_of, trains
from meshwright.costs.host import wait_s
from meshwright.costs.kernels import ceil_div, linear_times_s
from meshwright.costs.layer import layer_time
from meshwright.costs.layer_setting import LayerKeys, LayerModel
from meshwright.costs.setting import Setting
from meshwright.costs.stages import StageLayers
from meshwright.specs.encoders import Encoder


def encoder_s(
    setting: Setting, columns: LayoutColumns, layers: StageLayers, role: str
) -> tuple[Floats, Floats]:
    """(forward, backward) seconds of the encoder and its projector for one micro-batch; shape (rows,).

    A frozen one has no backward. Where layers recompute, so do its blocks. What the host takes longer to issue
    than the device to run is waited for.
    """
    nothing = np.zeros(columns.rows)
    block, encoder = setting.encoder, setting.model.encoder
    seen = seen_of(setting.model, setting.job)
    if role != "first" or block is None or encoder is None or seen is None:
        return nothing, nothing
    tp = stride = np.ones_like(columns.tp)
    if encoder_split(setting.model, setting.job.framework):
        tp, stride = columns.tp, strides(columns)["tp"]
    rows, inverse = distinct(columns.micro_batch, tp, stride)
    images = seen.in_micro_batch(columns.micro_batch[rows])
    keys = _keys(images, tp[rows], stride[rows])
    forward, backward, again = _times_s(setting, block, encoder, seen, keys)
    # A mean number of images that is no whole one: a share of micro-batches has the next.
    share = columns.micro_batch[rows] * seen.images / images
    if not trains(setting.job):
        return (share * forward)[inverse], nothing
    repeated = layers.recomputed_share(role, columns) * (columns.recompute == 2)
    return (share * forward)[inverse], (share * backward)[inverse] + repeated * (share * again)[
        inverse
    ]


def _times_s(
    setting: Setting, block: LayerModel, encoder: Encoder, seen: Seen, keys: LayerKeys
) -> tuple[Floats, Floats, Floats]:
    """Forward, backward and the blocks' forward alone, of so many images together; shape (rows,)."""
    images = keys.micro_batch
    one = layer_time(block, keys, moe=False)
    software = setting.behaviour
    host = encoder.layers * software.kernels_per_layer * software.host_kernel_s
    issued = np.full(len(images), host * (software.graphs != "all"))
    blocks = encoder.layers * one.forward_s()
    blocks = blocks + wait_s(issued, blocks)
    back = encoder.layers * one.backward_s()
    back = back + wait_s(2.0 * issued, back)
    forward, backward = blocks, back
    per_patch, joined = encoder.patch_parameters / encoder.hidden, encoder.joined * encoder.hidden
    for tokens, parameters, into, shared in (
        (images * seen.patches, encoder.patch_parameters, per_patch, np.ones_like(images)),
        (images * seen.tokens, encoder.projector_parameters, joined, keys.tp),
    ):
        if parameters:
            width = np.full_like(images, max(round(into), 1))
            out = ceil_div(max(round(parameters / max(round(into), 1)), 1), shared)
            many = np.asarray(np.ceil(tokens), dtype=np.int64)
            there, back = linear_times_s(block.kernels, many, out, width, frozen=False)
            forward, backward = forward + there, backward + back
    return forward, backward, blocks


def _keys(images: Ints, tp: Ints, stride: Ints) -> LayerKeys:
    """A rank's images, which its tensor-parallel group shares."""
    one = np.ones_like(images)
    return LayerKeys(
        tp=tp, cp=one, ep=one, etp=one, micro_batch=images, sequence_parallel=0 * one,
        tp_stride=stride, cp_stride=one, ep_stride=one, cp_method=0 * one,
    )  # fmt: skip
