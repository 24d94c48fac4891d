"""What a layer keeps of its forward for its backward, in bytes, tensor by tensor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.costs.columns import Floats, LayoutColumns
from meshwright.costs.frameworks import Behaviour
from meshwright.costs.kernels import ceil_div
from meshwright.costs.mixers import layer_shares, mixer_bytes
from meshwright.costs.recompute_modules import FfnBytes, dropped_bytes
from meshwright.costs.routing import hottest_rank
from meshwright.costs.selective import selective_bytes
from meshwright.costs.transformers_layer import Kept, layer_kept
from meshwright.specs.job import Job
from meshwright.specs.model import Model


def activation_bytes_per_layer(
    model: Model, job: Job, behaviour: Behaviour, columns: LayoutColumns, *, moe: bool
) -> tuple[Floats, Floats]:
    """Bytes that one layer keeps per micro-batch: (everything, only what full recomputation keeps).

    The tensors saved for backward, counted one by one. With a two-matrix FFN, dropout and unfused
    attention they add up to Korthikanti's sbh(34 + 5as/h) (arXiv 2205.05198, eq. 1); with flash
    attention the 5as²b go; sequence parallelism divides what tensor parallelism does not.
    """
    element = job.precision.activation_bytes
    tokens = (columns.micro_batch * ceil_div(job.seq_len, columns.cp)).astype(np.float64)
    tp = columns.tp.astype(np.float64)
    split = np.where(columns.sequence_parallel > 0, tp, 1.0)
    hidden = float(model.hidden)
    # A norm written out keeps its input in fp32, the normalised fp32 values and their 16-bit copy.
    norm_inputs = 2.0 * hidden * (1.0 if behaviour.fused_norm else 5.0)
    quantised = _quantised_inputs(job, behaviour)
    of_input = 1.0 if quantised else element
    # A frozen weight needs no input for a gradient; adapters read attention's input only.
    adapted = job.frozen
    matmul_inputs = (1.0 if adapted else 2.0) * hidden
    shared = norm_inputs * element + matmul_inputs * of_input
    if behaviour.dropout:
        shared += 2.0 * hidden
    per_token = shared / split
    mixers = layer_shares(model, moe=moe)
    per_token = per_token + mixers.attention * _attention_bytes(model, element, tp)
    if mixers.linear and model.mixer is not None:
        per_token = per_token + mixers.linear * mixer_bytes(model.mixer, element) / tp
    if quantised:
        # Attention keeps its output in 16 bits; the projection after it keeps its own copy.
        per_token = per_token + of_input * model.attention_width / tp
    per_token = per_token + behaviour.copied_widths * hidden * element / tp
    width = mixers.ffn * model.ffn
    if moe:
        assert model.experts is not None
        width = float(model.experts.shared_ffn)
        hot = hottest_rank(job.routing, model.experts.experts, columns.ep, at_peak=True)
        copies = model.experts.top_k * columns.etp / tp * hot
        each = _ffn_bytes(model, behaviour, element, of_input, adapted)
        expert = each * model.experts.ffn / columns.etp
        expert += model.expert_hidden * _expert_copy_bytes(behaviour, element, of_input)
        per_token = per_token + copies * expert
        per_token = per_token + (model.experts.experts * 4.0 + model.experts.top_k * 12.0) / split
        # The product out of experts' width keeps what they sum to; into it, it reads the norm's output.
        per_token = per_token + (0.0 if adapted else model.experts.latent * of_input) / split
    per_token = per_token + _ffn_bytes(model, behaviour, element, of_input, adapted) * width / tp
    scores = 0.0 * tokens
    if behaviour.attention_kernel == "unfused":
        # The probabilities; eager softmax keeps them in fp32 too; dropout its mask and output.
        bytes_per_score = element + (0.0 if behaviour.fused_softmax else 4.0)
        bytes_per_score += element + 1.0 if behaviour.dropout else 0.0
        scores = attention_scores(model, job, columns) * bytes_per_score
        scores = np.where(columns.recompute == 1, 0.0, scores)
    whole = tokens * per_token + scores
    boundary = tokens * hidden * element / split
    return whole, boundary


def kept_per_layer(
    model: Model, job: Job, behaviour: Behaviour, columns: LayoutColumns, *, moe: bool
) -> Kept:
    """What one layer keeps, by the modules that the framework runs."""
    kept = _kept_by_modules(model, job, behaviour, columns, moe=moe)
    streams = model.residual_streams
    if streams == 1:
        return kept
    # Both halves of a layer mix n streams into their input and their output into n streams (mHC, arXiv
    # 2512.24880 equation 3): the gradients of the mixing need the streams and the half's output.
    mixing = 2.0 * (streams + 1.0) * kept.boundary
    selective = None if kept.selective is None else kept.selective + mixing
    return Kept(kept.whole + mixing, streams * kept.boundary, kept.backward, selective)


def _kept_by_modules(
    model: Model, job: Job, behaviour: Behaviour, columns: LayoutColumns, *, moe: bool
) -> Kept:
    if behaviour.modules == "transformers":
        kept = layer_kept(model, job, behaviour, columns, moe=moe)
        if behaviour.attention_kernel == "unfused":
            # Probabilities in 16 bits and softmax's own in fp32.
            scores = attention_scores(model, job, columns) * (4.0 + job.precision.activation_bytes)
            kept = replace(kept, whole=kept.whole + scores)
        return kept
    whole, boundary = activation_bytes_per_layer(model, job, behaviour, columns, moe=moe)
    tokens = (columns.micro_batch * ceil_div(job.seq_len, columns.cp)).astype(np.float64)
    selective = selective_bytes(model, job, behaviour, columns, tokens, moe=moe)
    if selective is not None:
        selective = np.minimum(selective, whole)
    named = columns.recompute_modules > 0
    if named.any():
        element = job.precision.activation_bytes
        of_input = 1.0 if _quantised_inputs(job, behaviour) else element
        each = FfnBytes(
            _ffn_bytes(model, behaviour, element, of_input, job.frozen),
            0.0 if job.frozen else of_input,
            _expert_copy_bytes(behaviour, element, of_input),
        )
        without = whole - dropped_bytes(model, job, behaviour, columns, each, moe=moe)
        selective = np.where(named, without, whole if selective is None else selective)
    return Kept(whole, boundary, _travelling_bytes(model, job, columns, tokens, moe=moe), selective)


def _travelling_bytes(
    model: Model, job: Job, columns: LayoutColumns, tokens: Floats, *, moe: bool
) -> Floats:
    """What a layer's backward holds beside what it kept: routed copies' gradients before and after an all-to-all."""
    if not moe or model.experts is None:
        return np.zeros(columns.rows)
    hot = hottest_rank(job.routing, model.experts.experts, columns.ep, at_peak=True)
    copies = tokens * model.experts.top_k * columns.etp / columns.tp * hot
    return np.asarray(2.0 * copies * model.expert_hidden * job.precision.activation_bytes)


def _expert_copy_bytes(behaviour: Behaviour, element: float, of_input: float) -> float:
    """Bytes per hidden width and routed copy: what an expert reads and, where it is kept, what it puts out."""
    return of_input + (element if behaviour.expert_outputs_kept else 0.0)


def _quantised_inputs(job: Job, behaviour: Behaviour) -> bool:
    """Whether products keep their inputs for backward in 8 bits."""
    return behaviour.saves_quantised_inputs and job.precision.compute in ("fp8", "fp4")


def attention_scores(model: Model, job: Job, columns: LayoutColumns) -> Floats:
    """Attention scores of one layer and micro-batch on one rank: b·s²·a over cp and tp."""
    tokens = (columns.micro_batch * ceil_div(job.seq_len, columns.cp)).astype(np.float64)
    return np.asarray(tokens * job.seq_len * (model.heads / columns.tp))


def _ffn_bytes(
    model: Model, behaviour: Behaviour, element: float, of_input: float, frozen: bool
) -> float:
    """Saved bytes per unit of FFN width: the activation's inputs, and the last product's input.

    The latter has `of_input` bytes and is needed only for that product's weight gradient.
    """
    inputs = 1.0
    if model.gated:
        inputs = 2.0 if behaviour.fused_activation else 3.0
    stored = 1.0 if behaviour.ffn_inputs_8bit else element
    return inputs * stored + (0.0 if frozen else of_input)


def _attention_bytes(model: Model, element: float, tp: Floats) -> Floats:
    """Queries, keys, values and the output of attention, per token, with flash's row statistics."""
    latent = model.latent_attention
    if latent is not None:
        heads = np.ceil(model.heads / tp)
        per_head = 2 * (latent.nope_head_dim + latent.rope_head_dim) + 2 * latent.v_head_dim
        compressed = latent.q_rank * 2 + latent.kv_rank * 2 + latent.rope_head_dim
        return (heads * per_head + compressed) * element + 4.0 * heads
    heads = np.ceil(model.heads / tp)
    kv_heads = np.ceil(model.kv_heads / tp)
    # Keys that are taken over are rotated and normed again in each layer; values are one tensor of all.
    kept = 2 * heads + (1 + model.kv_share) * kv_heads
    return np.asarray(kept * model.head_dim * element + 4.0 * heads)
