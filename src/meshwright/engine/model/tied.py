"""One weight that is the embedding's table and, later in the same pass, the head.

Left to autograd, the two gradients of the weight are summed into a third of its size wherever the
first may not be overwritten. Here the table's is added to the head's, which backward makes first.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


class TiedWeight:
    """`[V/tp, H]` for one forward pass: `look_up` first, `logits` last."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight
        self.of_head: torch.Tensor | None = None

    def look_up(self, tokens: torch.Tensor) -> torch.Tensor:
        """Rows `[B, S, H]` of tokens `[B, S]`."""
        out: torch.Tensor = _Table.apply(tokens, self.weight, self)
        return out

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """`[B, S, V/tp]` of hidden states `[B, S, H]`."""
        out: torch.Tensor = _Head.apply(x, self.weight, self)
        return out


class _Table(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tokens: torch.Tensor, weight: torch.Tensor, tied: TiedWeight
    ) -> torch.Tensor:
        ctx.save_for_backward(tokens)
        ctx.rows, ctx.tied = weight.shape[0], tied
        return F.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor, None]:
        (tokens,) = ctx.saved_tensors
        own = torch.ops.aten.embedding_dense_backward(gradient, tokens, ctx.rows, -1, False)
        total, ctx.tied.of_head = ctx.tied.of_head, None
        return None, own if total is None else total.add_(own), None


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, tied: TiedWeight) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.tied = tied
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        ctx.tied.of_head = rows.t() @ x.flatten(0, -2)
        return (rows @ weight).view(x.shape), None, None
