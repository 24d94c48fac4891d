"""Where a preset's weights are published."""

from __future__ import annotations

import re

from meshwright.specs.model import Model

_HUB = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
"""A user's or a repository's name on a hub."""


def repository(model: Model) -> str | None:
    """Where a preset's weights and tokenizer are published; None where its source does not say.

    The name goes into scripts: only what a hub allows in one is taken, whatever a plan's file says.
    """
    told = re.fullmatch(rf"config\.json of ({_HUB}/{_HUB})( \(.*|[,;] .*)?", model.source)
    return told[1] if told else None


def part_of(model: Model) -> bool:
    """Whether the published checkpoint of a preset holds more than the model: an image encoder beside it."""
    return model.source.startswith("text_config of") or "(language model)" in model.source


_IN_FP8 = frozenset({
    "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3.2-Exp", "deepseek-ai/DeepSeek-V4-Flash",
    "deepseek-ai/DeepSeek-V4-Pro", "moonshotai/Kimi-K2-Base", "MiniMaxAI/MiniMax-M2",
})  # fmt: skip


_OWN_CODE = frozenset({
    "internlm/internlm2-1_8b", "internlm/internlm2-7b", "internlm/internlm2-20b", "baichuan-inc/Baichuan2-7B-Base",
    "XiaomiMiMo/MiMo-7B-Base", "moonshotai/Kimi-K2-Base", "MiniMaxAI/MiniMax-Text-01", "inclusionAI/Ling-mini-2.0",
    "inclusionAI/Ling-flash-2.0", "inclusionAI/Ling-1T",
})  # fmt: skip


def brings_code(model: Model) -> bool:
    """Whether a preset's checkpoint is of a `model_type` that transformers 5.23 has no class for, and brings its own."""
    return repository(model) in _OWN_CODE


def in_fp8(model: Model) -> bool:
    """Whether a preset is published with weights of 8 bits (`quantization_config` of its config.json).

    transformers keeps them so on devices with units for FP8 and widens them elsewhere (quantizer_finegrained_fp8.py).
    """
    return repository(model) in _IN_FP8
