"""What fine-tuning tools call the matrices that adapters sit on: the linear layers of transformers' models."""

from __future__ import annotations

from meshwright.specs.errors import SpecError
from meshwright.specs.finetune import Finetune
from meshwright.specs.model import Model

_PROJECTIONS = {
    "q": ("q_proj",), "k": ("k_proj",), "v": ("v_proj",), "o": ("o_proj",), "gate": ("gate_proj",),
    "up": ("up_proj",), "down": ("down_proj",), "head": ("lm_head",), "embedding": ("embed_tokens",),
}  # fmt: skip
"""Our name → names of linear layers of Llama and its relatives."""
ADAPTED = tuple(_PROJECTIONS)
"""Matrices that exports can name to PEFT."""


def adapter_names(model: Model, tune: Finetune) -> list[str]:
    """Names of linear layers for adapters on a model's matrices.

    Raises:
        SpecError: a matrix that has no name of its own.
    """
    names = _PROJECTIONS | (_latent(model) if model.latent_attention is not None else {})
    if unknown := [one for one in tune.targets if one not in names]:
        raise SpecError(
            "finetune.targets", unknown, "adapters on these have no name in this target"
        )
    return [name for one in tune.targets for name in names[one]]


def _latent(model: Model) -> dict[str, tuple[str, ...]]:
    """Latent attention's: two products to the queries, a compression of keys and values, and its expansion.

    transformers' models/deepseek_v2/modeling_deepseek_v2.py DeepseekV2Attention.
    """
    latent = model.latent_attention
    compressed = latent is not None and latent.q_rank > 0
    return {
        "q": ("q_a_proj", "q_b_proj") if compressed else ("q_proj",),
        "k": ("kv_a_proj_with_mqa",),
        "v": ("kv_b_proj",),
    }
