"""The reference's feed-forward layers, dense and of experts; nothing of the engine's is used.

Experts are computed densely: each for every token, and what no router chose is not added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from meshwright.engine.model.numerics import Numerics
from meshwright.engine.proof.reference_shapes import CORRECTED, Tensors
from meshwright.specs.model import Model

CHUNKS = {"llama4_text"}
"""Families whose windows are chunks, whose other layers do not turn, and whose experts take weighted
inputs."""


@dataclass(frozen=True, slots=True)
class FeedForward:
    """What stands behind attention in every layer of a model."""

    model: Model
    numerics: Numerics

    def dense(self, values: Tensors, at: str, x: torch.Tensor) -> torch.Tensor:
        """A dense FFN, gated or not, of `[B, S, H]`."""
        up = product(values, at + "up", x)
        inner = (
            self._bent(product(values, at + "gate", x)) * up
            if self.model.gated
            else (self._bent(up))
        )
        return product(values, at + "down", inner)

    def _bent(self, x: torch.Tensor) -> torch.Tensor:
        kind = self.numerics.activation
        if kind == "silu":
            return x / (1 + torch.exp(-x))
        if kind == "relu":
            return x * (x > 0)
        if kind == "gelu":
            return x * (1 + torch.erf(x / math.sqrt(2))) / 2
        return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2

    def experts(
        self, values: Tensors, at: str, x: torch.Tensor, uneven: list[torch.Tensor] | None
    ) -> torch.Tensor:
        """Routed experts of `[B, S, H]`, all computed; `uneven` takes what their balance is judged by."""
        spec = self.model.experts
        assert spec is not None
        scores = product(values, at + "router", x)
        if self.numerics.router == "sigmoid":
            scores = 1 / (1 + torch.exp(-scores))
        else:
            scores = torch.softmax(scores, -1)
        shares = scores / scores.sum(-1, keepdim=True)
        taken = self._taken_experts(values, at, scores.detach())
        if uneven is not None:  # f · P of DeepSeek-V3's equation 17, summed over the sequences
            frequency = taken.double().mean(1) * spec.experts / spec.top_k
            uneven.append((frequency * shares.mean(1)).sum())
        shares = scores * taken
        if self.numerics.renormalize_routing:
            shares = shares / shares.sum(-1, keepdim=True)
        shares = shares * self.numerics.router_scaling
        if self.model.family in CHUNKS:
            weighted = x[:, :, None] * shares[..., None]
            out = self._every_expert(values, at + "experts.", weighted).sum(2)
        else:
            every = self._every_expert(values, at + "experts.", x[:, :, None])
            out = torch.einsum("bseh,bse->bsh", every, shares)
        if spec.shared_ffn:
            shared = self.dense(values, at + "shared.", x)
            if spec.shared_gate:
                shared = shared / (1 + torch.exp(-product(values, at + "shared_gate", x)))
            out = out + shared
        return out

    def _taken_experts(self, values: Tensors, at: str, scores: torch.Tensor) -> torch.Tensor:
        """True where a token visits an expert: `[B, S, experts]`."""
        spec = self.model.experts
        assert spec is not None
        if self.model.family in CORRECTED:
            scores = scores + values[at + "correction"].detach()
        if (groups := self.numerics.router_groups) > 1:
            best = 2 if self.model.family in CORRECTED else 1
            parts = scores.reshape(*scores.shape[:-1], groups, -1)
            worth = parts.sort(-1, descending=True).values[..., :best].sum(-1)
            least = worth.sort(-1, descending=True).values[
                ..., self.numerics.router_group_top_k - 1
            ]
            closed = (worth < least[..., None])[..., None].expand_as(parts)
            scores = parts.masked_fill(closed, -math.inf).reshape(scores.shape)
        return scores >= scores.sort(-1, descending=True).values[..., spec.top_k - 1, None]

    def _every_expert(self, values: Tensors, at: str, x: torch.Tensor) -> torch.Tensor:
        """What each expert makes of each token, `[B, S, experts, H]`, of `[B, S, 1 or experts, H]`."""
        spec = self.model.experts
        assert spec is not None
        x = x.expand(-1, -1, spec.experts, -1)
        gate, up = (torch.einsum("bseh,eih->bsei", x, values[at + name]) for name in ("gate", "up"))
        if not spec.expert_bias:
            return torch.einsum("bsei,ehi->bseh", self._bent(gate) * up, values[at + "down"])
        gate = torch.minimum(gate + values[at + "gate_bias"], torch.tensor(7.0))
        up = (up + values[at + "up_bias"]).clip(-7, 7)
        inner = gate / (1 + torch.exp(-1.702 * gate)) * (up + 1)
        return torch.einsum("bsei,ehi->bseh", inner, values[at + "down"]) + values[at + "down_bias"]


def product(values: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
    """`x` times a linear layer's matrix, and its bias where it has one."""
    out = x @ values[name + ".weight"].T
    return out + values[name + ".bias"] if name + ".bias" in values else out
