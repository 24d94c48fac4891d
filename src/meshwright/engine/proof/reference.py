"""The model once more, written apart: what a proof holds the engine against.

Nothing of the engine's model, kernels, loss, dropout, clipping, optimizer or schedule is used here,
only formulas over named fp64 tensors and torch's autograd, so an error in code that one device and a
plan share is not shared by the reference. `derivatives` holds autograd against differences.

Experts are computed densely, rotary positions as complex numbers, documents by their numbers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from meshwright.engine.model.numerics import Numerics
from meshwright.engine.proof.reference_ffn import CHUNKS, FeedForward, product
from meshwright.engine.proof.reference_rotary import frequencies, grown, size
from meshwright.engine.proof.reference_shapes import NORMS_AROUND, Tensors
from meshwright.specs.model import Model

_NOT_COUNTED = -100
_NORMS_BEHIND = {"olmo2", "olmo3"}
"""Families that norm what attention and FFN give, not what they take; stated again, not shared."""
_SCALED_EMBEDDINGS = {"gemma", "gemma2", "gemma3_text"}
_NORMS_FROM_ONE = _SCALED_EMBEDDINGS | {"qwen3_next"}
"""Families whose norms multiply by one more than their weights."""
_LATENT_EPS = 1e-6
_NEIGHBOURS_TURN = {"glm4", "deepseek_v2", "deepseek_v3", "llama4_text"}
"""Families whose rotary pairs are (2i, 2i + 1), not (i, i + d/2)."""
_SCORES = 1 << 22
"""Attention scores `[rows, heads, S, S]` that are held at once, per layer."""


@dataclass(slots=True)
class Trace:
    """What one run shows: per step loss, norm and gradients (clipped), and the final parameters."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    gradients: list[Tensors] = field(default_factory=list)
    parameters: Tensors = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batch:
    """One optimizer step's sequences; `[rows, S]` each, `documents` None where each row is one."""

    tokens: torch.Tensor
    targets: torch.Tensor
    starts: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Seen:
    """Of some rows: positions `[B, S]` in their documents, where those begin, and what dropout counts by."""

    positions: torch.Tensor
    begun: torch.Tensor
    rows: np.ndarray | None
    step: int


@dataclass(frozen=True, slots=True)
class Reference:
    """A model as formulas over a table of tensors."""

    model: Model
    numerics: Numerics
    dropout: float = 0.0
    seed: int = 0

    def gradients(self, values: Tensors, batch: Batch, step: int) -> tuple[float, Tensors]:
        """Mean loss over the counted tokens, and the gradient of it and the balancing loss."""
        held = {name: value.detach().requires_grad_() for name, value in values.items()}
        total = 0.0
        for loss, uneven in self._losses(held, batch, step):
            (loss + uneven).backward()
            total += float(loss.detach())
        return total, {
            name: torch.zeros_like(value) if value.grad is None else value.grad
            for name, value in held.items()
        }

    def loss(self, values: Tensors, batch: Batch, step: int) -> float:
        """Mean loss over the counted tokens, and the experts' balancing loss."""
        with torch.no_grad():
            return sum(float(loss + uneven) for loss, uneven in self._losses(values, batch, step))

    def _losses(
        self, values: Tensors, batch: Batch, step: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The loss and the experts' balancing loss in parts, a few rows at a time."""
        rows, length = batch.tokens.shape
        at_once = max(1, _SCORES // (self.model.heads * length * length))
        counted = int((batch.targets != _NOT_COUNTED).sum())
        for first in range(0, rows, at_once):
            part = slice(first, min(rows, first + at_once))
            starts = None if batch.starts is None else batch.starts[part]
            numbers = np.arange(part.start, part.stop)
            uneven: list[torch.Tensor] = []
            tokens, targets = batch.tokens[part], batch.targets[part]
            seen = self._begun(tokens, starts, numbers, step)
            x = self._layers(values, tokens, seen, uneven)
            loss = _missed(self._head(values, x), targets) / counted
            besides = torch.zeros(())
            if self.model.predict_layers:
                besides = self._further(values, x, tokens, targets, seen, uneven) / counted
            yield loss, besides + sum(uneven) / rows * self.numerics.balance_loss

    def logits(
        self,
        values: Tensors,
        tokens: torch.Tensor,
        starts: torch.Tensor | None = None,
        rows: np.ndarray | None = None,
        step: int = 0,
        uneven: list[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """`[B, S]` tokens to `[B, S, vocabulary]`; every layer of experts adds to `uneven`."""
        seen = self._begun(tokens, starts, rows, step)
        return self._head(values, self._layers(values, tokens, seen, uneven))

    def _begun(
        self, tokens: torch.Tensor, starts: torch.Tensor | None, rows: np.ndarray | None, step: int
    ) -> _Seen:
        begun = torch.zeros_like(tokens) if starts is None else starts
        return _Seen(torch.arange(tokens.shape[1]).expand_as(tokens) - begun, begun, rows, step)

    def _layers(
        self, values: Tensors, tokens: torch.Tensor, seen: _Seen, uneven: list[torch.Tensor] | None
    ) -> torch.Tensor:
        """What the head takes, behind the last norm."""
        x = values["embed.weight"][tokens]
        if self.model.family in _SCALED_EMBEDDINGS:
            x = x * math.sqrt(self.model.hidden)
        if self.model.positions == "learned":
            x = x + values["embed.positions"][seen.positions]
        x = self._drop(x, seen.rows, seen.step, -1, "embedding")
        for index in range(self.model.layers):
            x = self._layer(values, index, x, seen, uneven)
        return self._norm(values, "norm", x) if self.model.final_norm else x

    def _layer(
        self, values: Tensors, index: int, x: torch.Tensor, seen: _Seen,
        uneven: list[torch.Tensor] | None,
    ) -> torch.Tensor:  # fmt: skip
        at = f"layers.{index}."
        inner = self._taken(values, at + "attention_norm", x)
        inner = self._attention(values, at + "attention.", index, inner, seen.positions, seen.begun)
        inner = self._given(values, at + "attention", inner)
        x = x + self._drop(inner, seen.rows, seen.step, index, "attention")
        inner = self._taken(values, at + "ffn_norm", x)
        ffn = FeedForward(self.model, self.numerics)
        if self.model.is_moe_layer(index):
            inner = ffn.experts(values, at + "moe.", inner, uneven)
        else:
            inner = ffn.dense(values, at + "mlp.", inner)
        inner = self._given(values, at + "ffn", inner)
        return x + self._drop(inner, seen.rows, seen.step, index, "ffn")

    def _further(
        self, values: Tensors, x: torch.Tensor, tokens: torch.Tensor, targets: torch.Tensor,
        seen: _Seen, uneven: list[torch.Tensor] | None,
    ) -> torch.Tensor:  # fmt: skip
        """Equations 21 to 25 of arXiv 2412.19437, position by position; times the tokens that count."""
        depths, length = self.model.predict_layers, tokens.shape[1]
        total = torch.zeros(())
        for depth in range(1, depths + 1):
            index = self.model.layers + depth - 1
            at = f"layers.{index}.join."
            # What is beyond the end is any token: causal attention lets nobody else see it.
            later = (torch.arange(length) + depth).clamp(max=length - 1)
            embedded = self._norm(
                values, at + "embedding_norm", values["embed.weight"][tokens[:, later]]
            )
            both = torch.cat([embedded, self._norm(values, at + "hidden_norm", x)], -1)
            x = self._layer(values, index, product(values, at + "product", both), seen, uneven)
            asked = targets[:, later].clone()
            asked[:, length - depth :] = _NOT_COUNTED
            asked[seen.begun[:, later] != seen.begun] = _NOT_COUNTED
            total = total + _missed(self._head(values, self._norm(values, at + "norm", x)), asked)
        return total * self.numerics.predict_weight / depths

    def _head(self, values: Tensors, x: torch.Tensor) -> torch.Tensor:
        logits = x @ values["embed.weight" if self.model.tied_embeddings else "head.weight"].T
        return _bounded(logits, self.numerics.logits_softcap)

    def _taken(self, values: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
        """What attention or FFN takes of the residual stream."""
        return x if self.model.family in _NORMS_BEHIND else self._norm(values, name, x)

    def _given(self, values: Tensors, part: str, x: torch.Tensor) -> torch.Tensor:
        """What attention or FFN adds to the residual stream."""
        if self.model.family in _NORMS_BEHIND:
            return self._norm(values, part + "_norm", x)
        if self.model.family in NORMS_AROUND:
            return self._norm(values, part + "_post_norm", x)
        return x

    def _norm(self, values: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
        if self.model.norm == "none":
            return x
        if self.model.norm == "rmsnorm":
            return self._divided(values, name, x)
        centred = x - x.mean(-1, keepdim=True)
        deviation = ((centred**2).mean(-1, keepdim=True) + self.numerics.norm_eps) ** 0.5
        out = centred / deviation * values[name + ".weight"]
        return out + values[name + ".bias"] if self.model.norm_bias else out

    def _divided(self, values: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
        """By its root mean square, times the weights."""
        weight = values[name + ".weight"]
        if self.model.family in _NORMS_FROM_ONE:
            weight = 1 + weight
        return _root_mean_square(x, weight, self.numerics.norm_eps)

    def _attention(
        self, values: Tensors, at: str, index: int, x: torch.Tensor, positions: torch.Tensor,
        begun: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        if self.model.latent_attention is not None:
            q, k, v = self._from_latents(values, at, x, positions)
        else:
            q, k, v = self._heads(values, at, index, x, positions)
        group = self.model.heads // self.model.kv_heads
        k, v = (t.repeat_interleave(group, dim=2) for t in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * self._sharpness()
        scores = _bounded(scores, self.numerics.attention_softcap)
        scores = scores.masked_fill(~self._seen(index, x.shape[1], begun), -math.inf)
        if self.model.attention_sinks:  # one more key, which has no value
            sinks = values[at + "sinks"][:, None, None].expand(*scores.shape[:3], 1)
            scores = torch.cat([scores, sinks], -1)
        weights = torch.softmax(scores, -1)[..., : x.shape[1]]
        mixed = torch.einsum("bhqk,bkhd->bqhd", weights, v).reshape(*x.shape[:2], -1)
        if self.model.attention_gate:
            mixed = mixed / (1 + torch.exp(-product(values, at + "gate", x)))
        return product(values, at + "o", mixed)

    def _sharpness(self) -> float:
        """What products of queries and keys are multiplied by."""
        sharpness = 1 / math.sqrt(self.numerics.query_scalar or self.model.head_dim)
        scaling = self.numerics.rope_scaling
        if self.model.latent_attention is not None and scaling is not None:
            sharpness *= grown(scaling.factor, scaling.mscale_all_dim) ** 2
        return sharpness

    def _from_latents(
        self, values: Tensors, at: str, x: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        model, spec = self.model, self.model.latent_attention
        assert spec is not None
        q = product(values, at + "q_compress", x) if spec.q_rank else product(values, at + "q", x)
        if spec.q_rank:
            q = _root_mean_square(q, values[at + "q_latent_norm.weight"], _LATENT_EPS)
            q = product(values, at + "q_expand", q)
        q = q.reshape(*q.shape[:2], model.heads, model.head_dim)
        narrow = product(values, at + "kv_compress", x)
        latent, turning = narrow[..., : spec.kv_rank], narrow[..., None, spec.kv_rank :]
        latent = _root_mean_square(latent, values[at + "kv_latent_norm.weight"], _LATENT_EPS)
        both = product(values, at + "kv_expand", latent)
        both = both.reshape(*both.shape[:2], model.heads, -1)
        k, v = both[..., : spec.nope_head_dim], both[..., spec.nope_head_dim :]
        turning = self._turned(turning, positions, False).expand(-1, -1, model.heads, -1)
        turned = self._turned(q[..., spec.nope_head_dim :], positions, False)
        q = torch.cat([q[..., : spec.nope_head_dim], turned], -1)
        return q, torch.cat([k, turning], -1), v

    def _heads(
        self, values: Tensors, at: str, index: int, x: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        model = self.model
        q, k, v = (product(values, at + name, x) for name in "qkv")
        if model.qk_norm == "full":
            q, k = self._divided(values, at + "q_norm", q), self._divided(values, at + "k_norm", k)
        q, k, v = (t.reshape(*t.shape[:2], -1, model.head_dim) for t in (q, k, v))
        if model.qk_norm == "head":
            q, k = self._divided(values, at + "q_norm", q), self._divided(values, at + "k_norm", k)
        if model.family in CHUNKS and not self._windowed(index):
            return q * self._long(positions), k, v
        if model.positions == "rope":
            q, k = (self._turned(t, positions, self._windowed(index)) for t in (q, k))
        if self.numerics.unit_heads:
            q, k = (_root_mean_square(t, torch.ones(()), self.numerics.norm_eps) for t in (q, k))
        return q, k, v

    def _long(self, positions: torch.Tensor) -> torch.Tensor:
        """Llama 4's factor of queries that nothing turns, `[B, S, 1, 1]`."""
        fits = (positions + 1) // self.numerics.temperature_floor
        return (1 + self.numerics.temperature_scale * torch.log(1.0 + fits))[..., None, None]

    def _seen(self, index: int, length: int, begun: torch.Tensor) -> torch.Tensor:
        """`[B, 1, queries, keys]`: not the future, not another document, not beyond the window."""
        query, key = torch.arange(length)[:, None], torch.arange(length)[None, :]
        seen = key <= query
        if self._windowed(index) and self.model.family in CHUNKS:
            seen = seen & (query // self.model.window == key // self.model.window)
        elif self._windowed(index):
            seen = seen & (query - key < self.model.window)
        return seen & (begun[:, None, :, None] == begun[:, None, None, :])

    def _windowed(self, index: int) -> bool:
        every, kinds = self.model.window_period, self.model.layer_kinds
        if kinds:
            return kinds[index].split("+")[0] == "window"
        return self.model.window > 0 and (every == 1 or (index + 1) % every > 0)

    def _turned(self, x: torch.Tensor, positions: torch.Tensor, windowed: bool) -> torch.Tensor:
        """Pairs of elements as complex numbers, turned by position · frequency; others stay."""
        width = int(x.shape[-1] * self.numerics.rotary_share)
        angles = positions[..., None, None] * torch.tensor(
            frequencies(self.numerics, width, windowed)
        )
        turns = torch.polar(torch.ones_like(angles), angles)
        if self.model.family in _NEIGHBOURS_TURN:
            real, imaginary = x[..., 0:width:2], x[..., 1:width:2]
        else:
            real, imaginary = x[..., : width // 2], x[..., width // 2 : width]
        turned = torch.complex(real, imaginary) * turns * size(self.numerics)
        return torch.cat([turned.real, turned.imag, x[..., width:]], -1)

    def _drop(
        self, x: torch.Tensor, rows: np.ndarray | None, step: int, layer: int, place: str
    ) -> torch.Tensor:
        """Dropout as `model/dropout.py` defines it: SplitMix64 of (seed, step, layer, place, element)."""
        if not self.dropout:
            return x
        assert rows is not None
        text = f"{self.seed}:{step}:{layer}:{place}".encode()
        key = np.frombuffer(hashlib.blake2b(text, digest_size=8).digest(), "<u8")[0]
        _, length, width = x.shape
        tokens = rows[:, None] * length + np.arange(length)
        z = (tokens[..., None] * width + np.arange(width)).astype(np.uint64)
        with np.errstate(over="ignore"):
            z = z * np.uint64(0x9E3779B97F4A7C15) + key
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        high = (z ^ (z >> np.uint64(31))) >> np.uint64(40)
        kept = torch.from_numpy(high >= np.uint64(round(self.dropout * 2**24)))
        return x * kept / (1 - self.dropout)


def _missed(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy, summed over the targets that count."""
    chosen = torch.nn.functional.one_hot(targets.clamp(min=0), logits.shape[-1])
    picked = (torch.log_softmax(logits, -1) * chosen).sum(-1)
    return -(picked * (targets != _NOT_COUNTED)).sum()


def _bounded(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Bent towards ± `cap`; 0: as it is."""
    return cap * torch.tanh(x / cap) if cap else x


def _root_mean_square(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / ((x**2).mean(-1, keepdim=True) + eps) ** 0.5 * weight
