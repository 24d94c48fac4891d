"""Which layers transformers' Trainer computes again, and where it keeps their inputs (transformers 5, training_args.py)."""

from __future__ import annotations

import math
from typing import Any

from meshwright.imports.names import model_named
from meshwright.imports.options import Options
from meshwright.imports.reading import Reading

_TABLES = ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs")


def of_checkpointing(options: Options, reading: Reading) -> None:
    """Take `every_n_layers` and `offload` of a checkpointing's own table; `offload` keeps its inputs in host memory."""
    every, offload = _told(options, "every_n_layers"), _told(options, "offload")
    if reading.layout.get("recompute") != "full":
        return
    if str(offload).lower() == "true":
        reading.offload.add("activations")
    count = int(every) if str(every).isdigit() else 1
    if count < 2:
        return
    model = reading.model or model_named(reading.model_name)
    if model is None:
        reading.unmodelled("every_n_layers", f"one layer of {count} is computed again; all are priced so")  # fmt: skip
    else:
        reading.layout["recompute_layers"] = math.ceil(model.layers / count)


def _told(options: Options, field: str) -> Any:
    for name in _TABLES:
        table = options.values.get(name)
        if isinstance(table, dict) and field in table:
            return table[field]
        if f"{name}.{field}" in options:
            return options.raw(f"{name}.{field}")
    return None
