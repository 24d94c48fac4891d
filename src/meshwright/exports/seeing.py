"""Multimodal models in LLaMA-Factory's words: their template, what of them trains, how large their images are.

Sources: LLaMA-Factory data/template.py (whose plugins put images into a sequence), model/model_utils/visual.py
(COMPOSITE_MODELS: the families whose encoder it knows apart), hparams/finetuning_args.py, hparams/model_args.py.
"""

from __future__ import annotations

from typing import Any

from meshwright.costs.encoders import trains
from meshwright.specs.encoders import USUAL_SIDE
from meshwright.specs.job import Job
from meshwright.specs.model import ENCODER, Model

_TEMPLATES = {
    "gemma3": "gemma3", "glm4v": "glm4v", "internvl": "intern_vl", "kimi_vl": "kimi_vl",
    "llama4": "llama4", "llava": "llava", "llava_next": "llava_next", "mistral3": "mistral_small",
    "paligemma": "paligemma", "qwen2_audio": "qwen2_audio", "qwen2_vl": "qwen2_vl",
    "qwen2_5_vl": "qwen2_vl", "qwen3_vl": "qwen3_vl", "qwen3_vl_moe": "qwen3_vl",
}  # fmt: skip
"""`model_type` of a multimodal model → the template whose plugin reads its images or sound."""


def words_beside(model: Model) -> list[str]:
    """What is unusual about a model but its encoder and what its file's reader could not name, where LLaMA-Factory
    trains such a model whole."""
    parts = model.unusual()
    encoder = model.encoder
    if encoder is None or not encoder.layers or encoder.family not in _TEMPLATES:
        return parts
    return [one for one in parts if one != ENCODER and one != model.unnamed_parts]


def llama_factory_words(model: Model, job: Job) -> dict[str, Any]:
    """Its words for a multimodal model; none for another."""
    encoder = model.encoder
    if encoder is None or encoder.family not in _TEMPLATES:
        return {}
    still = not trains(job)
    found: dict[str, Any] = {
        "template": _TEMPLATES[encoder.family],
        "freeze_vision_tower": still,
        "freeze_multi_modal_projector": still,
    }
    if not encoder.fixed:
        share = (job.image_patches or encoder.patches) / encoder.patches
        found["image_max_pixels"] = round(share * USUAL_SIDE**2)
    return found
