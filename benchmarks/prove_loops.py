"""Hand-written parallel training loops, as users write them, each with bugs that can be switched on.

Plain PyTorch: nothing of the engine is used but its fork server, so `meshwright.probe` meets code it
was not written with. Each loop is a function of one rank; `bug` names what is done wrong.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from meshwright import probe

VOCAB, WIDTH, LAYERS, HEADS, LENGTH, BATCH = 193, 48, 4, 4, 24, 8


class Block(nn.Module):
    """A pre-norm transformer block; with `experts` a mixture of them, two a token."""

    def __init__(self, experts: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm2 = nn.LayerNorm(WIDTH)
        self.drop = nn.Dropout(dropout)
        if experts:
            self.router = nn.Linear(WIDTH, experts, bias=False)
            self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(experts))
        else:
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.detach_router = False

    def attend(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        n = self.norm1(x)
        heads = [m(n).unflatten(-1, (HEADS, -1)).transpose(1, 2) for m in (self.q, self.k, self.v)]
        q, k = (rotate(h, positions) for h in heads[:2])
        out = F.scaled_dot_product_attention(q, k, heads[2], is_causal=True)
        return self.o(out.transpose(1, 2).flatten(2))

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        n = self.norm2(x)
        if not hasattr(self, "experts"):
            return self.down(F.gelu(self.up(n)))
        shares = self.router(n).softmax(-1)
        if self.detach_router:
            shares = shares.detach()
        top, chosen = shares.topk(2, -1)
        total = torch.zeros_like(n)
        for number, expert in enumerate(self.experts):
            share = (top * (chosen == number)).sum(-1, keepdim=True)
            total = total + share * expert(n)
        return total

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = x + self.drop(self.attend(x, positions))
        return x + self.drop(self.feed(x))


def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary positions on `[B, heads, S, d]`."""
    half = x.shape[-1] // 2
    angle = positions[:, None] * 0.1 ** (torch.arange(half) / half).to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


class Net(nn.Module):
    """A small decoder; `layers` of it where a pipeline stage holds only some."""

    def __init__(self, *, experts: int = 0, tied: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleDict({str(i): Block(experts, dropout) for i in range(LAYERS)})
        self.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        for p in self.parameters():
            if p.dim() == 1:
                nn.init.normal_(p, 0.5, 0.2)
        if tied:
            self.lm_head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor, start: int = 0) -> torch.Tensor:
        x = self.embed(ids)
        positions = torch.arange(start, start + ids.shape[1], dtype=x.dtype)
        for block in self.layers.values():
            x = block(x, positions)
        return self.lm_head(self.norm(x))


def batches(steps: int, uneven: bool = False, offset: int = 0) -> Any:
    """`(ids, targets)` `[BATCH, LENGTH]`; with `uneven` many targets of the first half are masked."""
    generator = torch.Generator().manual_seed(11 + offset)
    for _ in range(steps):
        ids = torch.randint(0, VOCAB, (BATCH, LENGTH + 1), generator=generator)
        targets = ids[:, 1:].clone()
        if uneven:
            targets[: BATCH // 2, LENGTH // 3 :] = -100
        yield ids[:, :-1], targets


def summed(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float() if logits.dtype == torch.bfloat16 else logits.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=-100)  # fmt: skip


def optimizer_of(model: nn.Module, name: str, bug: str = "", lr: float = 1e-3) -> Any:
    vectors = [p for p in model.parameters() if p.dim() == 1]
    matrices = [p for p in model.parameters() if p.dim() > 1]
    decay = 0.1
    groups = [
        {"params": matrices, "weight_decay": decay},
        {"params": vectors, "weight_decay": decay if bug == "decay-on-norms" else 0.0},
    ]
    lr = lr * 1.1 if bug == "learning-rate" else lr
    if name == "sgd":
        return torch.optim.SGD(groups, lr=50 * lr, momentum=0.9)
    eps = 1e-3 if bug == "epsilon" else 1e-8
    return torch.optim.AdamW(groups, lr=lr, eps=eps)


def data_parallel(
    out: str, bug: str = "", *, dtype: str = "float32", optimizer: str = "adamw", steps: int = 4,
    micro: int = 4, experts: int = 0, tied: bool = False, uneven: bool = False, clip: float = 1e9,
    dropout: float = 0.0, activations: bool = False,
) -> None:  # fmt: skip
    """Data parallel by hand (also the one-device reference): all-reduce of gradients after backward."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    model = Net(experts=experts, tied=tied, dropout=dropout).to(getattr(torch, dtype))
    if bug == "initial-weights":
        nn.init.normal_(model.norm.weight, 0.5, 0.2)
    for block in model.layers.values():
        block.detach_router = bug == "router-detached"
    optim = optimizer_of(model, optimizer, bug)
    patterns = ("layers.?", "norm") if activations else ()
    label = f"dp{world}"
    torch.manual_seed(100 + rank)
    with probe.record(model, optim, out=out, layout=label, activations=patterns) as p:
        for number, (ids, targets) in enumerate(
            batches(steps, uneven, offset=7 if bug == "data" else 0)
        ):
            if bug == "state-lost" and number == 2:
                optim.state.clear()
            mine, wanted = ids.chunk(world)[rank], targets.chunk(world)[rank]
            count = int((targets != -100).sum())
            total = _accumulate(model, mine, wanted, count, world, micro, bug)
            _reduce(model, world, bug)
            norm = _clip(model, clip, bug)
            _scale(model, bug)
            old = [q.detach().clone() for q in model.parameters()]
            optim.step()
            _spoil(model, old, bug)
            optim.zero_grad()
            loss, tokens = total * world / max(1, world), int((wanted != -100).sum())
            p.step(loss=loss * _report(bug) / tokens, tokens=None if bug == "loss-mean" else tokens, grad_norm=norm)  # fmt: skip


def _accumulate(
    model: nn.Module, mine: Any, wanted: Any, count: int, world: int, micro: int, bug: str
) -> float:
    """Backward of all micro-batches; returns this rank's summed loss."""
    total, parts = 0.0, list(zip(mine.chunk(micro), wanted.chunk(micro), strict=True))
    for index, (ids, targets) in enumerate(parts):
        loss = summed(model(ids), targets)
        total += float(loss.detach())
        # Gradients are averaged over ranks below, so the loss is a share of the whole batch's mean.
        scaled = loss * world / count
        if bug == "mean-of-means":
            scaled = loss / (targets != -100).sum() / len(parts)
        if bug == "accumulation-not-averaged":
            scaled = scaled * len(parts)
        if bug == "last-micro-batch-lost" and index == len(parts) - 1:
            continue
        scaled.backward()
        if bug == "only-last-micro-batch" and index < len(parts) - 1:
            model.zero_grad()
    return total


def _reduce(model: nn.Module, world: int, bug: str) -> None:
    for number, (name, q) in enumerate(model.named_parameters()):
        if (
            q.grad is None
            or (bug == "not-reduced")
            or (bug == "router-not-reduced" and "router" in name)
        ):
            continue
        dist.all_reduce(q.grad)
        if bug == "summed-not-averaged":
            continue
        q.grad /= world
        if bug == "bucket-twice" and number >= 40:
            q.grad *= 2
    if bug == "experts-scaled":
        for name, q in model.named_parameters():
            if "experts" in name and q.grad is not None:
                q.grad /= 2


def _clip(model: nn.Module, limit: float, bug: str) -> float:
    squares = sum(float(q.grad.square().sum()) for q in model.parameters() if q.grad is not None)
    if bug == "norm-counted-twice":
        squares *= 2
    norm = math.sqrt(squares)
    for q in model.parameters():
        if q.grad is not None and norm > limit:
            q.grad *= limit / norm
    return norm


def _scale(model: nn.Module, bug: str) -> None:
    for name, q in model.named_parameters():
        if q.grad is None:
            continue
        if bug == "all-1.01" or (bug == "one-norm-1.02" and name == "layers.2.norm1.weight"):
            q.grad *= 1.01 if bug == "all-1.01" else 1.02
        if bug == "embedding-half" and name.startswith("embed"):
            q.grad *= 0.5
        if bug == "head-frozen" and name.startswith("lm_head"):
            q.grad = None
        if bug == "half-the-layers-doubled" and name.startswith(("layers.2", "layers.3")):
            q.grad *= 2


def _spoil(model: nn.Module, old: list[torch.Tensor], bug: str) -> None:
    with torch.no_grad():
        for (name, q), before in zip(model.named_parameters(), old, strict=True):
            if bug == "norms-not-updated" and "norm" in name:
                q.copy_(before)


def _report(bug: str) -> float:
    return 4.0 if bug == "loss-times-4" else 1.0
