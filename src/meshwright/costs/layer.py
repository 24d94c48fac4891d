"""Time of one transformer layer on one rank, forward and backward, by named part.

A layer's time depends only on (tp, cp, ep, etp, micro-batch, sequence parallel) and on how those
groups sit on the cluster, so the step model prices each distinct combination once.
Parts: `matmul`, `attention`, `elementwise`, `tensor_parallel`, `context_parallel`,
`expert_parallel`. Every part is an array of shape (rows,), in seconds per micro-batch and layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from meshwright.costs.adapters import adapter_times, unpack_times
from meshwright.costs.collectives import all_gather, all_reduce, reduce_scatter
from meshwright.costs.columns import Floats, Ints
from meshwright.costs.context_parallel import GATHER, RING, context_parallel_s
from meshwright.costs.data_parallel import overlap_slowdown
from meshwright.costs.experts import (
    dispatch_s,
    expert_tensor_s,
    overlapped_dispatch_s,
    routed_tokens,
    routing_map_s,
)
from meshwright.costs.fabric import place
from meshwright.costs.kernels import (
    FEWEST_SMS,
    ceil_div,
    flash_attention_time_s,
    scan_time_s,
    stream_time_s,
    unfused_attention_time_s,
)
from meshwright.costs.layer_setting import LayerKeys, LayerModel
from meshwright.costs.linears import expert_matmuls, weighted_products
from meshwright.costs.mixers import LayerShares, equivalent_keys, layer_shares, window_share
from meshwright.costs.module_times import module_times_s
from meshwright.costs.selective import repeated_forward_s
from meshwright.costs.tables import table
from meshwright.specs.model import Mixer, Model

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


FIRST_CHUNK = 0.25
"""Share of a tensor-parallel collective that user-buffer kernels cannot hide: the first of four chunks."""


STREAM_PASSES = ((4.0, 2.0), (9.0, 3.0))
"""Widths moved by the mixing of residual streams around half a layer, forward and backward, for each stream
and beside them, in fused kernels (mHC, arXiv 2512.24880 section 4.3): streams are read for the mapping, for
the half's input and for its output, and written once; backward reads them for each, and reads and adds to
their gradients. The paper's own kernels cost its 27B model 6.7 % of a step."""


ROTARY_EAGER = 13.0
"""Elements moved by a rotary embedding written out: rotate half, two products, a sum."""


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Seconds per part, forward and backward, of one layer for one micro-batch.

    `selective` is the time of the forward that selective recomputation repeats.
    `hidden_dispatch` is the exposed time of the experts' dispatch in each direction where it runs
    beside another micro-batch's compute; None where nothing hides it. `modules` are the forward
    times of the modules that selective recomputation may name (`costs.recompute_modules`).
    """

    forward: dict[str, Floats]
    backward: dict[str, Floats]
    selective: Floats
    hidden_dispatch: Floats | None = None
    modules: dict[str, Floats] = field(default_factory=dict)

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


def layer_time(setting: LayerModel, keys: LayerKeys, moe: bool) -> LayerTime:
    """Price one dense or mixture-of-experts layer for every row of `keys`."""
    job = setting.job
    tokens = keys.micro_batch * ceil_div(job.seq_len, keys.cp)
    forward, backward, expert_forward = _products(setting, keys, tokens, moe)
    routed = np.zeros(len(tokens))
    if moe:
        routed = routed_tokens(setting.model, job, keys, tokens).astype(np.float64)
    if job.frozen:
        adapter_forward, adapter_backward = adapter_times(
            setting.model, job, setting.kernels, tokens, keys.tp, moe
        )
        unpack_forward, unpack_backward = unpack_times(
            setting.model, job, setting.kernels, keys.tp, moe
        )
        forward["matmul"] = forward["matmul"] + adapter_forward + unpack_forward
        backward["matmul"] = backward["matmul"] + adapter_backward + unpack_backward
    share = layer_shares(setting.model, moe=moe)
    forward["attention"] = _mixing(setting, keys, share, backward=False)
    backward["attention"] = _mixing(setting, keys, share, backward=True)
    forward["elementwise"] = _elementwise(setting, keys, tokens, moe, backward=False)
    backward["elementwise"] = _elementwise(setting, keys, tokens, moe, backward=True)
    forward["tensor_parallel"], backward["tensor_parallel"] = _tensor_parallel(
        setting, keys, tokens, (forward["matmul"], backward["matmul"]), moe
    )
    forward["context_parallel"], backward["context_parallel"] = context_parallel_s(
        setting, keys, tokens, forward["attention"], backward["attention"]
    )
    forward["expert_parallel"] = np.zeros(len(tokens))
    if moe:
        sent, shared = dispatch_s(setting, keys, tokens), expert_tensor_s(setting, keys, tokens)
        forward["expert_parallel"] = sent + shared
    backward["expert_parallel"] = forward["expert_parallel"].copy()
    if moe:
        forward["expert_parallel"] = forward["expert_parallel"] + routing_map_s(
            setting, keys, tokens
        )
    hidden = None
    if moe and setting.behaviour.expert_overlapped:
        hidden = overlapped_dispatch_s(forward, backward)
    again = repeated_forward_s(setting.behaviour, setting.model, forward, moe=moe)
    modules = module_times_s(setting, keys, forward, expert_forward, routed, moe=moe)
    return LayerTime(forward, backward, again, hidden, modules)


def _products(
    setting: LayerModel, keys: LayerKeys, tokens: Ints, moe: bool
) -> tuple[dict[str, Floats], dict[str, Floats], Floats]:
    """Matrix products of the mean layer, forward and backward, and those of its experts forward.

    Where some layers stay in 16 bits the mean layer has their share of both.
    """
    forward, backward = weighted_products(setting, keys, tokens, moe)
    experts: Floats = np.zeros(len(tokens))
    if moe:
        experts, experts_backward = expert_matmuls(setting, keys, tokens)
        forward, backward = forward + experts, backward + experts_backward
    if setting.wide is not None:
        share = min(setting.behaviour.layers_16bit / setting.model.layers, 1.0)
        whole = replace(setting, kernels=setting.wide, wide=None)
        there, back, wide = _products(whole, keys, tokens, moe)
        forward = (1.0 - share) * forward + share * there["matmul"]
        backward = (1.0 - share) * backward + share * back["matmul"]
        experts = (1.0 - share) * experts + share * wide
    return {"matmul": forward}, {"matmul": backward}, experts


def _mixing(setting: LayerModel, keys: LayerKeys, share: LayerShares, *, backward: bool) -> Floats:
    """Time of what mixes tokens in the mean layer: attention, its indexer, or a linear scan."""
    model = setting.model
    time = share.attention * _attention(setting, keys, backward=backward)
    queries = ceil_div(setting.job.seq_len, keys.cp)
    generation = setting.behaviour.flash_generation
    if model.indexer is not None:
        # It has a place only where attention meets what it picks, and scores what stands for its keys.
        causal = (setting.job.seq_len + 1) / 2 / model.indexer.compress
        picked = share.attention * (1.0 - window_share(model) if model.layer_kinds else 1.0)
        picked = picked * model.indexed_share * model.picked_share
        time = time + picked * flash_attention_time_s(
            setting.kernels, sequences=keys.micro_batch, query_len=queries,
            pairs_per_query=np.full_like(queries, round(causal), dtype=np.float64),
            heads=np.full_like(queries, model.indexer.heads), qk_dim=model.indexer.head_dim, v_dim=0,
            generation=generation, backward=backward,
        )  # fmt: skip
    if share.linear and model.mixer is not None:
        time = time + share.linear * _scan(setting, keys, model.mixer, backward=backward)
    return time


def _scan(setting: LayerModel, keys: LayerKeys, mixer: Mixer, *, backward: bool) -> Floats:
    """Time of a linear mixer's scan: as flash attention over as many keys, or as what scans reach."""
    queries = ceil_div(setting.job.seq_len, keys.cp)
    heads = ceil_div(mixer.heads, keys.tp)
    pairs = np.full_like(queries, round(equivalent_keys(mixer)), dtype=np.float64)
    as_attention = flash_attention_time_s(
        setting.kernels, sequences=keys.micro_batch, query_len=queries, pairs_per_query=pairs,
        heads=heads, qk_dim=mixer.key_dim, v_dim=mixer.head_dim,
        generation=setting.behaviour.flash_generation, backward=backward,
    )  # fmt: skip
    if setting.kernels.sms < FEWEST_SMS:
        return as_attention
    flops = 2.0 * pairs * (mixer.key_dim + mixer.head_dim) * heads * queries * keys.micro_batch
    return np.maximum(as_attention, scan_time_s(setting.kernels, flops, backward))


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
    keys_met = mean_keys(model, job.seq_len) if setting.keys is None else setting.keys
    pairs = np.full_like(queries, round(keys_met), dtype=np.float64)
    return flash_attention_time_s(
        setting.kernels, sequences=keys.micro_batch, query_len=queries,
        pairs_per_query=pairs * last_rank_share(setting, keys),
        heads=heads, qk_dim=qk_dim, v_dim=v_dim,
        generation=setting.behaviour.flash_generation, backward=backward,
    )  # fmt: skip


def last_rank_share(setting: LayerModel, keys: LayerKeys) -> Floats:
    """Keys that a query of the busiest context-parallel rank meets, over the mean.

    Queries of the last of cp equal pieces meet (cp - 1/2) / cp of the sequence, all queries 1/2 on average: 2 - 1/cp
    times as many. Whoever trades sequence for heads sees the whole sequence.
    """
    if setting.behaviour.context_balanced:
        return np.ones(len(keys.cp))
    pieces = (keys.cp_method == RING) | (keys.cp_method == GATHER)
    return np.where(pieces, 2.0 - 1.0 / keys.cp, 1.0)


def mean_keys(model: Model, seq_len: int) -> float:
    """Mean number of keys that one query meets under the causal mask and the window.

    With `window_period` n, every n-th layer sees the whole sequence.
    """
    causal = (seq_len + 1) / 2
    if model.indexer is not None and model.indexer.top_k < seq_len:
        top, share = model.indexer.top_k, model.picked_share
        causal = share * top * (1 - (top - 1) / (2 * seq_len)) + (1 - share) * causal
    if not model.window or model.window >= seq_len:
        return causal
    windowed = model.window * (1 - (model.window - 1) / (2 * seq_len))
    if model.layer_kinds:
        share = window_share(model)
        return windowed * share + causal * (1 - share)
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
    if model.residual_streams > 1:
        per_stream, beside = STREAM_PASSES[backward]
        residual_passes += per_stream * model.residual_streams + beside - 3.0
    share = layer_shares(model, moe=moe)
    passes = model.norms_per_layer * (norm_passes + (1.0 if backward else 0.0))
    passes += share.parts * residual_passes
    moved = shared * passes * element
    width = model.ffn
    if moe:
        assert model.experts is not None
        width = model.experts.shared_ffn
        routed = routed_tokens(model, setting.job, keys, tokens)
        # Permute and unpermute each read and write every routed copy.
        moved = moved + routed * model.expert_hidden * 4.0 * element
        moved = moved + routed * (3.0 if model.gated else 2.0) * element * (
            model.experts.ffn / keys.etp
        ) * (1.6 if backward else 1.0)
        if model.experts.expert_bias and not behaviour.expert_bias_fused:
            passes = EXPERT_BIAS_EAGER[backward]
            moved = moved + routed * (model.experts.ffn / keys.etp) * element * passes
    activation = share.ffn * tokens * (width / keys.tp) * (3.0 if model.gated else 2.0)
    activation = activation * (1.0 if behaviour.fused_activation else 2.0)
    moved = moved + activation * element * (1.6 if backward else 1.0)
    copied = tokens * (model.hidden / keys.tp) * behaviour.moved_widths
    moved = moved + copied * 2.0 * element
    if share.linear and model.mixer is not None:
        # The convolution reads and writes its channels; gates and the gated norm read two widths.
        streams = 2.0 * model.mixer.key_width + 3.0 * model.mixer.width
        moved = moved + share.linear * tokens * (streams / keys.tp) * 2.0 * element
    if model.positions == "rope":
        rotated = (
            share.attention * tokens * ((model.heads + model.kv_heads) / keys.tp) * model.head_dim
        )
        moved = moved + rotated * element * (2.0 if behaviour.fused_rotary else ROTARY_EAGER)
    count = 8.0 + (6.0 if moe else 0.0)
    return stream_time_s(setting.kernels, moved, count)


def _tensor_parallel(
    setting: LayerModel, keys: LayerKeys, tokens: Ints, matmul: tuple[Floats, Floats], moe: bool
) -> tuple[Floats, Floats]:
    """Exposed time of the tensor-parallel collectives of one layer.

    Without sequence parallelism: two all-reduces forward, two backward. With it each becomes an
    all-gather and a reduce-scatter of the same total size (Korthikanti et al. 2022, §4.2.2), and
    backward gathers the two column-parallel inputs once more for the weight gradients; those hide
    behind the input-gradient product. Where products that read one input do not share its collective,
    there are more of them (`input_reductions`, `input_gathers`). An MoE layer's FFN pair is needed only by shared experts,
    a block of one part has one pair.
    """
    element = setting.job.precision.activation_bytes
    size = tokens * float(setting.model.hidden) * element
    fabric = setting.fabric
    group = place(fabric, keys.tp, stride=keys.tp_stride)
    gather = all_gather(fabric, size, group)
    scatter = reduce_scatter(fabric, size, group)
    reduce = all_reduce(fabric, size, group)
    spans = keys.tp * keys.tp_stride > fabric.levels[0].domain
    messages = np.where(spans, keys.tp * member_s(), 0.0)
    gather, scatter, reduce = gather + messages, scatter + messages, reduce + 2.0 * messages
    share = layer_shares(setting.model, moe=moe)
    shared = not moe or bool(setting.model.experts and setting.model.experts.shared_ffn)
    pairs = share.parts - (0.0 if shared else share.ffn)
    sp = keys.sequence_parallel > 0
    gathers = pairs / 2.0 * setting.behaviour.input_gathers
    reductions = pairs / 2.0 * setting.behaviour.input_reductions
    split = gathers * gather + pairs * scatter
    forward = np.where(sp, split, pairs * reduce)
    regather = np.maximum(gathers * gather - matmul[1] / 2.0, 0.0)
    back = np.where(sp, gathers * scatter + pairs * gather, reductions * reduce)
    backward = back + np.where(sp, regather, 0.0)
    if setting.behaviour.tensor_overlapped:
        overlapped = (_pipelined(forward, matmul[0]), _pipelined(back, matmul[1] / 2.0))
        # User buffers are memory of NVLink peers: a group over hosts has none.
        forward = np.where(spans, forward, overlapped[0])
        backward = np.where(spans, backward, overlapped[1])
    return forward, backward


def member_s() -> float:
    """More time per member of a tensor-parallel collective over hosts, from data/overlap.toml."""
    return float(table("overlap")["tensor_over_hosts"]["member_s"])


def _pipelined(collective: Floats, product: Floats) -> Floats:
    """Exposed time of a collective that is cut into chunks and pipelined with its product.

    The first chunk of four has nothing to hide behind; what outlasts the product sticks out; what
    hides slows the product down.
    """
    out = np.maximum(collective - product, FIRST_CHUNK * collective)
    return np.asarray(out + overlap_slowdown() * (collective - out))
