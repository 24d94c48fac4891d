"""Attention whose scores no library kernel computes: capped, with a sink, or of unequal widths.

Like a fused kernel it keeps queries, keys, values, the output and one logarithm a query, and makes
the scores again in backward, a few queries at a time; the softmax is Milakov and Gimelshein's,
arXiv 1805.02867.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from meshwright.engine.model.kernels import wide

_SCORES_AT_ONCE = 2**22
"""Scores that are held at a time on the CPU: 16 MiB in fp32."""
_GPU_SCORES_AT_ONCE = 2**24


def cut_into(scores: int) -> None:
    """Hold this many scores at a time on the CPU: few, to prove that chunks fit."""
    global _SCORES_AT_ONCE
    _SCORES_AT_ONCE = scores


Mask: TypeAlias = torch.Tensor | Callable[[slice], torch.Tensor] | None
"""Added to scores: `[Q, K]` or `[B, 1, Q, K]`; or what gives that of a slice of the queries; None: causal."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a query's product with a key becomes a score."""

    scale: float
    softcap: float = 0.0
    """Scores are bent towards ± this: `cap · tanh(score / cap)`; 0: as they are."""

    def scores(self, grouped: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """`[B, kv heads, group, Q, K]` of queries `[…, group, Q, d]` and keys `[…, K, d]`."""
        raw = (grouped @ key.unsqueeze(2).transpose(-1, -2)).mul_(self.scale)
        return raw.div_(self.softcap).tanh_().mul_(self.softcap) if self.softcap else raw

    def slope_of(self, scores: torch.Tensor) -> torch.Tensor | float:
        """The derivative of finite scores by the query's product with the key."""
        if not self.softcap:
            return self.scale
        return (1 - (scores / self.softcap).square()).mul_(self.scale)


def explicit_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scoring: Scoring,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """`[B, heads, Q, v]` of queries `[B, heads, Q, d]`, keys `[B, kv heads, K, d]` and values.

    Args:
        query: `key` and `value` `[B, kv heads, K, v]` likewise.
        mask: `[Q, K]` or `[B, 1, Q, K]`, added to the scores; None: causal, and Q = K.
        scoring: how products become scores.
        sinks: `[heads]`, a score that every query has besides its keys', and that has no value.
    """
    out: torch.Tensor = _Explicit.apply(query, key, value, mask, scoring, sinks)
    return out


class _Explicit(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Any, key: Any, value: Any, mask: Any, scoring: Scoring, sinks: Any
    ) -> torch.Tensor:
        out, logsum = explicit_forward(query, key, value, mask, scoring, sinks)
        ctx.save_for_backward(query, key, value, out, logsum, mask, sinks)
        ctx.scoring = scoring
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out, logsum, mask, sinks = ctx.saved_tensors
        found = explicit_backward(gradient, query, key, value, out, logsum, mask, ctx.scoring)
        d_sinks = None
        if sinks is not None:
            shared = (gradient.to(logsum.dtype) * out).sum(-1, keepdim=True)
            d_sinks = sinks_gradient(sinks, logsum, shared)
        return *found, None, None, d_sinks


def explicit_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Mask,
    scoring: Scoring,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention `[B, heads, Q, v]`, and the logarithm `[B, heads, Q, 1]` of each query's sum, in fp32 or more.

    A query that may see no key gets zeros, and a logarithm of -inf. Arguments as in `explicit_attention`.
    """
    exact = wide(query.dtype)
    grouped = query.unflatten(1, (key.shape[1], -1))
    keys, values = key.to(exact), value.to(exact).unsqueeze(2)
    # Heads beside each other in memory, as the product after attention takes them.
    whole = query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1])
    whole = whole.transpose(1, 2)
    out = whole.unflatten(1, (key.shape[1], -1))
    logsum = torch.empty(*grouped.shape[:-1], 1, dtype=exact, device=query.device)
    for rows in _chunks(grouped, key.shape[2]):
        scores = scoring.scores(grouped[..., rows, :].to(exact), keys)
        scores += _rows_of(mask, rows, scores)
        total = scores.logsumexp(-1, keepdim=True)
        if sinks is not None:
            total = torch.logaddexp(total, _by_head(sinks, grouped, exact))
        logsum[..., rows, :] = total
        finite = total.clamp_min(torch.finfo(exact).min)
        out[..., rows, :] = (scores.sub_(finite).exp_() @ values).to(out.dtype)
    return whole, logsum.flatten(1, 2)


def explicit_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsum: torch.Tensor,
    mask: Mask,
    scoring: Scoring,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of queries, keys and values; `out` and `logsum` as `explicit_forward` gives them.

    Both may be those of more keys than these: what comes back is then these keys' share.
    """
    exact = logsum.dtype
    grouped, gradient, out, logsum = (
        t.unflatten(1, (key.shape[1], -1)) for t in (query, gradient, out, logsum)
    )
    keys, values = key.to(exact), value.to(exact)
    d_query, d_key, d_value = torch.empty_like(grouped), keys * 0, values * 0

    def add(rows: slice) -> None:  # a function of its own, so that no scores outlive their turn
        asked, given, total = (t[..., rows, :].to(exact) for t in (grouped, gradient, logsum))
        shared = (given * out[..., rows, :]).sum(-1, keepdim=True)
        scores = scoring.scores(asked, keys)
        slope = scoring.slope_of(scores)
        weights = scores.add_(_rows_of(mask, rows, scores)).sub_(total).exp_()
        d_value.add_((weights.transpose(-1, -2) @ given).sum(2))
        d_scores = given @ values.unsqueeze(2).transpose(-1, -2)
        d_scores.sub_(shared).mul_(weights).mul_(slope)
        d_query[..., rows, :] = (d_scores @ keys.unsqueeze(2)).to(query.dtype)
        d_key.add_((d_scores.transpose(-1, -2) @ asked).sum(2))

    for rows in _chunks(grouped, key.shape[2]):
        add(rows)
    return d_query.flatten(1, 2), d_key.to(key.dtype), d_value.to(value.dtype)


def _chunks(grouped: torch.Tensor, keys: int) -> Iterator[slice]:
    """Queries of `[B, kv heads, group, Q, d]`, so many at a time that their scores fit."""
    fit = _GPU_SCORES_AT_ONCE if grouped.is_cuda else _SCORES_AT_ONCE
    queries = grouped.shape[3]
    step = max(1, fit // (grouped.shape[:3].numel() * keys))
    return (slice(first, min(first + step, queries)) for first in range(0, queries, step))


def _rows_of(mask: Mask, rows: slice, like: torch.Tensor) -> torch.Tensor:
    """The mask of these queries, to be added to scores `[B, kv heads, group, Q, K]`."""
    if mask is None:
        hidden = torch.full(like.shape[-2:], float("-inf"), dtype=like.dtype, device=like.device)
        return hidden.triu(rows.start + 1)
    part = mask(rows) if callable(mask) else mask[..., rows, :]
    part = part.to(like.dtype)
    return part if part.dim() == 2 else part.unsqueeze(2)


def _by_head(sinks: torch.Tensor, grouped: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Sinks `[heads]` as `[1, kv heads, group, 1, 1]`."""
    return sinks.to(dtype).view(1, *grouped.shape[1:3], 1, 1)


def sinks_gradient(sinks: torch.Tensor, logsum: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    """`[heads]`: a sink takes its share of each query's weight and gives nothing for it.

    `logsum` and `shared` `[B, heads, Q, 1]`: the logarithm of a query's sum, and the product of its output
    with the output's gradient.
    """
    share = (sinks.to(logsum.dtype)[:, None, None] - logsum).exp()
    return -(share * shared).sum((0, 2, 3)).to(sinks.dtype)
