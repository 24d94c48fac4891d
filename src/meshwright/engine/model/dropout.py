"""Dropout whose mask depends on what a number *is*, never on which rank computes it.

A mask bit is a hash of (seed, optimizer step, layer, place in the layer, sequence, position,
channel), so every layout, and every recomputation, drops the same numbers. Nothing is kept for
backward: the mask is drawn again. The hash is SplitMix64 (Steele, Lea and Flood, OOPSLA 2014,
figure 16) over the element's number, started at a key for everything else.

Dropped are the embedding's output and what attention and FFN add to the residual stream (GPT-2's
`embd_pdrop` and `resid_pdrop`, Megatron's `--hidden-dropout`); attention weights never are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch

Place = Literal["embedding", "attention", "ffn"]

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)
_BITS = 24


@dataclass(slots=True)
class Dropout:
    """The rate and where in training the program stands; `step` moves on from outside."""

    rate: float
    seed: int = 0
    step: int = 0

    def key(self, layer: int, place: Place) -> int:
        """Where the hash starts for one tensor of one step."""
        text = f"{self.seed}:{self.step}:{layer}:{place}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)


@dataclass(frozen=True, slots=True)
class Draw:
    """Dropout of one micro-batch on one rank, in one layer.

    `tokens` `[B, S]` numbers this rank's tokens in the whole global batch: sequence · length +
    position. Keys are tensors, and only this layer's: a compiled layer that met them, or its own number, as
    numbers would be compiled anew at every step and for every layer.
    """

    rate: float
    tokens: torch.Tensor
    keys: dict[Place, torch.Tensor]

    def apply(self, x: torch.Tensor, place: Place) -> torch.Tensor:
        """Drop numbers of `[B, S, H]` and scale the rest up by 1 / (1 - rate)."""
        dropped: torch.Tensor = _Drop.apply(x, self.tokens, self.keys[place], self.rate)
        return dropped


EMBEDDING = -1
"""Stands for the embedding among the numbers of layers."""


def draw(dropout: Dropout, tokens: torch.Tensor, layers: Iterable[int]) -> dict[int, Draw]:
    """Dropout for one micro-batch that passes the embedding and some layers, by their number."""
    places: list[tuple[int, Place]] = [(EMBEDDING, "embedding")]
    for layer in layers:
        places += [(layer, "attention"), (layer, "ffn")]
    numbers = torch.tensor([dropout.key(*place) for place in places], device=tokens.device)
    keys: dict[int, dict[Place, torch.Tensor]] = {}
    for (layer, place), key in zip(places, numbers.unbind(), strict=True):
        keys.setdefault(layer, {})[place] = key
    return {layer: Draw(dropout.rate, tokens, mine) for layer, mine in keys.items()}


def kept(tokens: torch.Tensor, width: int, key: int | torch.Tensor, rate: float) -> torch.Tensor:
    """Which of `[B, S, width]` numbers stay, for tokens `[B, S]`; each with chance 1 - rate."""
    channels = torch.arange(width, device=tokens.device)
    bits = tokens[..., None] * width + channels
    bits.mul_(_GOLDEN).add_(key)  # 64-bit arithmetic that wraps round
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        bits.bitwise_xor_(_shifted(bits, shift)).mul_(factor)
    bits.bitwise_xor_(_shifted(bits, 31))
    return _shifted(bits, 64 - _BITS) >= round(rate * (1 << _BITS))


def _shifted(bits: torch.Tensor, shift: int) -> torch.Tensor:
    """Shift right and fill with zeros, which torch's `>>` does not."""
    return (bits >> shift).bitwise_and_((1 << (64 - shift)) - 1)


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, tokens: torch.Tensor, key: torch.Tensor, rate: float
    ) -> torch.Tensor:
        ctx.save_for_backward(tokens, key)
        ctx.rate = rate
        return _dropped(x, tokens, key, rate)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        tokens, key = ctx.saved_tensors
        return _dropped(gradient, tokens, key, ctx.rate), None, None, None


def _dropped(x: torch.Tensor, tokens: torch.Tensor, key: torch.Tensor, rate: float) -> torch.Tensor:
    return x * kept(tokens, x.shape[-1], key, rate) * (1.0 / (1.0 - rate))
