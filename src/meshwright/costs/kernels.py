"""Times of single kernels: matrix products, attention, and work bound by memory bandwidth.

A kernel is priced from its shape and the device: a matrix product by its output tiles in waves over
the streaming multiprocessors, everything else by bytes over bandwidth. All shapes are columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.costs.columns import Floats, Ints
from meshwright.costs.tables import table
from meshwright.specs.cluster import Device

TILES = ((256, 128, 1.0), (128, 128, 0.94), (128, 64, 0.80), (64, 64, 0.60))
"""Output tiles that a library chooses from: rows, columns, and rate relative to the largest tile.
The relative rates follow from operand reuse per loaded byte; measured on CUTLASS's tile menu."""


ODD_WIDTH = 0.45
"""Rate of a product one of whose matrices has rows of an odd number of elements, over the rate with
rows that start at 16-byte boundaries: tensor cores are then fed two bytes at a time. Fitted on the head
of vtrain_singlenode, which multiplies by an unpadded vocabulary of 50257 where tp = 1."""


@dataclass(frozen=True)
class Kernels:
    """What the kernel model knows of one device at one compute precision; see data/kernels.toml."""

    peak_flops: float
    attention_peak_flops: float
    bandwidth_bytes_s: float
    sms: int
    gemm_sustained: float
    tile_overhead_s: float
    kernel_gap_s: float
    flash_forward: tuple[float, float, float]
    flash_backward: tuple[float, float, float]
    flash_head64: float
    unfused_gemm: float
    fp8_quantize: float


def generations() -> dict[str, dict[str, object]]:
    """Return the kernel constants by device generation, from data/kernels.toml."""
    return table("kernels")


def generation(device: Device) -> str:
    """Return the generation whose kernel constants describe a device."""
    name = device.name.lower().replace(" ", "-")
    best, length = "other", 0
    for label, known in generations().items():
        for prefix in known["devices"]:  # type: ignore[attr-defined]
            if name.startswith(prefix) and len(prefix) > length:
                best, length = label, len(prefix)
    return best


def kernels_for(device: Device, precision: str) -> Kernels:
    """Return the kernel model of a device at a compute precision (attention stays in 16 bits)."""
    known = generations()[generation(device)]
    number: dict[str, float] = {k: v for k, v in known.items() if isinstance(v, float)}
    eight = precision in ("fp8", "fp4")
    attention = "bf16" if eight else precision
    return Kernels(
        peak_flops=device.peak(precision),
        attention_peak_flops=device.peak(attention),
        bandwidth_bytes_s=device.memory_bandwidth_bytes_s * number["bandwidth_reach"],
        sms=device.sms,
        gemm_sustained=device.matmul_efficiency.get(
            f"sustained_{precision}", number["gemm_sustained_8bit" if eight else "gemm_sustained"]
        ),
        tile_overhead_s=number["tile_overhead_s"],
        kernel_gap_s=number["kernel_gap_s"],
        flash_forward=_three(known["flash_forward"]),
        flash_backward=_three(known["flash_backward"]),
        flash_head64=number["flash_head64"],
        unfused_gemm=number["unfused_gemm"],
        fp8_quantize=number["fp8_quantize"] if eight else 0.0,
    )


def _three(values: Any) -> tuple[float, float, float]:
    first, second, third = values
    return float(first), float(second), float(third)


def gemm_time_s(kernels: Kernels, m: Ints, n: Ints, k: Ints, batch: Ints | int = 1) -> Floats:
    """Time of a matrix product (m × k)·(k × n), `batch` of them at once, in seconds.

    The output is cut into tiles that run in waves over the multiprocessors; the library is taken to
    choose the tile that ends first. A product is never faster than its operands can be read.
    """
    compute: Floats | None = None
    per_sm = kernels.peak_flops * kernels.gemm_sustained / kernels.sms
    aligned = np.where((m % 2 == 1) & (m > 1) | (n % 2 == 1) | (k % 2 == 1), ODD_WIDTH, 1.0)
    for rows, columns, relative in TILES:
        tiles = ceil_div(m, rows) * ceil_div(n, columns) * batch
        waves = ceil_div(tiles, kernels.sms)
        rate = per_sm * relative * aligned
        one = 2.0 * rows * columns * k / rate + kernels.tile_overhead_s
        time = waves * one
        compute = time if compute is None else np.minimum(compute, time)
    assert compute is not None
    element_bytes = 2.0
    moved = element_bytes * batch * (m * k + n * k + m * n)
    quantize = kernels.fp8_quantize * batch * (m * k + n * k) / kernels.bandwidth_bytes_s
    return np.maximum(compute, moved / kernels.bandwidth_bytes_s) + quantize + kernels.kernel_gap_s


def ceil_div(a: Ints | int, b: Ints | int) -> Ints:
    """Return ⌈a / b⌉ for whole numbers."""
    return -(-np.asarray(a, dtype=np.int64) // b)


def flash_attention_time_s(
    kernels: Kernels,
    *,
    sequences: Ints,
    query_len: Ints,
    pairs_per_query: Floats,
    heads: Ints,
    qk_dim: int,
    v_dim: int,
    generation: int,
    backward: bool,
) -> Floats:
    """Time of flash attention over `sequences` × `heads`, in seconds.

    `pairs_per_query` is the mean number of keys one query meets: half the length under a causal
    mask, the window where that is shorter. Forward does two products, backward five (the scores
    again, then dV, dP, dQ, dK), after FlashAttention-2 (arXiv 2307.08691 §3).
    """
    products = 2.0 * (qk_dim + v_dim)
    flops = sequences * heads * query_len * pairs_per_query * products * (2.5 if backward else 1.0)
    rate = (kernels.flash_backward if backward else kernels.flash_forward)[generation - 1]
    if max(qk_dim, v_dim) <= 64:
        rate *= kernels.flash_head64
    # Query tiles of 128 rows spread over the multiprocessors; a partial wave leaves some idle.
    tiles = sequences * heads * ceil_div(query_len, 128)
    waves = ceil_div(tiles, kernels.sms)
    fill = tiles / (waves * kernels.sms)
    return flops / (kernels.attention_peak_flops * rate * fill) + kernels.kernel_gap_s


def unfused_attention_time_s(
    kernels: Kernels,
    *,
    sequences: Ints,
    query_len: Ints,
    key_len: Ints,
    heads: Ints,
    qk_dim: int,
    v_dim: int,
    fused_softmax: bool = True,
    backward: bool,
) -> Floats:
    """Time of attention as separate products, softmax and dropout over the full score matrix.

    Each product is bound by its arithmetic or by reading or writing the scores (2 bytes each). Between
    them forward moves 9 bytes a score (softmax 2 + 2, dropout 2 + 2 and its mask) and backward 11
    (dropout 5, softmax 6): the 2as²b terms of Korthikanti et al. 2022, arXiv 2205.05198 §4.1, in
    time. Eager scale, mask, cast to fp32, softmax and cast back move 34 forward and 26 backward.
    """
    scores = sequences * heads * query_len * key_len
    forward_bytes, backward_bytes = (9.0, 11.0) if fused_softmax else (34.0, 26.0)
    per_score = backward_bytes if backward else forward_bytes
    through = 2.0 / kernels.bandwidth_bytes_s
    rate = kernels.peak_flops * kernels.unfused_gemm
    once = max(2.0 * qk_dim / rate, through) + max(2.0 * v_dim / rate, through)
    products = (2.0 if backward else 1.0) * once
    count = 6 if backward else 4
    moved = per_score / kernels.bandwidth_bytes_s
    return np.asarray(scores * (products + moved) + count * kernels.kernel_gap_s, dtype=np.float64)


def stream_time_s(kernels: Kernels, moved_bytes: Floats, count: float) -> Floats:
    """Time of `count` kernels that together move `moved_bytes` through device memory."""
    return moved_bytes / kernels.bandwidth_bytes_s + count * kernels.kernel_gap_s
