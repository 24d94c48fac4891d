"""Models that Megatron-Bridge builds from a config.json: those of its bridges that no flag of Megatron-LM says.

Their shape and what their layers compute are the bridge's; a plan's overrides say how they are laid out.
"""

from __future__ import annotations

from meshwright.exports.bundle import comment, template
from meshwright.exports.hf import config_file, hf_family, own_config
from meshwright.exports.megatron_model import model_problems
from meshwright.specs.frameworks import framework
from meshwright.specs.hf_carried import class_family
from meshwright.specs.model import Model
from meshwright.specs.plan import Plan

PROGRAM = "bridge_model.py"
TRIED = frozenset(
    {
        "exaone4",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "gemma4_text",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
    }
)
"""Families of which its own program, with the transformers that it pins (5.12.1), made a model and took a plan's overrides.

Tried and left out: what asks for more than a preset's configuration says (GLM-5, DeepSeek-V4), for images (Ministral 3)
or for a newer transformers (MiMo-V2, Hy3)."""


def bridged(model: Model) -> bool:
    """Whether Megatron-Bridge builds a model by its bridge, where flags have no words for it."""
    family = hf_family(model) or (class_family(model) if own_config(model) is not None else "")
    if family not in TRIED or model.encoder is not None or model.predict_layers:
        return False
    if family == "gemma4_text" and model.experts is not None:
        return False  # recomputes no norms of Gemma 4's mixtures
    return bool(model.unusual()) or next(iter(model_problems(model)), None) is not None


def files(plan: Plan, command: str) -> dict[str, str]:
    """The configuration, and the program that hands its model to the recipe; none where flags say the model."""
    if not bridged(plan.model):
        return {}
    stamp = comment(plan, command, f"Megatron-Bridge {framework('nemo').checked}")
    return {
        PROGRAM: template(PROGRAM, {"STAMP": stamp.rstrip("\n")}),
        "config.json": config_file(plan, command),
    }
