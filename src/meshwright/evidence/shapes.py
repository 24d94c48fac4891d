"""Models' dimensions that one table of a page tells, in the rows of its others: `Small: 6 layers, 384 wide`."""

from __future__ import annotations

import re
from collections.abc import Sequence

SHAPE = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
"""Columns that say what a model is."""


def fill_shapes(rows: Sequence[dict[str, str]]) -> None:
    """Fill the dimensions of rows that name a model whose layers and width another row tells, and tell none.

    Two rows that give one name different dimensions give it none.
    """
    told: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        shape = {column: row[column] for column in SHAPE if row.get(column, "").strip()}
        if {"layers", "hidden"} <= shape.keys() and (name := _name(row)):
            told.setdefault(name, []).append(shape)
    for row in rows:
        shapes = told.get(_name(row), [])
        if not shapes or any(one != shapes[0] for one in shapes):
            continue
        if not any(row.get(column, "").strip() for column in SHAPE):
            row.update(shapes[0])
            said = f"dimensions of {row['model'].strip()} (another table of the page)"
            row["read_as"] = "; ".join(filter(None, [row.get("read_as", ""), said]))


def _name(row: dict[str, str]) -> str:
    return re.sub(r"[^a-z0-9.]", "", row.get("model", "").lower())
