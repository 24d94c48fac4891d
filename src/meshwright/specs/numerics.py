"""What a layer computes beyond its shape: positions, activation, epsilons, router.

None of it changes time or memory as priced; a framework that is told nothing trains another model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from meshwright.specs.base import Spec
from meshwright.specs.presets import table

if TYPE_CHECKING:
    from meshwright.specs.model import Model

Activation = Literal["silu", "gelu", "gelu-tanh", "relu", "relu2", "quick-gelu"]


class RopeScaling(Spec):
    """How rotary positions are stretched beyond the length a model was trained on."""

    kind: Literal["llama3", "yarn", "linear", "dynamic", "longrope"]
    factor: float = Field(gt=0)
    original_positions: int = Field(0, ge=0, description="length that the factor refers to")
    low_frequency: float = Field(1.0, gt=0, description="llama3's low_freq_factor")
    high_frequency: float = Field(4.0, gt=0, description="llama3's high_freq_factor")
    beta_fast: float = Field(32.0, gt=0, description="YaRN's (arXiv 2309.00071)")
    beta_slow: float = Field(1.0, gt=0, description="YaRN's (arXiv 2309.00071)")
    mscale: float = Field(1.0, ge=0, description="YaRN's temperature, as DeepSeek has it")
    mscale_all_dim: float = Field(0.0, ge=0)
    attention_factor: float = Field(0.0, ge=0, description="YaRN's, where stated; 0: by the factor")
    truncate: bool = Field(True, description="YaRN's band is rounded to whole frequencies")


class Numerics(Spec):
    """Numbers of a model's config.json that decide what it computes, not what it costs."""

    rope_theta: float = Field(10_000.0, gt=0, description="base of the rotary frequencies")
    rope_scaling: RopeScaling | None = None
    window_rope_theta: float = Field(
        0.0, ge=0, description="base in layers with a window; 0: the others' base and scaling"
    )
    rotary_share: float | None = Field(
        None, gt=0, le=1, description="of a head that turns; None: as the family has it"
    )
    query_scalar: int = Field(
        0, ge=0, description="scores are products over its root (Gemma); 0: the head's width"
    )
    unit_heads: bool | None = Field(
        None,
        description="turned queries and keys are divided by their root mean square (Llama 4 "
        "Scout); None: as the family has it",
    )
    temperature_scale: float | None = Field(
        None,
        ge=0,
        description="growth of queries with their position where nothing turns (Llama "
        "4); None: as the family has it",
    )
    temperature_floor: int = Field(
        0, ge=0, description="positions after which that begins; 0: as the family has it"
    )
    attention_softcap: float | None = Field(
        None,
        ge=0,
        description="scores are bent towards ± this (Gemma 2); None: as the family has it",
    )
    logits_softcap: float | None = Field(
        None, ge=0, description="logits are bent towards ± this; None: as the family has it"
    )
    activation: Activation = "silu"
    norm_epsilon: float = Field(1e-5, gt=0, lt=1)
    init_std: float = Field(0.02, gt=0, lt=10, description="of a matrix's initial values")
    router: Literal["softmax", "sigmoid"] = "softmax"
    router_renormalizes: bool | None = Field(
        None, description="weights of the chosen experts add up to one; None: as the family has it"
    )
    router_balances: bool = Field(
        False, description="a bias per expert, moved after each step, not trained, balances experts"
    )
    router_groups: int = Field(1, ge=1, description="groups of experts that are chosen among first")
    router_group_top_k: int = Field(1, ge=1, description="groups that a token may visit")
    router_scaling: float = Field(1.0, gt=0, description="of the routed experts' output")


_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu", "swish": "silu", "swiglu": "silu", "gelu": "gelu", "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "relu": "relu", "relu2": "relu2",
    "relu_squared": "relu2", "quick_gelu": "quick-gelu", "geglu": "gelu-tanh",
}  # fmt: skip

_UNSTATED: dict[str, dict[str, Any]] = {
    "gpt2": {"activation": "gelu-tanh"}, "llama": {"norm_epsilon": 1e-6},
    "gemma": {"norm_epsilon": 1e-6}, "gemma2": {"norm_epsilon": 1e-6},
    "deepseek_v2": {"norm_epsilon": 1e-6}, "deepseek_v3": {
        "norm_epsilon": 1e-6, "router": "sigmoid", "router_groups": 8, "router_group_top_k": 4,
        "router_scaling": 2.5,
    },
    "llama4_text": {"rope_theta": 500_000.0, "router": "sigmoid"},
    "gpt_oss": {"rope_theta": 150_000.0},
    "gemma3_text": {"norm_epsilon": 1e-6, "rope_theta": 1e6},
    "mistral": {"norm_epsilon": 1e-6}, "qwen2": {"norm_epsilon": 1e-6},
    "qwen3": {"norm_epsilon": 1e-6}, "qwen2_moe": {"norm_epsilon": 1e-6},
    "qwen3_moe": {"norm_epsilon": 1e-6}, "mixtral": {"rope_theta": 1e6},
    **{family: {"router": "sigmoid", "router_balances": True}
       for family in ("glm4_moe", "glm_moe_dsa", "minimax_m2", "dots1")},
    "glm4_moe_lite": {"router": "sigmoid", "router_balances": True, "router_scaling": 1.8},
    "bailing_moe_v2": {  # configuration_bailing_moe_v2.py of inclusionAI/Ling-V2
        "norm_epsilon": 1e-6, "rope_theta": 600_000.0, "rotary_share": 0.5, "router": "sigmoid",
        "router_balances": True, "router_groups": 8, "router_group_top_k": 4,
    },
}  # fmt: skip
"""What a config.json that is silent means, by transformers' own defaults, where not as above."""

SHARES_AS_THEY_ARE = ("qwen2_moe", "deepseek_v2", "llama4_text", "olmoe", "grok", "jamba")
"""Families whose chosen experts keep their shares of all experts, where a model does not say."""


def activation_named(word: str) -> Activation | None:
    """The activation that a word of a configuration stands for; None where it stands for none that is known."""
    return _ACTIVATIONS.get(word.lower())


def unstated(model_type: str, name: str, usual: float) -> float:
    """The value that transformers takes where a config.json of this type does not state it."""
    return float(_UNSTATED.get(model_type, {}).get(name, usual))


_OF_FAMILIES = ("activation", "rope_theta", "rotary_share", "router", "router_balances")
"""What checkpoints of one family have in common, whatever their size."""


def numerics_of(model: Model) -> Numerics:
    """The model's own numbers, else usual ones of its family."""
    if model.numerics is not None:
        return model.numerics
    usual = {"activation": "silu" if model.gated else "gelu-tanh"} | _UNSTATED.get(model.family, {})
    return Numerics(**{name: usual[name] for name in _OF_FAMILIES if name in usual})


def renormalizes_routing(model: Model) -> bool:
    """Whether the weights of the experts that a token goes to add up to one."""
    own = model.numerics.router_renormalizes if model.numerics is not None else None
    return model.family not in SHARES_AS_THEY_ARE if own is None else own


def published(name: str) -> Numerics | None:
    """The numbers published for a preset; None where the table has no row for it."""
    rows = table("numerics")
    known = max((key for key in rows if name.startswith(key)), key=len, default=None)
    return None if known is None else Numerics.parse(rows[known], f"numerics.{known}")


def from_config(config: Mapping[str, Any]) -> Numerics | None:
    """The numbers that a Hugging Face config.json states; None where it states none.

    What cannot be read as a number is left at its usual value: shape decides whether a model is
    accepted, this does not.
    """
    found: dict[str, Any] = {}
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = rope if isinstance(rope, Mapping) else {}
    if isinstance(rope.get("full_attention"), Mapping):  # by kind of layer
        rope = rope["full_attention"]
    theta = config.get("rope_theta", rope.get("rope_theta", config.get("rotary_emb_base")))
    _number(found, "rope_theta", theta)
    for name in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"):
        _number(found, "norm_epsilon", config.get(name))
    act = (
        config.get("hidden_activation")
        or config.get("hidden_act")
        or (config.get("activation_function"))
    )
    if isinstance(act, str) and act.lower() in _ACTIVATIONS:
        found["activation"] = _ACTIVATIONS[act.lower()]
    if not found:
        return None
    for name, value in _UNSTATED.get(str(config.get("model_type")), {}).items():
        found.setdefault(name, value)
    std = config.get("initializer_range")
    if isinstance(std, float) and 0 < std < 10:
        found["init_std"] = std
    if isinstance(config.get("norm_topk_prob"), bool):
        found["router_renormalizes"] = config["norm_topk_prob"]
    scaling = _scaling(rope, config)
    if scaling is not None:
        found["rope_scaling"] = scaling
    _number(found, "window_rope_theta", _window_theta(config))
    _number(found, "query_scalar", config.get("query_pre_attn_scalar"))
    _number(
        found,
        "rotary_share",
        config.get("partial_rotary_factor", rope.get("partial_rotary_factor")),
    )
    for ours, theirs in (
        ("attention_softcap", "attn_logit_softcapping"),
        ("logits_softcap", "final_logit_softcapping"),
    ):
        if theirs in config:
            found[ours] = 0.0
            _number(found, ours, config[theirs])
    if isinstance(config.get("use_qk_norm"), bool) and config.get("model_type") == "llama4_text":
        found["unit_heads"] = config["use_qk_norm"]
    _number(found, "temperature_scale", config.get("attn_scale"))
    if config.get("attn_temperature_tuning") in (False, 0):
        found["temperature_scale"] = 0.0
    _number(found, "temperature_floor", config.get("floor_scale"))
    if config.get("scoring_func") == "sigmoid":
        found["router"] = "sigmoid"
    if config.get("topk_method") == "noaux_tc":
        found["router_balances"] = True
    grouped = config.get("topk_method") != "greedy"
    for ours, theirs in (("router_groups", "n_group"), ("router_group_top_k", "topk_group")):
        value = config.get(theirs)
        if grouped and isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            found[ours] = value
    _number(found, "router_scaling", config.get("routed_scaling_factor"))
    return Numerics.parse(found, "config")


def _window_theta(config: Mapping[str, Any]) -> object:
    """The base of rotary frequencies in layers with a window, where a config states one."""
    rope = config.get("rope_parameters")
    windowed = rope.get("sliding_attention") if isinstance(rope, Mapping) else None
    if isinstance(windowed, Mapping):
        return windowed.get("rope_theta")
    return config.get("rope_local_base_freq")


def _scaling(rope: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = rope.get("rope_type", rope.get("type"))
    if kind not in ("llama3", "yarn", "linear", "dynamic", "longrope"):
        return None
    found: dict[str, Any] = {"kind": kind}
    names = {
        "factor": "factor", "low_frequency": "low_freq_factor", "high_frequency": "high_freq_factor",
        "beta_fast": "beta_fast", "beta_slow": "beta_slow", "mscale": "mscale",
        "mscale_all_dim": "mscale_all_dim", "attention_factor": "attention_factor",
    }  # fmt: skip
    for ours, theirs in names.items():
        _number(found, ours, rope.get(theirs))
    original = rope.get(
        "original_max_position_embeddings", config.get("original_max_position_embeddings")
    )
    if original is None:  # as transformers does
        original = config.get("max_position_embeddings")
    if isinstance(original, int) and original > 0:
        found["original_positions"] = original
    if isinstance(rope.get("truncate"), bool):
        found["truncate"] = rope["truncate"]
    return found if "factor" in found else None


def _number(found: dict[str, Any], name: str, value: object) -> None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e12:
        found[name] = value
