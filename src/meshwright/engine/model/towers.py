"""The shape of a multimodal model's encoder, read off its modules: the largest stack of blocks with attention.

Called beside the counting of parameters (`meshwright.engine.model.traced`), on modules without memory.
"""

from __future__ import annotations

import math
import re
from typing import Any

_ATTENTION = re.compile(r"attn|attention")
_NO_PRODUCT = re.compile(r"pos|class_|query_tokens|\.head\.|pooler|embed_tokens")
_PATCH = re.compile(r"patch|conv")
_AFTER = re.compile(r"merg|projector|downsample|mm_")
_HEADS = ("num_attention_heads", "num_heads", "encoder_attention_heads", "attention_heads")


def tower_of(model: Any, seen: re.Pattern[str]) -> dict[str, Any] | None:
    """What the encoder among a model's modules is built of; None where no stack of plain blocks is found.

    `seen`: names of an encoder's parameters. `layers`, `hidden`, `heads`, `ffn`, `gated` are of the blocks; `patch`
    and `projector` are parameters that each patch is multiplied with before them and each of the language model's
    tokens after them; `joined` patches make one such token; `config` is the tower's own.
    """
    import torch

    stacks = [
        (name, part)
        for name, part in model.named_modules()
        if isinstance(part, torch.nn.ModuleList) and seen.search(name) and len(part) and _attends(part[0])
    ]  # fmt: skip
    if not stacks:
        return None
    name, stack = max(stacks, key=lambda one: _held(one[1]))
    config = _config_above(model, name)
    block = _block(stack[0])
    heads = next((value for key in _HEADS if isinstance(value := config.get(key), int)), 0)
    if block is None or not heads:
        return None
    outside = _outside(model, seen, tuple(f"{other}." for other, _ in stacks))
    patch, projector = (sum(math.prod(shape) for shape in shapes) for shapes in outside)
    return {
        **block, "layers": len(stack), "heads": heads, "patch": patch, "projector": projector,
        "joined": _joined(outside[1], block["hidden"]),
        "sound": bool(re.search("audio|speech", name)), "config": config,
    }  # fmt: skip


def _attends(block: Any) -> bool:
    return any(_ATTENTION.search(name) for name, _ in block.named_children())


def _held(part: Any) -> int:
    return sum(weight.numel() for weight in part.parameters())


def _block(block: Any) -> dict[str, Any] | None:
    """Widths of a block of attention and a dense FFN; None where its products are others."""
    import torch

    products = {
        name: tuple(part.weight.shape)
        for name, part in block.named_modules()
        if isinstance(part, torch.nn.Linear)
    }
    attention = [shape for name, shape in products.items() if _ATTENTION.search(name)]
    inside = [shape for name, shape in products.items() if not _ATTENTION.search(name)]
    if not attention or not inside:
        return None
    hidden, ffn = attention[0][1], inside[0][0]
    plain = sum(math.prod(shape) for shape in attention) == 4 * hidden**2
    if not plain or len(inside) not in (2, 3) or {*inside} != {(ffn, hidden), (hidden, ffn)}:
        return None
    one = attention[0][0] == 3 * hidden  # queries, keys and values by one product
    return {"hidden": hidden, "ffn": ffn, "gated": len(inside) == 3, "one_product": one}


def _config_above(model: Any, name: str) -> dict[str, Any]:
    """Plain values of the configuration of the nearest module above a stack that has one of its own."""
    while name:
        name = name.rpartition(".")[0]
        found = getattr(model.get_submodule(name), "config", None)
        if found is not None:
            return plain(found)
    return {}


def plain(config: Any) -> dict[str, Any]:
    """What of a configuration is a number, a word or a short list."""
    return {
        key: value
        for key, value in config.to_dict().items()
        if isinstance(value, (int, float, str)) or (isinstance(value, list) and len(value) < 64)
    }


def _outside(
    model: Any, seen: re.Pattern[str], inside: tuple[str, ...]
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Shapes of the products before the blocks, and of those after them."""
    import torch

    tables = {
        f"{name}.weight"
        for name, part in model.named_modules()
        if isinstance(part, torch.nn.Embedding)
    }
    patch: list[tuple[int, ...]] = []
    projector: list[tuple[int, ...]] = []
    for name, weight in model.named_parameters():
        held = seen.search(name) and not name.startswith(inside) and name not in tables
        if not held or weight.dim() < 2 or weight.shape[0] == 1 or _NO_PRODUCT.search(name):
            continue
        before = weight.dim() > 2 or _PATCH.search(name)
        (patch if before and not _AFTER.search(name) else projector).append(tuple(weight.shape))
    return patch, projector


def _joined(projector: list[tuple[int, ...]], hidden: int) -> int:
    """Patches that one token of the language model is made of: what the first product after the blocks reads."""
    for shape in projector:
        many, over = divmod(math.prod(shape[1:]), hidden)
        if many and not over:
            return many
    return 1
