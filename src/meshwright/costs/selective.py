"""Selective recomputation: what frameworks keep and what they run again under that one word.

Megatron's repeats attention alone: with unfused attention its scores go, with flash attention nothing
does, since flash repeats them anyway. PyTorch's per-operator policy (torchtitan) keeps the results of every
second product and of attention and runs the rest again; JAX's minimal policies (MaxText) keep the results of
all products, and its save_qkv_proj those of the projections to queries, keys and values alone.
"""

from __future__ import annotations

import numpy as np

from meshwright.costs.columns import Floats, LayoutColumns
from meshwright.costs.frameworks import Behaviour
from meshwright.specs.job import Job
from meshwright.specs.model import Model


def selective_elements(
    model: Model, behaviour: Behaviour, columns: LayoutColumns, *, moe: bool
) -> Floats:
    """Elements per token that one layer keeps under a per-operator policy; shape (rows,).

    The layer's input, attention's result, and of the products in the order that the layer runs them
    (queries, keys, values, output, gate, up, down) every second or all. Routed experts keep nothing.
    """
    tp = columns.tp.astype(np.float64)
    split = np.where(columns.sequence_parallel > 0, tp, 1.0)
    width = float(model.experts.shared_ffn) if moe and model.experts else float(model.ffn)
    inner = width / tp
    hidden = model.hidden / split
    queries = model.heads * model.head_dim / tp
    keys = model.kv_share * model.kv_heads * model.head_dim / tp
    results = [queries, keys, keys, hidden, *([inner] if model.gated else []), inner, hidden]
    kept = results[::2] if behaviour.selective == "operators" else results
    total = hidden + model.attention_width / tp
    if behaviour.selective == "projections":
        kept, total = results[:3], hidden + np.zeros(columns.rows)
    for elements in kept:
        total = total + elements
    return np.asarray(total, dtype=np.float64)


def repeated_forward_s(
    behaviour: Behaviour, model: Model, forward: dict[str, Floats], *, moe: bool
) -> Floats:
    """Time of one layer's forward that selective recomputation runs again in its backward."""
    if behaviour.selective == "projections":
        total = np.zeros_like(forward["matmul"])
        for time in forward.values():
            total = total + time
        return total - _projections_share(model, moe=moe) * forward["matmul"]
    if behaviour.selective == "attention":
        return forward["attention"]
    if behaviour.selective == "products":
        return forward["elementwise"]
    return forward["elementwise"] + _repeated_share(model, moe=moe) * forward["matmul"]


def _repeated_share(model: Model, *, moe: bool) -> float:
    """Share of a layer's products that run again where every second is kept, by their FLOPs.

    The second, fourth and sixth in the order of `selective_elements`: keys, output and, of a gated FFN,
    up; and all products of routed experts, which are grouped and no policy keeps.
    """
    heads = model.heads * model.head_dim
    keys = model.kv_share * model.kv_heads * model.head_dim
    width = model.experts.shared_ffn if moe and model.experts else model.ffn
    products = [
        heads,
        keys,
        keys,
        model.attention_width,
        *([width] if model.gated else []),
        width,
        width,
    ]
    routed = 0.0
    if moe and model.experts:
        routed = (3 if model.gated else 2) * _routed_width(model)
    return (sum(products[1::2]) + routed) / (sum(products) + routed)


def _routed_width(model: Model) -> float:
    """Width of the experts that a token visits, as an FFN of the hidden width would have it."""
    if model.experts is None:
        return 0.0
    return model.experts.top_k * model.experts.ffn * model.expert_hidden / model.hidden


def _projections_share(model: Model, *, moe: bool) -> float:
    """Share of a layer's products that make queries, keys and values, by their FLOPs."""
    made = (model.heads + 2 * model.kv_share * model.kv_heads) * model.head_dim
    width = float(model.ffn)
    if moe and model.experts:
        width = model.experts.shared_ffn + _routed_width(model)
    rest = model.attention_width + (3 if model.gated else 2) * width
    return made / (made + rest)


def selective_bytes(
    model: Model,
    job: Job,
    behaviour: Behaviour,
    columns: LayoutColumns,
    tokens: Floats,
    *,
    moe: bool,
) -> Floats | None:
    """Bytes that one layer keeps per micro-batch under a per-operator policy; None under Megatron's."""
    if behaviour.selective == "attention":
        return None
    elements = selective_elements(model, behaviour, columns, moe=moe)
    return tokens * elements * job.precision.activation_bytes
