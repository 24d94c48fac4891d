"""A Llama-like architecture from the fields that a configuration names, whatever it calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.imports.options import Options
from meshwright.specs.errors import SpecError
from meshwright.specs.model import Model


def llama_like(options: Options, names: Mapping[str, tuple[str, ...]], **fixed: Any) -> Model:
    """Return a model from whole-number options.

    Args:
        names: of `layers`, `hidden`, `heads`, `kv_heads`, `head_dim`, `ffn`, `vocab`.
        fixed: other fields of Model.

    Raises:
        SpecError: layers, hidden width or heads are missing.
    """
    found = {field: options.whole(*spelled) for field, spelled in names.items()}
    for field in ("layers", "hidden", "heads"):
        if not found.get(field):
            spelled = names[field][0]
            raise SpecError(
                options.prefix + spelled, None, "needed to describe the model (or give --model)"
            )
    found["kv_heads"] = found.get("kv_heads") or found["heads"]
    found["head_dim"] = found.get("head_dim") or found["hidden"] // found["heads"]
    found["ffn"] = found.get("ffn") or 4 * found["hidden"]
    found["vocab"] = found.get("vocab") or 128_256
    return Model.parse({"name": "imported", **found, **fixed}, "model")
