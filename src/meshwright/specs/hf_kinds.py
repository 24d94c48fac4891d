"""Kinds of layers: what mixes tokens in each layer and what FFN it has, in the words of transformers' configs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshwright.specs.errors import SpecError
from meshwright.specs.hf_config import Config

LINEAR = ("linear_attention", "mamba", "mamba2", "conv", "recurrent", "kda", "linear")
WINDOW = ("sliding_attention", "chunked_attention", "local", "hybrid_sliding")
"""Words of `layer_types` for attention within a window."""


def layer_kinds(mixers: Sequence[str], ffns: Sequence[str]) -> tuple[str, ...]:
    """Return kinds of layers from transformers' words for each layer's mixer and FFN.

    Raises:
        SpecError: not as many FFNs as mixers.
    """
    if len(ffns) != len(mixers):
        raise SpecError(
            "config.mlp_layer_types", len(ffns), f"one for each of the {len(mixers)} layers"
        )
    return tuple(f"{_mixer(one)}+{other}" for one, other in zip(mixers, ffns, strict=True))


def _mixer(word: str) -> str:
    if word in LINEAR:
        return "linear"
    if word in WINDOW:
        return "window"
    return word if word in ("none", "both") else "attention"


def mixers_of(config: Config, layers: int, default: Callable[[int], str]) -> list[str]:
    """The mixer of each layer: `layer_types`, or what the family does where the key is absent.

    Raises:
        SpecError: a list of another length.
    """
    listed = [str(one) for one in config.layers_named("layer_types")]
    listed = listed or [str(one) for one in config.layers_named("layers_block_type")]
    if listed and len(listed) != layers:
        raise SpecError("config.layer_types", len(listed), f"one for each of the {layers} layers")
    return listed or [default(index) for index in range(layers)]
