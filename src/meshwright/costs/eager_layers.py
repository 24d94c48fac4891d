"""What one layer of meshwright's own engine keeps for backward, and needs on top while it runs.

The operations are those of `decoder.py`, `layers.py`, `experts.py` and `kernels.py` in `engine/model/`,
tensor by tensor. Everything is an array of shape (rows,) in bytes, or elements, of one rank and
micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.costs.columns import Bools, Floats, LayoutColumns
from meshwright.costs.kernels import ceil_div
from meshwright.costs.parameters import LocalParameters
from meshwright.specs.job import Job
from meshwright.specs.model import Model


@dataclass(frozen=True, slots=True)
class Widths:
    """Bytes per element and elements per token on one rank."""

    compute: float
    stored: float
    reduced: float
    accumulated: float
    """Bytes per parameter of gradients that micro-batches add up, before they are reduced."""
    tokens: Floats
    hidden: float
    residual: Floats
    """Hidden width where sequence parallelism may split it."""
    split: Floats
    queries: Floats
    keys: Floats
    heads: Floats
    twice: Floats
    """Whole-sequence copies that a gather of more than one sequence makes: 1 or 2."""
    ring: Bools
    fresh: Bools
    """Whether no gradients of earlier micro-batches are there, whole, when the peak comes."""


def widths(model: Model, job: Job, columns: LayoutColumns, ring: Bools, fresh: Bools) -> Widths:
    """What every formula below multiplies tokens by."""
    precision = job.precision
    compute, reduced = precision.activation_bytes, precision.gradient_reduce_bytes
    stored = precision.master_bytes or precision.parameter_bytes
    split = np.where((columns.sequence_parallel > 0) & (columns.tp > 1), columns.tp, 1.0)
    heads = np.ceil(model.heads / columns.tp)
    return Widths(
        compute=compute, stored=stored, reduced=reduced,
        accumulated=reduced if reduced != compute else compute,
        tokens=(columns.micro_batch * ceil_div(job.seq_len, columns.cp)).astype(np.float64),
        hidden=float(model.hidden), residual=model.hidden / split, split=split,
        queries=heads * model.head_dim,
        keys=np.ceil(model.kv_heads / columns.tp) * model.head_dim, heads=heads,
        twice=np.where(columns.micro_batch > 1, 2.0, 1.0), ring=ring, fresh=fresh,
    )  # fmt: skip


SCORES_AT_ONCE = 2.0**22
"""Scores of explicit attention that the engine holds at a time (`engine/model/explicit.py`)."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer and micro-batch: bytes kept until backward, at its boundary, and on top in backward.

    `temporary` is relative to `kept`: backward frees as it goes.
    """

    kept: Floats
    boundary: Floats
    temporary: Floats
    parameters: Floats
    deferred: Floats
    """What a split backward holds between a layer's input gradients and its weight gradients."""


def norm_bytes(model: Model, w: Widths) -> Floats:
    """Row statistics of a norm, per token: 1/rms in fp32, or mean and 1/deviation."""
    each = 4.0 if model.norm == "rmsnorm" else 2.0 * w.compute
    return each / w.split


def _attention_kept(model: Model, columns: LayoutColumns, w: Widths, selective: Bools) -> Floats:
    """Norm input and output, rotated queries and keys, values, attention's output; per token.

    Under context parallelism the gathered keys and values, and the outputs of the two chunks beside
    their concatenation.
    """
    elements = w.residual + w.hidden + 2.0 * w.queries + 2.0 * w.keys
    if model.attention_gate:  # the gate, and the product with it
        elements = elements + 2.0 * w.queries
    statistics = np.where(selective, 0.0, 4.0 * w.heads)
    cp = columns.cp.astype(np.float64)
    gathering = (cp > 1) & ~w.ring
    gathered = 2.0 * w.keys * (cp - 1.0) + w.queries
    elements = elements + np.where(gathering & ~selective, gathered, 0.0)
    if model.qk_norm == "head":
        # The norms' inputs too, and one number per head.
        elements = elements + w.queries + w.keys
        statistics = statistics + 4.0 * (w.queries + w.keys) / model.head_dim
    return elements * w.compute + statistics + norm_bytes(model, w)


def mask_bytes(model: Model, job: Job, columns: LayoutColumns, w: Widths) -> Floats:
    """Attention masks of one micro-batch and model chunk, which all its layers share.

    One for windowed layers and one for those that see everything, `[S, S]`, of every sequence on
    its own where documents are masked. Context parallelism by all-gather always has them, for two
    chunks of S/2 queries; plain causal attention has none, the ring makes its own block by block.
    """
    length = w.tokens / columns.micro_batch
    gathering = (columns.cp > 1) & ~w.ring
    alone = columns.cp == 1
    pairs = np.where(gathering, (2.0 * columns.cp + 1.0) / 4.0, 1.0) * length**2
    kinds = np.zeros(columns.rows)
    for window in {model.window * model.has_window(layer) for layer in range(model.layers)}:
        limited = job.document_masking or 0 < window < job.seq_len
        kinds = kinds + np.where(gathering | (alone & limited), 1.0, 0.0)
    sequences = columns.micro_batch if job.document_masking else 1.0
    return w.compute * kinds * pairs * sequences


def _ffn_widths(model: Model) -> float:
    """FFN-wide tensors kept: gate, up and their product; or one inward product and its activation."""
    return 3.0 if model.gated else 2.0


def dense_layer(
    model: Model, job: Job, columns: LayoutColumns, w: Widths, local: LocalParameters
) -> Layer:
    """Attention and a dense FFN."""
    inner = np.ceil(model.ffn / columns.tp)
    kept_inner = _ffn_widths(model)
    attention = _attention_kept(model, columns, w, columns.recompute == 1)
    kept = attention + w.compute * (w.residual + w.hidden + kept_inner * inner)
    kept = w.tokens * (kept + norm_bytes(model, w))
    token = w.tokens * w.compute
    # Backward: through the down product, through the activation, through the inward products.
    arriving = w.residual + np.where(w.split > 1, w.hidden * w.twice, 0.0)
    gradients = 2.0 if model.gated else 1.0
    weight = model.hidden * inner * w.compute
    later = np.where(w.fresh, weight, 0.0)  # a gradient that is added to another is freed at once
    inward = w.residual + gradients * (w.hidden + inner) - kept_inner * inner
    temporary = np.maximum.reduce(
        [
            token * (arriving + inner) + weight,
            token * (w.residual + gradients * inner) + later,
            token * inward + (1.0 + gradients) * later,
            _ring_backward(model, job, columns, w)
            - token * (w.residual + w.hidden + kept_inner * inner),
            _dropping(job, columns, w),
        ]
    )
    return Layer(
        kept=kept, boundary=token * w.residual, temporary=temporary,
        parameters=local.dense_layer, deferred=token * _deferred(w, gradients * inner),
    )  # fmt: skip


def _deferred(w: Widths, inward: Floats) -> Floats:
    """Elements per token: gradients of every product's output, with nothing kept freed yet."""
    return inward + w.queries + 2.0 * w.keys + 4.0 * w.residual


def _dropping(job: Job, columns: LayoutColumns, w: Widths) -> Floats:
    """Drawing a layer's last dropout mask again: two 64-bit numbers for each that comes in.

    Where the layer is computed again, its output and the gradient that waits for it are there too.
    """
    widths = np.where(columns.recompute == 2, 3.0, 1.0)
    return w.tokens * w.residual * (16.0 + widths * w.compute) * (job.dropout > 0)


def _ring_backward(model: Model, job: Job, columns: LayoutColumns, w: Widths) -> Floats:
    """Ring attention's backward of one block of keys, where every query sees some of it.

    The output's gradient, the block, the gradients that travel with it and those of the queries in fp32. By a
    library kernel also keys, values and their gradients for every query head; where documents, windows or
    uneven widths have none (`engine/model/fused.py`), fp32 copies of keys and values and of their gradients,
    and two tensors of as many scores as are held at a time, with what hides some of them.
    """
    exact, compute = 4.0, w.compute
    always = compute * (w.queries + 2.0 * w.keys) + exact * (w.queries + 2.0 * w.keys)
    latent = model.latent_attention
    uneven = latent is not None and model.head_dim != latent.v_head_dim
    if not (job.document_masking or model.window or uneven):
        grouped = np.where(w.queries > w.keys, 2.0, 0.0)
        block = w.tokens * compute * (grouped + 3.0) * w.queries
    else:
        own = w.tokens / columns.micro_batch
        scores = np.minimum(w.heads * w.tokens * own, SCORES_AT_ONCE)
        asked = scores / (w.heads * own)  # rows of queries, of all sequences
        hidden = asked * own * (14.0 if job.document_masking else 14.0 / columns.micro_batch)
        block = w.tokens * (compute * w.queries + exact * 4.0 * w.keys)
        block = block + 8.0 * scores + hidden + exact * 3.0 * asked * w.queries
    return np.where(w.ring & (columns.cp > 1), w.tokens * always + block, 0.0)


def moe_layer(
    model: Model, job: Job, columns: LayoutColumns, w: Widths, local: LocalParameters
) -> Layer:
    """Attention and routed experts, which get equal shares of the tokens."""
    spec = model.experts
    assert spec is not None
    attention = _attention_kept(model, columns, w, columns.recompute == 1)
    rows = w.tokens / w.split * spec.top_k
    routing = (4.0 * spec.experts + 4.0) / w.split
    numbers = 4.0 + 5 * 8.0 + w.compute  # weight, index tensors, weight as multiplied
    row = w.compute * (2.0 * w.hidden + 3.0 * spec.ffn) + numbers
    kept = attention + w.compute * 2.0 * w.residual + routing + norm_bytes(model, w)
    if spec.shared_ffn:
        shared = np.ceil(spec.shared_ffn / columns.tp)
        kept = kept + w.compute * (np.where(w.split > 1, w.hidden, 0.0) + 3.0 * shared)
    kept = w.tokens * kept + rows * row
    experts = local.experts_layer * w.compute
    # The weighted sum's gradient by rows and by weights; later all experts' gradients, stacked.
    first = 2.0 * rows * w.hidden * w.compute
    last = rows * w.compute * (2.0 * w.hidden - 3.0 * spec.ffn) + 4.0 / 3.0 * experts
    temporary = w.tokens * w.compute * w.residual + np.maximum(first, last)
    temporary = np.maximum(temporary, _dropping(job, columns, w))
    return Layer(
        kept=kept,
        boundary=w.tokens * w.residual * w.compute,
        temporary=temporary,
        parameters=local.moe_layer + local.experts_layer,
        deferred=w.tokens * w.compute * _deferred(w, 2.0 * spec.top_k * spec.ffn / w.split),
    )
