"""Time of a layer's matrix products: which matrices a rank multiplies, and what moves beside them."""

from __future__ import annotations

import numpy as np

from meshwright.costs.adapters import stored_bytes
from meshwright.costs.columns import Floats, Ints
from meshwright.costs.experts import routed_tokens
from meshwright.costs.kernels import ceil_div, expert_times_s, linear_times_s, stream_time_s
from meshwright.costs.layer_setting import LayerKeys, LayerModel
from meshwright.costs.mixers import layer_shares, mixer_matrices
from meshwright.specs.model import Model

Matrices = list[tuple[Ints, Ints]]


def weighted_products(
    setting: LayerModel, keys: LayerKeys, tokens: Ints, moe: bool
) -> tuple[Floats, Floats]:
    """Forward and backward of the mean layer: each part's products times its share of layers."""
    model = setting.model
    share = layer_shares(model, moe=moe)
    if not model.layer_kinds:
        whole = attention_matrices(model, keys) + dense_matrices(model, keys, moe)
        return matmul_times(setting, tokens, whole)
    forward: Floats = np.zeros(len(tokens))
    backward: Floats = np.zeros(len(tokens))
    for part, matrices in (
        (share.attention, attention_matrices(model, keys)),
        (share.linear, _mixer_matrices(model, keys)),
        (share.ffn, dense_matrices(model, keys, moe)),
    ):
        if part and matrices:
            there, back = matmul_times(setting, tokens, matrices)
            forward, backward = forward + part * there, backward + part * back
    return forward, backward


def _mixer_matrices(model: Model, keys: LayerKeys) -> Matrices:
    """Products of a layer whose mixer is linear in the length."""
    if model.mixer is None:
        return []
    return [
        (_on_rank(out, split == "out", keys.tp), _on_rank(into, split == "into", keys.tp))
        for out, into, split in mixer_matrices(model, model.mixer)
    ]


def _on_rank(width: float, split: bool, tp: Ints) -> Ints:
    return ceil_div(round(width), tp) if split else np.full_like(tp, round(width))


def attention_matrices(model: Model, keys: LayerKeys) -> Matrices:
    """(output width, input width) of each of attention's weight matrices on a rank."""
    hidden = np.full_like(keys.tp, model.hidden)
    heads = ceil_div(model.heads, keys.tp)
    kv_heads = ceil_div(model.kv_heads, keys.tp)
    matrices: Matrices = []
    if (latent := model.latent_attention) is not None:
        query_width = heads * (latent.nope_head_dim + latent.rope_head_dim)
        if latent.q_rank:
            matrices += [(np.full_like(keys.tp, latent.q_rank), hidden)]
            matrices += [(query_width, np.full_like(keys.tp, latent.q_rank))]
        else:
            matrices += [(query_width, hidden)]
        matrices += [(np.full_like(keys.tp, latent.kv_rank + latent.rope_head_dim), hidden)]
        width = heads * (latent.nope_head_dim + latent.v_head_dim)
        matrices += [(width, np.full_like(keys.tp, latent.kv_rank))]
        matrices += [(hidden, heads * latent.v_head_dim)]
    elif (factored := model.factored) is not None:
        rank = np.full_like(keys.tp, factored.q_rank)
        inner = ceil_div(factored.out_groups, keys.tp) * factored.out_rank
        matrices += [(rank, hidden), (heads * model.head_dim, rank)]
        matrices += [(_made(model, kv_heads) * model.head_dim, hidden)]
        matrices += [
            (inner, np.full_like(keys.tp, model.heads * model.head_dim // factored.out_groups))
        ]
        matrices += [(hidden, inner)]
    else:
        fused = heads * (2 if model.attention_gate else 1)
        fused = fused + _made(model, kv_heads)
        matrices += [(fused * model.head_dim, hidden)]
        matrices += [(hidden, heads * model.head_dim)]
    return matrices


def _made(model: Model, kv_heads: Ints) -> Ints:
    """Heads of keys and values that the mean layer projects: some layers may take over another's."""
    both = kv_heads * (1 if model.keys_are_values else 2)
    return np.asarray(np.ceil(both * model.kv_share), dtype=np.int64)


def dense_matrices(model: Model, keys: LayerKeys, moe: bool) -> Matrices:
    """The same of the dense FFN, or of the router and the shared experts."""
    hidden = np.full_like(keys.tp, model.hidden)
    matrices: Matrices = []
    if moe:
        assert model.experts is not None
        matrices += [(np.full_like(keys.tp, model.experts.experts), hidden)]
        if model.experts.shared_ffn:
            matrices += _ffn_matrices(model, ceil_div(model.experts.shared_ffn, keys.tp), hidden)
        matrices += latent_matrices(model, keys)
    else:
        matrices += _ffn_matrices(model, ceil_div(model.ffn, keys.tp), hidden)
    return matrices


def latent_matrices(model: Model, keys: LayerKeys) -> Matrices:
    """The products into and out of the width of routed experts: weights whole, tokens split as sequences are."""
    if model.experts is None or not model.experts.latent:
        return []
    hidden = np.full_like(keys.tp, model.hidden)
    width = ceil_div(model.experts.latent, np.where(keys.sequence_parallel > 0, keys.tp, 1))
    return [(width, hidden), (hidden, width)]


def _ffn_matrices(model: Model, width: Ints, hidden: Ints) -> list[tuple[Ints, Ints]]:
    return [((2 if model.gated else 1) * width, hidden), (hidden, width)]


def matmul_times(
    setting: LayerModel, tokens: Ints, matrices: list[tuple[Ints, Ints]]
) -> tuple[Floats, Floats]:
    """Forward and backward of linear layers, with the sums of their weights' gradients."""
    forward: Floats = np.zeros(len(tokens))
    backward: Floats = np.zeros(len(tokens))
    frozen = setting.job.frozen
    for out, into in matrices:
        there, back = linear_times_s(setting.kernels, tokens, out, into, frozen=frozen)
        again = _weight_traffic_s(setting, out * into)
        forward, backward = forward + there + again[0], backward + back + again[1]
    return forward, backward


def _weight_traffic_s(setting: LayerModel, weights: Ints) -> tuple[Floats | float, Floats | float]:
    """Forward and backward time of what moves with weights beside their products.

    Adding a fresh gradient to the resident one; of frozen quantised weights, writing them out in
    16 bits before each product.
    """
    elements = np.asarray(weights, dtype=np.float64)
    if setting.job.frozen:
        unpacked = dequantised_s(setting, elements)
        return unpacked, unpacked
    passes = setting.behaviour.accumulate_bytes / setting.kernels.bandwidth_bytes_s
    return 0.0, elements * passes


def dequantised_s(setting: LayerModel, elements: Floats) -> Floats | float:
    """Time to write quantised weights out in 16 bits, before each product that uses them."""
    tune = setting.job.finetune
    if tune is None or tune.storage in ("16-bit", "fp8"):
        return 0.0
    each = stored_bytes(tune, 2.0) + setting.job.precision.activation_bytes
    return stream_time_s(setting.kernels, elements * each, 1.0)


def expert_matmuls(setting: LayerModel, keys: LayerKeys, tokens: Ints) -> tuple[Floats, Floats]:
    """Grouped products of the local experts, each with its share of the routed tokens."""
    experts = setting.model.experts
    assert experts is not None
    local = ceil_div(experts.experts, keys.ep)
    each = routed_tokens(setting.model, setting.job, keys, tokens) / local
    width = ceil_div(experts.ffn, keys.etp)
    frozen = setting.job.frozen
    forward: Floats = np.zeros(len(tokens))
    backward: Floats = np.zeros(len(tokens))
    hidden = np.full_like(keys.tp, setting.model.expert_hidden)
    for out, into in _ffn_matrices(setting.model, width, hidden):
        there, back = expert_times_s(setting.kernels, local, each, out, into, frozen=frozen)
        again = _weight_traffic_s(setting, local * out * into)
        forward, backward = forward + there + again[0], backward + back + again[1]
    return forward, backward
