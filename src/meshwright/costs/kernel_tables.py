"""What single kernels of a device were measured at, and what stands for a device nobody measured.

`data/kernel_tables.toml` is condensed from measured kernels by `benchmarks/kernel_tables.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.costs.tables import table
from meshwright.specs.cluster import Device

FORMATS = {"bf16": "bf16", "fp16": "bf16", "fp8": "fp8", "fp4": "fp4"}
"""The measured number format that stands for a compute precision."""


CHIPS = {
    "a100": "a100-80g", "a800": "a100-80g", "h100": "h100", "h800": "h100", "h200": "h200",
    "gh200": "h200", "b200": "b200", "b300": "b300", "gb200": "gb200", "gb300": "gb300",
    "l40s": "l40s",
}  # fmt: skip
"""Beginnings of device names that are a measured chip, and the measured one."""


@dataclass(frozen=True)
class ProductShape:
    """How the rate of matrix products depends on their shape; see data/kernel_tables.toml.

    `rate` is a share of the data sheet's peak, None where the number format was not measured;
    `start` are elements of the inner dimension; `small_tile` and `grouped` are ratios of rates.
    """

    rate: float | None
    start: float
    small_tile: float
    grouped: float


@dataclass(frozen=True)
class AttentionShape:
    """How the rate of flash attention depends on its shape.

    `rate` is a share of the data sheet's peak, `of_widest` that rate over the one at head width
    128; `start` are keys.
    """

    rate: float
    of_widest: float
    start: float


def measured() -> dict[str, dict[str, Any]]:
    """Return data/kernel_tables.toml: device preset → products, experts, attention."""
    return table("kernel_tables")


def measured_chip(device: Device) -> str | None:
    """Return the measured device that has the same chip, or None."""
    name = device.name.lower().replace(" ", "-")
    found = [prefix for prefix in CHIPS if name.startswith(prefix)]
    return CHIPS[max(found, key=len)] if found else None


def product_shape(chip: str, precision: str) -> ProductShape:
    """Return the shape constants of matrix products at a compute precision."""
    products = measured()[chip]["products"]
    kind = FORMATS.get(precision, "bf16")
    near = kind if kind in products else "fp8" if "fp8" in products and kind == "fp4" else "bf16"
    found = products[near]
    experts = measured()[chip].get("experts", {})
    grouped = experts.get(near, experts.get("bf16", {})).get("over_dense", 1.0)
    rate = found["rate"] if near == FORMATS.get(precision) else None
    return ProductShape(rate, found["start"], found["small_tile"], min(grouped, 1.0))


def attention_shape(chip: str, head_dim: int) -> AttentionShape:
    """Return the shape constants of flash attention at the nearest measured head width."""
    widths = measured()[chip]["attention"]
    nearest = min(widths, key=lambda name: (abs(int(name[1:]) - head_dim), name))
    found, usual = widths[nearest], widths["d128"]
    return AttentionShape(found["rate"], found["rate"] / usual["rate"], found["start"])
