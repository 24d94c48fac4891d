"""What the first and the last rank do beside their layers: embedding, head and loss."""

from __future__ import annotations

import numpy as np

from meshwright.costs import pipeline
from meshwright.costs.columns import Floats, LayoutColumns, distinct
from meshwright.costs.kernels import ceil_div, linear_times_s, stream_time_s
from meshwright.costs.loss import head_frozen, head_products
from meshwright.costs.parameters import padded_vocab
from meshwright.costs.setting import Setting

LOSS_FORWARD_SHARE = 0.7
"""Share of the loss's passes over the logits that its forward makes."""


def ends_s(setting: Setting, columns: LayoutColumns, role: str) -> tuple[Floats, Floats]:
    """Embedding on the first rank; final norm, head and loss on the last."""
    nothing = np.zeros(columns.rows)
    if role == "middle":
        return nothing, nothing
    rows, inverse = distinct(columns.tp, columns.cp, columns.micro_batch)
    few = columns.take(rows)
    on_first = pipeline.head_on_first_rank(columns)
    has_head = on_first if role == "first" else ~on_first
    head_forward, head_backward = head_times_s(setting, few)
    if depths := setting.model.predict_layers:
        join = join_times_s(setting, few)
        head_forward = (1.0 + depths) * head_forward + depths * join[0]
        head_backward = (1.0 + depths) * head_backward + depths * join[1]
    forward = np.where(has_head, head_forward[inverse], 0.0)
    backward = np.where(has_head, head_backward[inverse], 0.0)
    if role == "first":
        tokens = few.micro_batch * ceil_div(setting.job.seq_len, few.cp)
        moved = 2.0 * setting.job.precision.activation_bytes * setting.model.hidden * tokens
        lookup = stream_time_s(setting.kernels, moved.astype(np.float64), 2.0)[inverse]
        forward, backward = forward + lookup, backward + 2.0 * lookup
    return forward, backward


def head_times_s(setting: Setting, few: LayoutColumns) -> tuple[Floats, Floats]:
    """The LM head's products and the passes over the logits that the loss makes."""
    model, kernels = setting.model, setting.head_kernels
    tokens = few.micro_batch * ceil_div(setting.job.seq_len, few.cp)
    multiple = setting.behaviour.vocab_multiple
    whole = padded_vocab(model.vocab, few.tp, multiple) if multiple > 1 else model.vocab
    vocab = np.asarray(whole // few.tp, dtype=np.int64)
    hidden = np.full_like(few.tp, model.hidden)
    product, gradients = linear_times_s(
        kernels, tokens, vocab, hidden, frozen=head_frozen(setting.job)
    )
    gradients = gradients + (head_products(setting.job, setting.behaviour) - 1.0) * product
    logits = tokens.astype(np.float64) * vocab
    moved = logits * setting.behaviour.loss_bytes
    loss_forward = stream_time_s(kernels, moved * LOSS_FORWARD_SHARE, 4.0)
    loss_backward = stream_time_s(kernels, moved * (1.0 - LOSS_FORWARD_SHARE), 2.0)
    return product + loss_forward, gradients + loss_backward


def join_times_s(setting: Setting, few: LayoutColumns) -> tuple[Floats, Floats]:
    """The product that makes one input of a hidden state and the next token's embedding, before each layer that
    predicts a further token; split over tensor-parallel ranks (Megatron-Core's eh_proj)."""
    tokens = few.micro_batch * ceil_div(setting.job.seq_len, few.cp)
    out = ceil_div(setting.model.hidden, few.tp)
    into = np.full_like(few.tp, 2 * setting.model.hidden)
    return linear_times_s(setting.kernels, tokens, out, into, frozen=head_frozen(setting.job))
