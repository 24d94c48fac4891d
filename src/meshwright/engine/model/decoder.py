"""One decoder for GPT-2, Llama 2/3, Mistral, Qwen 2/3 and Mixtral-style mixtures of experts.

The same forward runs on one device and on a pipeline stage of a 4D layout: `enter` and `leave`
are the identity when an axis has one rank. Layers sit in a ModuleDict under their global number,
so a stage that holds layers 4 to 7 still calls them `layers.4.…`, and a stage without embedding or
head simply skips it.

Shapes: B sequences, S tokens on this rank (whole sequence / cp), H hidden, and S/tp where sequence
parallelism splits the residual stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from meshwright.engine.model.attention import (
    attend,
    everyones_positions,
    local_positions,
    rotary_table,
    rotate,
)
from meshwright.engine.model.collectives import Axis, enter, exchange, leave, lose_gradient
from meshwright.engine.model.dropout import Draw, Dropout, Place
from meshwright.engine.model.kernels import rms_norm, silu_product
from meshwright.engine.model.masks import Masks, attention_masks
from meshwright.engine.model.numerics import Activation, Numerics, default_numerics
from meshwright.engine.model.ring import ring_attention
from meshwright.engine.model.tied import TiedWeight
from meshwright.specs.layout import Recompute
from meshwright.specs.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The axes that the forward pass crosses; all of size one on a single device."""

    tp: Axis = field(default_factory=lambda: Axis(name="tp"))
    cp: Axis = field(default_factory=lambda: Axis(name="cp"))
    ep: Axis = field(default_factory=lambda: Axis(name="ep"))
    sequence_parallel: bool = False
    ring: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What a micro-batch's forward needs besides its hidden states, the same for every layer."""

    rotary: tuple[torch.Tensor, torch.Tensor] | None = None
    """This rank's cosines and sines."""
    starts: torch.Tensor | None = None
    """`[B, S]`: where in the whole sequence each token's document starts; None: one document."""
    masks: dict[int, Masks] = field(default_factory=dict)
    """By window; none where attention is plainly causal, or goes round a ring."""
    draw: Draw | None = None
    """Dropout; None: nothing is dropped."""

    def drop(self, x: torch.Tensor, layer: int, place: Place) -> torch.Tensor:
        """Dropout of `[B, S or S/tp, H]`, where there is any."""
        return x if self.draw is None else self.draw.apply(x, layer, place)


def local(parameter: Any) -> Any:
    """This rank's part of a parameter, as a plain tensor; None stays None."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


class Linear(nn.Module):
    """A weight `[out, in]` with an optional bias `[out]`."""

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Product plus bias: column-parallel, or not split at all."""
        return F.linear(x, local(self.weight), local(self.bias))

    def rows(self, x: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Only outputs `start` to `stop`: a key head that several ranks compute."""
        bias = local(self.bias)
        return F.linear(
            x, local(self.weight)[start:stop], None if bias is None else bias[start:stop]
        )

    def leaving(self, x: torch.Tensor, axes: Axes) -> torch.Tensor:
        """Row-parallel: the ranks' partial products are added up, then the bias once."""
        out = leave(F.linear(x, local(self.weight)), axes.tp, axes.sequence_parallel)
        bias = local(self.bias)
        return out if bias is None else out + bias


class Norm(nn.Module):
    """RMS norm, layer norm or none over the last dimension."""

    def __init__(self, kind: str, width: int, bias: bool, eps: float) -> None:
        super().__init__()
        self.kind, self.width, self.eps = kind, width, eps
        if kind != "none":
            self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if bias and kind == "layernorm" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise `[..., width]`."""
        if self.kind == "none":
            return x
        if self.kind == "rmsnorm":
            return rms_norm(x, local(self.weight), self.eps)
        return F.layer_norm(x, (self.width,), local(self.weight), local(self.bias), self.eps)


class Attention(nn.Module):
    """Self-attention whose heads are split over tp and whose tokens are split over cp."""

    def __init__(
        self, model: Model, numerics: Numerics, axes: Axes, window: int, selective: bool
    ) -> None:
        super().__init__()
        self.axes, self.window, self.selective = axes, window, selective
        self.head_dim, self.kv_heads = model.head_dim, model.kv_heads
        width, kv_width = model.heads * model.head_dim, model.kv_heads * model.head_dim
        self.q = Linear(model.hidden, width, model.qkv_bias)
        self.k = Linear(model.hidden, kv_width, model.qkv_bias)
        self.v = Linear(model.hidden, kv_width, model.qkv_bias)
        self.o = Linear(width, model.hidden, model.attention_out_bias)
        self.qk_norm = model.qk_norm
        if model.qk_norm != "none":
            widths = (self.head_dim,) * 2 if model.qk_norm == "head" else (width, kv_width)
            self.q_norm = Norm("rmsnorm", widths[0], False, numerics.norm_eps)
            self.k_norm = Norm("rmsnorm", widths[1], False, numerics.norm_eps)

    def forward(self, x: torch.Tensor, here: Pass) -> Any:
        """`[B, S or S/tp, H]` to the same."""
        x = enter(x, self.axes.tp, self.axes.sequence_parallel)
        query, key, value = self._heads(x)
        if here.rotary is not None:
            query, key = rotate(query, here.rotary), rotate(key, here.rotary)
        if self.selective and torch.is_grad_enabled():
            out = checkpoint(
                self._mix, query, key, value, here, use_reentrant=False, preserve_rng_state=False
            )
        else:
            out = self._mix(query, key, value, here)
        return self.o.leaving(out.transpose(1, 2).flatten(2), self.axes)

    def _mix(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, here: Pass
    ) -> torch.Tensor:
        """Every query's weighted sum of values, `[B, heads on this rank, S, head_dim]`."""
        cp = self.axes.cp
        if self.axes.ring and cp.size > 1:
            everyone = everyones_positions(query.shape[2], cp)
            return ring_attention(query, key, value, everyone, cp, self.window, here.starts)
        return attend(query, key, value, cp, here.masks.get(self.window))

    def _heads(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
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
        query, key, value = (t.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for t in flat)
        if self.qk_norm == "head":
            query, key = self.q_norm(query), self.k_norm(key)
        return query, key, value


class Mlp(nn.Module):
    """The dense FFN: gated (SwiGLU) or plain, its width split over tp."""

    def __init__(self, model: Model, width: int, activation: Activation, axes: Axes) -> None:
        super().__init__()
        self.axes, self.activation = axes, activation
        if model.gated:
            self.gate: Linear | None = Linear(model.hidden, width, model.ffn_bias)
        else:
            self.gate = None
        self.up = Linear(model.hidden, width, model.ffn_bias)
        self.down = Linear(width, model.hidden, model.ffn_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[B, S or S/tp, H]` to the same."""
        x = enter(x, self.axes.tp, self.axes.sequence_parallel)
        up = self.up(x)
        if self.gate is None:
            inner = activate(up, self.activation)
        else:
            inner = gated(self.gate(x), up, self.activation)
        return self.down.leaving(inner, self.axes)


def activate(x: torch.Tensor, kind: Activation) -> torch.Tensor:
    """Apply the named activation."""
    if kind == "silu":
        return F.silu(x)
    if kind == "relu":
        return F.relu(x)
    return F.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")


def gated(gate: torch.Tensor, up: torch.Tensor, kind: Activation) -> torch.Tensor:
    """The activation of `gate` times `up`."""
    return silu_product(gate, up) if kind == "silu" else activate(gate, kind) * up


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
    """Mixture of experts with dropless top-k routing; each rank routes its own tokens."""

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
        if self.shared is not None:
            shared = self.shared(x)
            if self.shared_gate is not None:
                shared = shared * self.shared_gate(x).sigmoid()
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


class Block(nn.Module):
    """One transformer layer: attention and FFN, each behind its norm."""

    def __init__(
        self, model: Model, index: int, numerics: Numerics, axes: Axes, recompute: Recompute
    ) -> None:
        super().__init__()
        self.index, self.full_recompute = index, recompute == "full"
        is_global = model.window_period > 1 and (index + 1) % model.window_period == 0
        window = 0 if is_global else model.window
        self.attention = Attention(model, numerics, axes, window, recompute == "selective")
        norm = (model.norm, model.hidden, model.norm_bias, numerics.norm_eps)
        self.attention_norm, self.ffn_norm = Norm(*norm), Norm(*norm)
        if model.is_moe_layer(index):
            self.moe = Mixture(model, numerics, axes)
        else:
            self.mlp = Mlp(model, model.ffn, numerics.activation, axes)

    def forward(self, x: torch.Tensor, here: Pass) -> Any:
        """`[B, S or S/tp, H]` to the same."""
        if self.full_recompute and torch.is_grad_enabled():
            return checkpoint(self._layer, x, here, use_reentrant=False, preserve_rng_state=False)
        return self._layer(x, here)

    def _layer(self, x: torch.Tensor, here: Pass) -> torch.Tensor:
        attended = self.attention(self.attention_norm(x), here)
        x = x + here.drop(attended, self.index, "attention")
        ffn = self.moe if hasattr(self, "moe") else self.mlp
        return x + here.drop(ffn(self.ffn_norm(x)), self.index, "ffn")


def own_slice(at: torch.Tensor, axes: Axes) -> torch.Tensor:
    """The part of `[…, S]` that this rank's slice of the residual stream stands for."""
    return at.chunk(axes.tp.size, -1)[axes.tp.rank] if axes.sequence_parallel else at


class Embedding(nn.Module):
    """Token (and learned position) embedding, its vocabulary rows split over tp."""

    def __init__(self, model: Model, axes: Axes) -> None:
        super().__init__()
        self.axes, self.vocab = axes, model.vocab
        self.weight = nn.Parameter(torch.empty(model.vocab, model.hidden))
        if model.positions == "learned":
            self.positions = nn.Parameter(torch.empty(model.max_positions, model.hidden))

    def forward(
        self,
        tokens: torch.Tensor,
        starts: torch.Tensor | None = None,
        tied: TiedWeight | None = None,
    ) -> torch.Tensor:
        """`[B, S]` integers to `[B, S or S/tp, H]`; learned positions count from `starts`."""
        tp, table = self.axes.tp, local(self.weight)

        def look_up(rows: torch.Tensor) -> torch.Tensor:
            return F.embedding(rows, table) if tied is None else tied.look_up(rows)

        if tp.size == 1:
            x = look_up(tokens)
        else:
            # Tokens of other ranks' rows contribute zero; the sum over tp brings them in.
            rows = tokens - tp.rank * (self.vocab // tp.size)
            mine = (rows >= 0) & (rows < table.shape[0])
            x = look_up(rows.where(mine, 0)) * mine[..., None]
            x = leave(x, tp, self.axes.sequence_parallel)
        if hasattr(self, "positions"):
            at = local_positions(tokens.shape[1], self.axes.cp).to(tokens.device)
            at = at if starts is None else at - starts
            x = x + local(self.positions)[own_slice(at, self.axes)]
        return x


class Decoder(nn.Module):
    """The layers `layers` of a model, with or without its embedding and head: one stage of it."""

    def __init__(
        self,
        model: Model,
        numerics: Numerics | None = None,
        *,
        layers: Iterable[int] | None = None,
        embedding: bool = True,
        head: bool = True,
        axes: Axes | None = None,
        recompute: Recompute = "none",
        recompute_layers: int | None = None,
    ) -> None:
        super().__init__()
        self.model, self.numerics = model, numerics or default_numerics(model)
        self.axes = axes or Axes()
        self.lose_input_gradient = False  # set by verify's pipeline mutant only
        self.dropout: Dropout | None = None
        if embedding:
            self.embed = Embedding(model, self.axes)
        numbers = list(range(model.layers) if layers is None else layers)
        last = len(numbers) if recompute_layers is None else recompute_layers
        self.layers = nn.ModuleDict(
            {
                str(i): Block(
                    model, i, self.numerics, self.axes, "none" if at >= last else recompute
                )
                for at, i in enumerate(numbers)
            }
        )
        if head:
            if model.final_norm:
                self.norm = Norm(model.norm, model.hidden, model.norm_bias, self.numerics.norm_eps)
            if not (model.tied_embeddings and embedding):
                self.head = Linear(model.hidden, model.vocab)
        self.has_head = head
        self.tied = head and embedding and model.tied_embeddings

    def forward(
        self,
        x: torch.Tensor,
        starts: torch.Tensor | None = None,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Tokens `[B, S]` or hidden states `[B, S or S/tp, H]` to hidden states or logits.

        Logits are `[B, S, V/tp]`: this rank's slice of the vocabulary.

        Args:
            x: what the stage before sends.
            starts: `[B, S]`, where in the whole sequence each token's document starts. Attention
                stays inside documents, and positions count from their starts.
            rows: `[B]`, which sequences of the global batch these are; dropout needs them.
        """
        tied = TiedWeight(local(self.embed.weight)) if self.tied else None
        if hasattr(self, "embed"):
            x = self.embed(x, starts, tied)
        elif self.lose_input_gradient:
            x = lose_gradient(x)
        here = self._pass(x, starts, rows)
        if hasattr(self, "embed"):
            x = here.drop(x, -1, "embedding")
        for layer in self.layers.values():
            x = layer(x, here)
        return self._logits(x, tied) if self.has_head else x

    def _pass(
        self, x: torch.Tensor, starts: torch.Tensor | None, rows: torch.Tensor | None
    ) -> Pass:
        axes = self.axes
        length = x.shape[1] * (axes.tp.size if axes.sequence_parallel else 1)
        at = local_positions(length, axes.cp).to(x.device)
        rotary = draw = None
        masks: dict[int, Masks] = {}
        if not (axes.ring and axes.cp.size > 1):
            windows = [cast(Block, layer).attention.window for layer in self.layers.values()]
            masks = attention_masks(windows, at, axes.cp, starts, x.dtype)
        if self.model.positions == "rope":
            # One table per sequence where documents begin at different places, `[B, 1, S, d]`.
            counted = at if starts is None else (at - starts)[:, None]
            rotary = rotary_table(counted, self.model.head_dim, self.numerics, x)
        if self.dropout is not None and self.dropout.rate > 0:
            if rows is None:
                raise ValueError("dropout needs the numbers of the sequences")
            tokens = rows[:, None] * (length * axes.cp.size) + own_slice(at, axes)
            draw = Draw(self.dropout, tokens)
        return Pass(rotary=rotary, starts=starts, masks=masks, draw=draw)

    def _logits(self, x: torch.Tensor, tied: TiedWeight | None) -> torch.Tensor:
        if hasattr(self, "norm"):
            x = self.norm(x)
        x = enter(x, self.axes.tp, self.axes.sequence_parallel)
        if tied is not None:
            return tied.logits(x)
        logits: torch.Tensor = self.head(x)
        return logits
