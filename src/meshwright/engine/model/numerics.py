"""What a model computes beyond its shapes: rotary base, norm epsilon, activation, routing.

`specs.Model` holds what costs depend on; these are the settings that costs do not depend on but
logits do. They come from a Hugging Face `config.json`, or from the family's usual values.
"""

from __future__ import annotations

import math
from typing import Any, Literal, cast

from pydantic import Field

from meshwright.engine.model.traits import traits_of
from meshwright.specs import numerics as specs
from meshwright.specs.base import Spec
from meshwright.specs.errors import SpecError
from meshwright.specs.model import Model

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "relu": "relu",
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
}  # fmt: skip


_SCALINGS = ("linear", "llama3", "yarn")


class RopeScaling(Spec):
    """Stretched rotary frequencies: `linear`, Llama 3.1's piecewise rule, or YaRN."""

    kind: Literal["linear", "llama3", "yarn"]
    factor: float = Field(gt=0)
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192
    beta_fast: float = Field(32.0, gt=0)
    beta_slow: float = Field(1.0, gt=0)
    mscale: float = Field(0.0, ge=0)
    mscale_all_dim: float = Field(0.0, ge=0)
    attention_factor: float = Field(0.0, ge=0, description="of what is turned; 0: by the factor")
    truncate: bool = Field(True, description="YaRN's band starts and ends at whole frequencies")

    def temperature(self, mscale: float = 1.0) -> float:
        """YaRN's growth of products with the length (arXiv 2309.00071 §3.4), as DeepSeek has it."""
        return 1.0 if self.factor <= 1 else 0.1 * mscale * math.log(self.factor) + 1.0


class Numerics(Spec):
    """Settings that change logits but not cost."""

    activation: Activation = "silu"
    norm_eps: float = Field(1e-5, gt=0)
    rope_theta: float = Field(10_000.0, gt=0)
    rope_scaling: RopeScaling | None = None
    window_rope_theta: float = Field(
        0.0, ge=0, description="base, unscaled, in layers with a window; 0: as in all others"
    )
    rotary_share: float = Field(
        1.0, gt=0, le=1, description="of each head that turns, from its start"
    )
    query_scalar: int = Field(
        0, ge=0, description="scores are products over its root; 0: the width of a head"
    )
    unit_heads: bool = Field(
        False, description="turned queries and keys are divided by their root mean square"
    )
    temperature_scale: float = Field(
        0.0, ge=0, description="growth of queries with their position where nothing turns; 0: none"
    )
    temperature_floor: int = Field(8192, ge=1, description="positions after which that begins")
    attention_softcap: float = Field(0.0, ge=0, description="scores stay between ± this; 0: any")
    logits_softcap: float = Field(0.0, ge=0, description="logits stay between ± this; 0: any")
    init_std: float = Field(0.02, gt=0)
    router: Literal["softmax", "sigmoid"] = "softmax"
    router_groups: int = Field(1, ge=1, description="groups of experts that are chosen among first")
    router_group_top_k: int = Field(1, ge=1, description="groups that a token may visit")
    router_scaling: float = Field(1.0, gt=0, description="of the routed experts' output")
    renormalize_routing: bool = Field(
        True, description="top-k router weights are scaled to add up to one"
    )
    balance_loss: float = Field(
        0.0, ge=0, le=10, description="weight of the routers' sequence-wise balancing loss"
    )

    predict_weight: float = Field(
        0.3, ge=0, le=10, description="of the mean loss of layers that predict further tokens"
    )

    def windowed(self) -> Numerics:
        """The settings of layers with a window, where they turn otherwise."""
        return self.but(rope_theta=self.window_rope_theta, rope_scaling=None, window_rope_theta=0.0)

    def score_scale(self, model: Model) -> float:
        """What a query's product with a key is multiplied by."""
        scale = (self.query_scalar or float(model.head_dim)) ** -0.5
        scaling = self.rope_scaling
        if model.latent_attention and scaling is not None and scaling.mscale_all_dim:
            scale *= scaling.temperature(scaling.mscale_all_dim) ** 2
        return scale

    def rotary_size(self) -> float:
        """What turned elements are multiplied by: 1 but under YaRN."""
        scaling = self.rope_scaling
        if scaling is None or scaling.kind != "yarn":
            return 1.0
        if scaling.attention_factor:
            return scaling.attention_factor
        if scaling.mscale and scaling.mscale_all_dim:
            return scaling.temperature(scaling.mscale) / scaling.temperature(scaling.mscale_all_dim)
        return scaling.temperature()


def default_numerics(model: Model) -> Numerics:
    """The model's own settings where it states them, else the usual ones of its family.

    Raises:
        SpecError: it states something that the decoder does not compute.
    """
    usual = _usual(model)
    own = model.numerics
    if own is None:
        return usual
    clamped = traits_of(model.family).clamped_experts  # whose activation no setting names
    activation = usual.activation if clamped else own.activation.replace("-", "_")
    if activation not in _ACTIVATIONS.values():
        raise SpecError("model.numerics.activation", own.activation, "silu, gelu, gelu-tanh, relu")
    if own.router == "sigmoid" and usual.router != "sigmoid":
        raise SpecError("model.numerics.router", own.router, f"softmax in a {model.family}")
    renormalizes = own.router_renormalizes
    return Numerics(
        activation=cast(Activation, activation),
        norm_eps=own.norm_epsilon,
        rope_theta=own.rope_theta,
        rope_scaling=_own_scaling(own.rope_scaling),
        window_rope_theta=own.window_rope_theta or usual.window_rope_theta,
        rotary_share=own.rotary_share or usual.rotary_share,
        query_scalar=own.query_scalar,
        unit_heads=usual.unit_heads if own.unit_heads is None else own.unit_heads,
        temperature_scale=_stated(own.temperature_scale, usual.temperature_scale),
        temperature_floor=own.temperature_floor or usual.temperature_floor,
        attention_softcap=_stated(own.attention_softcap, usual.attention_softcap),
        logits_softcap=_stated(own.logits_softcap, usual.logits_softcap),
        init_std=own.init_std,
        router=usual.router,  # the family's, which a config may leave unsaid
        router_groups=own.router_groups,
        router_group_top_k=own.router_group_top_k,
        router_scaling=own.router_scaling,
        renormalize_routing=usual.renormalize_routing if renormalizes is None else renormalizes,
    )


def _stated(own: float | None, usual: float) -> float:
    return usual if own is None else own


def _own_scaling(own: specs.RopeScaling | None) -> RopeScaling | None:
    if own is None:
        return None
    if own.kind not in _SCALINGS:
        raise SpecError(
            "model.numerics.rope_scaling", own.kind, f"one of {', '.join(_SCALINGS)} is computed"
        )
    return RopeScaling(
        kind=own.kind, factor=own.factor, low_freq_factor=own.low_frequency,
        high_freq_factor=own.high_frequency, original_positions=own.original_positions or 8192,
        beta_fast=own.beta_fast, beta_slow=own.beta_slow,
        mscale=own.mscale if own.mscale_all_dim else 0.0,
        mscale_all_dim=own.mscale_all_dim, attention_factor=own.attention_factor,
        truncate=own.truncate,
    )  # fmt: skip


def _usual(model: Model) -> Numerics:
    """The settings of the family's released checkpoints."""
    if model.family == "gpt2":
        return Numerics(activation="gelu_tanh")
    theta = {"llama": 500_000.0, "qwen2": 1e6, "qwen3": 1e6, "mixtral": 1e6, "qwen3_moe": 1e6}
    theta |= {
        "olmo2": 500_000.0,
        "olmo3": 500_000.0,
        "gemma3_text": 1e6,
        "gpt_oss": 150_000.0,
        "llama4_text": 500_000.0,
    }
    gemma = model.family.startswith("gemma")
    small = model.family.startswith(("gemma", "deepseek"))
    eps = 1e-6 if small or model.family.startswith(("qwen", "olmo")) else 1e-5
    capped = model.family == "gemma2"
    return Numerics(
        activation="silu" if model.gated and not gemma else "gelu_tanh",
        window_rope_theta=10_000.0 if model.family == "gemma3_text" else 0.0,
        rotary_share=_ROTARY_SHARES.get(model.family, 1.0),
        attention_softcap=50.0 if capped else 0.0,
        logits_softcap=30.0 if capped else 0.0,
        router="sigmoid" if model.family in _SIGMOID else "softmax",
        unit_heads=model.family == "llama4_text",
        temperature_scale=0.1 if model.family == "llama4_text" else 0.0,
        norm_eps=eps,
        rope_theta=theta.get(model.family, 10_000.0),
        renormalize_routing=model.family not in specs.SHARES_AS_THEY_ARE,
    )


def numerics_of_config(config: dict[str, Any]) -> Numerics:
    """Read the settings from a parsed Hugging Face `config.json`.

    Raises:
        SpecError: an activation or rotary scaling that the decoder does not compute.
    """
    family = config.get("model_type", "llama")
    usual = "gelu_new" if family == "gpt2" else "silu"
    gemma = family.startswith("gemma")
    usual = "gelu_pytorch_tanh" if gemma else usual
    name = config.get("hidden_activation" if gemma and family != "gemma" else "hidden_act")
    name = name or config.get("activation_function") or usual
    if family == "gemma" and name == "gelu":  # as published, meaning the other
        name = usual
    if name not in _ACTIVATIONS:
        raise SpecError("hidden_act", name, f"one of {', '.join(_ACTIVATIONS)}")
    # transformers 5 writes rope_parameters; earlier releases rope_theta and rope_scaling.
    rope, window_theta = _rope_by_kind(config)
    if family == "olmo3" and not rope and "rope_theta" not in config:
        rope = {"rope_theta": 500_000.0}
    scaling = rope if rope else (config.get("rope_scaling") or {})
    if family == "gpt_oss" and not scaling:
        scaling = _GPT_OSS_ROPE
    theta = rope.get("rope_theta") or config.get("rope_theta")
    share = config.get("partial_rotary_factor") or rope.get("partial_rotary_factor")
    capped = family == "gemma2"
    eps = config.get("rms_norm_eps") or config.get("layer_norm_epsilon")
    return Numerics(
        activation=_ACTIVATIONS[name],
        norm_eps=eps or specs.unstated(family, "norm_epsilon", 1e-5),
        rope_theta=theta or specs.unstated(family, "rope_theta", 10_000.0),
        rope_scaling=_scaling(scaling, config),
        window_rope_theta=window_theta,
        rotary_share=share or _ROTARY_SHARES.get(family, 1.0),
        query_scalar=config.get("query_pre_attn_scalar", 256 if family in _SCALED else 0),
        attention_softcap=config.get("attn_logit_softcapping", 50.0 if capped else 0.0) or 0.0,
        logits_softcap=config.get("final_logit_softcapping", 30.0 if capped else 0.0) or 0.0,
        init_std=config.get("initializer_range", 0.02),
        renormalize_routing=config.get("norm_topk_prob", family not in specs.SHARES_AS_THEY_ARE),
        **(_deepseek_router(config) if family in ("deepseek_v2", "deepseek_v3") else {}),
        **(_llama4(config) if family == "llama4_text" else {}),
    )


def _llama4(config: dict[str, Any]) -> dict[str, Any]:
    tuned = config.get("attn_temperature_tuning", True)
    return {
        "router": "sigmoid",
        "unit_heads": config.get("use_qk_norm", True),
        "temperature_scale": config.get("attn_scale", 0.1) if tuned else 0.0,
        "temperature_floor": config.get("floor_scale", 8192),
    }


def _deepseek_router(config: dict[str, Any]) -> dict[str, Any]:
    """Groups and scaling, by transformers' own defaults where the config is silent."""
    third = config["model_type"] == "deepseek_v3"
    grouped = third or config.get("topk_method") == "group_limited_greedy"
    return {
        "router": "sigmoid" if third else "softmax",
        "router_groups": (config.get("n_group", 8 if third else 1) or 1) if grouped else 1,
        "router_group_top_k": (config.get("topk_group", 4 if third else 1) or 1) if grouped else 1,
        "router_scaling": config.get("routed_scaling_factor", 2.5 if third else 1.0),
    }


_GPT_OSS_ROPE = {
    "rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096,
}  # fmt: skip
"""What a silent config of gpt-oss means (transformers, configuration_gpt_oss.py)."""
_SIGMOID = ("deepseek_v3", "llama4_text")
"""Families whose routers score by sigmoid."""
_ROTARY_SHARES = {"glm4": 0.5, "qwen3_next": 0.25}
"""Of each head that turns where a config is silent."""
_SCALED = ("gemma2", "gemma3_text")
"""Families whose scores are scaled by a number of the config, 256 where it is silent."""


def _rope_by_kind(config: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """The rotary settings of layers that see everything, and the base of those with a window.

    That is 0 where all layers turn alike.

    Raises:
        SpecError: layers with a window have scaled frequencies of their own.
    """
    stated = config.get("rope_parameters") or {}
    if not any(isinstance(value, dict) for value in stated.values()):
        local = 10_000.0 if config.get("model_type") == "gemma3_text" else 0.0
        return stated, float(config.get("rope_local_base_freq", local))
    everywhere = stated.get("full_attention") or {}
    windowed = stated.get("sliding_attention") or everywhere
    if windowed == everywhere:
        return everywhere, 0.0
    if windowed.get("rope_type", "default") != "default" or "rope_theta" not in windowed:
        raise SpecError(
            "rope_parameters", stated, "unscaled rotary settings in layers with a window"
        )
    return everywhere, float(windowed["rope_theta"])


def _scaling(data: dict[str, Any], config: dict[str, Any]) -> RopeScaling | None:
    kind = data.get("rope_type") or data.get("type") or "default"
    if kind == "default":
        return None
    if kind not in _SCALINGS:
        raise SpecError("rope_scaling", kind, f"one of {', '.join(_SCALINGS)} is computed")
    return RopeScaling(
        kind=kind,
        factor=data["factor"],
        low_freq_factor=data.get("low_freq_factor", 1.0),
        high_freq_factor=data.get("high_freq_factor", 4.0),
        original_positions=data.get("original_max_position_embeddings")
        or config.get("original_max_position_embeddings")
        or config.get("max_position_embeddings", 8192),  # as transformers does
        beta_fast=data.get("beta_fast") or 32.0,
        beta_slow=data.get("beta_slow") or 1.0,
        mscale=data.get("mscale") or 0.0,
        mscale_all_dim=data.get("mscale_all_dim") or 0.0,
        attention_factor=data.get("attention_factor") or 0.0,
        truncate=data.get("truncate", True),
    )
