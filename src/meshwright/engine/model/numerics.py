"""What a model computes beyond its shapes: rotary base, norm epsilon, activation, routing.

`specs.Model` holds what costs depend on; these are the settings that costs do not depend on but
logits do. They come from a Hugging Face `config.json`, or from the family's usual values.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from meshwright.specs.base import Spec
from meshwright.specs.errors import SpecError
from meshwright.specs.model import Model

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "relu": "relu",
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
}  # fmt: skip


FAMILIES = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe")
"""Hugging Face model types that `Decoder` computes exactly; others may share their shapes only."""


class RopeScaling(Spec):
    """Stretched rotary frequencies: `linear`, or Llama 3.1's piecewise rule."""

    kind: Literal["linear", "llama3"]
    factor: float = Field(gt=0)
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192


class Numerics(Spec):
    """Settings that change logits but not cost."""

    activation: Activation = "silu"
    norm_eps: float = Field(1e-5, gt=0)
    rope_theta: float = Field(10_000.0, gt=0)
    rope_scaling: RopeScaling | None = None
    init_std: float = Field(0.02, gt=0)
    renormalize_routing: bool = Field(
        True, description="top-k router weights are scaled to add up to one"
    )


def default_numerics(model: Model) -> Numerics:
    """The usual settings of the model's family (its released checkpoints' `config.json`)."""
    if model.family == "gpt2":
        return Numerics(activation="gelu_tanh")
    theta = {"llama": 500_000.0, "qwen2": 1e6, "qwen3": 1e6, "mixtral": 1e6, "qwen3_moe": 1e6}
    eps = 1e-6 if model.family.startswith("qwen") else 1e-5
    return Numerics(
        activation="silu" if model.gated else "gelu_tanh",
        norm_eps=eps,
        rope_theta=theta.get(model.family, 10_000.0),
        renormalize_routing=model.family != "qwen2_moe",
    )


def numerics_of_config(config: dict[str, Any]) -> Numerics:
    """Read the settings from a parsed Hugging Face `config.json`.

    Raises:
        SpecError: an activation or rotary scaling that the decoder does not compute.
    """
    family = config.get("model_type", "llama")
    name = config.get("hidden_act") or config.get("activation_function") or "silu"
    if name not in _ACTIVATIONS:
        raise SpecError("hidden_act", name, f"one of {', '.join(_ACTIVATIONS)}")
    # transformers 5 writes rope_parameters; earlier releases rope_theta and rope_scaling.
    rope = config.get("rope_parameters") or {}
    scaling = rope if rope else (config.get("rope_scaling") or {})
    theta = rope.get("rope_theta") or config.get("rope_theta") or 10_000.0
    return Numerics(
        activation=_ACTIVATIONS[name],
        norm_eps=config.get("rms_norm_eps") or config.get("layer_norm_epsilon") or 1e-5,
        rope_theta=theta,
        rope_scaling=_scaling(scaling),
        init_std=config.get("initializer_range", 0.02),
        renormalize_routing=config.get("norm_topk_prob", family != "qwen2_moe"),
    )


def _scaling(data: dict[str, Any]) -> RopeScaling | None:
    kind = data.get("rope_type") or data.get("type") or "default"
    if kind == "default":
        return None
    if kind not in ("linear", "llama3"):
        raise SpecError("rope_scaling", kind, "only linear and llama3 scaling are computed")
    return RopeScaling(
        kind=kind,
        factor=data["factor"],
        low_freq_factor=data.get("low_freq_factor", 1.0),
        high_freq_factor=data.get("high_freq_factor", 4.0),
        original_positions=data.get("original_max_position_embeddings", 8192),
    )
