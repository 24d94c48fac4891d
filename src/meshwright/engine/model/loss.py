"""Token-weighted cross-entropy, over a vocabulary that may be split over tp.

Every micro-batch's loss is the *sum* over its valid tokens divided by the valid tokens of the
whole global batch, so adding up micro-batches, data ranks and context ranks gives the global mean
however the tokens are spread. (A mean of means is wrong as soon as they are spread unevenly.)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from meshwright.engine.model.collectives import Axis
from meshwright.engine.model.kernels import (
    cross_entropy_gradient,
    sum_exponentials,
    whole_cross_entropy,
    wide,
)

IGNORED = -100
"""Target of a token that does not count, as in torch and transformers."""


class _WholeVocabulary(torch.autograd.Function):
    """Summed cross-entropy of logits `[N, V]`. Keeps the logits as they came, and no more."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        valid = target != IGNORED
        at = target.where(valid, 0)
        ctx.save_for_backward(logits, at, valid)
        return (whole_cross_entropy(logits, at) * valid).sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits, at, valid = ctx.saved_tensors
        return cross_entropy_gradient(logits, at, valid * gradient, None, None), None


class _SplitVocabulary(torch.autograd.Function):
    """Summed cross-entropy of logits `[N, V/tp]`; Megatron-LM arXiv 1909.08053 §3.

    Three all-reduces of N numbers each (maximum, sum of exponentials, target's logit) instead of
    gathering N·V logits. Keeps the logits as they came, and one number a token.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, target: torch.Tensor, tp: Axis, first: int
    ) -> torch.Tensor:
        peak = logits.amax(-1).to(wide(logits.dtype))
        dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=tp.group)
        total = sum_exponentials(logits, peak)
        if not tp.muted:
            dist.all_reduce(total, group=tp.group)
        local_target = target - first
        mine = (local_target >= 0) & (local_target < logits.shape[1])
        local_target = local_target.where(mine, 0)
        wanted = (logits.gather(1, local_target[:, None])[:, 0] - peak) * mine
        dist.all_reduce(wanted, group=tp.group)
        valid = target != IGNORED
        log_total = total.log_()
        ctx.save_for_backward(logits, log_total + peak, local_target, mine, valid)
        return ((log_total - wanted) * valid).sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        logits, log_total, local_target, mine, valid = ctx.saved_tensors
        share = cross_entropy_gradient(logits, local_target, valid * gradient, log_total, mine)
        return share, None, None, None


def summed_cross_entropy(
    logits: torch.Tensor, target: torch.Tensor, tp: Axis, first: int = 0
) -> torch.Tensor:
    """Cross-entropy of `[B, S, V/tp]` logits against `[B, S]` targets, summed over valid tokens.

    `first` is the token that this rank's first logit is of.
    """
    flat, wanted = logits.flatten(0, -2), target.flatten()
    if tp.size == 1:
        return _WholeVocabulary.apply(flat, wanted)
    return _SplitVocabulary.apply(flat, wanted, tp, first)
