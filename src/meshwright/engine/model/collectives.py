"""Collectives that autograd can differentiate, one function per direction of travel.

Every function takes the `Axis` it runs over and is the identity when that axis has one rank, so
the model's forward reads the same on one device and on a thousand. Activations are `[B, S, H]`
(sequences, tokens, width). The pairs are those of Megatron-LM (arXiv 1909.08053 §3 and
arXiv 2205.05198 §4.2.2): `enter` a column-parallel product, `leave` a row-parallel one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """This rank's place on one parallel axis.

    `muted` is for `verify`'s mutants only: backward reductions over a muted axis (and, in the
    loss, the sum of exponentials) are left out, to prove that the check would notice.
    """

    name: str
    size: int = 1
    rank: int = 0
    group: Any = None
    muted: bool = False

    def mute(self) -> Axis:
        """The same axis with its backward reductions left out."""
        return replace(self, muted=True)


def own_range(count: int, axis: Axis) -> range:
    """This rank's part of `count` rows, cut as `torch.chunk` cuts: alike, the last ones shorter."""
    each = -(-count // axis.size)
    return range(min(count, axis.rank * each), min(count, (axis.rank + 1) * each))


def _gather(x: torch.Tensor, axis: Axis, dim: int) -> torch.Tensor:
    """Concatenate the ranks' tensors along `dim`, in rank order."""
    out = x.new_empty((axis.size, *x.shape))
    dist.all_gather_single(out.view(-1), x.contiguous().view(-1), group=axis.group)
    return out.movedim(0, dim).flatten(dim, dim + 1)


def _own_chunk(x: torch.Tensor, axis: Axis, dim: int) -> torch.Tensor:
    return x.chunk(axis.size, dim)[axis.rank].contiguous()


def _reduce_scatter(x: torch.Tensor, axis: Axis, dim: int) -> torch.Tensor:
    """Sum over the ranks and keep this rank's chunk of `dim`."""
    chunks = x.unflatten(dim, (axis.size, -1)).movedim(dim, 0).contiguous()
    out = torch.empty_like(chunks[0])
    dist.reduce_scatter_single(out.view(-1), chunks.view(-1), group=axis.group)
    return out


def _all_reduce(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    out = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(out, group=axis.group)
    return out


class _Gather(torch.autograd.Function):
    """All-gather; its transpose is the reduce-scatter."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Axis, dim: int) -> torch.Tensor:
        ctx.axis, ctx.dim = axis, dim
        return _gather(x, axis, dim)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        if ctx.axis.muted:
            return _own_chunk(gradient, ctx.axis, ctx.dim), None, None
        return _reduce_scatter(gradient, ctx.axis, ctx.dim), None, None


class _ReduceScatter(torch.autograd.Function):
    """Reduce-scatter; its transpose is the all-gather."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Axis, dim: int) -> torch.Tensor:
        ctx.axis, ctx.dim = axis, dim
        return _reduce_scatter(x, axis, dim)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _gather(gradient, ctx.axis, ctx.dim), None, None


class _Copy(torch.autograd.Function):
    """Identity forward, all-reduce backward: a replicated input of split work."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Axis) -> torch.Tensor:
        ctx.axis = axis
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        if ctx.axis.muted:
            return gradient, None
        return _all_reduce(gradient, ctx.axis), None


class _AllReduce(torch.autograd.Function):
    """All-reduce forward, identity backward: partial sums become a replicated output."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Axis) -> torch.Tensor:
        return _all_reduce(x, axis)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class _GatherWidth(torch.autograd.Function):
    """All-gather of columns in front of work that every rank does alike; backward keeps its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Axis) -> torch.Tensor:
        ctx.axis = axis
        return _gather(x, axis, x.dim() - 1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _own_chunk(gradient, ctx.axis, gradient.dim() - 1), None


class _CutWidth(torch.autograd.Function):
    """This rank's columns of what every rank holds alike; backward gathers the others' gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Axis) -> torch.Tensor:
        ctx.axis = axis
        return _own_chunk(x, axis, x.dim() - 1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        if ctx.axis.muted:
            return torch.cat([gradient] * ctx.axis.size, -1), None
        return _gather(gradient, ctx.axis, gradient.dim() - 1), None


class _AllToAll(torch.autograd.Function):
    """Rows to their owners; backward takes the same way home."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, axis: Axis, send: list[int], receive: list[int]
    ) -> torch.Tensor:
        ctx.axis, ctx.send, ctx.receive = axis, send, receive
        return _exchange(x, axis, send, receive)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        home = _exchange(gradient, ctx.axis, ctx.receive, ctx.send)
        return torch.zeros_like(home) if ctx.axis.muted else home, None, None, None


def _exchange(x: torch.Tensor, axis: Axis, send: list[int], receive: list[int]) -> torch.Tensor:
    out = x.new_empty((sum(receive), *x.shape[1:]))
    dist.all_to_all_single(out, x.contiguous(), receive, send, group=axis.group)
    return out


class _Mute(torch.autograd.Function):
    """Identity forward, zero backward: the gradient of a pipeline boundary, lost."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(gradient)


def enter(x: torch.Tensor, axis: Axis, sequence_parallel: bool) -> torch.Tensor:
    """Bring `x` in front of a column-parallel product.

    With sequence parallelism `[B, S/n, H]` is all-gathered to `[B, S, H]` (backward: reduce-
    scatter); without it `x` is already whole and its gradient is all-reduced.
    """
    if axis.size == 1:
        return x
    return _Gather.apply(x, axis, 1) if sequence_parallel else _Copy.apply(x, axis)


def leave(x: torch.Tensor, axis: Axis, sequence_parallel: bool) -> torch.Tensor:
    """Add up the partial results `[B, S, H]` of a row-parallel product.

    With sequence parallelism the sum is reduce-scattered to `[B, S/n, H]`.
    """
    if axis.size == 1:
        return x
    return _ReduceScatter.apply(x, axis, 1) if sequence_parallel else _AllReduce.apply(x, axis)


def gather_tokens(x: torch.Tensor, axis: Axis, dim: int) -> torch.Tensor:
    """All-gather along the token dimension `dim`; backward is the reduce-scatter."""
    return x if axis.size == 1 else _Gather.apply(x, axis, dim)


def gather_width(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """Concatenate the ranks' columns `[..., W/n]`, for work that every rank then does alike."""
    return x if axis.size == 1 else _GatherWidth.apply(x, axis)


def cut_width(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """This rank's columns `[..., W/n]` of what all ranks hold alike."""
    return x if axis.size == 1 else _CutWidth.apply(x, axis)


def exchange(x: torch.Tensor, axis: Axis, send: list[int], receive: list[int]) -> torch.Tensor:
    """All-to-all of rows: `send[i]` rows go to rank i of the axis, `receive[i]` come from it."""
    return x if axis.size == 1 else _AllToAll.apply(x, axis, send, receive)


def lose_gradient(x: torch.Tensor) -> torch.Tensor:
    """Identity whose gradient is zero; `verify` breaks a pipeline boundary with it."""
    return _Mute.apply(x)
