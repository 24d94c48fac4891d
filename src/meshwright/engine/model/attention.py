"""Causal attention over a split sequence, and the rotary positions that go with it.

Under context parallelism the sequence is cut into 2·cp chunks and rank r holds chunks r and
2·cp-1-r (head-tail balance, as Llama 3 does, arXiv 2407.21783 §3.3.2), so that every rank has the
same amount of causal work.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from meshwright.engine.model.collectives import Axis, gather_tokens
from meshwright.engine.model.explicit import Scoring, explicit_attention
from meshwright.engine.model.masks import Masks
from meshwright.engine.model.numerics import Numerics, RopeScaling
from meshwright.engine.model.sparse import BlockMask, causal_blocks, has_sparse, sparse_attention


def local_positions(length: int, cp: Axis) -> torch.Tensor:
    """Positions in the whole sequence of this rank's `length` tokens, `[length]`."""
    if cp.size == 1:
        return torch.arange(length)
    chunk = length // 2
    head, tail = cp.rank * chunk, (2 * cp.size - 1 - cp.rank) * chunk
    return torch.cat([torch.arange(head, head + chunk), torch.arange(tail, tail + chunk)])


def everyones_positions(length: int, cp: Axis) -> list[torch.Tensor]:
    """`local_positions` of every rank of the axis, in their order."""
    ranks = (Axis(name="cp", size=cp.size, rank=rank) for rank in range(cp.size))
    return [local_positions(length, rank) for rank in ranks]


def take_local(x: torch.Tensor, cp: Axis, dim: int = 1) -> torch.Tensor:
    """Cut this rank's tokens out of whole sequences."""
    if cp.size == 1:
        return x
    return x.index_select(dim, local_positions(x.shape[dim] // cp.size, cp).to(x.device))


def inverse_frequencies(
    head_dim: int, numerics: Numerics, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Rotary frequencies `[head_dim / 2]`, stretched where the model asks for it."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(dtype) / head_dim
    frequency = 1.0 / numerics.rope_theta**exponents
    scaling = numerics.rope_scaling
    if scaling is None:
        return frequency
    if scaling.kind == "linear":
        return frequency / scaling.factor
    if scaling.kind == "yarn":
        share = _stretched_share(head_dim, numerics.rope_theta, scaling).to(dtype)
        return frequency * (1 - share) + frequency / scaling.factor * share
    # Llama 3.1: long waves are stretched, short ones kept, the band between is blended.
    wavelength = 2 * math.pi / frequency
    low = scaling.original_positions / scaling.low_freq_factor
    high = scaling.original_positions / scaling.high_freq_factor
    blend = (scaling.original_positions / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blended = (1 - blend) * frequency / scaling.factor + blend * frequency
    stretched = torch.where(wavelength > low, frequency / scaling.factor, frequency)
    return torch.where((wavelength <= low) & (wavelength >= high), blended, stretched)


def _stretched_share(head_dim: int, theta: float, scaling: RopeScaling) -> torch.Tensor:
    """How far YaRN stretches each frequency, `[head_dim / 2]` from 0 to 1 (arXiv 2309.00071 §3.2).

    Between the one that turns `beta_fast` times within the original length, and `beta_slow` times.
    """

    def place(turns: float) -> float:
        around = math.log(scaling.original_positions / (turns * 2 * math.pi))
        return head_dim * around / (2 * math.log(theta))

    low, high = place(scaling.beta_fast), place(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float64) - low) / max(high - low, 1e-3)
    return ramp.clamp(0, 1)


def rotary_table(
    positions: torch.Tensor, head_dim: int, numerics: Numerics, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines `[…, S, head_dim]` of positions `[…, S]` in the dtype of `like`.

    Computed in at least fp32; narrower than a head where only its first elements turn.
    """
    head_dim = int(head_dim * numerics.rotary_share)
    exact = torch.float64 if like.dtype == torch.float64 else torch.float32
    frequency = inverse_frequencies(head_dim, numerics, exact).to(like.device)
    angles = positions.to(like.device, exact)[..., None] * frequency
    angles = torch.cat([angles, angles], dim=-1)
    size = numerics.rotary_size()
    return (angles.cos() * size).to(like.dtype), (angles.sin() * size).to(like.dtype)


def lengthened(positions: torch.Tensor, numerics: Numerics, like: torch.Tensor) -> torch.Tensor:
    """What queries at positions `[…, S]` are multiplied by to stay sharp among many keys, `[…, S, 1]`.

    Llama 4's, after arXiv 2501.19399: a logarithm of how many times the floor fits into the length.
    """
    times = torch.floor((positions + 1) / numerics.temperature_floor)
    grown = torch.log1p(times) * numerics.temperature_scale + 1.0
    return grown.to(like.device, like.dtype)[..., None]


def rotate(
    x: torch.Tensor, table: tuple[torch.Tensor, torch.Tensor], pairs: bool = False
) -> torch.Tensor:
    """Apply rotary positions to the first elements of `[B, heads, S, head_dim]`, as many as the table has.

    Halves turn together; `pairs`: neighbours do, and come out as halves. Queries and keys that come
    out in another order alike have the same products.
    """
    width = table[0].shape[-1]
    if width < x.shape[-1]:
        turned = rotate(x[..., :width], table, pairs)
        return torch.cat([turned, x[..., width:]], dim=-1)
    if pairs:
        x = x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    if torch.compiler.is_compiling():  # the compiler makes one pass of the formula
        first, second = x.chunk(2, dim=-1)
        return x * table[0] + torch.cat([-second, first], dim=-1) * table[1]
    return _Turn.apply(x, *table)


class _Turn(torch.autograd.Function):
    """A rotation, whose gradient is the rotation back: three passes each way, nothing kept."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin, 1.0)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(gradient, cos, sin, -1.0), None, None


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, way: float) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    half = sin.chunk(2, dim=-1)[0]  # both halves turn alike
    out = x * cos
    head, tail = out.chunk(2, dim=-1)
    head.addcmul_(second, half, value=-way)
    tail.addcmul_(first, half, value=way)
    return out


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cp: Axis,
    masks: Masks | None,
    scoring: Scoring | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of `[B, heads, S, d]` queries over `[B, kv heads, S, d]` keys and their values.

    `S` is this rank's part of the sequence; keys and values of the others are all-gathered
    (backward: their gradients reduce-scattered). `masks` as `attention_masks` makes them; None:
    plainly causal. `scoring`: None: products over the root of the width. `sinks`: `[heads]`, a score of no
    value beside those of the keys.
    """
    scoring = scoring or Scoring(query.shape[-1] ** -0.5)
    if masks is None:
        return _attended(query, key, value, None, scoring, sinks)
    if cp.size > 1:
        widths = (key.shape[-1], value.shape[-1])
        both = gather_tokens(torch.cat([key, value], -1), cp, dim=2)
        order = torch.cat(everyones_positions(query.shape[2], cp)).argsort().to(both.device)
        key, value = both.index_select(2, order).split(widths, -1)
    outs = []
    for part, mask in zip(query.chunk(len(masks), 2), masks, strict=True):
        keys, values = (t[:, :, : mask.shape[-1]] for t in (key, value))
        outs.append(_attended(part, keys, values, mask, scoring, sinks))
    return outs[0] if len(outs) == 1 else torch.cat(outs, dim=2)


def _attended(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | BlockMask | None,
    scoring: Scoring,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """By a library kernel where one computes it; `mask` None: causal."""
    bent = bool(scoring.softcap) or sinks is not None
    if bent and mask is None and has_sparse(query, query.shape[-1]):
        mask = causal_blocks(query.shape[2], query.device)
    if isinstance(mask, BlockMask):
        return sparse_attention(query, key, value, mask, scoring, sinks)
    # On the CPU values of another width than the keys' fall back to holding every score.
    uneven = value.shape[-1] != query.shape[-1] and not query.is_cuda
    if bent or uneven:
        return explicit_attention(query, key, value, mask, scoring, sinks)
    return F.scaled_dot_product_attention(
        query, key, value, mask, is_causal=mask is None, scale=scoring.scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
