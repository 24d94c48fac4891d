"""A configuration that begins with another file's values and says only what differs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.interpolate import LIMITS, merged, read_table
from meshwright.specs.foreign import parse_yaml

_KEYS = ("extends", "inherit_from", "inherits", "base_config", "_base_")
_NAMED = re.compile(rf"(?m)^(?:{'|'.join(_KEYS)})[^\S\n]*:[^\S\n]*[\"']?([^\s\"'#]+)")  # fmt: skip
_DEEPEST = 5


def whole_text(text: str, folder: Path | None) -> str:
    """The text of a YAML with the values of the files that it extends below its own; itself where it extends none at hand.

    Raises:
        SpecError: one of the files cannot be parsed.
    """
    found = _NAMED.search(text)
    path = _file(folder, found.group(1)) if found is not None and folder is not None else None
    if found is None or folder is None or path is None:
        return text
    if path.name == "base.yml" and "per_device_batch_size" in read_table(path):
        return (
            text  # MaxText's, below which stands the model's own file: its reader knows the order
        )
    data = parse_yaml(text, "file", found.group(1), LIMITS)
    return json.dumps(_whole(data, folder), indent=1, default=str) if isinstance(data, dict) else text  # fmt: skip


_INCLUDED = re.compile(r"(?m)^([\w-]+):[^\S\n]*!include[^\S\n]+[\"']?([^\s\"'#]+)")
"""A table that is another file's (draccus and PyYAML's `!include`)."""


def with_included(data: dict[str, Any], text: str, folder: Path | None) -> dict[str, Any]:
    """A table with those of the files that `!include` names at its outside, where they are at hand.

    Raises:
        SpecError: one of the files cannot be parsed.
    """
    found = {key: beside(folder, path) for key, path in _INCLUDED.findall(text) if key in data}
    return data | {key: read_table(path) for key, path in found.items() if path is not None}


def _file(folder: Path, named: str) -> Path | None:
    """The YAML of that name at hand, its ending said or not."""
    endings = ("",) if re.search(r"\.ya?ml$", named) else (".yaml", ".yml")
    return next((path for one in endings if (path := beside(folder, f"{named}{one}"))), None)


def _whole(data: dict[str, Any], folder: Path, depth: int = 0) -> dict[str, Any]:
    name = next((one for one in _KEYS if isinstance(data.get(one), str)), "")
    path = _file(folder, str(data[name])) if name else None
    if path is None or depth > _DEEPEST:
        return data
    below = _whole(read_table(path), path.parent, depth + 1)
    return merged(below, {key: value for key, value in data.items() if key != name})
