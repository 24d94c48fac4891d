"""Recipes of Amazon SageMaker HyperPod: a size and machines around the tables of verl or of its own fine-tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshwright.imports.formats import verl
from meshwright.imports.options import counted
from meshwright.imports.own import tables as own_tables
from meshwright.imports.reading import Given, Reading
from meshwright.imports.script_devices import instance
from meshwright.imports.tasks import name_task


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is such a recipe: a `training_config` beside what it runs on."""
    parts = [data.get(name) for name in ("run", "trainer", "training_config")]
    return all(isinstance(one, dict) for one in parts) and "instance_types" in data


def read(data: dict[str, Any], given: Given, folder: Path | None = None) -> Reading:
    """Return what a recipe runs, on the first of the machines that it lists.

    Raises:
        SpecError: a value that cannot be, or a model that is no decoder of text.
    """
    inner, trainer = data["training_config"], data["trainer"]
    of_verl = "actor_rollout_ref" in inner or {"data", "engine", "optim"} <= set(inner)
    if of_verl:
        program = "" if "actor_rollout_ref" in inner else "verl.trainer.sft_trainer"
        reading = verl.read_verl_data(inner, given, program)
    else:
        reading = own_tables.read(inner, given, folder)
        arguments = inner.get("training_args")
        name_task(reading, str(arguments.get("trainer_type", "") if isinstance(arguments, dict) else ""))  # fmt: skip
    reading.format = f"HyperPod recipe{' of verl' if of_verl else ''}"
    kinds = data["instance_types"]
    first = str(kinds[0]) if isinstance(kinds, list) and kinds else str(kinds)
    device, usual = instance(first)
    reading.likely = device or reading.likely
    if hosts := counted(trainer.get("num_nodes")):
        reading.hosts = hosts
        reading.per_host = counted(trainer.get("devices")) or usual or 8
    if device and isinstance(kinds, list) and len(kinds) > 1:
        reading.note(f"the recipe lists {len(kinds)} machines; the first, {first}, is taken", "instance_types")  # fmt: skip
    return reading
