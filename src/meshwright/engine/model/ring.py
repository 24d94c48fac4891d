"""Ring attention: keys and values travel from rank to rank while partial results are merged.

Liu et al., arXiv 2310.01889, with the online softmax of Milakov and Gimelshein, arXiv 1805.02867.
Against all-gathering, a rank holds two blocks of keys and values instead of all; the gradients of
keys and values travel along and arrive home after a full round. No scores are held: a library kernel
computes each block, or a few queries at a time do where there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from meshwright.engine.model.collectives import Axis
from meshwright.engine.model.explicit import (
    Scoring,
    explicit_backward,
    explicit_forward,
    sinks_gradient,
)  # fmt: skip
from meshwright.engine.model.fused import fused_backward, fused_forward, is_fused
from meshwright.engine.model.kernels import wide
from meshwright.engine.model.masks import added, seen

_Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def ring_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: list[torch.Tensor],
    cp: Axis,
    window: int,
    starts: torch.Tensor | None = None,
    scoring: Scoring | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of `[B, heads, S, d]` queries over all ranks' keys and values.

    Args:
        query: this rank's queries; `key` `[B, kv heads, S, d]`, `value` `[B, kv heads, S, v]` likewise.
        positions: for each rank of the axis, the positions of its S tokens, as `everyones_positions`.
        cp: the context-parallel axis.
        window: as `masks.seen` takes it.
        starts: positions `[B, S]` at which the documents of this rank's tokens start.
        scoring: how products become scores; None: over the root of the width.
        sinks: `[heads]`, a score that every query has besides its keys', and that has no value.
    """
    scoring = scoring or Scoring(query.shape[-1] ** -0.5)
    out: torch.Tensor = _Ring.apply(
        query, key, value, positions, cp, window, starts, scoring, sinks
    )
    return out


@dataclass(frozen=True, slots=True)
class _Block:
    """This rank's queries beside the keys and values that rank `source` began with."""

    positions: list[torch.Tensor]
    cp: Axis
    source: int
    window: int
    starts: torch.Tensor | None
    scoring: Scoring
    fused: bool

    def visible(self) -> tuple[slice, slice]:
        """Which of the queries see any key at all, and which keys any query sees.

        Of a rank before this one all see the first chunk alone; of one after, the second chunk of queries
        sees both (`local_positions`).
        """
        half = len(self.positions[self.cp.rank]) // 2
        if self.source < self.cp.rank:
            return slice(None), slice(half)
        return slice(half if self.source > self.cp.rank else 0, None), slice(None)

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the visible queries make of the visible keys alone, and the logarithms of their sums."""
        if self.fused:
            causal = self.source == self.cp.rank
            return fused_forward(query, key, value, causal, self.scoring.scale)
        return explicit_forward(query, key, value, self._mask(query), self.scoring)

    def backward(
        self, gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        out: torch.Tensor, logsum: torch.Tensor,
    ) -> _Tensors:  # fmt: skip
        """What the block adds to the gradients of queries, keys and values."""
        if self.fused:
            causal = self.source == self.cp.rank
            return fused_backward(
                gradient, query, key, value, out, logsum, causal, self.scoring.scale
            )
        return explicit_backward(
            gradient, query, key, value, out, logsum, self._mask(query), self.scoring
        )

    def _mask(self, like: torch.Tensor) -> Callable[[slice], torch.Tensor]:
        """What is added to the scores of some of the visible queries, made when they are."""
        rows, columns = self.visible()
        own = self.positions[self.cp.rank][rows].to(like.device)
        theirs = self.positions[self.source][columns].to(like.device)
        begun = None if self.starts is None else self.starts[:, rows]

        def mask(part: slice) -> torch.Tensor:
            first = None if begun is None else begun[:, part]
            return added(seen(own[part], theirs, self.window, first), wide(like.dtype))

        return mask


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Any, key: Any, value: Any, positions: Any, cp: Axis, window: int,
        starts: Any, scoring: Scoring, sinks: Any,
    ) -> torch.Tensor:  # fmt: skip
        plain = not window and starts is None
        fused = plain and is_fused(query, value, scoring)
        block, widths = torch.cat([key, value], -1), (key.shape[-1], value.shape[-1])
        for turn in range(cp.size):
            source = (cp.rank - turn) % cp.size
            here = _Block(positions, cp, source, window, starts, scoring, fused)
            rows, columns = here.visible()
            keys, values = block[:, :, columns].split(widths, -1)
            part, log = here.forward(query[:, :, rows], keys, values)
            if turn == 0:  # its own block, of which every query sees itself
                out, logsum = part.to(log.dtype), log
                if sinks is not None:
                    logsum = torch.logaddexp(log, sinks.to(log.dtype)[:, None, None])
                    out = out * (log - logsum).exp()
            else:
                _merge(out[:, :, rows], logsum[:, :, rows], part, log)
            if turn + 1 < cp.size:
                block = _pass_on(block, cp)
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, logsum, starts, sinks)
        ctx.blocks = (positions, cp), (window, starts, scoring, fused)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out, logsum, _starts, sinks = ctx.saved_tensors
        (positions, cp), rest = ctx.blocks
        exact = logsum.dtype
        block, widths = torch.cat([key, value], -1), (key.shape[-1], value.shape[-1])
        # Gradients of the block's keys and values, which travel with it.
        travelling = torch.zeros_like(block, dtype=exact)
        d_query = torch.zeros_like(query, dtype=exact)
        for turn in range(cp.size):
            source = (cp.rank - turn) % cp.size
            here = _Block(positions, cp, source, *rest)
            rows, columns = here.visible()
            keys, values = block[:, :, columns].split(widths, -1)
            given, asked, whole, log = (t[:, :, rows] for t in (gradient, query, out, logsum))
            of_query, of_keys, of_values = here.backward(given, asked, keys, values, whole, log)
            d_query[:, :, rows] += of_query
            if turn == 0 or not cp.muted:
                travelling[:, :, columns] += torch.cat([of_keys, of_values], -1)
            if turn + 1 < cp.size:
                block = _pass_on(block, cp)
            travelling = _pass_on(travelling, cp)
        d_key, d_value = travelling.to(query.dtype).split(widths, -1)
        d_sinks = None
        if sinks is not None:
            shared = (gradient.to(exact) * out).sum(-1, keepdim=True)
            d_sinks = sinks_gradient(sinks, logsum, shared)
        return d_query.to(query.dtype), d_key, d_value, *[None] * 5, d_sinks


def _merge(out: torch.Tensor, logsum: torch.Tensor, part: torch.Tensor, log: torch.Tensor) -> None:
    """Add a block's `part` `[…, Q, v]` to `out`, and its logarithm `[…, Q, 1]` to `logsum`, in place."""
    total = torch.logaddexp(logsum, log)
    out.mul_((logsum - total).exp()).add_(part * (log - total).exp())
    logsum.copy_(total)


def _pass_on(block: torch.Tensor, cp: Axis) -> torch.Tensor:
    """Send a block to the next rank of the ring and return the one from the rank before."""
    arriving = torch.empty_like(block)
    after = dist.get_global_rank(cp.group, (cp.rank + 1) % cp.size)
    before = dist.get_global_rank(cp.group, (cp.rank - 1) % cp.size)
    messages = [
        dist.P2POp(dist.isend, block.contiguous(), after, group=cp.group),
        dist.P2POp(dist.irecv, arriving, before, group=cp.group),
    ]
    for request in dist.batch_isend_irecv(messages):
        request.wait()
    return arriving
