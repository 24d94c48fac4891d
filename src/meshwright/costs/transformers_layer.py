"""What one decoder layer of transformers keeps for backward, tensor by tensor, with PEFT's adapters.

Counted in transformers 5's modules under torch autograd; a differential test holds every term against
the saved tensors of the real modules (RMSNorm, scaled-dot-product attention, gated FFN; LoRA with and
without dropout, DoRA; frozen and trained weights). Arrays of shape (rows,) in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.costs.adapters import layer_matrices
from meshwright.costs.columns import Floats, LayoutColumns
from meshwright.costs.frameworks import Behaviour
from meshwright.costs.kernels import ceil_div
from meshwright.costs.mixers import layer_shares, mixer_bytes
from meshwright.specs.job import Job
from meshwright.specs.model import Model

FP32 = 4.0
DROPPED = 1.0
"""Bytes of a dropout mask per element, on a GPU."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes of one layer and micro-batch: kept for backward, kept where the layer recomputes, and
    beside them in its backward."""

    whole: Floats
    boundary: Floats
    backward: Floats
    selective: Floats | None = None
    """Kept under selective recomputation, where that is less than `whole`."""


def layer_kept(
    model: Model, job: Job, behaviour: Behaviour, columns: LayoutColumns, *, moe: bool
) -> Kept:
    """Return what one dense or mixture-of-experts layer keeps."""
    element = job.precision.activation_bytes
    tp = columns.tp.astype(np.float64)
    tokens = (columns.micro_batch * ceil_div(job.seq_len, columns.cp)).astype(np.float64)
    mixers = layer_shares(model, moe=moe)
    per_token = np.zeros(columns.rows) + _norms(model, job, behaviour, element)
    per_token = per_token + mixers.attention * _attention(model, job, element) / tp
    if mixers.linear and model.mixer is not None:
        per_token = per_token + mixers.linear * mixer_bytes(model.mixer, element) / tp
    width = mixers.ffn * model.ffn
    if moe and model.experts is not None:
        width = float(model.experts.shared_ffn)
        per_token = per_token + _experts(model, job, behaviour, element)
    per_token = per_token + _ffn(job, behaviour, element, model.gated) * width / tp
    per_token = per_token + _inputs(model, job, behaviour, element, moe)
    per_token = per_token + behaviour.copied_widths * model.hidden * element
    fixed = _written_out(model, job, element, moe)
    boundary = tokens * model.hidden * _residual_bytes(job, element)
    # The gradients of the FFN's product, gate and linear part are alive beside all of it.
    widest = max(
        width, float(model.experts.ffn * model.experts.top_k) if moe and model.experts else 0
    )
    fresh = 3.0 if model.gated else 2.0
    if behaviour.fused_activation and behaviour.activation_in_place:
        fresh = 1.0  # the product's gradient; the kernel writes the others over what it was given
    backward = tokens * element * fresh * widest / tp
    return Kept(tokens * per_token + fixed, boundary, backward)


def _residual_bytes(job: Job, element: float) -> float:
    """Of what passes from layer to layer: fp32 where the embedding was cast to it.

    Mistral 7B with nf4 keeps 32 layers' inputs in 4 bytes under PEFT's own preparation and in 2 under one that
    casts nothing: 20.7 against 16.4 GB allocated at 16,384 tokens (foundation-model-stack/fms-acceleration,
    scripts/benchmarks/refs/a100_80gb.csv).
    """
    tune = job.finetune
    cast = tune is not None and tune.upcast and tune.storage in ("nf4", "fp4")
    return FP32 if cast else element


def _trains(job: Job, target: str) -> bool:
    """Whether a matrix or its adapter needs its input for a gradient."""
    tune = job.finetune
    return tune is None or not tune.adapts or target in tune.targets


def _quantised(job: Job) -> bool:
    return job.finetune is not None and job.finetune.storage != "16-bit"


def _norms_train(job: Job) -> bool:
    tune = job.finetune
    if tune is None:
        return True
    return "norms" in tune.train if tune.adapts else "norms" not in tune.freeze


def _one_norm(model: Model, job: Job, behaviour: Behaviour, element: float) -> float:
    """Per element of the width: the fp32 input, and the normalised 16-bit one for the weight's
    gradient; torch's layer norm and fused kernels keep their input alone."""
    if model.norm != "rmsnorm" or behaviour.fused_norm:
        return element
    return FP32 + (element if _norms_train(job) else 0.0)


def _norms(model: Model, job: Job, behaviour: Behaviour, element: float) -> float:
    one = _one_norm(model, job, behaviour, element)
    per_token = model.norms_per_layer * model.hidden * one
    if model.qk_norm != "none":
        per_token += (model.heads + model.kv_heads) * model.head_dim * (one + element)
    return per_token


def _attention(model: Model, job: Job, element: float) -> float:
    """Queries, keys, values and the output, with one row statistic in fp32 per head."""
    latent = model.latent_attention
    if latent is None:
        width = (2 * model.heads + (1 + model.kv_share) * model.kv_heads) * model.head_dim
    else:
        width = model.heads * 2 * (latent.nope_head_dim + latent.rope_head_dim + latent.v_head_dim)
        width += 2 * latent.q_rank + 2 * latent.kv_rank + latent.rope_head_dim
    return width * element + FP32 * model.heads


def _ffn(job: Job, behaviour: Behaviour, element: float, gated: bool) -> float:
    """Per unit of width: what the activation and the gate's product keep."""
    if gated:
        return (2.0 if behaviour.fused_activation else 3.0) * element
    return element


def _inputs(model: Model, job: Job, behaviour: Behaviour, element: float, moe: bool) -> float:
    """Inputs of the products whose weight or adapter trains, per token.

    Without dropout queries, keys and values share one, gate and linear part another, and the output
    projection's is attention's own output. A dropped-out input is a copy with its mask, per adapter.
    DoRA keeps the base's and the adapter's results.
    """
    tune = job.finetune
    dropped = tune is not None and tune.adapts and tune.dropout > 0
    dora = tune is not None and tune.method == "dora"
    held, seen = 0.0, set[str]()
    every = behaviour.keeps_quantised_inputs and _quantised(job)
    for matrix in layer_matrices(model, moe=moe):
        trains = _trains(job, matrix.target)
        if matrix.target in ("experts", "router") or not (trains or every):
            continue
        if dora and trains:
            held += 2.0 * element * matrix.out * matrix.copies
        if dropped and trains:
            held += (element + DROPPED) * matrix.into * matrix.copies
            if not every:
                continue
        group = {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "in", "up": "in"}.get(
            matrix.target, matrix.target
        )
        latent = model.latent_attention is not None and matrix.into != model.hidden
        if group == "o" or (group in seen and not latent):
            continue
        seen.add(group)
        held += element * matrix.into * matrix.copies
    return held


def _experts(model: Model, job: Job, behaviour: Behaviour, element: float) -> float:
    """Routed copies: their input, both halves of the first product, the activation, the weighted
    output; and the router's fp32 scores."""
    assert model.experts is not None
    spec = model.experts
    trains = _trains(job, "experts")
    width = _ffn(job, behaviour, element, model.gated) + (element if trains else 0.0)
    each = spec.ffn * width + model.expert_hidden * element * (2.0 if trains else 1.0)
    return (
        spec.top_k * each + spec.latent * element + FP32 * (2.0 * spec.experts + 2.0 * spec.top_k)
    )


def _written_out(model: Model, job: Job, element: float, moe: bool) -> float:
    """DoRA writes the adapters' product out for the norm of the sum: one copy of each matrix."""
    tune = job.finetune
    if tune is None or tune.method != "dora":
        return 0.0
    return element * sum(
        matrix.out * matrix.into * matrix.copies
        for matrix in layer_matrices(model, moe=moe)
        if matrix.target in tune.targets
    )
