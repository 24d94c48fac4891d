"""What options say of a model that its sizes do not: base of rotary positions, epsilons, activation, first values.

It changes what a model computes, not what it costs; an export of an import that lost it trains another model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.specs.errors import SpecError
from meshwright.specs.model import Model
from meshwright.specs.numerics import (
    Activation,
    Numerics,
    RopeScaling,
    activation_named,
    from_config,
    numerics_of,
)

_NUMBERS = {
    "rope_theta": ("rope_theta", "rotary_base", "rotary_emb_base", "rope_base", "rope_max_timescale"),
    "norm_epsilon": ("norm_eps", "rms_norm_eps", "norm_epsilon", "layernorm_epsilon", "layer_norm_epsilon", "layer_norm_eps",
                     "rms_norm_epsilon", "rmsnorm_epsilon", "normalization_layer_epsilon"),
    "init_std": ("init_method_std", "initializer_range"),
    "rotary_share": ("rotary_percent", "rotary_pct", "partial_rotary_factor"),
}  # fmt: skip
"""Fields of our models by the names that frameworks have for them, whatever table they stand in."""
_ACTIVATION = ("hidden_act", "activation_function", "ffn_activation", "activation")
_SWITCHES: dict[str, Activation] = {
    "squared_relu": "relu2",
    "quick_geglu": "quick-gelu",
    "openai_gelu": "gelu-tanh",
}


def with_numbers(model: Model, values: Mapping[str, Any]) -> Model:
    """A model that was described by its sizes, with the numbers that options say beside them; itself where they say none.

    Args:
        values: options by their names, in tables by dotted ones.
    """
    if model.numerics is not None:
        return model
    said = {name.rpartition(".")[2].replace("-", "_").lower(): value for name, value in values.items()}  # fmt: skip
    found: dict[str, Any] = {}
    for field, names in _NUMBERS.items():
        numbers = (_number(said[name]) for name in names if name in said)
        value = next((one for one in numbers if one is not None and one > 0), None)
        if value is not None:
            found[field] = value
    acts = [activation_named(str(said[name])) for name in _ACTIVATION if name in said]
    acts += [ours for name, ours in _SWITCHES.items() if str(said.get(name)).lower() == "true"]
    if any(acts):
        found["activation"] = next(one for one in reversed(acts) if one)
    if (scaling := _scaling(said, values)) is not None:
        found["rope_scaling"] = scaling.model_dump()
    if not found:
        return model
    try:
        return model.but(numerics=Numerics.parse({**numerics_of(model).model_dump(), **found}, "model.numerics"))  # fmt: skip
    except SpecError:  # one of them means something else here
        return model


def _scaling(said: Mapping[str, Any], values: Mapping[str, Any]) -> RopeScaling | None:
    """How rotary positions are stretched: Megatron-LM's switch (Llama 3.1's), or a table as a config.json has it."""
    if str(said.get("use_rope_scaling")).lower() == "true":
        factor = _number(said.get("rope_scaling_factor")) or 8.0
        return RopeScaling(kind="llama3", factor=factor, original_positions=8192)
    table = {name.rpartition("rope_scaling.")[2]: one for name, one in values.items() if "rope_scaling." in name}  # fmt: skip
    numbers = from_config({"rope_theta": 1.0, "rope_scaling": table}) if table else None
    return numbers.rope_scaling if numbers is not None else None


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None
