"""What a loop gives its model at once: batches and lengths, by the words around its loader."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from meshwright.imports.code.names import Known
from meshwright.imports.code.syntax import dotted
from meshwright.imports.own import option_names

OF_LOADERS = frozenset(option_names.LENGTHS) - {
    "block_size",
    "max_length",
    "n_ctx",
    "context_length",
}
"""Lengths that a loader has; the others are as well the most that a model takes, or that it generates."""
_LOADS = re.compile(r"DataLoader\(|load_dataset\(|memmap\(|StreamingDataset\(")


def of_drawn_tokens(text: str, tree: ast.Module, known: Known, named: dict[str, Any]) -> None:
    """Take the shape of what `torch.randint(vocabulary, (batch, length))` draws for a model, where a program loads nothing.

    It counts over constants of the usual names: those may be the most that a model takes, or be read by nothing.
    """
    if _LOADS.search(text):
        return
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and dotted(node.func).endswith("torch.randint")):
            continue
        shape = next((one for one in (*node.args, *(word.value for word in node.keywords if word.arg == "size")) if isinstance(one, (ast.Tuple, ast.List))), None)  # fmt: skip
        # One more token than the model sees is its last label.
        parts = [one.left if isinstance(one, ast.BinOp) and ast.unparse(one).endswith(" + 1") else one for one in shape.elts] if shape is not None else []  # fmt: skip
        sizes = [known.value(one) for one in parts]
        if len(sizes) == 2 and all(isinstance(one, int) and one > 0 for one in sizes):
            for name in {*option_names.LENGTHS, *option_names.MICRO, *option_names.BATCHES} & set(named):  # fmt: skip
                del named[name]
            named["micro_batch_size"], named["seq_len"] = sizes
            return


def of_loader(found: Mapping[str, Any], named: dict[str, Any]) -> None:
    """Take build-nanogpt's B and T, what its loader gives a device at once, where no loader's own words say it."""
    batch, length = found.get("B"), found.get("T")
    if isinstance(batch, int) and not set(named) & set(option_names.MICRO):
        named["micro_batch_size"] = batch
    if isinstance(length, int) and not set(named) & OF_LOADERS:
        named["seq_len"] = length


def of_one_device(tree: ast.Module, named: dict[str, Any]) -> None:
    """Take a batch that is divided by the micro-batch alone, and not by the devices, as what one device adds up."""
    for node in ast.walk(tree):
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        if not (isinstance(value, ast.BinOp) and isinstance(value.op, (ast.FloorDiv, ast.Div))):
            continue
        whole, part = (ast.unparse(one).rpartition(".")[2] for one in (value.left, value.right))
        batch, micro = named.get(whole), named.get(part)
        if (
            whole not in ("batch_size", "train_batch_size", "effective_batch_size")
            or part not in option_names.MICRO
        ):
            continue
        if isinstance(batch, int) and isinstance(micro, int) and micro and batch % micro == 0:
            named["gradient_accumulation_steps"] = batch // micro
            named.pop(whole)
            return


def of_tokens(named: dict[str, Any]) -> None:
    """Take batches that only tokens can be so many of as what a step and a device see of those."""
    whole = next((named.get(one) for one in ("batch_size", "train_batch_size")), None)
    each = named.get("device_batch_size")
    if isinstance(each, int) and isinstance(whole, int) and each < whole:
        named["global_batch_size"] = whole  # modded-nanogpt: of all devices, beside each one's
        named.pop("batch_size", None)
    elif isinstance(whole, int) and whole >= option_names.TOKENS:
        named["global_batch_size"] = named.pop("batch_size", whole)
    length = next(
        (named[one] for one in option_names.LENGTHS if isinstance(named.get(one), int)), 0
    )
    if isinstance(each, int) and each >= option_names.TOKENS and length > 0:
        named["device_batch_size"] = max(each // length, 1)


def of_shape(said: Mapping[str, Any], named: dict[str, Any]) -> None:
    """Leave out other words for what the shape says that is made, and the most that it takes where a loader says less.

    Args:
        said: what the model is made with, by its own names.
    """
    for names in (option_names.LAYERS, option_names.HEADS):
        if set(said) & set(names):
            for other in set(names) - set(said):
                named.pop(other, None)
    if (OF_LOADERS & set(named)) - set(said):
        for most in set(option_names.LENGTHS) & set(said):
            named.pop(most, None)
