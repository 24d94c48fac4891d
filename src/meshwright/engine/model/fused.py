"""The library's attention of a block of queries to a block of keys, with what merges blocks: its logarithm.

`scaled_dot_product_attention` keeps that logarithm to itself. The operators under it give it, and their
backward takes the output and logarithm of a whole row of blocks as well as those of one: that is all a ring
needs to hold no score in memory.
"""

from __future__ import annotations

import torch

from meshwright.engine.model.explicit import Scoring

_FLASH_WIDTHS = range(8, 257, 8)
"""Widths of a head that CUDA's flash kernel takes as they are."""

_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_cpu_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_flash = torch.ops.aten._scaled_dot_product_flash_attention.default
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_backward.default


def is_fused(query: torch.Tensor, value: torch.Tensor, scoring: Scoring) -> bool:
    """Whether a library kernel computes plainly causal attention of queries `[…, d]` and values `[…, v]`."""
    if scoring.softcap or query.shape[-1] != value.shape[-1]:
        return False
    half = query.dtype in (torch.bfloat16, torch.float16)
    return not query.is_cuda or (half and query.shape[-1] in _FLASH_WIDTHS)


def fused_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention `[B, heads, Q, d]` of queries to keys `[B, kv heads, K, d]`, and logarithms `[B, heads, Q, 1]`.

    `causal`: query i sees keys up to i; otherwise every query sees every key.
    """
    if query.is_cuda:
        out, logsum = _flash(query, key, value, 0.0, causal, scale=scale)[:2]
    else:
        key, value = (_for_every_query_head(t, query) for t in (key, value))
        out, logsum = _cpu(query, key, value, 0.0, causal, scale=scale)
    return out, logsum.unsqueeze(-1)


def fused_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsum: torch.Tensor,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What a block of keys adds to the gradients of queries, and the gradients of its keys and values.

    `out` and `logsum` as of all blocks that the queries saw; shapes as in `fused_forward`.
    """
    logsum = logsum.squeeze(-1)
    if query.is_cuda:
        unused = torch.empty(2, dtype=torch.uint64, device=query.device)  # nothing is dropped
        found = _flash_backward(
            gradient, query, key, value, out, logsum, None, None, query.shape[2], key.shape[2],
            0.0, causal, unused, unused, scale=scale,
        )  # fmt: skip
        return found[0], found[1], found[2]
    group = query.shape[1] // key.shape[1]
    key, value = (_for_every_query_head(t, query) for t in (key, value))
    d_query, d_key, d_value = _cpu_backward(
        gradient, query, key, value, out, logsum, 0.0, causal, scale=scale
    )
    if group > 1:
        d_key, d_value = (t.unflatten(1, (-1, group)).sum(2) for t in (d_key, d_value))
    return d_query, d_key, d_value


def _for_every_query_head(keys: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Keys or values `[B, kv heads, K, d]` once for each head of the queries, as the CPU's kernel wants."""
    group = query.shape[1] // keys.shape[1]
    return keys if group == 1 else keys.repeat_interleave(group, 1)
