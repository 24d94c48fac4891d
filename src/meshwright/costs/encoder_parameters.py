"""What a rank holds of the encoder of a multimodal model, and whether tensor-parallel ranks share it."""

from __future__ import annotations

import numpy as np

from meshwright.costs.columns import Floats, LayoutColumns
from meshwright.specs.model import Model

SPLIT_ENCODERS = {"nemo": ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")}
"""Frameworks, and families whose encoder tensor-parallel ranks share there, without sequence parallelism:
Megatron-Bridge, models/qwen_vl/modelling_qwen3_vl/transformer_config.py (get_vision_model_config)."""


def encoder_split(model: Model, framework: str) -> bool:
    """Whether tensor-parallel ranks share the encoder: its heads, FFN and projector."""
    return model.encoder is not None and model.encoder.family in SPLIT_ENCODERS.get(framework, ())


def encoder_parameters(model: Model, columns: LayoutColumns, framework: str) -> Floats:
    """Parameters of the encoder on one rank of the first stage; shape (rows,)."""
    whole = float(model.encoder.parameters if model.encoder else 0)
    return whole / np.where(encoder_split(model, framework), columns.tp, 1).astype(np.float64)
