"""Context parallelism by method: what attention sends to meet the keys of other ranks, and what hides it.

Sources of the traffic: ring attention (arXiv 2310.01889) in balanced halves as Megatron's p2p and torch's
alltoall rotation run it; all-gather as Llama 3 has it (arXiv 2407.21783, section 3.3.2); Ulysses
(arXiv 2309.14509): four all-to-alls that trade sequence for heads; and Megatron's a2a+p2p, Ulysses inside
a fast domain with a ring around it.
"""

from __future__ import annotations

import numpy as np

from meshwright.costs.collectives import all_gather, all_to_all_cost, reduce_scatter
from meshwright.costs.columns import Floats, Ints
from meshwright.costs.fabric import place
from meshwright.costs.kernels import ceil_div
from meshwright.costs.layer_setting import LayerKeys, LayerModel
from meshwright.costs.tables import table
from meshwright.specs.layout import CONTEXT_METHODS
from meshwright.specs.model import Model

RING, GATHER = CONTEXT_METHODS.index("ring"), CONTEXT_METHODS.index("all-gather")
ULYSSES, HIERARCHICAL = (CONTEXT_METHODS.index("ulysses"), CONTEXT_METHODS.index("hierarchical"))


def context_parallel_s(
    setting: LayerModel, keys: LayerKeys, tokens: Ints, forward: Floats, backward: Floats
) -> tuple[Floats, Floats]:
    """Exposed time of one layer's context-parallel exchange, forward and backward; shape (rows,).

    `forward` and `backward` are the times of the attention that a ring's messages hide behind.
    """
    exposed = np.zeros((2, len(tokens)))
    for code, price in (
        (RING, _ring),
        (GATHER, _gather),
        (ULYSSES, _ulysses),
        (HIERARCHICAL, _both),
    ):
        rows = (keys.cp_method == code) & (keys.cp > 1)
        if rows.any():
            there, back = price(setting, keys, tokens, forward, backward)
            exposed[0] = np.where(rows, there, exposed[0])
            exposed[1] = np.where(rows, back, exposed[1])
    if not setting.behaviour.context_in_turn:
        return exposed[0], exposed[1]
    slower = _others_share(keys) * float(table("overlap")["context_in_turn"]["slowdown"])
    return exposed[0] + slower * forward, exposed[1] + slower * backward


def _others_share(keys: LayerKeys) -> Floats:
    """Share of attention over keys of other ranks: cp - 1 of cp blocks pass round a ring or are gathered."""
    meets = (keys.cp_method == RING) | (keys.cp_method == GATHER)
    return np.where(meets, (keys.cp - 1) / np.maximum(keys.cp, 1), 0.0)


def inner_degree(setting: LayerModel, keys: LayerKeys) -> Ints:
    """Ranks that trade heads in the hierarchical method: the cp ranks of one fast domain, if heads allow."""
    inside = np.maximum(setting.fabric.levels[0].domain // np.maximum(keys.cp_stride, 1), 1)
    heads = np.maximum(setting.model.kv_heads // keys.tp, 1)
    return np.gcd(np.gcd(keys.cp, inside), heads)


def _per_token(model: Model, keys: LayerKeys) -> Floats:
    """Elements of keys and values per token on a tensor-parallel rank."""
    latent = model.latent_attention
    if latent is not None:
        return np.full(len(keys.tp), float(latent.kv_rank + latent.rope_head_dim))
    return np.asarray(2.0 * ceil_div(model.kv_heads, keys.tp) * model.head_dim, dtype=np.float64)


def _v_dim(model: Model) -> int:
    latent = model.latent_attention
    return latent.v_head_dim if latent else model.head_dim


def _ring(
    setting: LayerModel, keys: LayerKeys, tokens: Ints, forward: Floats, backward: Floats
) -> tuple[Floats, Floats]:
    """Blocks of keys and values passed on while attention computes on the ones before.

    What is slower than the attention it hides behind is exposed; backward passes keys, values and their
    gradients. Each of the cp steps ends with passes over its result: its output is rescaled and added to
    the one so far in fp32 (10 bytes an element), backward adds query and key-value gradients (6 bytes);
    see flash_attn_fwd_out_correction in Transformer Engine's context_parallel.py.
    """
    model, element = setting.model, setting.job.precision.activation_bytes
    per_token = _per_token(model, keys)
    group = place(setting.fabric, keys.cp, stride=keys.cp_stride)
    ring = all_gather(setting.fabric, tokens * per_token * element * keys.cp, group)
    hidden = (keys.cp - 1) / np.maximum(keys.cp, 1)
    exposed_forward = np.maximum(ring - forward * hidden, 0.1 * ring)
    exposed_backward = np.maximum(2.0 * ring - backward * hidden, 0.2 * ring)
    merge_forward, merge_backward = _merged(setting, keys, tokens, keys.cp)
    return exposed_forward + merge_forward, exposed_backward + merge_backward


def _merged(
    setting: LayerModel, keys: LayerKeys, tokens: Ints, steps: Ints
) -> tuple[Floats, Floats]:
    outputs = tokens * ceil_div(setting.model.heads, keys.tp) * float(_v_dim(setting.model))
    times = np.where(steps > 1, steps, 0) / setting.kernels.bandwidth_bytes_s
    gradients = outputs + tokens * _per_token(setting.model, keys)
    return times * (10.0 * outputs), times * 6.0 * gradients


def _gather(
    setting: LayerModel, keys: LayerKeys, tokens: Ints, forward: Floats, backward: Floats
) -> tuple[Floats, Floats]:
    """All keys and values gathered before attention, again in backward, their gradients scattered."""
    element = setting.job.precision.activation_bytes
    whole = tokens * _per_token(setting.model, keys) * element * keys.cp
    group = place(setting.fabric, keys.cp, stride=keys.cp_stride)
    gathered = all_gather(setting.fabric, whole, group)
    return gathered, gathered + reduce_scatter(setting.fabric, whole, group)


def _ulysses(
    setting: LayerModel, keys: LayerKeys, tokens: Ints, forward: Floats, backward: Floats
) -> tuple[Floats, Floats]:
    """Queries, keys and values leave for their heads' rank, outputs come back; so do their gradients."""
    one = _traded_s(setting, keys, tokens, keys.cp, keys.cp_stride)
    return one, one


def _traded_s(
    setting: LayerModel, keys: LayerKeys, tokens: Ints, ranks: Ints, stride: Ints
) -> Floats:
    model, element = setting.model, setting.job.precision.activation_bytes
    heads = ceil_div(model.heads, keys.tp)
    latent = model.latent_attention
    width = latent.nope_head_dim + latent.rope_head_dim if latent else model.head_dim
    # Fewer key-value heads than ranks are sent as many times as there are ranks for each.
    shared = ranks / np.minimum(ranks, np.maximum(model.kv_heads // keys.tp, 1))
    kv = heads * (width + _v_dim(model)) if latent else _per_token(model, keys) * shared
    group = place(setting.fabric, ranks, stride=stride)
    there = all_to_all_cost(setting.fabric, tokens * (heads * width + kv) * element, group)
    back = all_to_all_cost(setting.fabric, tokens * (heads * float(_v_dim(model))) * element, group)
    return there.total_s + back.total_s


def _both(
    setting: LayerModel, keys: LayerKeys, tokens: Ints, forward: Floats, backward: Floats
) -> tuple[Floats, Floats]:
    """Heads traded inside a fast domain, and a ring of such groups around it.

    A rank then holds its heads of a whole group's tokens, so its ring moves as many bytes a step as
    without, in fewer steps.
    """
    inner = inner_degree(setting, keys)
    outer = keys.cp // inner
    traded = _traded_s(setting, keys, tokens, inner, keys.cp_stride)
    element = setting.job.precision.activation_bytes
    block = tokens * _per_token(setting.model, keys) * element
    group = place(setting.fabric, outer, stride=keys.cp_stride * inner)
    ring = all_gather(setting.fabric, block * outer, group)
    hidden = (outer - 1) / np.maximum(outer, 1)
    merge_forward, merge_backward = _merged(setting, keys, tokens, outer)
    there = np.maximum(ring - forward * hidden, 0.1 * ring) + merge_forward
    back = np.maximum(2.0 * ring - backward * hidden, 0.2 * ring) + merge_backward
    return traded + there, traded + back
