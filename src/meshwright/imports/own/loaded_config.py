"""A program whose model is a checkpoint's configuration with sizes of its own set on it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from meshwright.imports.code.names import Known
from meshwright.imports.names import model_named
from meshwright.imports.own import option_names

_SIZES = {
    "layers": ("num_hidden_layers", option_names.LAYERS), "hidden": ("hidden_size", option_names.HIDDEN),
    "heads": ("num_attention_heads", option_names.HEADS), "kv_heads": ("num_key_value_heads", option_names.KV_HEADS),
    "ffn": ("intermediate_size", option_names.FFN), "vocab": ("vocab_size", ("vocab_size", "padded_vocab_size")),
}  # fmt: skip
"""Fields of our models by transformers' names, and the other names that programs have for them."""


def sizes_of_loaded(tree: ast.Module, known: Known, said: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes of a configuration that a program loads by a name that is known, with what it sets on it.

    Args:
        said: sizes that the program says otherwise; they count over the checkpoint's.
    """
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value.args):  # fmt: skip
            continue
        if not ast.unparse(node.value.func).endswith("Config.from_pretrained"):
            continue
        name = known.value(node.value.args[0])
        base = model_named(name) if isinstance(name, str) else None
        if base is None:
            continue
        own = _set_on(ast.unparse(node.targets[0]), tree, known)
        found: dict[str, Any] = {}
        for field, (theirs, names) in _SIZES.items():
            if theirs in own or not any(one in said for one in names):
                found[theirs] = own.get(theirs, getattr(base, field))
        if "num_attention_heads" not in own and "hidden_size" not in own:
            found["head_dim"] = base.head_dim
        return found
    return {}


def _set_on(target: str, tree: ast.Module, known: Known) -> dict[str, int]:
    """Numbers that lines like `config.num_hidden_layers = args.layers` set."""
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)):
            continue
        value = known.value(node.value)
        if ast.unparse(node.targets[0].value) == target and type(value) is int and value > 0:
            found[node.targets[0].attr] = value
    return found
