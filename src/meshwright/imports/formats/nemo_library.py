"""What NeMo 2's own recipes set, where a program calls one that is not at hand: degrees, batches, lengths, devices."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

from meshwright.imports.code.values import Made, is_open

_ARGUMENTS = {
    # Arguments of a recipe, where the strategy's fields are called otherwise.
    "tensor_parallelism": "tensor_model_parallel_size", "pipeline_parallelism": "pipeline_model_parallel_size",
    "virtual_pipeline_parallelism": "virtual_pipeline_model_parallel_size", "context_parallelism": "context_parallel_size",
    "sequence_parallelism": "sequence_parallel", "expert_parallelism": "expert_model_parallel_size",
}  # fmt: skip
_DATA = ("global_batch_size", "micro_batch_size", "seq_length")
_TRAINER = {"num_nodes": "num_nodes", "devices": "num_gpus_per_node"}
_PACKED = {"global_batch_size": 8, "seq_length": 4096}
"""What fine-tuning takes instead where it packs its sequences (finetune_default.py)."""


@cache
def _table() -> dict[str, Any]:
    text = resources.files("meshwright.imports").joinpath("data/nemo_recipes.toml").read_text("utf-8")  # fmt: skip
    return tomllib.loads(text)


def holds(name: str) -> bool:
    """Whether a recipe of that name is known."""
    return name in _table()["recipes"]


def fill(recipe: Made, library: str) -> bool:
    """Set on what a program made of a library's recipe what the recipe's arguments say, and then what it sets itself.

    A part that the program makes anew (`recipe.data = run.Config(…)`) has nothing of the recipe's.

    Returns:
        whether the recipe is known.
    """
    kind = _kind(recipe)
    table = _table()
    own = table["recipes"].get(library, {}).get(kind)
    said = {_ARGUMENTS.get(key, key): value for key, value in recipe.fields.items()}
    if own is not None:
        packed = kind != "pretrain" and (said.get("packed_sequence") or said.get("performance_mode")) is True  # fmt: skip
        own = {**table["usual"][kind], **(_PACKED if packed else {}), **own}
        if packed and (data := _ours(recipe, "data")) is not None:
            data.fields.setdefault("packed_sequence_specs", True)
    trainer, data = (_ours(recipe, name) for name in ("trainer", "data"))
    peft = _ours(recipe, "peft") if kind == "lora" else None
    strategy = _ours(trainer, "strategy") if trainer is not None else None
    model = _ours(recipe, "model")
    config = _ours(model, "config") if model is not None else None
    for source in (said, own or {}):
        for key, value in source.items():
            table_of, _, field = key.rpartition(".")
            if field in _TRAINER or field in _TRAINER.values():
                field = next(ours for ours, theirs in _TRAINER.items() if field in (ours, theirs))
                _set(trainer, field, value)
            elif table_of in ("config", "peft"):
                _set(config if table_of == "config" else peft, field, value)
            elif field in _DATA:
                _set(data, field, value)
            elif source is not said or key in _ARGUMENTS.values():
                _set(strategy, field, value)
    return own is not None


def _kind(recipe: Made) -> str:
    """Which of a library's recipes it is: `peft_scheme` says whether a fine-tuning has adapters."""
    if recipe.name.endswith("pretrain_recipe"):
        return "pretrain"
    scheme = recipe.fields.get("peft_scheme", "lora")
    return "full" if str(scheme).lower() == "none" else "lora"


def _ours(owner: Made, name: str) -> Made | None:
    """A part that the recipe has made, which the program may set fields of; None for one that the program makes."""
    held = owner.fields.get(name)
    if held is None and name not in owner.fields:
        held = owner.fields[name] = Made(f"{owner.name}.{name}", parent=owner, of_field=True)
    return held if isinstance(held, Made) and held.of_field else None


def _set(part: Made | None, field: str, value: Any) -> None:
    if part is not None and (field not in part.fields or is_open(part.fields[field])):
        part.fields[field] = value
