"""A mixture of experts: routing, the exchange of tokens over ep, and the experts' weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from meshwright.engine.model.collectives import enter, exchange, leave
from meshwright.engine.model.layers import Axes, Linear, Mlp, gated, local
from meshwright.engine.model.numerics import Activation, Numerics
from meshwright.specs.model import Model


class ExpertWeights(nn.Module):
    """The routed experts of one layer, stacked: `[experts, out, in]`, split over ep."""

    def __init__(self, hidden: int, width: int, experts: int, activation: Activation) -> None:
        super().__init__()
        self.activation = activation
        self.gate = nn.Parameter(torch.empty(experts, width, hidden))
        self.up = nn.Parameter(torch.empty(experts, width, hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, width))

    def forward(self, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """Rows `[sum(counts), H]` sorted by local expert to outputs of the same shape."""
        # Unbound, not indexed: an index's gradient is a whole stack of zeros for each expert.
        stacks = (local(stack).unbind() for stack in (self.gate, self.up, self.down))
        outs = []
        for part, to_gate, to_up, to_down in zip(rows.split(counts), *stacks, strict=True):
            gate, up = F.linear(part, to_gate), F.linear(part, to_up)
            outs.append(F.linear(gated(gate, up, self.activation), to_down))
        return torch.cat(outs)


class Mixture(nn.Module):
    """Mixture of experts with dropless top-k routing; each rank routes its own tokens.

    Where tp cuts the experts, its ranks route all of their tokens alike and add up partial outputs.
    """

    def __init__(self, model: Model, numerics: Numerics, axes: Axes) -> None:
        super().__init__()
        spec = model.experts
        assert spec is not None
        self.axes, self.top_k, self.num_experts = axes, spec.top_k, spec.experts
        self.renormalize = numerics.renormalize_routing
        self.router = Linear(model.hidden, spec.experts, spec.router_bias)
        self.experts = ExpertWeights(model.hidden, spec.ffn, spec.experts, numerics.activation)
        self.shared: Mlp | None = None
        if spec.shared_ffn:
            self.shared = Mlp(model, spec.shared_ffn, numerics.activation, axes)
        self.shared_gate = Linear(model.hidden, 1) if spec.shared_gate else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[B, S or S/tp, H]` to the same."""
        own = x
        if self.axes.experts_cut:
            x = enter(x, self.axes.tp, self.axes.sequence_parallel)
        tokens = x.flatten(0, 1)
        logits = self.router(tokens)
        weights = logits.softmax(-1, dtype=max(logits.dtype, torch.float32, key=_precision))
        weights, chosen = weights.topk(self.top_k, dim=-1)
        if self.renormalize:
            weights = weights / weights.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)  # (token, choice) pairs by expert
        counts = torch.bincount(chosen.flatten(), minlength=self.num_experts)
        done = self._visit(tokens[order // self.top_k], counts)
        # Back in the order of tokens, a sum over choices keeps `done` alone; index_add keeps more.
        done = done[order.argsort()].unflatten(0, (-1, self.top_k))
        out = (done * weights.to(done.dtype)[..., None]).sum(1).view_as(x)
        if self.axes.experts_cut:
            out = leave(out, self.axes.tp, self.axes.sequence_parallel)
        if self.shared is not None:
            shared = self.shared(own)
            if self.shared_gate is not None:
                shared = shared * self.shared_gate(own).sigmoid()
            out = out + shared
        return out

    def _visit(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Send rows `[R, H]`, sorted by expert, through their experts and back."""
        ep = self.axes.ep
        if ep.size == 1:
            return self.experts(rows, counts.tolist())
        # counts[source rank][local expert], so that both sides know who sends how many rows
        sent = counts.view(ep.size, -1)
        arriving = torch.empty_like(sent)
        torch.distributed.all_to_all_single(arriving, sent, group=ep.group)
        send, receive = sent.sum(1).tolist(), arriving.sum(1).tolist()
        rows = exchange(rows, ep, send, receive)
        experts = torch.arange(sent.shape[1], device=rows.device).repeat(ep.size)
        order = experts.repeat_interleave(arriving.flatten()).argsort(stable=True)
        done = self.experts(rows[order], arriving.sum(0).tolist())
        return exchange(done[order.argsort()], ep, receive, send)


def _precision(dtype: torch.dtype) -> int:
    return int(torch.finfo(dtype).bits)
