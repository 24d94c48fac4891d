"""Configurations as a tracker of runs keeps them: every value in a table of its own."""

from __future__ import annotations

from typing import Any

_LEAST = 5


def unwrapped(data: dict[str, Any]) -> dict[str, Any]:
    """A table of `name: {value: …, desc: …}`, as Weights & Biases writes its `config.yaml`, without those inner tables; others as they are."""
    held = {name: one for name, one in data.items() if isinstance(one, dict) and "value" in one and set(one) <= {"value", "desc"}}  # fmt: skip
    if len(held) < _LEAST or len(held) < len(data) - 1:  # a version stands beside them
        return data
    return {name: one["value"] for name, one in held.items() if not name.startswith("_")}
