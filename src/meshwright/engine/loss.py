"""Token-weighted cross-entropy, over a vocabulary that may be split over tp.

Every micro-batch's loss is the *sum* over its valid tokens divided by the valid tokens of the
whole global batch, so adding up micro-batches, data ranks and context ranks gives the global mean
however the tokens are spread. (A mean of means is wrong as soon as they are spread unevenly.)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from meshwright.engine.collectives import Axis

IGNORED = -100
"""Target of a token that does not count, as in torch and transformers."""


class _SplitVocabulary(torch.autograd.Function):
    """Summed cross-entropy of logits `[N, V/tp]`; Megatron-LM arXiv 1909.08053 §3.

    Three all-reduces of N numbers each (maximum, sum of exponentials, target's logit) instead of
    gathering N·V logits.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, target: torch.Tensor, tp: Axis) -> torch.Tensor:
        peak = logits.amax(-1)
        dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=tp.group)
        exponentials = (logits - peak[:, None]).exp()
        total = exponentials.sum(-1)
        dist.all_reduce(total, group=tp.group)
        local_target = target - tp.rank * logits.shape[1]
        mine = (local_target >= 0) & (local_target < logits.shape[1])
        local_target = local_target.where(mine, 0)
        wanted = (logits.gather(1, local_target[:, None])[:, 0] - peak) * mine
        dist.all_reduce(wanted, group=tp.group)
        valid = target != IGNORED
        ctx.save_for_backward(exponentials / total[:, None], local_target, mine, valid)
        return ((total.log() - wanted) * valid).sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        probability, local_target, mine, valid = ctx.saved_tensors
        out = probability.clone()
        out[torch.arange(out.shape[0], device=out.device), local_target] -= mine.to(out.dtype)
        return out * valid[:, None] * gradient, None, None


def summed_cross_entropy(logits: torch.Tensor, target: torch.Tensor, tp: Axis) -> torch.Tensor:
    """Cross-entropy of `[B, S, V/tp]` logits against `[B, S]` targets, summed over valid tokens."""
    flat, wanted = logits.flatten(0, -2), target.flatten()
    if flat.dtype in (torch.bfloat16, torch.float16):
        flat = flat.float()
    if tp.size == 1:
        return F.cross_entropy(flat, wanted, reduction="sum", ignore_index=IGNORED)
    return _SplitVocabulary.apply(flat, wanted, tp)
