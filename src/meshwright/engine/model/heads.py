"""Self-attention as a module: its products, norms and positions, around the arithmetic of `attention`.

Heads are split over tp and tokens over cp; shapes as in `decoder.py`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from meshwright.engine.model.attention import attend, everyones_positions, rotate
from meshwright.engine.model.collectives import enter
from meshwright.engine.model.explicit import Scoring
from meshwright.engine.model.layers import Axes, Linear, Norm, Pass, local
from meshwright.engine.model.numerics import Numerics
from meshwright.engine.model.ring import ring_attention
from meshwright.engine.model.traits import traits_of
from meshwright.specs.model import Model

LATENT_NORM_EPS = 1e-6
"""Of the norms of latents, whatever a config says of the others (transformers, modeling_deepseek_v3.py)."""

Rotary = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines."""


class Attention(nn.Module):
    """Self-attention whose heads are split over tp and whose tokens are split over cp."""

    def __init__(
        self, model: Model, numerics: Numerics, axes: Axes, window: int, selective: bool
    ) -> None:
        super().__init__()
        self.axes, self.window, self.selective = axes, window, selective
        self.head_dim, self.kv_heads = model.head_dim, model.kv_heads
        self.pairs_turn = traits_of(model.family).pairs_turn
        self.scoring = Scoring(numerics.score_scale(model), numerics.attention_softcap)
        self.qk_norm = model.qk_norm
        self.turns = self.window != 0 or not traits_of(model.family).chunks
        self.unit_eps = numerics.norm_eps if numerics.unit_heads and self.turns else 0.0
        self._build(model, numerics)
        self.sinks = nn.Parameter(torch.empty(model.heads)) if model.attention_sinks else None

    def _build(self, model: Model, numerics: Numerics) -> None:
        """The products and norms, on the device that is in force."""
        width, kv_width = model.heads * model.head_dim, model.kv_heads * model.head_dim
        self.q = Linear(model.hidden, width, model.qkv_bias)
        self.k = Linear(model.hidden, kv_width, model.qkv_bias)
        self.v = Linear(model.hidden, kv_width, model.qkv_bias)
        self.o = Linear(width, model.hidden, model.attention_out_bias)
        if model.attention_gate:
            self.gate = Linear(model.hidden, width, model.qkv_bias)
        if model.qk_norm != "none":
            widths = (self.head_dim,) * 2 if model.qk_norm == "head" else (width, kv_width)
            offset = traits_of(model.family).norm_offset
            self.q_norm = Norm("rmsnorm", widths[0], False, numerics.norm_eps, offset)
            self.k_norm = Norm("rmsnorm", widths[1], False, numerics.norm_eps, offset)

    def forward(self, x: torch.Tensor, here: Pass) -> Any:
        """`[B, S or S/tp, H]` to the same."""
        x = enter(x, self.axes.tp, self.axes.sequence_parallel)
        table = here.rotary_of(self.window) if self.turns else None
        query, key, value = self._heads(x, table)
        if self.unit_eps:
            query, key = (F.rms_norm(t, t.shape[-1:], eps=self.unit_eps) for t in (query, key))
        if not self.turns and here.sharpness is not None:
            query = query * here.sharpness
        if self.selective and torch.is_grad_enabled():
            out = checkpoint(
                self._mix, query, key, value, here, use_reentrant=False, preserve_rng_state=False
            )
        else:
            out = self._mix(query, key, value, here)
        out = out.transpose(1, 2).flatten(2)
        if hasattr(self, "gate"):
            out = out * self.gate(x).sigmoid()
        return self.o.leaving(out, self.axes)

    def _mix(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, here: Pass
    ) -> torch.Tensor:
        """Every query's weighted sum of values, `[B, heads on this rank, S, head_dim]`."""
        cp, sinks = self.axes.cp, local(self.sinks)
        if self.axes.ring and cp.size > 1:
            everyone = everyones_positions(query.shape[2], cp)
            return ring_attention(
                query, key, value, everyone, cp, self.window, here.starts, self.scoring, sinks
            )
        return attend(query, key, value, cp, here.masks.get(self.window), self.scoring, sinks)

    def _heads(
        self, x: torch.Tensor, table: Rotary | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values `[B, heads on this rank, S, head_dim]`."""
        tp = self.axes.tp
        if self.kv_heads < tp.size:
            # Each key head is computed by tp/kv_heads ranks; their gradients are summed later.
            start = tp.rank * self.kv_heads // tp.size * self.head_dim
            stop = start + self.head_dim
            flat = [self.q(x), self.k.rows(x, start, stop), self.v.rows(x, start, stop)]
        else:
            flat = [self.q(x), self.k(x), self.v(x)]
        if self.qk_norm == "full":
            flat[:2] = [self.q_norm(flat[0]), self.k_norm(flat[1])]
        query, key, value = (t.unflatten(-1, (-1, self.head_dim)) for t in flat)
        if self.qk_norm == "head":
            query, key = self.q_norm(query), self.k_norm(key)
        # Heads stay beside each other in memory, as the product after attention takes them: no copy.
        query, key, value = (t.transpose(1, 2) for t in (query, key, value))
        if table is not None:
            query, key = (rotate(t, table, self.pairs_turn) for t in (query, key))
        return query, key, value


class LatentAttention(Attention):
    """Attention whose keys and values come out of a narrow latent (DeepSeek-V2, arXiv 2405.04434 §2.1).

    Latents are computed alike on every rank of tp, heads are split; the part of a key that turns is
    the same for all heads.
    """

    def _build(self, model: Model, numerics: Numerics) -> None:
        spec = model.latent_attention
        assert spec is not None
        self.spec, width = spec, model.heads * model.head_dim
        if spec.q_rank:
            self.q_compress = Linear(model.hidden, spec.q_rank)
            self.q_latent_norm = Norm("rmsnorm", spec.q_rank, False, LATENT_NORM_EPS)
            self.q_expand = Linear(spec.q_rank, width)
        else:
            self.q = Linear(model.hidden, width)
        self.kv_compress = Linear(model.hidden, spec.kv_rank + spec.rope_head_dim)
        self.kv_latent_norm = Norm("rmsnorm", spec.kv_rank, False, LATENT_NORM_EPS)
        self.kv_expand = Linear(spec.kv_rank, model.heads * (spec.nope_head_dim + spec.v_head_dim))
        self.o = Linear(model.heads * spec.v_head_dim, model.hidden)

    def _heads(
        self, x: torch.Tensor, table: Rotary | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries and keys `[B, heads on this rank, S, nope + rope]`, values `[…, S, v]`."""
        spec = self.spec
        asked = self.q_expand(self.q_latent_norm(self.q_compress(x))) if spec.q_rank else self.q(x)
        latent, turning = self.kv_compress(x).split([spec.kv_rank, spec.rope_head_dim], -1)
        both = self.kv_expand(self.kv_latent_norm(latent))
        query, both = (
            t.unflatten(-1, (-1, width)).transpose(1, 2)
            for t, width in ((asked, self.head_dim), (both, spec.nope_head_dim + spec.v_head_dim))
        )
        key, value = both.split([spec.nope_head_dim, spec.v_head_dim], -1)
        still, turned = query.split([spec.nope_head_dim, spec.rope_head_dim], -1)
        turning = turning.unsqueeze(1)
        if table is not None:
            turned, turning = (rotate(t, table, self.pairs_turn) for t in (turned, turning))
        query = torch.cat([still, turned], -1)
        key = torch.cat([key, turning.expand(-1, key.shape[1], -1, -1)], -1)
        return query, key, value
