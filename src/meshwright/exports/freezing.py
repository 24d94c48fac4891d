"""Full fine-tuning of a part of a model, or of its layers in turn: who has words for it, and LLaMA-Factory's.

Sources: LLaMA-Factory 0.9.5, model/adapter.py (`_setup_freeze_tuning`), train/trainer_utils.py
(`_create_badam_optimizer`), hparams/parser.py (layer-wise BAdam beside DeepSpeed's stage 3 only).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.exports.limit_rules import Problem
from meshwright.specs.finetune import Finetune
from meshwright.specs.model import Model

_MODULES = {"embedding": "embed_tokens", "head": "lm_head"}
"""What models of Llama's naming call the parts outside their layers."""


def frozen_problems(tool: str, model: Model, tune: Finetune) -> Iterator[Problem]:
    """Why a tool cannot leave out what a plan freezes: its file would train all of it."""
    if not tune.partial_text:
        return
    field = "finetune.in_turn" if tune.in_turn else "finetune.freeze"
    value = tune.label()
    if tool != "llama-factory":
        yield Problem(field, value, "is exported with all weights training, or adapters")
    elif tune.in_turn > 1:
        yield Problem(field, tune.in_turn, "trains one layer at a time (BAdam)")
    elif not tune.in_turn and "norms" in tune.freeze:
        yield Problem(field, value, "trains the norms of the layers that train")
    elif not tune.in_turn and not 0 < tune.frozen_layers < model.layers:
        yield Problem(field, value, "freezes by layers, the last of which train")
    elif not tune.in_turn and model.tied_embeddings and len({*_MODULES} & {*tune.freeze}) == 1:
        yield Problem(field, value, "has one matrix for embedding and head of this model")


def llama_factory_words(model: Model, tune: Finetune) -> dict[str, Any]:
    """Its words for what trains, over those of full fine-tuning."""
    if tune.in_turn:
        return {"use_badam": True, "badam_mode": "layer"}
    if not tune.partial_text:
        return {}
    parts = [name for part, name in _MODULES.items() if part not in tune.freeze]
    parts = parts[:1] if model.tied_embeddings else parts
    return {
        "finetuning_type": "freeze",
        "freeze_trainable_layers": model.layers - tune.frozen_layers,
        **({"freeze_extra_modules": ",".join(parts)} if parts else {}),
    }
