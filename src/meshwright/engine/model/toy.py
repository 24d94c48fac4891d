"""The toy model of the lessons: four layers, small enough to run on any laptop in real time."""

from __future__ import annotations

from meshwright.specs.model import Model

TOY = Model(
    name="toy", family="llama", layers=4, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=192,
    vocab=256, source="the lessons' four-layer model, with one embedding row per byte",
)  # fmt: skip
"""Four Llama layers of width 64 over a byte vocabulary: 229,952 parameters."""
