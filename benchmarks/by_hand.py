"""A Llama-style decoder and its training steps as one writes them directly with torch.

The other side of `benchmarks/engine.py`: no line of meshwright's engine is used here, only its
initial values, so that both sides can be seen to compute the same loss. Parameter names are the
engine's. Every step clips to norm 1 and updates with AdamW (fused, as the engine does).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from meshwright.engine.model.init import initial_value
from meshwright.engine.model.numerics import default_numerics
from meshwright.specs.model import Model

Step = Callable[[torch.Tensor, torch.Tensor], float]
"""One training step on the whole batch `[B, S]` and its targets; returns this rank's loss."""


class Attention(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.head_dim = model.head_dim
        width, kv_width = model.heads * model.head_dim, model.kv_heads * model.head_dim
        self.q = nn.Linear(model.hidden, width, bias=False)
        self.k = nn.Linear(model.hidden, kv_width, bias=False)
        self.v = nn.Linear(model.hidden, kv_width, bias=False)
        self.o = nn.Linear(width, model.hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        query, key = rotated(query, cos, sin), rotated(key, cos, sin)
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.o(out.transpose(1, 2).flatten(2))


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class FeedForward(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.gate = nn.Linear(model.hidden, model.ffn, bias=False)
        self.up = nn.Linear(model.hidden, model.ffn, bias=False)
        self.down = nn.Linear(model.ffn, model.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, model: Model, eps: float) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(model), FeedForward(model)
        self.attention_norm = nn.RMSNorm(model.hidden, eps)
        self.ffn_norm = nn.RMSNorm(model.hidden, eps)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.ffn_norm(x))


class Llama(nn.Module):
    """The whole model, or the stage that holds `layers`."""

    def __init__(self, model: Model, seq_len: int, layers: range | None = None) -> None:
        super().__init__()
        numerics = default_numerics(model)
        held = layers or range(model.layers)
        if held.start == 0:
            self.embed = nn.Embedding(model.vocab, model.hidden)
        self.layers = nn.ModuleDict({str(i): Layer(model, numerics.norm_eps) for i in held})
        if held.stop == model.layers:
            self.norm = nn.RMSNorm(model.hidden, numerics.norm_eps)
            self.head = nn.Linear(model.hidden, model.vocab, bias=False)
        exponents = torch.arange(0, model.head_dim, 2).float() / model.head_dim
        angles = torch.outer(torch.arange(seq_len).float(), 1 / numerics.rope_theta**exponents)
        angles = torch.cat([angles, angles], dim=-1)
        # Attributes, not buffers, which DDP would broadcast every step.
        self.cos, self.sin = angles.cos(), angles.sin()
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(initial_value(name, tuple(parameter.shape), model, numerics, 0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if hasattr(self, "embed"):
            x = self.embed(x)
        for layer in self.layers.values():
            x = layer(x, self.cos, self.sin)
        return self.head(self.norm(x)) if hasattr(self, "head") else x


def mean_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def local_rows(batch: torch.Tensor) -> torch.Tensor:
    return batch.chunk(dist.get_world_size())[dist.get_rank()]


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)


def _data_parallel_step(model: nn.Module) -> Step:
    optimizer = adamw(model)

    def step(tokens: torch.Tensor, targets: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = mean_loss(model(local_rows(tokens)), local_rows(targets))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def ddp(model: Model, seq_len: int) -> Step:
    """DistributedDataParallel."""
    return _data_parallel_step(DistributedDataParallel(Llama(model, seq_len)))


def fsdp2(model: Model, seq_len: int) -> Step:
    """FSDP2, a layer at a time, parameters resharded after forward."""
    llama = Llama(model, seq_len)
    for layer in llama.layers.values():
        fully_shard(layer)
    return _data_parallel_step(fully_shard(llama))


def tensor_parallel(model: Model, seq_len: int, sequence_parallel: bool) -> Step:
    """DTensor's parallelize_module with a vocabulary-parallel loss, after torchtitan's plan."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    llama = Llama(model, seq_len)
    residual = Shard(1) if sequence_parallel else Replicate()
    for layer in llama.layers.values():
        plan = {
            **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
            "attention.o": RowwiseParallel(output_layouts=residual),
            "mlp.gate": ColwiseParallel(),
            "mlp.up": ColwiseParallel(),
            "mlp.down": RowwiseParallel(output_layouts=residual),
        }
        if sequence_parallel:
            plan |= {
                "attention_norm": SequenceParallel(),
                "ffn_norm": SequenceParallel(),
                "attention": PrepareModuleInput(
                    input_layouts=(Shard(1), None, None),
                    desired_input_layouts=(Replicate(), None, None),
                ),
                "mlp": PrepareModuleInput(
                    input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
                ),
            }
        parallelize_module(layer, mesh, plan)
    plan = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=residual),
        "head": ColwiseParallel(
            input_layouts=residual, output_layouts=Shard(-1), use_local_output=False
        ),
    }
    if sequence_parallel:
        plan["norm"] = SequenceParallel()
    parallelize_module(llama, mesh, plan)
    # One fused update needs parameters of one kind: the sharded, and the replicated (norms).
    kinds = [
        [p for p in llama.parameters() if isinstance(p, DTensor) == distributed]
        for distributed in (True, False)
    ]
    groups = [{"params": kind} for kind in kinds if kind]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.01, fused=True)

    def step(tokens: torch.Tensor, targets: torch.Tensor) -> float:
        optimizer.zero_grad()
        with loss_parallel():
            loss = mean_loss(llama(tokens), targets)
            loss.backward()
        clip_mixed(kinds)
        optimizer.step()
        return loss.item()

    return step


def clip_mixed(kinds: list[list[nn.Parameter]]) -> None:
    """Clip over distributed and plain parameters together, which torch's function does not."""
    norms = [
        nn.utils.get_total_norm([p.grad for p in kind if p.grad is not None]) for kind in kinds
    ]
    whole = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    total = torch.stack(whole).norm()
    for kind in kinds:
        nn.utils.clip_grads_with_norm_(kind, 1.0, total)


def pipeline(model: Model, seq_len: int, micro_batch: int, batch: int) -> Step:
    """torch.distributed.pipelining with 1F1B, layers split evenly, stage shapes given."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    size = model.layers // ranks
    stage_model = Llama(model, seq_len, range(rank * size, (rank + 1) * size))
    like = {"device": "meta", "requires_grad": True}
    hidden = torch.empty(micro_batch, seq_len, model.hidden, **like)
    logits = torch.empty(micro_batch, seq_len, model.vocab, **like)
    tokens_like = torch.empty(micro_batch, seq_len, dtype=torch.int64, device="meta")
    stage = PipelineStage(
        stage_model, rank, ranks, torch.device("cpu"),
        input_args=tokens_like if rank == 0 else hidden,
        output_args=logits if rank == ranks - 1 else hidden,
    )  # fmt: skip
    schedule = Schedule1F1B(stage, n_microbatches=batch // micro_batch, loss_fn=mean_loss)
    optimizer = adamw(stage_model)

    def step(tokens: torch.Tensor, targets: torch.Tensor) -> float:
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(tokens, return_outputs=False)
        else:
            schedule.step(target=targets, losses=losses, return_outputs=False)
        norm = nn.utils.get_total_norm([p.grad for p in stage_model.parameters()])
        squares = norm.square()
        dist.all_reduce(squares)
        nn.utils.clip_grads_with_norm_(stage_model.parameters(), 1.0, squares.sqrt())
        optimizer.step()
        return torch.stack(losses).mean().item() if losses else 0.0

    return step
