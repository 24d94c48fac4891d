"""What the decoder's layers are built of: split products, norms, the dense FFN, and what they share.

The same code runs on one device and on a rank of any layout: `enter` and `leave` are the identity
when an axis has one rank. Shapes as in `decoder.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor

from meshwright.engine.model.collectives import Axis, enter, leave
from meshwright.engine.model.dropout import Draw, Place
from meshwright.engine.model.kernels import rms_norm, silu_product
from meshwright.engine.model.masks import Masks
from meshwright.engine.model.numerics import Activation
from meshwright.specs.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The axes that the forward pass crosses; all of size one on a single device."""

    tp: Axis = field(default_factory=lambda: Axis(name="tp"))
    cp: Axis = field(default_factory=lambda: Axis(name="cp"))
    ep: Axis = field(default_factory=lambda: Axis(name="ep"))
    sequence_parallel: bool = False
    ring: bool = False
    experts_cut: bool = False
    """Whether tp cuts every expert (etp = tp), so that its ranks route the same tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What a micro-batch's forward needs besides its hidden states, the same for every layer."""

    rotary: tuple[torch.Tensor, torch.Tensor] | None = None
    """This rank's cosines and sines."""
    window_rotary: tuple[torch.Tensor, torch.Tensor] | None = None
    """Those of layers with a window, where they are others."""
    sharpness: torch.Tensor | None = None
    """What queries of layers that turn nothing are multiplied by, `[…, S, 1]`; None: nothing."""
    starts: torch.Tensor | None = None
    """`[B, S]`: where in the whole sequence each token's document starts; None: one document."""
    masks: dict[int, Masks] = field(default_factory=dict)
    """By window; none where attention is plainly causal, or goes round a ring."""
    draws: dict[int, Draw] = field(default_factory=dict)
    """Dropout by layer; nothing is dropped where there is none."""
    draw: Draw | None = None
    """That of the layer which this is for."""

    def rotary_of(self, window: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Cosines and sines of a layer with this window."""
        return self.window_rotary if window and self.window_rotary else self.rotary

    def of(self, layer: int) -> Pass:
        """What one layer needs."""
        return replace(self, draws={}, draw=self.draws[layer]) if self.draws else self

    def drop(self, x: torch.Tensor, place: Place) -> torch.Tensor:
        """Dropout of `[B, S or S/tp, H]`, where there is any."""
        return x if self.draw is None else self.draw.apply(x, place)


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

    def __init__(self, kind: str, width: int, bias: bool, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        self.kind, self.width, self.eps, self.offset = kind, width, eps, offset
        if kind != "none":
            self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if bias and kind == "layernorm" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise `[..., width]`."""
        if self.kind == "none":
            return x
        if self.kind == "rmsnorm":
            weight = local(self.weight)
            return rms_norm(x, weight + self.offset if self.offset else weight, self.eps)
        return F.layer_norm(x, (self.width,), local(self.weight), local(self.bias), self.eps)


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


_STEEPNESS, _LIMIT = 1.702, 7.0  # transformers, modeling_gpt_oss.py: swiglu_alpha, swiglu_limit


def clamped_gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """gpt-oss's gate: `gate · sigmoid(1.702 · gate) · (up + 1)`, both clamped at 7, `up` also at -7."""
    gate, up = gate.clamp(max=_LIMIT), up.clamp(-_LIMIT, _LIMIT)
    return gate * torch.sigmoid(_STEEPNESS * gate) * (up + 1)
