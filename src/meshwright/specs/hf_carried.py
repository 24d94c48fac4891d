"""The config.json that a model carries with it, where its fields do not say all that a layer computes.

Programs that build their model with transformers' classes are given it back (`exports.hf`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from meshwright.specs.model import Model
from meshwright.specs.plain_families import plain_family

_LEFT_OUT = frozenset({
    # How published weights are stored, and where code of others lies: neither is of a model that trains.
    "quantization_config", "compression_config", "auto_map", "torch_dtype", "dtype", "_name_or_path",
    "transformers_version", "_commit_hash", "_meshwright",
})  # fmt: skip
_LONGEST = 50_000
"""Characters beyond which a configuration is not carried: plans stay files that people read."""


def carrying(model: Model, config: Mapping[str, Any]) -> Model:
    """The model with its config.json, unless a plain family says as much."""
    if plain_family(model) is not None:
        return model
    text = json.dumps(_kept(config), separators=(",", ":"))
    return model.but(config_json=text) if len(text) <= _LONGEST else model


def carried(model: Model) -> dict[str, Any] | None:
    """The config.json that a model carries; None without one, or where another shape was given beside it."""
    if not model.config_json:
        return None
    try:
        config = json.loads(model.config_json)
    except ValueError:
        return None
    if not isinstance(config, dict):
        return None
    inner = language_part(config)
    same = all(
        inner.get(name) in (None, value)
        for name, value in (("hidden_size", model.hidden), ("vocab_size", model.vocab))
    )
    blocks = inner.get("num_hidden_layers")
    # Nemotron-H lists its blocks in a pattern, whose length its number may not be.
    same = same and (blocks in (None, model.layers) or "hybrid_override_pattern" in inner)
    return config if same else None


def class_family(model: Model) -> str:
    """The `model_type` by which transformers finds a model's class: a multimodal one's own, not its language model's."""
    config = carried(model)
    return str(config["model_type"]) if config and "model_type" in config else model.family


def language_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a multimodal config that its language model is made of."""
    for name in ("text_config", "llm_config", "language_config"):
        if isinstance(inner := config.get(name), dict):
            return inner
    return config


def _kept(value: Any) -> Any:
    if isinstance(value, Mapping):
        # A head of no width is one that is not stated (`hf_config.Config`).
        stated = {key: inner for key, inner in value.items() if key != "head_dim" or inner != 0}
        return {key: _kept(inner) for key, inner in stated.items() if key not in _LEFT_OUT}
    return [_kept(one) for one in value] if isinstance(value, (list, tuple)) else value
