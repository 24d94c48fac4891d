"""Which layers of a Hugging Face config attend within a window, as transformers' modules decide it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.specs.hf_kinds import WINDOW, layer_kinds
from meshwright.specs.model import Model

_ALL_OR_NONE = ("mistral", "mixtral", "phi3", "qwen3_moe")
"""Families whose modules take one mask for all layers, whatever `layer_types` says."""
_FROM = ("qwen2", "qwen3")
"""Families whose windows begin at layer `max_window_layers` (configuration_qwen2.py)."""
_FULL, _SLIDING, _CHUNKED = "full_attention", "sliding_attention", "chunked_attention"


def listed_attention(data: Mapping[str, Any]) -> list[str] | None:
    """transformers' word for each layer's attention; None where the family's period says it."""
    family, layers = data.get("model_type"), data.get("num_hidden_layers")
    if family in _ALL_OR_NONE or not isinstance(layers, int):
        return None
    given = data.get("layer_types")
    if isinstance(given, list):
        return [str(one) for one in given]
    turning = data.get("no_rope_layers")
    if family == "llama4_text" and isinstance(turning, list) and turning:
        return [_CHUNKED if one else _FULL for one in turning]
    if not data.get("use_sliding_window"):
        return None
    first = data.get("max_window_layers", 28)
    if not isinstance(first, int):
        return None
    if family in _FROM:
        return [_SLIDING if index >= first else _FULL for index in range(layers)]
    if family == "qwen2_moe":  # every other one of the first (configuration_qwen2_moe.py)
        return [_SLIDING if index % 2 == 0 and index < first else _FULL for index in range(layers)]
    return None


def with_windows(model: Model, words: Sequence[str] | None) -> Model:
    """The model with windows in the layers that are listed, where its period does not say so."""
    if words is None or len(words) != model.layers or model.layer_kinds or not model.window:
        return model
    windows = [one in WINDOW for one in words]
    if windows == [model.has_window(index) for index in range(model.layers)]:
        return model
    if all(windows) or not any(windows):
        return model.but(window=model.window if windows[0] else 0, window_period=1)
    ffns = ["moe" if model.is_moe_layer(index) else "dense" for index in range(model.layers)]
    return model.but(layer_kinds=layer_kinds(words, ffns), window_period=1)
