"""A mixture of experts: routing, the exchange of tokens over ep, and the experts' weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from meshwright.engine.model.collectives import enter, exchange, leave
from meshwright.engine.model.layers import Axes, Linear, Mlp, clamped_gated, gated, local
from meshwright.engine.model.numerics import Activation, Numerics
from meshwright.engine.model.traits import traits_of
from meshwright.specs.model import Model


class ExpertWeights(nn.Module):
    """The routed experts of one layer, stacked: `[experts, out, in]`, split over ep."""

    def __init__(
        self, hidden: int, width: int, experts: int, activation: Activation, clamped: bool
    ) -> None:
        super().__init__()
        self.activation, self.clamped = activation, clamped
        self.gate = nn.Parameter(torch.empty(experts, width, hidden))
        self.up = nn.Parameter(torch.empty(experts, width, hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, width))
        if clamped:
            self.gate_bias = nn.Parameter(torch.empty(experts, width))
            self.up_bias = nn.Parameter(torch.empty(experts, width))
            self.down_bias = nn.Parameter(torch.empty(experts, hidden))

    def forward(self, rows: torch.Tensor, counts: torch.Tensor | list[int]) -> torch.Tensor:
        """Rows `[R, H]` sorted by local expert to outputs of the same shape; `counts` `[experts]` of each.

        Where one kernel multiplies all groups the host need not know their sizes; elsewhere it reads
        those that lie on the device, and each expert has products of its own.
        """
        if isinstance(counts, torch.Tensor):
            if has_grouped_products(rows):
                return self._grouped(rows, counts)
            counts = counts.tolist()
        # Unbound, not indexed: an index's gradient is a whole stack of zeros for each expert.
        parts = rows.split(counts)
        stacks = (local(stack).unbind() for stack in (self.gate, self.up, self.down))
        if self.clamped:
            return self._clamped(parts, *stacks)
        outs = []
        for part, to_gate, to_up, to_down in zip(parts, *stacks, strict=True):
            gate, up = F.linear(part, to_gate), F.linear(part, to_up)
            outs.append(F.linear(gated(gate, up, self.activation), to_down))
        return torch.cat(outs)

    def _clamped(
        self, parts: Iterable[torch.Tensor], *stacks: Iterable[torch.Tensor]
    ) -> torch.Tensor:
        biases = (local(b).unbind() for b in (self.gate_bias, self.up_bias, self.down_bias))
        outs = []
        for part, to_gate, to_up, to_down, *b in zip(parts, *stacks, *biases, strict=True):
            gate, up = F.linear(part, to_gate, b[0]), F.linear(part, to_up, b[1])
            outs.append(F.linear(clamped_gated(gate, up), to_down, b[2]))
        return torch.cat(outs)

    def _grouped(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        ends = counts.cumsum(0).to(torch.int32)

        def through(x: torch.Tensor, stack: nn.Parameter) -> torch.Tensor:
            return F.grouped_mm(x, local(stack).transpose(-2, -1), offs=ends)

        gate, up = through(rows, self.gate), through(rows, self.up)
        if not self.clamped:
            return through(gated(gate, up, self.activation), self.down)
        # Known length: no wait for the device.
        mine = torch.repeat_interleave(counts, output_size=len(rows))
        gate, up = gate + local(self.gate_bias)[mine], up + local(self.up_bias)[mine]
        return through(clamped_gated(gate, up), self.down) + local(self.down_bias)[mine]


def has_grouped_products(rows: torch.Tensor) -> bool:
    """Whether torch multiplies groups of rows by their own matrices in one kernel here.

    CUDA has it for bf16 whose rows are whole 16 bytes; on a CPU separate products are as fast.
    """
    return rows.is_cuda and rows.dtype == torch.bfloat16 and rows.shape[-1] % 8 == 0


class _Balanced(torch.autograd.Function):
    """Routing shares as they are; backward adds the gradient of the balancing loss to theirs.

    The loss is linear in the shares, so its gradient needs the experts' token counts alone. They are
    added up over the ranks that hold a sequence in backward, where recomputation comes by once.
    """

    @staticmethod
    def forward(
        ctx: Any, shares: torch.Tensor, chosen: torch.Tensor, slope: float, mixture: Mixture
    ) -> torch.Tensor:
        ctx.save_for_backward(chosen)
        ctx.slope, ctx.mixture, ctx.experts = slope, mixture, shares.shape[-1]
        return shares.view_as(shares)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (chosen,) = ctx.saved_tensors
        flat = chosen.flatten(1)
        counts = torch.zeros(len(flat), ctx.experts, dtype=gradient.dtype, device=flat.device)
        counts.scatter_add_(1, flat, torch.ones_like(flat, dtype=gradient.dtype))
        mixture = ctx.mixture
        mixture.load += counts.sum(0).to(torch.int64)
        if not ctx.slope:
            return gradient, None, None, None
        for axis in mixture.sequence_axes:
            dist.all_reduce(counts, group=axis.group)
        return gradient + ctx.slope * counts[:, None], None, None, None


class Mixture(nn.Module):
    """Mixture of experts with dropless top-k routing; each rank routes its own tokens.

    Where tp cuts the experts, its ranks route all of their tokens alike and add up partial outputs.

    In training (`sequences` set) routers get the gradient of a loss that is least when every expert
    of a layer serves as many tokens of each sequence: `balance · E/(k·S²) · Σᵢ countᵢ · Σₜ shareₜᵢ`,
    averaged over the global batch (DeepSeek-V3, arXiv 2412.19437 eq. 17-20, shares by softmax or of the sigmoids' sum). A
    sequence is whole whatever the layout, so every layout trains the same model.
    """

    def __init__(self, model: Model, numerics: Numerics, axes: Axes) -> None:
        super().__init__()
        spec = model.experts
        assert spec is not None
        self.axes, self.top_k, self.num_experts = axes, spec.top_k, spec.experts
        traits = traits_of(model.family)
        self.scoring, self.scaling = numerics.router, numerics.router_scaling
        self.groups, self.group_top_k = numerics.router_groups, numerics.router_group_top_k
        self.group_best, self.weights_inputs = traits.group_best, traits.weights_inputs
        self.renormalize, self.balance = numerics.renormalize_routing, numerics.balance_loss
        self.sequences = 0
        """Of the global batch; 0 outside of training."""
        # Ranks that hold parts of one sequence. Where tp cuts the experts each has all of its part.
        split_by_tp = axes.sequence_parallel and not axes.experts_cut
        self.sequence_axes = [
            axis
            for axis in (axes.cp, axes.tp)
            if axis.size > 1 and (axis is axes.cp or split_by_tp)
        ]
        self.load = torch.zeros(0)
        self.router = Linear(model.hidden, spec.experts, spec.router_bias)
        self.correction = (
            nn.Parameter(torch.empty(spec.experts)) if traits.corrected_routing else None
        )
        self.experts = ExpertWeights(
            model.hidden, spec.ffn, spec.experts, numerics.activation, traits.clamped_experts
        )
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
        logits = self.router(x)
        scores = self._scores(logits.to(max(logits.dtype, torch.float32, key=_precision)))
        total = scores.sum(-1, keepdim=True) if self.scoring == "sigmoid" else None
        shares = scores if total is None else scores / total
        chosen = self._chosen(scores.detach())
        if self.sequences and torch.is_grad_enabled():
            shares = _Balanced.apply(shares, chosen, self._slope(x.shape[1]), self)
        weights = shares.gather(-1, chosen).flatten(0, 1)
        if self.renormalize:
            weights = weights / weights.sum(-1, keepdim=True)
        elif total is not None:
            weights = weights * total.flatten(0, 1)
        if self.scaling != 1.0:
            weights = weights * self.scaling
        order = chosen.flatten().argsort(stable=True)  # (token, choice) pairs by expert
        counts = torch.bincount(chosen.flatten(), minlength=self.num_experts)
        rows = tokens[order // self.top_k]
        if self.weights_inputs:
            rows = rows * weights.flatten()[order, None].to(rows.dtype)
            weights = torch.ones_like(weights)
        done = self._visit(rows, counts)
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

    def _scores(self, logits: torch.Tensor) -> torch.Tensor:
        """Each expert's score of each token, `[B, S, experts]`."""
        if self.scoring == "softmax":
            return logits.softmax(-1)
        scores = logits.sigmoid()
        # The correction takes part with nothing, so that its gradient is there, and zero.
        return scores if self.correction is None else scores + 0.0 * local(self.correction)

    def _chosen(self, scores: torch.Tensor) -> torch.Tensor:
        """Which experts a token visits, `[B, S, top_k]`: the best ones of the best groups."""
        if self.correction is not None:
            scores = scores + local(self.correction).detach()
        if self.groups > 1:
            by_group = scores.unflatten(-1, (self.groups, -1))
            worth = by_group.topk(self.group_best, -1).values.sum(-1)
            kept = worth.topk(self.group_top_k, -1).indices
            closed = torch.ones_like(worth, dtype=torch.bool).scatter(-1, kept, False)
            scores = by_group.masked_fill(closed[..., None], float("-inf")).flatten(-2)
        return scores.topk(self.top_k, dim=-1).indices

    def _slope(self, length: int) -> float:
        """What one token of an expert adds to the balancing loss's gradient by each of its shares.

        `length`: tokens of a sequence that this rank routes.
        """
        for axis in self.sequence_axes:
            length *= axis.size
        copies = self.axes.tp.size if self.axes.experts_cut else 1  # their gradients are added up
        sequences = self.sequences * copies
        return self.balance * self.num_experts / (self.top_k * length**2 * sequences)

    def start_training(self, sequences: int, device: torch.device) -> None:
        """From now on a forward with gradients is one of a global batch of so many sequences."""
        self.sequences = sequences
        self.load = torch.zeros(self.num_experts, dtype=torch.int64, device=device)

    def take_load(self) -> torch.Tensor:
        """`[experts]`: tokens that this rank has sent to each since it was last asked."""
        load, self.load = self.load, torch.zeros_like(self.load)
        return load

    def _visit(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Send rows `[R, H]`, sorted by expert, through their experts and back."""
        ep = self.axes.ep
        if ep.size == 1:
            return self.experts(rows, counts)
        # counts[source rank][local expert], so that both sides know who sends how many rows
        sent = counts.view(ep.size, -1)
        arriving = torch.empty_like(sent)
        dist.all_to_all_single(arriving, sent, group=ep.group)
        # One read by the host: it waits for the device once in a layer.
        known = torch.cat([sent.sum(1), arriving.sum(1)]).tolist()
        send, receive = known[: ep.size], known[ep.size :]
        rows = exchange(rows, ep, send, receive)
        experts = torch.arange(sent.shape[1], device=rows.device).repeat(ep.size)
        order = experts.repeat_interleave(arriving.flatten(), output_size=sum(receive))
        order = order.argsort(stable=True)
        done = self.experts(rows[order], arriving.sum(0))
        return exchange(done[order.argsort()], ep, receive, send)


def mixtures(module: nn.Module) -> list[Mixture]:
    """The mixtures of experts in a module, in the order of its layers."""
    return [part for part in module.modules() if isinstance(part, Mixture)]


def _precision(dtype: torch.dtype) -> int:
    return int(torch.finfo(dtype).bits)
