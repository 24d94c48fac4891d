"""A YAML that names a Megatron-Bridge recipe (`recipe: {_target_: …}`) and overrides its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.formats import bridge
from meshwright.imports.interpolate import merged, read_table, resolved
from meshwright.imports.options import counted, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.shell.words import unset

_RECIPES = "megatron.bridge.recipes."
_OF_RECIPE = {
    "context_parallelism": "model.context_parallel_size", "sequence_parallelism": "model.sequence_parallel",
    "global_batch_size": "train.global_batch_size", "micro_batch_size": "train.micro_batch_size", "train_iters": "train.train_iters",
    "seq_length": "model.seq_length", "tensor_parallelism": "model.tensor_model_parallel_size",
    "pipeline_parallelism": "model.pipeline_model_parallel_size", "expert_parallelism": "model.expert_model_parallel_size",
}  # fmt: skip
"""Arguments of a recipe, where they are called otherwise than its tables' fields."""
_NOT_OURS = (
    "recipe",
    "run",
    "defaults",
    "hf_model_path",
    "load_hf_weights",
    "trust_remote_code",
    "mode",
)


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table names such a recipe."""
    recipe = data.get("recipe")
    return isinstance(recipe, dict) and str(recipe.get("_target_", "")).startswith(_RECIPES)


def read(data: dict[str, Any], given: Given, folder: Path | None) -> Reading:
    """Return what a recipe runs with what the tables override.

    Raises:
        SpecError: a value that cannot be, or a model that is not modelled.
    """
    filled = resolved(_whole(data, folder), dict(given.variables))
    recipe = dict(filled["recipe"])
    name = str(recipe.pop("_target_")).rpartition(".")[2]
    words = ["--recipe", name]
    scheme = str(recipe.pop("peft", "") or "")
    if scheme:
        words += ["--peft_scheme", scheme]
    for field, value in recipe.items():
        words.append(f"{_OF_RECIPE.get(field, f'model.{field}')}={value}")
    tables = {key: one for key, one in filled.items() if key not in _NOT_OURS}
    for field, value in flattened(tables).items():
        if value is not None and not unset(str(value)):
            words.append(f"{field}={value}")
    reading = bridge.read_words(words, given, folder)
    reading.format = "Megatron-Bridge YAML"
    run = filled.get("run")
    place = run.get("env") if isinstance(run, dict) else None
    if isinstance(place, dict) and not reading.world():
        reading.hosts, reading.per_host = counted(place.get("nodes")), counted(place.get("gpus_per_node"))  # fmt: skip
    return reading


def _whole(data: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """A table over the one that its `defaults` names, where that file is at hand.

    Raises:
        SpecError: that file cannot be parsed.
    """
    below = data.get("defaults")
    path = beside(folder, below) if isinstance(below, str) else None
    if path is None:
        return data
    return merged(read_table(path), {key: one for key, one in data.items() if key != "defaults"})
