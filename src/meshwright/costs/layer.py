"""Time of one transformer layer on one rank, forward and backward, by named part.

A layer's time depends only on (tp, cp, ep, etp, micro-batch, sequence parallel) and on how those
groups sit on the cluster, so the step model prices each distinct combination once.
Parts: `matmul`, `attention`, `elementwise`, `tensor_parallel`, `context_parallel`,
`expert_parallel`. Every part is an array of shape (rows,), in seconds per micro-batch and layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.costs.adapters import adapter_times, stored_bytes
from meshwright.costs.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
)
from meshwright.costs.columns import Floats, Ints
from meshwright.costs.data_parallel import overlap_slowdown
from meshwright.costs.fabric import Fabric, place
from meshwright.costs.frameworks import Behaviour
from meshwright.costs.kernels import (
    Kernels,
    ceil_div,
    expert_times_s,
    flash_attention_time_s,
    linear_times_s,
    stream_time_s,
    unfused_attention_time_s,
)
from meshwright.specs.job import Job
from meshwright.specs.model import Model

PARTS = (
    "matmul", "attention", "elementwise",
    "tensor_parallel", "context_parallel", "expert_parallel",
)  # fmt: skip


NORM_EAGER = (19.0, 41.0)
"""Elements moved, forward and backward, by a norm written out in fp32 operations: cast, square,
mean, scale, cast, weight; a fused kernel moves 2 forward and 3 backward."""


EXPERT_BIAS_EAGER = (42.0, 70.0)
"""Elements moved per routed token and unit of an expert's width, forward and backward, where experts
have biases and nothing is fused: both biases added to splits and concatenated (15), clamp (4), gated
activation (12), routing weight in fp32 and the casts around it (11); backward likewise per input."""


ROTARY_EAGER = 13.0
"""Elements moved by a rotary embedding written out: rotate half, two products, a sum."""


@dataclass(frozen=True, slots=True)
class LayerKeys:
    """The columns that a layer's time depends on; all of shape (rows,).

    `*_stride` is the rank distance between neighbours of a group.
    """

    tp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    micro_batch: Ints
    sequence_parallel: Ints
    tp_stride: Ints
    cp_stride: Ints
    ep_stride: Ints


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Seconds per part, forward and backward, of one layer for one micro-batch.

    `core_attention` is the share of the forward that selective recomputation repeats.
    """

    forward: dict[str, Floats]
    backward: dict[str, Floats]
    core_attention: Floats

    def forward_s(self) -> Floats:
        """Total forward time."""
        return _total(self.forward)

    def backward_s(self) -> Floats:
        """Total backward time, without recomputation."""
        return _total(self.backward)


def _total(parts: dict[str, Floats]) -> Floats:
    total = np.zeros_like(parts["matmul"])
    for name in PARTS:
        total = total + parts[name]
    return total


@dataclass(frozen=True)
class LayerModel:
    """Everything a layer's time needs besides the layout."""

    model: Model
    job: Job
    kernels: Kernels
    fabric: Fabric
    behaviour: Behaviour


def layer_time(setting: LayerModel, keys: LayerKeys, moe: bool) -> LayerTime:
    """Price one dense or mixture-of-experts layer for every row of `keys`."""
    job = setting.job
    tokens = keys.micro_batch * ceil_div(job.seq_len, keys.cp)
    dense_forward, dense_backward = _matmul_times(
        setting, tokens, _dense_matrices(setting.model, keys, moe)
    )
    forward = {"matmul": dense_forward}
    backward = {"matmul": dense_backward}
    if moe:
        expert_forward, expert_backward = _expert_matmuls(setting, keys, tokens)
        forward["matmul"] = forward["matmul"] + expert_forward
        backward["matmul"] = backward["matmul"] + expert_backward
    if job.frozen:
        adapter_forward, adapter_backward = adapter_times(
            setting.model, job, setting.kernels, tokens, keys.tp, moe
        )
        forward["matmul"] = forward["matmul"] + adapter_forward
        backward["matmul"] = backward["matmul"] + adapter_backward
    forward["attention"] = _attention(setting, keys, backward=False)
    backward["attention"] = _attention(setting, keys, backward=True)
    forward["elementwise"] = _elementwise(setting, keys, tokens, moe, backward=False)
    backward["elementwise"] = _elementwise(setting, keys, tokens, moe, backward=True)
    forward["tensor_parallel"], backward["tensor_parallel"] = _tensor_parallel(
        setting, keys, tokens, backward["matmul"], moe
    )
    forward["context_parallel"], backward["context_parallel"] = _context_parallel(
        setting, keys, tokens, forward["attention"], backward["attention"]
    )
    forward["expert_parallel"] = (
        _expert_parallel(setting, keys, tokens) if moe else 0.0 * dense_forward
    )
    backward["expert_parallel"] = forward["expert_parallel"].copy()
    if moe and setting.behaviour.expert_overlapped:
        _overlap_experts(forward, backward)
    return LayerTime(forward, backward, forward["attention"])


def _overlap_experts(forward: dict[str, Floats], backward: dict[str, Floats]) -> None:
    """Hide the experts' all-to-alls behind the compute of another micro-batch's other direction.

    One micro-batch's forward runs beside another's backward (Megatron-Core's combined 1F1B, DualPipe
    in arXiv 2412.19437 section 3.2): what exceeds the compute of both sticks out, what hides slows it.
    """
    names = ("matmul", "attention", "elementwise")
    compute = np.zeros_like(forward["matmul"])
    for name in names:
        compute = compute + forward[name] + backward[name]
    traffic = forward["expert_parallel"] + backward["expert_parallel"]
    out = np.maximum(traffic - compute, 0.0)
    half = 0.5 * (out + overlap_slowdown() * (traffic - out))
    forward["expert_parallel"], backward["expert_parallel"] = half, half.copy()


def _dense_matrices(model: Model, keys: LayerKeys, moe: bool) -> list[tuple[Ints, Ints]]:
    """(output width, input width) of each weight matrix that a rank multiplies every token with."""
    hidden = np.full_like(keys.tp, model.hidden)
    heads = ceil_div(model.heads, keys.tp)
    kv_heads = ceil_div(model.kv_heads, keys.tp)
    matrices: list[tuple[Ints, Ints]] = []
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
    else:
        matrices += [((heads + 2 * kv_heads) * model.head_dim, hidden)]
        matrices += [(hidden, heads * model.head_dim)]
    if moe:
        assert model.experts is not None
        matrices += [(np.full_like(keys.tp, model.experts.experts), hidden)]
        if model.experts.shared_ffn:
            matrices += _ffn_matrices(model, ceil_div(model.experts.shared_ffn, keys.tp), hidden)
    else:
        matrices += _ffn_matrices(model, ceil_div(model.ffn, keys.tp), hidden)
    return matrices


def _ffn_matrices(model: Model, width: Ints, hidden: Ints) -> list[tuple[Ints, Ints]]:
    return [((2 if model.gated else 1) * width, hidden), (hidden, width)]


def _matmul_times(
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


def _expert_matmuls(setting: LayerModel, keys: LayerKeys, tokens: Ints) -> tuple[Floats, Floats]:
    """Grouped products of the local experts, each with its share of the routed tokens."""
    experts = setting.model.experts
    assert experts is not None
    local = ceil_div(experts.experts, keys.ep)
    each = routed_tokens(setting.model, keys, tokens) / local
    width = ceil_div(experts.ffn, keys.etp)
    frozen = setting.job.frozen
    forward: Floats = np.zeros(len(tokens))
    backward: Floats = np.zeros(len(tokens))
    hidden = np.full_like(keys.tp, setting.model.hidden)
    for out, into in _ffn_matrices(setting.model, width, hidden):
        there, back = expert_times_s(setting.kernels, local, each, out, into, frozen=frozen)
        again = _weight_traffic_s(setting, local * out * into)
        forward, backward = forward + there + again[0], backward + back + again[1]
    return forward, backward


def routed_tokens(model: Model, keys: LayerKeys, tokens: Ints) -> Ints:
    """Token copies that the experts of one rank process per micro-batch under even routing.

    Each of the tp ranks of an attention group dispatches its 1/tp share of the tokens.
    """
    assert model.experts is not None
    return ceil_div(tokens * model.experts.top_k * keys.etp, keys.tp)


def _attention(setting: LayerModel, keys: LayerKeys, *, backward: bool) -> Floats:
    model, job = setting.model, setting.job
    latent = model.latent_attention
    qk_dim = latent.nope_head_dim + latent.rope_head_dim if latent else model.head_dim
    v_dim = latent.v_head_dim if latent else model.head_dim
    heads = ceil_div(model.heads, keys.tp)
    queries = ceil_div(job.seq_len, keys.cp)
    if setting.behaviour.attention_kernel == "unfused":
        return unfused_attention_time_s(
            setting.kernels, sequences=keys.micro_batch, query_len=queries,
            key_len=np.full_like(queries, job.seq_len), heads=heads, qk_dim=qk_dim, v_dim=v_dim,
            fused_softmax=setting.behaviour.fused_softmax,
            backward=backward,
        )  # fmt: skip
    return flash_attention_time_s(
        setting.kernels, sequences=keys.micro_batch, query_len=queries,
        pairs_per_query=np.full_like(queries, round(mean_keys(model, job.seq_len)), dtype=np.float64),
        heads=heads, qk_dim=qk_dim, v_dim=v_dim,
        generation=setting.behaviour.flash_generation, backward=backward,
    )  # fmt: skip


def mean_keys(model: Model, seq_len: int) -> float:
    """Mean number of keys that one query meets under the causal mask and the window.

    With `window_period` n, every n-th layer sees the whole sequence.
    """
    causal = (seq_len + 1) / 2
    if not model.window or model.window >= seq_len:
        return causal
    windowed = model.window * (1 - (model.window - 1) / (2 * seq_len))
    if model.window_period <= 1:
        return windowed
    return (windowed * (model.window_period - 1) + causal) / model.window_period


def _elementwise(
    setting: LayerModel, keys: LayerKeys, tokens: Ints, moe: bool, *, backward: bool
) -> Floats:
    """Norms, residual additions, rotary, activation, dropout and routing: bytes over bandwidth."""
    model, behaviour = setting.model, setting.behaviour
    element = setting.job.precision.activation_bytes
    shared = tokens * model.hidden / np.where(keys.sequence_parallel > 0, keys.tp, 1)
    norm_passes = 2.0 if behaviour.fused_norm else NORM_EAGER[backward]
    residual_passes = 3.0 + (1.5 if behaviour.dropout else 0.0)
    passes = (
        model.norms_per_layer * (norm_passes + (1.0 if backward else 0.0)) + 2 * residual_passes
    )
    moved = shared * passes * element
    width = model.ffn
    if moe:
        assert model.experts is not None
        width = model.experts.shared_ffn
        routed = routed_tokens(model, keys, tokens)
        # Permute and unpermute each read and write every routed copy.
        moved = moved + routed * model.hidden * 4.0 * element
        moved = moved + routed * (3.0 if model.gated else 2.0) * element * (
            model.experts.ffn / keys.etp
        ) * (1.6 if backward else 1.0)
        if model.experts.expert_bias and not behaviour.expert_bias_fused:
            passes = EXPERT_BIAS_EAGER[backward]
            moved = moved + routed * (model.experts.ffn / keys.etp) * element * passes
    activation = tokens * (width / keys.tp) * (3.0 if model.gated else 2.0)
    activation = activation * (1.0 if behaviour.fused_activation else 2.0)
    moved = moved + activation * element * (1.6 if backward else 1.0)
    copied = tokens * (model.hidden / keys.tp) * behaviour.moved_widths
    moved = moved + copied * 2.0 * element
    if model.positions == "rope":
        rotated = tokens * ((model.heads + model.kv_heads) / keys.tp) * model.head_dim
        moved = moved + rotated * element * (2.0 if behaviour.fused_rotary else ROTARY_EAGER)
    count = 8.0 + (6.0 if moe else 0.0)
    return stream_time_s(setting.kernels, moved, count)


def _tensor_parallel(
    setting: LayerModel, keys: LayerKeys, tokens: Ints, backward_matmul: Floats, moe: bool
) -> tuple[Floats, Floats]:
    """Exposed time of the tensor-parallel collectives of one layer.

    Without sequence parallelism: two all-reduces forward, two backward. With it each becomes an
    all-gather and a reduce-scatter of the same total size (Korthikanti et al. 2022, §4.2.2), and
    backward gathers the two column-parallel inputs once more for the weight gradients; those hide
    behind the input-gradient product. An MoE layer's FFN pair is needed only by shared experts.
    """
    element = setting.job.precision.activation_bytes
    size = tokens * float(setting.model.hidden) * element
    fabric = setting.fabric
    group = place(fabric, keys.tp, stride=keys.tp_stride)
    gather = all_gather(fabric, size, group)
    scatter = reduce_scatter(fabric, size, group)
    reduce = all_reduce(fabric, size, group)
    spans = keys.tp * keys.tp_stride > fabric.levels[0].domain
    messages = np.where(spans, keys.tp * setting.behaviour.network_member_s, 0.0)
    gather, scatter, reduce = gather + messages, scatter + messages, reduce + 2.0 * messages
    pairs = 2.0 if not moe or (setting.model.experts and setting.model.experts.shared_ffn) else 1.0
    sp = keys.sequence_parallel > 0
    forward = pairs * np.where(sp, gather + scatter, reduce)
    if setting.behaviour.tensor_overlapped:
        # User-buffer kernels pipeline chunks of the collective with the product: the share that
        # cannot hide is the first chunk of four.
        forward = 0.25 * forward
        backward = 0.25 * pairs * np.where(sp, gather + scatter, reduce)
    else:
        hidden_behind = backward_matmul / 2.0
        regather = np.maximum(pairs * gather - hidden_behind, 0.0)
        backward = pairs * np.where(sp, gather + scatter, reduce) + np.where(sp, regather, 0.0)
    return forward, backward


def _context_parallel(
    setting: LayerModel, keys: LayerKeys, tokens: Ints, forward: Floats, backward: Floats
) -> tuple[Floats, Floats]:
    """Exposed time of passing keys and values around the context-parallel ring.

    Ring attention (arXiv 2310.01889) sends KV blocks while it computes on the previous ones; what
    is slower than the attention it hides behind is exposed. Backward passes KV and their gradients.
    Each of the cp steps ends with passes over its result: its output is rescaled and added to the one
    so far in fp32 (10 bytes an element), backward adds query and key-value gradients (6 bytes); see
    flash_attn_fwd_out_correction in Transformer Engine's context_parallel.py.
    """
    model, element = setting.model, setting.job.precision.activation_bytes
    latent = model.latent_attention
    width = latent.kv_rank + latent.rope_head_dim if latent else 0
    per_token = (
        np.where(keys.tp > 0, width, 0)
        if latent
        else (2.0 * ceil_div(model.kv_heads, keys.tp) * model.head_dim)
    )
    block = tokens * per_token * element
    group = place(setting.fabric, keys.cp, stride=keys.cp_stride)
    ring = all_gather(setting.fabric, block * keys.cp, group)
    hidden = (keys.cp - 1) / np.maximum(keys.cp, 1)
    exposed_forward = np.maximum(ring - forward * hidden, 0.1 * ring)
    exposed_backward = np.maximum(2.0 * ring - backward * hidden, 0.2 * ring)
    v_dim = latent.v_head_dim if latent else model.head_dim
    outputs = tokens * ceil_div(model.heads, keys.tp) * float(v_dim)
    steps = np.where(keys.cp > 1, keys.cp, 0) / setting.kernels.bandwidth_bytes_s
    merge_forward = steps * (10.0 * outputs)
    merge_backward = steps * 6.0 * (outputs + tokens * per_token)
    return exposed_forward + merge_forward, exposed_backward + merge_backward


def _expert_parallel(setting: LayerModel, keys: LayerKeys, tokens: Ints) -> Floats:
    """Dispatch and combine: two all-to-alls of the routed token copies among the ep ranks."""
    model, element = setting.model, setting.job.precision.activation_bytes
    size = routed_tokens(model, keys, tokens) / keys.etp * float(model.hidden) * element
    group = place(setting.fabric, keys.ep, stride=keys.ep_stride)
    return 2.0 * all_to_all(setting.fabric, size, group)
