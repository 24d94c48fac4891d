"""Reader of Nemotron's searched shapes (Llama-3.3-Nemotron-Super, -Ultra): blocks that each have widths of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from meshwright.specs.errors import SpecError
from meshwright.specs.hf_config import Config
from meshwright.specs.hf_dense import Fields, llama
from meshwright.specs.hf_kinds import layer_kinds

MULTIPLE = 256
"""Of which an FFN's width is the next multiple: 2/3 of `ffn_mult` hidden widths (configuration_decilm.py)."""


def nemotron_nas(config: Config) -> Fields:
    """A decoder of `block_configs`: the mean layer is priced, and all parameters are counted.

    Raises:
        SpecError: no blocks, or parts of them that no published model has.
    """
    blocks = [_block(one, at) for at, one in enumerate(config.layers_named("block_configs"))]
    if not blocks:
        raise SpecError("config.block_configs", None, "one table for each layer is expected")
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    head = hidden // heads
    groups = [grouped for grouped, _, _ in blocks if grouped]
    if not groups:
        raise SpecError("config.block_configs", None, "some layers need attention")
    widths = [_width(multiple, hidden) for _, multiple, _ in blocks]
    mean = sum(widths) / max(sum(width > 0 for width in widths), 1)
    config.read |= {"intermediate_size", "num_key_value_heads"}
    fields = llama(
        config.spelt(
            num_hidden_layers=len(blocks), head_dim=head,
            # It splits by tensors as each block's width does.
            intermediate_size=max(round(mean / MULTIPLE), 1) * MULTIPLE,
            num_key_value_heads=heads // Counter(groups).most_common(1)[0][0],
        )
    )  # fmt: skip
    mixers = ["attention" if grouped else "none" for grouped, _, _ in blocks]
    ffns = ["dense" if width else "none" for width in widths]
    total = hidden + fields["vocab"] * hidden * (1 if fields["tied_embeddings"] else 2)
    for (grouped, _, linear), width in zip(blocks, widths, strict=True):
        keys = 2 * (heads // grouped) * head if grouped else 0
        total += (2 * hidden + keys) * hidden + hidden if grouped else 0
        total += 3 * width * hidden + hidden if width else 0
        total += linear * (hidden * hidden + hidden)
    return {
        **fields, "layer_kinds": layer_kinds(mixers, ffns), "family": "nemotron-nas",
        "counted_parameters": total,
    }  # fmt: skip


def _block(table: Any, at: int) -> tuple[int, float, int]:
    """(queries to a key-value head, or 0 without attention; FFN's multiple, or 0; linear layers instead)."""
    attention, ffn = (
        (table.get(part) if isinstance(table, Mapping) else None) for part in ("attention", "ffn")
    )
    if not isinstance(attention, Mapping) or not isinstance(ffn, Mapping):
        raise SpecError(f"config.block_configs[{at}]", table, "attention and ffn, a table each")
    linear = sum(part.get("replace_with_linear") is True for part in (attention, ffn))
    grouped: Any = attention.get("n_heads_in_group")
    if attention.get("no_op") or attention.get("replace_with_linear"):
        grouped = 0
    multiple: Any = ffn.get("ffn_mult")
    if ffn.get("no_op") or ffn.get("replace_with_linear"):
        multiple = 0
    if not isinstance(grouped, int) or not isinstance(multiple, int | float):
        raise SpecError(f"config.block_configs[{at}]", table, "n_heads_in_group and ffn_mult")
    return grouped, float(multiple), linear


def _width(multiple: float, hidden: int) -> int:
    return -(-int(2 * multiple * hidden / 3) // MULTIPLE) * MULTIPLE
