"""Tensor, sequence, pipeline and context parallelism by hand, each with bugs that can be switched on.

As `prove_loops`: plain PyTorch on two ranks, the way small teaching frameworks write it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from meshwright import probe
from prove_loops import HEADS, LAYERS, WIDTH, Block, Net, batches, optimizer_of, rotate, summed

COLUMN, ROW = ("q", "k", "v", "up"), ("o", "down")


class Gather(torch.autograd.Function):
    """All-gather along a dimension; backward sums what every rank sends back (or takes its part)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, summing: bool) -> torch.Tensor:
        ctx.dim, ctx.summing = dim, summing
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        grad = grad.contiguous().clone()
        if ctx.summing:
            dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size(), ctx.dim)[dist.get_rank()], None, None


class Scatter(torch.autograd.Function):
    """Sum over ranks and keep one part of a dimension; backward gathers."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, summing: bool) -> torch.Tensor:
        ctx.dim = dim
        x = x.contiguous().clone()
        if summing:
            dist.all_reduce(x)
        return x.chunk(dist.get_world_size(), dim)[dist.get_rank()].contiguous()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        parts = [torch.empty_like(grad) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, grad.contiguous())
        return torch.cat(parts, ctx.dim), None, None


def sharding(name: str, parameter: torch.Tensor) -> probe.Shard | None:
    """Where a parameter of `tensor_parallel` is cut: what a user tells `probe.record`."""
    layer, kind = name.split(".")[-2], name.split(".")[-1]
    if layer in COLUMN:
        return probe.Shard(0, dist.get_rank(), dist.get_world_size())
    if layer in ROW and kind == "weight":
        return probe.Shard(1, dist.get_rank(), dist.get_world_size())
    return None


def _shard(model: Net) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for block in model.layers.values():
        for name in (*COLUMN, *ROW):
            linear = getattr(block, name)
            dim = 0 if name in COLUMN else 1
            linear.weight = nn.Parameter(linear.weight.data.chunk(world, dim)[rank].clone())
            if name in COLUMN:
                linear.bias = nn.Parameter(linear.bias.data.chunk(world)[rank].clone())


def _sequence_block(block: Block, x: torch.Tensor, positions: torch.Tensor, bug: str) -> Any:
    """A block whose norms and residuals see a part of the sequence, `x` `[B, S / tp, D]`."""
    summing = bug != "no-sum-in-backward"
    n = Gather.apply(block.norm1(x), 1, summing)
    heads = [
        m(n).unflatten(-1, (HEADS // 2, -1)).transpose(1, 2) for m in (block.q, block.k, block.v)
    ]
    q, k = (rotate(h, positions) for h in heads[:2])
    out = F.scaled_dot_product_attention(q, k, heads[2], is_causal=True).transpose(1, 2).flatten(2)
    x = x + Scatter.apply(F.linear(out, block.o.weight), 1, True) + block.o.bias
    n = Gather.apply(block.norm2(x), 1, summing)
    down = F.linear(F.gelu(block.up(n)), block.down.weight)
    return x + Scatter.apply(down, 1, True) + block.down.bias


def tensor_parallel(
    out: str, bug: str = "", *, dtype: str = "float32", optimizer: str = "adamw", steps: int = 4,
    clip: float = 1e9, told: bool = True,
) -> None:  # fmt: skip
    """Tensor parallel with sequence parallel norms over all ranks."""
    model = Net().to(getattr(torch, dtype))
    _shard(model)
    optim = optimizer_of(model, optimizer)
    sharded = {n for n, p in model.named_parameters() if sharding(n, p)}
    label = f"tp{dist.get_world_size()}"
    with probe.record(
        model, optim, out=out, placement=sharding if told else None, layout=label
    ) as p:
        for ids, targets in batches(steps):
            x = model.embed(ids)
            positions = torch.arange(ids.shape[1], dtype=x.dtype)
            x = Scatter.apply(x, 1, False)
            for block in model.layers.values():
                x = _sequence_block(block, x, positions, bug)
            logits = model.lm_head(Gather.apply(model.norm(x), 1, False))
            loss = summed(logits, targets) / targets.numel()
            loss.backward()
            partial = ("norm", "o.bias", "down.bias")
            for name, q in model.named_parameters():
                if any(word in name for word in partial) and bug != "norms-not-reduced":
                    dist.all_reduce(q.grad)
            norm = _norm(model, sharded, bug)
            for q in model.parameters():
                q.grad *= min(1.0, clip / norm)
            optim.step()
            optim.zero_grad()
            p.step(loss=loss, tokens=targets.numel(), grad_norm=norm)


def _norm(model: nn.Module, sharded: set[str], bug: str) -> float:
    squares = torch.zeros(2, dtype=torch.float64)
    for name, q in model.named_parameters():
        squares[int(name in sharded)] += q.grad.double().square().sum()
    if bug == "copies-counted":
        dist.all_reduce(squares)
    elif bug != "local-norm":
        dist.all_reduce(squares[1:])
    return math.sqrt(float(squares.sum()))


def pipeline(
    out: str, bug: str = "", *, dtype: str = "float32", optimizer: str = "adamw", steps: int = 4,
    micro: int = 4, clip: float = 1e9,
) -> None:  # fmt: skip
    """Two stages with a tied embedding; all micro-batches forward, then all backward."""
    rank = dist.get_rank()
    model = Net(tied=True).to(getattr(torch, dtype))
    half = LAYERS // 2
    kept = list(model.layers.items())[:half] if rank == 0 else list(model.layers.items())[half:]
    stage: Any = nn.Module()
    stage.layers = nn.ModuleDict(dict(kept))
    if rank == 0:
        stage.embed = model.embed
    else:
        stage.norm, stage.lm_head = model.norm, model.lm_head
    optim = optimizer_of(stage, optimizer)
    with probe.record(stage, optim, out=out, layout="pp2") as p:
        for ids, targets in batches(steps):
            loss = _pipeline_step(stage, ids, targets, micro, bug)
            tied = stage.embed.weight if rank == 0 else stage.lm_head.weight
            if bug != "tied-not-summed":
                dist.all_reduce(tied.grad)
            squares = torch.tensor(
                [float(q.grad.square().sum()) for q in stage.parameters() if q.grad is not None]
            ).sum()
            if bug != "stage-norm":
                squares -= tied.grad.square().sum() if rank else 0.0
                dist.all_reduce(squares)
            norm = math.sqrt(float(squares))
            for q in stage.parameters():
                if q.grad is not None:
                    q.grad *= min(1.0, clip / norm)
            optim.step()
            optim.zero_grad()
            p.step(loss=loss, tokens=targets.numel() if rank else None, grad_norm=norm)


def _pipeline_step(stage: Any, ids: Any, targets: Any, micro: int, bug: str) -> float | None:
    rank, total, kept = dist.get_rank(), 0.0, []
    positions = torch.arange(ids.shape[1]).to(next(stage.parameters()).dtype)
    for mine, wanted in zip(ids.chunk(micro), targets.chunk(micro), strict=True):
        if rank == 0:
            x = stage.embed(mine)
        else:
            x = torch.empty(*mine.shape, WIDTH, dtype=positions.dtype)
            dist.recv(x, 0)
            x.requires_grad_()
        received = x
        for block in stage.layers.values():
            x = block(x, positions)
        if rank == 0:
            dist.send(x.detach().contiguous(), 1)
            kept.append((x, None))
        else:
            loss = summed(stage.lm_head(stage.norm(x)), wanted) / targets.numel()
            total += float(loss.detach())
            kept.append((loss, received))
    for number, (result, received) in enumerate(kept):
        if rank == 0:
            grad = torch.empty_like(result)
            dist.recv(grad, 1)
            if bug == "doubled-in-first-stage":
                grad *= 2
            if bug != "received-gradient-lost" or number < len(kept) // 2:
                result.backward(grad)
        else:
            result.backward()
            dist.send(received.grad, 0)
    return total if rank else None


def context_parallel(
    out: str, bug: str = "", *, dtype: str = "float32", optimizer: str = "adamw", steps: int = 4
) -> None:
    """Every rank has a part of each sequence; keys and values are gathered."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = Net().to(getattr(torch, dtype))
    optim = optimizer_of(model, optimizer)
    with probe.record(model, optim, out=out, layout=f"cp{world}", activations=("layers.?",)) as p:
        for ids, targets in batches(steps):
            mine, wanted = ids.chunk(world, 1)[rank], targets.chunk(world, 1)[rank]
            length = mine.shape[1]
            start = 0 if bug == "positions" else rank * length
            model.attend_start = start
            x = _context_forward(model, mine, rank, length, start, bug)
            loss = summed(x, wanted) / targets.numel()
            loss.backward()
            for q in model.parameters():
                dist.all_reduce(q.grad)
                if bug == "averaged":
                    q.grad /= world
            optim.step()
            optim.zero_grad()
            mean = summed(x.detach(), wanted) / wanted.numel()
            p.step(loss=mean, tokens=wanted.numel())


def _context_forward(
    model: Net, ids: torch.Tensor, rank: int, length: int, start: int, bug: str
) -> torch.Tensor:
    x = model.embed(ids)
    positions = torch.arange(start, start + length, dtype=x.dtype)
    seen = torch.arange(length * dist.get_world_size())[None, :]
    offset = 0 if bug == "mask" else rank * length
    mask = seen <= torch.arange(offset, offset + length)[:, None]
    for block in model.layers.values():
        n = block.norm1(x)
        q, k, v = (
            m(n).unflatten(-1, (HEADS, -1)).transpose(1, 2) for m in (block.q, block.k, block.v)
        )
        q, k = rotate(q, positions), rotate(k, positions)
        summing = bug != "no-sum-in-backward"
        k, v = Gather.apply(k, 2, summing), Gather.apply(v, 2, summing)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + block.o(out.transpose(1, 2).flatten(2))
        x = x + block.feed(x)
    return model.lm_head(model.norm(x))
