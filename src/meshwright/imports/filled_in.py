"""Values of a configuration that its environment fills in."""

from __future__ import annotations

import re
from typing import Any

from meshwright.imports.own.arguments import typed
from meshwright.imports.shell.words import mark

FILLED_IN = re.compile(r":\s*[\"']?\$\{[A-Z][A-Z0-9_]*(?::?-[^}]*)?\}[\"']?\s*$", re.M)
"""A value that the environment is to fill in (`micro_batch_size: ${MICRO_BATCH_SIZE}`, `${MODEL:-a/b}`)."""


def filled_in(value: Any, variables: dict[str, str]) -> Any:
    """A table whose values that the environment fills in are what is given for them, or marks."""
    if isinstance(value, dict):
        return {key: filled_in(one, variables) for key, one in value.items()}
    if isinstance(value, list):
        return [filled_in(one, variables) for one in value]
    shape = r"\$\{([A-Z][A-Z0-9_]*)(:?-[^}]*)?\}"
    found = re.fullmatch(shape, value) if isinstance(value, str) else None
    if found is None:
        return value
    name, usual = found.group(1), found.group(2)
    if name in variables:
        return typed(variables[name])
    return typed(usual.lstrip(":").removeprefix("-")) if usual else mark(name)
