"""Multimodal models in the words of tools for fine-tuning: their template, what of them trains, how large their images are.

Sources: LLaMA-Factory data/template.py (whose plugins put images into a sequence), model/model_utils/visual.py
(COMPOSITE_MODELS: the families whose encoder it knows apart), hparams/finetuning_args.py, hparams/model_args.py; TRL 1.16
trainer/sft_trainer.py (`_is_vlm`), trainer/model_config.py (one target alone is a pattern); axolotl docs/multimodal.qmd,
utils/freeze.py, utils/schemas/multimodal.py, processing_strategies.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.costs.encoders import trains
from meshwright.exports.bridged import bridged
from meshwright.exports.hf import own_config
from meshwright.exports.hf_classes import has_images
from meshwright.exports.inputs import PLACEHOLDER
from meshwright.exports.limit_rules import Problem
from meshwright.specs.encoders import USUAL_SIDE, Encoder
from meshwright.specs.frameworks import Framework
from meshwright.specs.job import Job
from meshwright.specs.model import ENCODER, FURTHER_TOKENS, Model
from meshwright.specs.plan import Plan

_TEMPLATES = {
    "gemma3": "gemma3", "glm4v": "glm4v", "internvl": "intern_vl", "kimi_vl": "kimi_vl",
    "llama4": "llama4", "llava": "llava", "llava_next": "llava_next", "mistral3": "mistral_small",
    "paligemma": "paligemma", "qwen2_audio": "qwen2_audio", "qwen2_vl": "qwen2_vl",
    "qwen2_5_vl": "qwen2_vl", "qwen3_vl": "qwen3_vl", "qwen3_vl_moe": "qwen3_vl",
}  # fmt: skip
"""`model_type` of a multimodal model → the template whose plugin reads its images or sound."""
_CHATS = {
    "gemma3": "gemma3", "gemma3n": "gemma3n", "gemma4": "gemma4", "llama4": "llama4", "llava": "llava",
    "qwen2_vl": "qwen2_vl", "qwen2_5_vl": "qwen2_vl", "qwen3_vl": "qwen2_vl", "qwen3_vl_moe": "qwen2_vl",
    "qwen3_5": "qwen3_5", "qwen3_5_moe": "qwen3_5", "mistral3": "", "glm4v": "", "glm46v": "", "internvl": "",
    "smolvlm": "", "lfm2_vl": "",
}  # fmt: skip
"""`model_type` → the chat template by which axolotl knows where images stand; "": the processor's own."""


def _sees(tool: str, encoder: Encoder | None) -> bool:
    """Whether a tool reads the images or sound of a model, whose encoder is priced."""
    if encoder is None or not encoder.layers:
        return False
    if tool == "trl":
        return has_images(encoder.family) and encoder.kind == "images"
    return encoder.family in {"llama-factory": _TEMPLATES, "axolotl": _CHATS}.get(tool, {})


def seen_by(tool: str, plan: Plan) -> bool:
    """Whether a plan's rows hold images or sound, as a tool's file then says."""
    return _sees(tool, plan.model.encoder)


def language_pattern(names: list[str]) -> str:
    """A pattern of PEFT's for adapters on the language model alone: encoders call their matrices the same."""
    return rf".*language_model.*\.({'|'.join(names)})"


def seeing_problems(tool: str, model: Model, job: Job) -> Iterator[Problem]:
    """What a tool that reads images has no words for."""
    if not _sees(tool, model.encoder):
        return
    if tool == "trl" and job.finetune is not None and not (job.finetune.adapts or trains(job)):
        says = "trains all of a multimodal model, or adapters on its language model"
        yield Problem("finetune.freeze", list(job.finetune.freeze), says)
    if tool == "trl" and job.document_masking:
        yield Problem("job.document_masking", True, "packs nothing of a multimodal model")


def axolotl_words(plan: Plan) -> dict[str, Any]:
    """axolotl's words for a multimodal model, over those of text; none for another."""
    encoder = plan.model.encoder
    if encoder is None or not _sees("axolotl", encoder):
        return {}
    found: dict[str, Any] = {
        "processor_type": "AutoProcessor", "skip_prepare_dataset": True, "remove_unused_columns": False,
        "sample_packing": False, "pad_to_sequence_len": False,
        "datasets": [{"path": PLACEHOLDER, "type": "chat_template"}],
    }  # fmt: skip
    if chat := _CHATS[encoder.family]:
        found["chat_template"] = chat
    if not trains(plan.job):
        found["freeze_mm_modules"] = True
    if not encoder.fixed:
        found["image_size"] = round(_share(plan.job, encoder) ** 0.5 * USUAL_SIDE)
    return found


def _share(job: Job, encoder: Encoder) -> float:
    """Pixels of an image as a share of the usual ones."""
    return (job.image_patches or encoder.patches) / encoder.patches


def words_beside(model: Model, can: Framework) -> list[str]:
    """What is unusual about a model and a framework has no words for.

    Who builds the class that transformers has of its config.json gets all of it, but for an encoder's images, which
    tools for fine-tuning alone read, and layers that transformers leaves out.
    """
    encoder, sees = model.encoder, _sees(can.name, model.encoder)
    if can.name == "nemo" and bridged(model):
        return []
    if can.builds_families and own_config(model) is not None:
        found = [FURTHER_TOKENS] if model.predict_layers else []
        return found + ([ENCODER] if encoder is not None and not sees else [])
    parts = model.unusual()
    return [one for one in parts if one not in (ENCODER, model.unnamed_parts)] if sees else parts


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
        found["image_max_pixels"] = round(_share(job, encoder) * USUAL_SIDE**2)
    return found
