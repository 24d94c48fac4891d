"""Exact parameter counts: of a model, and of the part of one layer that a rank holds.

Counts equal what transformers builds, matrix by matrix (differential test over every preset). The
same lines of code count a whole model (degree 1) and columns of a million layouts: `tp`, `ep` and
`etp` may be integers or NumPy integer arrays, and results have their broadcast shape. Columns are
float64, in which whole numbers up to 2**53 are exact and divisions are fast.

How tensor parallelism splits a layer follows Megatron-LM (arXiv 1909.08053 §3; arXiv 2205.05198
§4): matrices that produce heads or FFN columns are cut by columns with their biases; the matrices
that follow are cut by rows and keep a whole bias on every rank; norms and the router are
replicated. Where there are fewer kv heads than ranks, each rank holds at least one kv head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.costs.columns import Floats, Ints, LayoutColumns
from meshwright.costs.encoder_parameters import encoder_parameters
from meshwright.costs.mixers import indexer_parameters, layer_shares, mixer_parameters
from meshwright.specs.errors import SpecError
from meshwright.specs.model import Factored, LatentAttention, Model

Degree = int | Ints | Floats
"""A degree of parallelism: one integer, or a column of them."""


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """Parameters of one layer that one rank holds, as columns of the broadcast shape.

    `experts` are kept apart because ZeRO shards them over fewer ranks (the expert-data-parallel
    group) than the rest.
    """

    attention: Floats
    norms: Floats
    ffn: Floats
    router: Floats
    shared: Floats
    latent: Floats
    """Products into and out of the width of routed experts, whole on every rank."""
    experts: Floats

    @property
    def dense(self) -> Floats:
        """Everything but the routed experts."""
        return self.attention + self.norms + self.ffn + self.router + self.shared + self.latent

    @property
    def total(self) -> Floats:
        """All parameters of the layer on the rank."""
        return self.dense + self.experts


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Exact parameter count of a whole model, by part.

    `total` is what transformers' `sum(p.numel() for p in model.parameters())` gives: a tied head
    counts once.
    """

    embedding: int
    positions: int
    embedding_norm: int
    dense_layer: LayerParameters
    moe_layer: LayerParameters | None
    dense_layers: int
    moe_layers: int
    final_norm: int
    head: int
    extra: int
    encoder: int
    total: int
    active: int
    further: int = 0
    """Layers that predict further tokens, with what joins their inputs; embedding and head are shared."""

    @property
    def layers(self) -> int:
        """Parameters of all layers."""
        held = round(self.dense_layers * float(self.dense_layer.total))
        if self.moe_layer is not None:
            held += round(self.moe_layers * float(self.moe_layer.total))
        return held

    def parts(self) -> dict[str, int]:
        """Named parts that sum to `total`."""
        parts = {
            "embedding": self.embedding,
            "positions": self.positions,
            "embedding norm": self.embedding_norm,
        }
        for name, count, layer in (
            ("dense layers", self.dense_layers, self.dense_layer),
            ("MoE layers", self.moe_layers, self.moe_layer),
        ):
            if count and layer is not None:
                for part in ("attention", "norms", "ffn", "router", "shared", "latent", "experts"):
                    parts[f"{name}: {part}"] = round(count * float(getattr(layer, part)))
        parts |= {"final norm": self.final_norm, "head": self.head, "extra": self.extra}
        parts |= {"encoder": self.encoder, "further predictions": self.further}
        return {name: held for name, held in parts.items() if held}


def count_parameters(model: Model) -> ParameterCounts:
    """Count the parameters of a model exactly.

    Of a model whose modules were counted, what its shape does not explain is `extra`.
    """
    counts = _count(model)
    if not model.counted_parameters:
        return counts
    rest = model.counted_parameters - counts.total
    return replace(
        counts,
        extra=counts.extra + rest,
        total=model.counted_parameters,
        active=max(counts.active + rest, 1),
    )


def _count(model: Model) -> ParameterCounts:
    moe = layer_parameters(model, moe=True) if model.experts else None
    dense = layer_parameters(model, moe=False)
    moe_layers = model.moe_layers
    dense_layers = model.layers - moe_layers
    embedding = int(embedding_parameters(model))
    positions = position_parameters(model)
    head = 0 if model.tied_embeddings else model.vocab * model.hidden
    head += model.vocab if model.head_bias else 0
    one_norm = _norm(model, model.hidden)
    embedding_norm = one_norm if model.embedding_norm else 0
    final_norm = final_norm_parameters(model)
    extra = sum(model.extra_parameters.values())
    encoder = model.encoder.parameters if model.encoder else 0
    outside = embedding + positions + embedding_norm + final_norm + head + extra + encoder
    # Layers of one kind may differ in their mixers: their mean times their number is whole.
    total = outside + round(dense_layers * float(dense.total))
    active = total
    if moe is not None and model.experts is not None:
        total += round(moe_layers * float(moe.total))
        visited = int(moe.experts) * model.experts.top_k // model.experts.experts
        active += round(moe_layers * (float(moe.dense) + visited))
    further = 0
    if model.predict_layers:
        layer = moe if moe is not None and model.is_moe_layer(model.layers) else dense
        further = model.predict_layers * (round(float(layer.total)) + join_parameters(model))
    return ParameterCounts(
        embedding=embedding, positions=positions, embedding_norm=embedding_norm,
        dense_layer=dense, moe_layer=moe, dense_layers=dense_layers, moe_layers=moe_layers,
        final_norm=final_norm, head=head, extra=extra, encoder=encoder, total=total + further,
        active=active, further=further,
    )  # fmt: skip


def join_parameters(model: Model) -> int:
    """Of one layer that predicts further tokens, what a usual layer has not: a product and three norms."""
    return 2 * model.hidden**2 + 3 * _norm(model, model.hidden)


def padded_vocab(vocab: int, tp: Degree = 1, multiple: int = 128) -> Floats:
    """Vocabulary rounded up to a multiple of `multiple` · tp, as Megatron pads it.

    (Megatron-LM `--make-vocab-size-divisible-by`, default 128.)

    Raises:
        SpecError: `multiple` is below 1.
    """
    if multiple < 1:
        raise SpecError("multiple", multiple, "at least 1")
    unit = multiple * np.asarray(tp, dtype=np.float64)
    return np.asarray(np.ceil(vocab / unit) * unit)


def embedding_parameters(model: Model, tp: Degree = 1, vocab_multiple: int = 0) -> Floats:
    """Token-embedding parameters on one rank of a vocabulary-parallel group of `tp`.

    With `vocab_multiple` the vocabulary is padded first (`padded_vocab`); without, a rank holds the
    larger share of rows.
    """
    return _rows(model, tp, vocab_multiple) * model.hidden


def head_parameters(model: Model, tp: Degree = 1, vocab_multiple: int = 0) -> Floats:
    """LM-head parameters on one rank of the last stage, vocabulary-parallel over `tp`.

    A tied head is counted in full: on a pipeline with more than one stage the last stage keeps its
    own copy of the embedding (and the gradients of both are all-reduced).
    """
    return _rows(model, tp, vocab_multiple) * (model.hidden + int(model.head_bias))


def _rows(model: Model, tp: Degree, vocab_multiple: int) -> Floats:
    """Vocabulary rows that one rank holds."""
    degree = np.asarray(tp, dtype=np.float64)
    whole = padded_vocab(model.vocab, degree, vocab_multiple) if vocab_multiple else model.vocab
    return _share(whole, degree)


def position_parameters(model: Model) -> int:
    """Parameters of the learned position table (replicated), or 0."""
    return model.max_positions * model.hidden if model.positions == "learned" else 0


def final_norm_parameters(model: Model) -> int:
    """Parameters of the norm before the head (replicated), or 0."""
    return _norm(model, model.hidden) if model.final_norm else 0


def layer_parameters(
    model: Model, moe: bool, tp: Degree = 1, ep: Degree = 1, etp: Degree = 1
) -> LayerParameters:
    """Parameters of one layer that one rank holds: of the mean one, where mixers differ.

    Args:
        model: the architecture.
        moe: whether the layer is one of the model's mixture-of-experts layers.
        tp: tensor-parallel degree of attention and of dense and shared FFN.
        ep: expert-parallel degree; experts are dealt out whole.
        etp: tensor-parallel degree inside a routed expert.

    Raises:
        SpecError: `moe` asked of a model without experts.
    """
    if moe and model.experts is None:
        raise SpecError("moe", moe, f"{model.name} has no experts")
    degrees = np.broadcast_arrays(
        *(np.asarray(degree, dtype=np.float64) for degree in (tp, ep, etp))
    )
    width, groups, inner = degrees
    zero = np.zeros_like(width)
    ffn = router = shared = latent = experts = zero
    if moe and model.experts is not None:
        spec = model.experts
        local = _share(spec.experts, groups)
        experts = local * _ffn(model, spec.ffn, inner, spec.expert_bias, model.expert_hidden)
        router = zero + spec.experts * (model.hidden + spec.router_bias)
        shared = _ffn(model, spec.shared_ffn, width, model.ffn_bias) if spec.shared_ffn else zero
        shared = shared + (model.hidden if spec.shared_gate else 0)
        latent = zero + latent_parameters(model)
    share = layer_shares(model, moe=moe)
    if not moe:
        ffn = share.ffn * _ffn(model, model.ffn, width, model.ffn_bias)
    norms = zero + model.norms_per_layer * _norm(model, model.hidden)
    if model.latent_attention is None:
        attention = _attention(model, width)
    else:
        attention = _latent_attention(model, model.latent_attention, width)
    attention = share.attention * attention
    if share.linear and model.mixer is not None:
        attention = attention + share.linear * mixer_parameters(model, model.mixer, width)
    return LayerParameters(attention, norms, ffn, router, shared, latent, experts)


def latent_parameters(model: Model) -> int:
    """Parameters that bring tokens to the width of routed experts and back, in one layer."""
    width = model.experts.latent if model.experts else 0
    biases = width + model.hidden if model.ffn_bias and width else 0
    return 2 * width * model.hidden + biases


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
    further: bool
    """Whether layers beside the head predict further tokens: they embed them too."""
    vocab: Floats
    """Vocabulary after padding, before it is split."""


def local_parameters(
    model: Model, columns: LayoutColumns, vocab_multiple: int, framework: str = ""
) -> LocalParameters:
    """Return one rank's share of each part, for a table of layouts; of an encoder, as a `framework` splits it.

    The vocabulary is padded to a multiple of `vocab_multiple` · tp, as Megatron-LM's
    `vocab_size_with_padding` does; 0 leaves it as it is, split unevenly.
    """
    vocab = np.full(columns.rows, float(model.vocab))
    if vocab_multiple:
        vocab = padded_vocab(model.vocab, columns.tp, vocab_multiple)
    matrix = embedding_parameters(model, columns.tp, vocab_multiple)
    head = head_parameters(model, columns.tp, vocab_multiple)
    norm = float(_norm(model, model.hidden))
    dense = layer_parameters(model, False, columns.tp).dense
    zeros = np.zeros(columns.rows)
    moe_layer, experts_layer = zeros, zeros
    if model.experts is not None:
        moe = layer_parameters(model, True, columns.tp, columns.ep, columns.etp)
        moe_layer, experts_layer = moe.dense, moe.experts
    extra = count_parameters(model).extra / max(model.layers, 1)
    return LocalParameters(
        dense_layer=dense + extra,
        moe_layer=moe_layer + (extra if model.experts is not None else 0.0),
        experts_layer=experts_layer,
        embedding=matrix
        + position_parameters(model)
        + (norm if model.embedding_norm else 0.0)
        + encoder_parameters(model, columns, framework),
        embedding_matrix=matrix,
        head=head - (matrix if model.tied_embeddings else 0.0) + final_norm_parameters(model),
        tied=model.tied_embeddings,
        further=model.predict_layers > 0,
        vocab=vocab,
    )


def _share(amount: Floats | float, degree: Floats) -> Floats:
    """The larger share when `amount` is dealt out over `degree` ranks."""
    return np.asarray(np.ceil(amount / degree))


def _norm(model: Model, width: int) -> int:
    """Parameters of one norm over `width`."""
    if model.norm == "none":
        return 0
    return width * (int(model.norm_weight) + int(model.norm_bias))


def _ffn(model: Model, ffn: int, tp: Floats, bias: bool, hidden: int = 0) -> Floats:
    """One FFN of two matrices, or three where gated; the last one's bias is whole on every rank."""
    hidden = hidden or model.hidden
    columns = _share(ffn, tp)
    inward = 2 if model.gated else 1
    weights = (inward + 1) * hidden * columns
    return np.asarray(weights + (inward * columns + hidden if bias else 0))


def _attention(model: Model, tp: Floats) -> Floats:
    heads = _share(model.heads, tp)
    kv_heads = _share(model.kv_heads, tp)
    queries, keys = heads * model.head_dim, kv_heads * model.head_dim
    made = model.kv_share * keys
    values = 0.0 if model.keys_are_values else made
    gate = queries if model.attention_gate else 0.0
    held = model.hidden * (queries + gate + made + values) + queries * model.hidden
    if model.factored is not None:
        held = (
            model.hidden * (made + values)
            + model.head_dim
            + _factored(model, model.factored, queries, tp)
        )
    if model.qkv_bias:
        held = held + queries + gate + made + values
    if model.attention_out_bias:
        held = held + model.hidden
    if model.attention_sinks:
        held = held + heads
    if model.qk_norm == "head":
        held = held + 2 * _norm(model, model.head_dim)
    elif model.qk_norm == "full":
        held = held + (queries + keys) * (int(model.norm_weight) + int(model.norm_bias))
    return np.asarray(held)


def _factored(model: Model, factored: Factored, queries: Floats, tp: Floats) -> Floats:
    """Queries by way of a normed compression, which every rank has; outputs group by group, then together."""
    compressed = model.hidden * factored.q_rank + factored.q_rank
    groups = _share(factored.out_groups, tp)
    inner = groups * factored.out_rank
    out = inner * (model.heads * model.head_dim / factored.out_groups) + inner * model.hidden
    return np.asarray(compressed + factored.q_rank * queries + out)


def _latent_attention(model: Model, latent: LatentAttention, tp: Floats) -> Floats:
    """MLA (arXiv 2405.04434 §2.1): compressions and their norms replicated, expansions split."""
    heads = _share(model.heads, tp)
    query_width = latent.nope_head_dim + latent.rope_head_dim
    held = indexer_parameters(model)
    if latent.q_rank:
        held += model.hidden * latent.q_rank + latent.q_rank
        queries = latent.q_rank * heads * query_width
    else:
        queries = model.hidden * heads * query_width
    held += model.hidden * (latent.kv_rank + latent.rope_head_dim) + latent.kv_rank
    expansions = latent.kv_rank * heads * (latent.nope_head_dim + latent.v_head_dim)
    return np.asarray(held + queries + expansions + heads * latent.v_head_dim * model.hidden)
