"""Optimizer states that are smaller than their matrices: Adafactor's second moment, and moments of projected gradients.

Shazeer and Stern 2018 (arXiv 1804.04235, Algorithm 4): of an n × m matrix n + m numbers are kept;
of a vector (norms, biases) every one. Without a first moment, as transformers' and T5X's defaults.

GaLore (Zhao et al. 2024, arXiv 2403.03507, Algorithm 2) and APOLLO (Zhu et al. 2024, arXiv 2412.05270): the gradient of a
layer's n × m matrix, n ≥ m, is projected to n × r, of which the moments are, by an m × r matrix that is kept, too.
Embedding, head, norms and experts that are one parameter a layer keep whole moments.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.costs.columns import Floats, LayoutColumns
from meshwright.costs.parameters import LocalParameters, local_parameters
from meshwright.specs.job import OptimizerRecipe
from meshwright.specs.model import Model

STATISTIC_BYTES = 4.0
"""Each statistic is kept in fp32."""

Shape = tuple[Floats | float, Floats | float]


def factored_statistics(
    model: Model, columns: LayoutColumns, vocab_multiple: int, optimizer: OptimizerRecipe
) -> LocalParameters:
    """Return how many statistics of `STATISTIC_BYTES` one rank keeps, in the places of their parameters.

    A rank factors the shards of matrices that tensor and expert parallelism give it. Arrays of
    shape (rows,), to be summed over a stage like parameters.
    """
    held = local_parameters(model, columns, vocab_multiple)
    tp = columns.tp.astype(np.float64)
    attention = _attention(model, tp)
    dense = [*attention, *_ffn(model, np.ceil(model.ffn / tp))]
    vocabulary: list[Shape] = [(held.embedding_matrix / model.hidden, float(model.hidden))]
    positions: list[Shape] = []
    if model.positions == "learned":
        positions = [(float(model.max_positions), float(model.hidden))]
    moe_layer, experts_layer = held.moe_layer, held.experts_layer
    whole = optimizer.but(low_rank=0)  # of what is no layer's
    if model.experts is not None:
        spec = model.experts
        router: list[Shape] = [(float(spec.experts), float(model.hidden))]
        shared = _ffn(model, np.ceil(spec.shared_ffn / tp)) if spec.shared_ffn else []
        moe_layer = _statistics(held.moe_layer, [*attention, *router, *shared], optimizer)
        one = _ffn(model, np.ceil(spec.ffn / columns.etp.astype(np.float64)))
        local = np.ceil(spec.experts / columns.ep.astype(np.float64))
        one = one if optimizer.factored else []
        experts_layer = local * _statistics(held.experts_layer / local, one, optimizer)
    return replace(
        held,
        dense_layer=_statistics(held.dense_layer, dense, optimizer),
        moe_layer=moe_layer,
        experts_layer=experts_layer,
        embedding=_statistics(held.embedding, [*vocabulary, *positions], whole),
        embedding_matrix=_statistics(held.embedding_matrix, vocabulary, whole),
        head=_statistics(held.head, [] if held.tied else vocabulary, whole),
    )


def _statistics(parameters: Floats, matrices: list[Shape], optimizer: OptimizerRecipe) -> Floats:
    """Statistics of the matrices, and of each of the parameters that are in none of them."""
    each = 1.0 if optimizer.factored else optimizer.state_bytes / STATISTIC_BYTES
    beside, result = parameters, np.zeros_like(parameters)
    for rows, width in matrices:
        beside = beside - rows * width
        if optimizer.low_rank:
            result = result + _projected(rows, width, optimizer)
        elif optimizer.factored:
            result = result + rows + width
        else:
            result = result + each * rows * width
    return np.asarray(result + each * beside)


def _projected(rows: Floats | float, width: Floats | float, optimizer: OptimizerRecipe) -> Floats:
    """Moments of a projected gradient, and what projects it in the gradient's own width: 16 bits at least."""
    long, short = np.maximum(rows, width), np.minimum(rows, width)
    rank = np.minimum(optimizer.low_rank, short)
    if optimizer.factored:
        return np.asarray(rank * short + rank + long)
    projector = max(optimizer.state_bytes / 2, 2.0)
    held = rank * (optimizer.state_bytes * long + projector * short)
    return np.asarray(held / STATISTIC_BYTES)


def _ffn(model: Model, width: Floats) -> list[Shape]:
    matrices = 3 if model.gated else 2
    return [(width, float(model.hidden))] * matrices


def _attention(model: Model, tp: Floats) -> list[Shape]:
    hidden, latent = float(model.hidden), model.latent_attention
    heads, kv_heads = np.ceil(model.heads / tp), np.ceil(model.kv_heads / tp)
    if latent is None:
        queries, keys = heads * model.head_dim, kv_heads * model.head_dim
        return [(queries, hidden), (keys, hidden), (keys, hidden), (hidden, queries)]
    queries = heads * (latent.nope_head_dim + latent.rope_head_dim)
    expanded = heads * (latent.nope_head_dim + latent.v_head_dim)
    matrices: list[Shape] = [
        (float(latent.kv_rank + latent.rope_head_dim), hidden),
        (expanded, float(latent.kv_rank)),
        (hidden, heads * latent.v_head_dim),
    ]
    if latent.q_rank:
        return [*matrices, (float(latent.q_rank), hidden), (queries, float(latent.q_rank))]
    return [*matrices, (queries, hidden)]
