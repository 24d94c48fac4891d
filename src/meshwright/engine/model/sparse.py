"""Attention on a GPU that sees less than all before it: torch's `flex_attention`, tiles of a mask at a time.

A dense mask holds a number for every pair of tokens and keeps flash kernels away. Here tiles that hide
everything are skipped and the others ask the mask's rule; caps and sinks go into the same kernel. It is
compiled when first called. It takes 16-bit numbers; others, and the CPU, have masks as tensors.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, cast

import torch
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
)  # fmt: skip

from meshwright.engine.model.explicit import Scoring

__all__ = ["BlockMask", "block_mask", "causal_blocks", "has_sparse", "sparse_attention"]

_LEAST_WIDTH = 16
"""Of a head, for the compiled kernel (torch/_inductor/kernel/flex)."""


def has_sparse(like: torch.Tensor, width: int) -> bool:
    """Whether the compiled kernel takes heads of `width` in the numbers and on the device of a tensor."""
    half = like.dtype in (torch.bfloat16, torch.float16)
    return like.is_cuda and half and width >= _LEAST_WIDTH


@cache
def _compiled(function: Any) -> Any:
    """The function through the compiler on a GPU, where alone it pays: made once, used by all layers."""
    return torch.compile(function, dynamic=False)


def block_mask(
    queries: torch.Tensor, keys: int, window: int, starts: torch.Tensor | None
) -> BlockMask:
    """Tiles of what queries at positions `[Q]` may see of keys 0 to `keys`; the rule is that of `masks.seen`."""

    def rule(sequence: Any, head: Any, row: Any, column: Any) -> Any:
        at = queries[row]
        visible = column <= at
        if window > 0:
            visible = visible & (at - column < window)
        elif window:
            visible = visible & (column >= at - at % -window)
        return visible if starts is None else visible & (column >= starts[sequence, row])

    sequences = None if starts is None else starts.shape[0]
    make = _compiled(create_block_mask) if queries.is_cuda else create_block_mask
    made: BlockMask = make(rule, sequences, None, len(queries), keys, device=queries.device)
    return made


@lru_cache(maxsize=8)
def causal_blocks(length: int, device: torch.device) -> BlockMask:
    """The mask of plainly causal attention over sequences of this length."""
    return block_mask(torch.arange(length, device=device), length, 0, None)


def sparse_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: BlockMask,
    scoring: Scoring,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """`[B, heads, Q, v]`; arguments as those of `explicit_attention`, the mask in tiles."""
    cap = scoring.softcap

    def bent(score: Any, sequence: Any, head: Any, row: Any, column: Any) -> Any:
        return torch.tanh(score / cap) * cap

    attend = _compiled(flex_attention) if query.is_cuda else flex_attention
    out, more = attend(
        query, key, value, score_mod=bent if cap else None, block_mask=mask, scale=scoring.scale,
        enable_gqa=query.shape[1] != key.shape[1], return_aux=AuxRequest(lse=True),
    )  # fmt: skip
    if sinks is not None:
        # A sink takes its share of every query's weight and gives nothing for it.
        share = torch.sigmoid(more.lse - sinks.to(more.lse.dtype)[:, None])
        out = out * share[..., None].to(out.dtype)
    return cast(torch.Tensor, out)
