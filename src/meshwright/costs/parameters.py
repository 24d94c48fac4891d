"""Parameter counts: of a whole model, exactly, and of the share that one rank holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.costs.columns import Floats, Ints, LayoutColumns
from meshwright.specs.model import Model


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """Parameters of one layer, by part. `experts` counts every routed expert."""

    attention: int
    norms: int
    ffn: int = 0
    router: int = 0
    shared: int = 0
    experts: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.attention + self.norms + self.ffn + self.router + self.shared + self.experts


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Parameters of a model, by part; a tied head counts once, under `embedding`."""

    embedding: int
    positions: int
    dense_layer: LayerParameters
    moe_layer: LayerParameters | None
    dense_layers: int
    moe_layers: int
    final_norm: int
    head: int
    extra: int
    active: int
    """Parameters that one token passes through: all but the experts it does not visit."""

    @property
    def total(self) -> int:
        """All parameters."""
        layers = self.dense_layers * self.dense_layer.total
        if self.moe_layer is not None:
            layers += self.moe_layers * self.moe_layer.total
        return self.embedding + self.positions + layers + self.final_norm + self.head + self.extra


def count_parameters(model: Model) -> ParameterCounts:
    """Count every parameter of a model, by part."""
    dense = LayerParameters(
        attention=attention_parameters(model),
        norms=layer_norm_parameters(model),
        ffn=ffn_parameters(model, model.ffn, bias=model.ffn_bias),
    )
    moe, idle = None, 0
    if model.experts is not None:
        experts = model.experts
        one = ffn_parameters(model, experts.ffn, bias=experts.expert_bias)
        shared = ffn_parameters(model, experts.shared_ffn, bias=False) if experts.shared_ffn else 0
        moe = LayerParameters(
            attention=attention_parameters(model),
            norms=layer_norm_parameters(model),
            router=experts.experts * (model.hidden + experts.router_bias),
            shared=shared + (model.hidden if experts.shared_gate else 0),
            experts=experts.experts * one,
        )
        idle = model.moe_layers * (experts.experts - experts.top_k) * one
    norm = norm_parameters(model)
    counts = ParameterCounts(
        embedding=model.vocab * model.hidden + (norm if model.embedding_norm else 0),
        positions=model.max_positions * model.hidden if model.positions == "learned" else 0,
        dense_layer=dense,
        moe_layer=moe,
        dense_layers=model.layers - model.moe_layers,
        moe_layers=model.moe_layers,
        final_norm=norm if model.final_norm else 0,
        head=(0 if model.tied_embeddings else model.vocab * model.hidden)
        + (model.vocab if model.head_bias else 0),
        extra=sum(model.extra_parameters.values()),
        active=0,
    )
    return ParameterCounts(
        counts.embedding, counts.positions, dense, moe, counts.dense_layers, counts.moe_layers,
        counts.final_norm, counts.head, counts.extra, counts.total - idle,
    )  # fmt: skip


def norm_parameters(model: Model) -> int:
    """One norm over the hidden width: a scale, and a bias if it has one."""
    if model.norm == "none":
        return 0
    return model.hidden * (2 if model.norm_bias else 1)


def layer_norm_parameters(model: Model) -> int:
    """The norms of one layer, with those on queries, keys and latent projections."""
    total = model.norms_per_layer * norm_parameters(model)
    if model.qk_norm == "head":
        total += 2 * model.head_dim
    elif model.qk_norm == "full":
        total += (model.heads + model.kv_heads) * model.head_dim
    if model.latent_attention is not None:
        total += model.latent_attention.q_rank + model.latent_attention.kv_rank
    return total


def attention_parameters(model: Model) -> int:
    """Projections of one attention block, with their biases."""
    hidden, heads = model.hidden, model.heads
    if (latent := model.latent_attention) is not None:
        query_width = heads * (latent.nope_head_dim + latent.rope_head_dim)
        query = latent.q_rank * (hidden + query_width) if latent.q_rank else hidden * query_width
        down = hidden * (latent.kv_rank + latent.rope_head_dim)
        up = latent.kv_rank * heads * (latent.nope_head_dim + latent.v_head_dim)
        return query + down + up + heads * latent.v_head_dim * hidden
    width, kv_width = heads * model.head_dim, model.kv_heads * model.head_dim
    weights = hidden * (width + 2 * kv_width) + width * hidden
    biases = (width + 2 * kv_width if model.qkv_bias else 0) + (
        hidden if model.attention_out_bias else 0
    )
    return weights + biases


def ffn_parameters(model: Model, width: int, *, bias: bool) -> int:
    """A feed-forward block of a width: three matrices when gated, else two."""
    inward = 2 if model.gated else 1
    weights = (inward + 1) * model.hidden * width
    return weights + (inward * width + model.hidden if bias else 0)


@dataclass(frozen=True, slots=True)
class LocalParameters:
    """Parameters that one rank holds under tensor and expert parallelism; arrays of shape (rows,).

    `moe_layer` is without the routed experts, which are in `experts_layer`. `embedding` has the
    position table, `head` the final norm; `embedding_matrix` is the bare matrix.
    """

    dense_layer: Floats
    moe_layer: Floats
    experts_layer: Floats
    embedding: Floats
    embedding_matrix: Floats
    head: Floats
    tied: bool
    vocab: Ints
    """Vocabulary after padding, before it is split."""


def local_parameters(model: Model, columns: LayoutColumns, vocab_multiple: int) -> LocalParameters:
    """Return one rank's share of each part.

    Matrices split over tp; norms, the router and output biases are on every rank; kv heads fewer
    than tp are replicated; the vocabulary is padded to a multiple of `vocab_multiple` · tp, as
    Megatron-LM's `vocab_size_with_padding` does.
    """
    tp = columns.tp.astype(np.float64)
    multiple = np.maximum(vocab_multiple * columns.tp, 1)
    vocab = -(-model.vocab // multiple) * multiple
    matrix = vocab * float(model.hidden) / tp
    norm = float(norm_parameters(model))
    shared_norms = float(layer_norm_parameters(model))
    attention = _local_attention(model, columns, tp)
    ffn = ffn_parameters(model, model.ffn, bias=False) / tp
    ffn = ffn + _ffn_bias(model, tp, model.ffn) * model.ffn_bias
    moe_layer = np.zeros(columns.rows)
    experts_layer = np.zeros(columns.rows)
    if model.experts is not None:
        experts = model.experts
        held = np.ceil(experts.experts / columns.ep)
        one = ffn_parameters(model, experts.ffn, bias=experts.expert_bias) / columns.etp
        experts_layer = held * one
        router = experts.experts * (model.hidden + experts.router_bias)
        shared = ffn_parameters(model, max(experts.shared_ffn, 0), bias=False) / tp
        gate = model.hidden if experts.shared_gate else 0
        moe_layer = attention + shared_norms + router + shared + gate
    head = np.where(model.tied_embeddings, 0.0, matrix) + (norm if model.final_norm else 0.0)
    head = head + (vocab / tp if model.head_bias else 0.0)
    extra = sum(model.extra_parameters.values()) / max(model.layers, 1)
    positions = model.max_positions * model.hidden if model.positions == "learned" else 0
    return LocalParameters(
        dense_layer=attention + shared_norms + ffn + extra,
        moe_layer=moe_layer,
        experts_layer=experts_layer,
        embedding=matrix + positions + (norm if model.embedding_norm else 0.0),
        embedding_matrix=matrix,
        head=head,
        tied=model.tied_embeddings,
        vocab=vocab,
    )


def _ffn_bias(model: Model, tp: Floats, width: int) -> Floats:
    return (2 if model.gated else 1) * width / tp + model.hidden


def _local_attention(model: Model, columns: LayoutColumns, tp: Floats) -> Floats:
    hidden = float(model.hidden)
    heads = np.ceil(model.heads / tp)
    if (latent := model.latent_attention) is not None:
        query_width = heads * (latent.nope_head_dim + latent.rope_head_dim)
        query = latent.q_rank * (hidden + query_width) if latent.q_rank else hidden * query_width
        down = hidden * (latent.kv_rank + latent.rope_head_dim)
        up = latent.kv_rank * heads * (latent.nope_head_dim + latent.v_head_dim)
        return query + down + up + heads * latent.v_head_dim * hidden
    width, kv_width = heads * model.head_dim, np.ceil(model.kv_heads / tp) * model.head_dim
    weights = hidden * (2.0 * width + 2.0 * kv_width)
    biases = (width + 2.0 * kv_width) * model.qkv_bias + hidden * model.attention_out_bias
    return weights + biases
