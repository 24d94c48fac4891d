"""What transformers has classes for, and which of them FlashAttention and PyTorch's own attention serve.

`data/transformers_families.json` lists the `model_type`s of its MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and
MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, and those whose class does not say `_supports_flash_attn` or `_supports_sdpa`.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources


@cache
def _listed(what: str) -> frozenset[str]:
    file = resources.files("meshwright.exports").joinpath("data/transformers_families.json")
    return frozenset(json.loads(file.read_text())[what])


def has_causal(family: str) -> bool:
    """Whether transformers has a causal language model of a `model_type`."""
    return family in _listed("causal")


def has_images(family: str) -> bool:
    """Whether it has a model of a `model_type` that reads images and text."""
    return family in _listed("images")


def takes_flash(family: str) -> bool:
    """Whether its class takes FlashAttention, as far as it has the family."""
    return family not in _listed("no_flash")


def keeps_every_score(family: str) -> bool:
    """Whether its class has attention that keeps all scores alone."""
    return family in _listed("no_flash") and family in _listed("no_sdpa")
