"""Configurations in Python that a function returns as an `ml_collections.ConfigDict` (nanodo, and programs made alike)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshwright.imports.code.follow import call_function, functions
from meshwright.imports.code.values import Made, Module, is_open
from meshwright.imports.own import tables
from meshwright.imports.reading import Given, Reading

_NANODO = {"D": "hidden_size", "H": "num_heads", "L": "seq_length", "N": "num_layers", "F": "intermediate_size", "V": "vocab_size"}  # fmt: skip
"""Its letters for the sizes of a decoder (nanodo/model.py, DoConfig)."""
_RENAMED = {"fsdp_enabled": "use_fsdp", "remat": "gradient_checkpointing", "peak_learning_rate": "learning_rate"}  # fmt: skip


def is_config(text: str) -> bool:
    """Whether a Python file declares one."""
    return "ml_collections" in text and "def get_config(" in text


def read(module: Module, given: Given, folder: Path | None) -> Reading | None:
    """Return what such a configuration trains; None where it says too little of a language model.

    Raises:
        SpecError: a value that cannot be.
    """
    node = next((one for one in functions(module) if one.name == "get_config"), None)
    made = None if node is None else call_function(module, node, [], {})
    table = _table(made) if isinstance(made, Made) else {}
    model = table.get("model")
    if isinstance(model, dict) and set("DHLNF") <= set(model):
        table["model"] = {_NANODO.get(name, name): one for name, one in model.items()}
        table["global_batch_size"] = table.pop("batch_size", 0)  # all devices divide it
    if not tables.is_config(table):
        return None
    reading = tables.read(table, given, folder)
    reading.format = "ConfigDict of a program"
    if reading.global_batch and not reading.micro_batch:
        world = given.cluster.gpus if given.cluster is not None else 8
        reading.micro_batch = max(1, reading.global_batch // world)
        reading.guess("--micro-batch", f"one pass takes a device's share of the batch; {reading.micro_batch} are taken")  # fmt: skip
    return reading


def _table(made: Made | dict[str, Any]) -> dict[str, Any]:
    """The fields of a ConfigDict, those inside as tables."""
    fields = made.fields if isinstance(made, Made) else made
    found: dict[str, Any] = {}
    for name, value in fields.items():
        said = _table(value) if isinstance(value, (Made, dict)) and not is_open(value) else value
        if not is_open(value):
            found[_RENAMED.get(str(name), str(name))] = said
    return found
