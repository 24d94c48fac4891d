"""Layers that mix tokens otherwise than by full softmax attention: windows, sparse, linear.

Sizes are those of transformers' modules (a differential test compares parameter counts). A scan is priced as
flash attention over as many keys as its products amount to, no faster than scans were measured at
(`kernels.SCAN_FLOPS_PER_SM`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from meshwright.costs.columns import Floats
from meshwright.specs.model import Mixer, Model

CHUNK = 128
"""Tokens of a chunk, inside which the state-space and delta-rule kernels work like attention
(`chunk_size` of Mamba-2's configurations; 64 in the delta rule's)."""


@dataclass(frozen=True, slots=True)
class LayerShares:
    """Shares of a model's dense (or mixture-of-experts) layers that have each kind of part."""

    attention: float
    linear: float
    ffn: float
    parts: float = 2.0
    """Parts of the mean layer, each with its own residual sum: two but where layers are blocks of one part."""


def layer_shares(model: Model, *, moe: bool) -> LayerShares:
    """Return the shares among the layers with (`moe`) or without routed experts.

    Of a mixture-of-experts layer `ffn` is the router and the shared experts: 1.
    """
    if not model.layer_kinds:
        return LayerShares(1.0, 0.0, 1.0)
    return _shares(model.layer_kinds, moe)


@lru_cache(maxsize=64)
def _shares(layer_kinds: tuple[str, ...], moe: bool) -> LayerShares:
    """Counted once for a list of kinds: pricing asks for each part of each stage."""
    kinds = [kind.split("+") for kind in layer_kinds if kind.endswith("+moe") == moe]
    if not kinds:
        return LayerShares(1.0, 0.0, 1.0)
    count = len(kinds)
    attention = sum(mixer in ("attention", "window", "both") for mixer, _ in kinds)
    linear = sum(mixer in ("linear", "both") for mixer, _ in kinds)
    ffn = sum(ffn != "none" for _, ffn in kinds)
    mixing = sum(mixer != "none" for mixer, _ in kinds)
    return LayerShares(attention / count, linear / count, ffn / count, (mixing + ffn) / count)


def window_share(model: Model) -> float:
    """Share of the attention layers whose attention is limited to a window."""
    return _window_share(model.layer_kinds)


@lru_cache(maxsize=64)
def _window_share(layer_kinds: tuple[str, ...]) -> float:
    mixers = [kind.partition("+")[0] for kind in layer_kinds]
    attending = [mixer for mixer in mixers if mixer in ("attention", "window", "both")]
    return attending.count("window") / len(attending) if attending else 0.0


def equivalent_keys(mixer: Mixer) -> float:
    """Keys of a flash attention with as many products per query: half a chunk, and the state's.

    Reading and updating a state of key_dim × head_dim are 4 · key_dim · head_dim FLOPs a token and
    head; attention does 2 · (key_dim + head_dim) per key.
    """
    if mixer.kind == "short-conv":
        return 1.0
    state = 2.0 * mixer.key_dim * mixer.head_dim / (mixer.key_dim + mixer.head_dim)
    # The delta rule solves a triangular system in each chunk: as much again.
    inside = CHUNK / 2.0 * (2.0 if mixer.kind in ("gated-delta", "kda") else 1.0)
    return inside + state


Product = tuple[float, float, str]
"""Output width, input width, and the side that tensor parallelism splits: out, into or none."""


def mixer_matrices(model: Model, mixer: Mixer) -> list[Product]:
    """Matrices of one linear layer."""
    hidden, width, keys = float(model.hidden), float(mixer.width), float(mixer.key_width)
    out: list[Product] = [(hidden, width, "into")]
    if mixer.kind == "mamba2":
        return [(2 * width + 2 * keys + mixer.heads, hidden, "out"), *out]
    if mixer.kind == "mamba":
        inner: list[Product] = [(mixer.rank + 2.0 * mixer.key_dim, width, "into")]
        return [(2 * width, hidden, "out"), *inner, (width, float(mixer.rank), "out"), *out]
    if mixer.kind == "gated-delta":
        return [(2 * keys + 2 * width, hidden, "out"), (2.0 * mixer.heads, hidden, "out"), *out]
    if mixer.kind == "kda":
        gates: list[Product] = [(width, hidden, "out")] * 2
        if mixer.rank:
            gates = [(float(mixer.rank), hidden, "none"), (width, float(mixer.rank), "out")] * 2
        return [
            (2 * keys + width, hidden, "out"),
            *gates,
            (float(mixer.heads), hidden, "out"),
            *out,
        ]
    if mixer.kind == "lightning":
        return [(3 * width, hidden, "out"), (width, hidden, "out"), *out]
    return [(3 * hidden, hidden, "out"), *out]


def mixer_parameters(model: Model, mixer: Mixer, tp: Floats) -> Floats:
    """Parameters of one linear layer's mixer on a rank of `tp`: matrices, convolution, gates, norms."""
    width, keys, heads = float(mixer.width), float(mixer.key_width), float(mixer.heads)
    held = np.zeros_like(tp)
    for out, into, split in mixer_matrices(model, mixer):
        held = held + np.ceil(out / (tp if split == "out" else 1.0)) * np.ceil(
            into / (tp if split == "into" else 1.0)
        )
        if mixer.bias:
            held = held + out / (tp if split == "out" else 1.0)
    channels = {
        "mamba2": width + 2 * keys, "mamba": width, "gated-delta": 2 * keys + width,
        "kda": 2 * keys + width, "lightning": 0.0, "short-conv": float(model.hidden),
    }[mixer.kind]  # fmt: skip
    if mixer.conv:
        held = held + channels / tp * (mixer.conv + int(mixer.conv_bias))
    scalars = {
        "mamba2": 3 * heads, "mamba": width * (mixer.key_dim + 2), "gated-delta": 2 * heads,
        "kda": heads + width, "lightning": 0.0, "short-conv": 0.0,
    }[mixer.kind]  # fmt: skip
    norm = width if mixer.kind in ("mamba2", "lightning") else float(mixer.head_dim)
    inner = mixer.rank + 2.0 * mixer.key_dim if mixer.inner_norms else 0.0
    return np.asarray(held + scalars / tp + (norm if mixer.norm else 0.0) + inner)


def indexer_parameters(model: Model) -> float:
    """Parameters of the indexer of sparse attention: queries, keys with their norm, head weights.

    Of the mean layer, where some take over the keys that another's indexer picked.
    """
    spec = model.indexer
    if spec is None:
        return 0.0
    queries = (model.latent_attention.q_rank if model.latent_attention else 0) or model.hidden
    held = queries * spec.heads * spec.head_dim + model.hidden * spec.head_dim
    return model.indexed_share * float(held + 2 * spec.head_dim + model.hidden * spec.heads)


def mixer_bytes(mixer: Mixer, element: float) -> float:
    """Bytes that one linear layer keeps per token: projections before and after the convolution, the
    gate and the output, and one fp32 state a chunk and head."""
    before = 2.0 * mixer.key_width + mixer.width
    after = before if mixer.conv else 0.0
    states = 4.0 * mixer.heads * mixer.key_dim * mixer.head_dim / CHUNK
    return (before + after + 2.0 * mixer.width) * element + states
