"""Times of single kernels: matrix products, attention, and work bound by memory bandwidth.

A kernel is priced from its shape and the device: a matrix product by its output tiles in waves over
the streaming multiprocessors, everything else by bytes over bandwidth. All shapes are columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.costs.columns import Bools, Floats, Ints
from meshwright.costs.kernel_tables import attention_shape, measured_chip, product_shape
from meshwright.costs.tables import table
from meshwright.specs.cluster import Device

TILES = ((256, 128), (128, 128), (128, 64), (64, 64))
"""Output tiles that a library chooses from: rows and columns. Each is slower than the one before by
the device's `small_tile`: it reads more operands per product."""

WHOLE_WAVES = 0.3
"""Weight of whole waves of tiles against even filling: persistent kernels split the last wave among
idle multiprocessors. Chosen on the measured products of ten devices (0.1 to 1 fit nearly alike)."""

PARTIAL_TILE = 0.5
"""Tiles of rows that an expert's group fills only in part, on average over routing: half of one."""

ODD_WIDTH = 0.45
"""Rate of a product one of whose matrices has rows of an odd number of elements, over the rate with
rows that start at 16-byte boundaries: tensor cores are then fed two bytes at a time. Rows are as long
as a layer is wide, so the number of tokens does not matter. Fitted on the head of vtrain_singlenode,
which multiplies by an unpadded vocabulary of 50257 where tp = 1."""

ODD_HEADS = 0.07
"""Rate of unfused attention's batched products whose heads are no multiple of 8 elements (16 bytes) wide,
over aligned ones: they run off the tensor cores. Of 13824 wide models on A100 (BLOOM's sweep), 128 heads of
108 take 40 s longer a step than 96 heads of 144, 64 of 216, which makes 11 of 150 TFLOP/s; flash
attention pads its heads. arXiv 2401.14489 (section VI) measures the same step below 8 elements."""


BACKWARD_START = 2.6
"""What a tile pays to start in flash attention's backward, over what it pays in the forward.

It has five products to fill instead of two, and keys outside. With the measured times of 1,024 to 8,192
causal tokens (meta-pytorch/tritonbench pull request 1267, FlashAttention-3 on H100: 560, 667 and 685
TFLOP/s forward at 2,048, 4,096 and 8,192, backward 316, 444 and 539) a tile pays for 329 keys forward and
1,262 backward, for 2.6 times as many as this device's own table has forward; FlashAttention-2 on an RTX 4090
(apache/tvm tl_doc/flash_perf.md, causal against not) gives 2.5. So short sequences lose most in the
backward, and at 100,000 tokens it is nearly as fast as the forward."""

SCAN_FLOPS_PER_SM = 0.55e12
"""What chunked scans of linear mixers reach per multiprocessor, in FLOP/s, whatever its tensor cores.

Chunks of 64 or 128 tokens leave products too small to fill a tile, and their kernels are Triton's: the gated
delta rule's forward over 8,192 to 65,536 tokens reaches 0.50 to 0.61 TFLOP/s a multiprocessor on H100, H200, B200,
B300, GB200 and GB300, Mamba-2's 0.55 to 0.65 on B200 (ai-dynamo/aiconfigurator, `chunk_gated_delta_rule` and
`mamba_chunk_scan_combined`), where flash attention over as many keys would be two to four times as fast."""

SCAN_BACKWARD = 8.0 / 3.0
"""Products of a scan's backward over those of its forward: state, inside and from the state forward; backward the
states again, and gradients of states, inputs (two), keys, queries, and of the chunk's inner matrix twice
(state-spaces/mamba ops/triton/ssd_combined.py, `_mamba_chunk_scan_combined_bwd`)."""

FEWEST_SMS = 16
"""Multiprocessors from which on a device counts as built of them; a TPU has one or two tensor cores."""


@dataclass(frozen=True)
class Kernels:
    """What the kernel model knows of one device at one compute precision.

    Shapes come from measured kernels (data/kernel_tables.toml), the rest from data/kernels.toml.
    """

    peak_flops: float
    attention_peak_flops: float
    bandwidth_bytes_s: float
    sms: int
    gemm_sustained: float
    start: float
    small_tile: float
    grouped: float
    kernel_gap_s: float
    attention_start: float
    flash_forward: tuple[float, float, float]
    flash_backward: tuple[float, float, float]
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


def sdpa_generation(device: Device) -> int | None:
    """Return the generation of flash attention that torch's own dispatch takes on a device, where known."""
    taken = generations()[generation(device)].get("sdpa_generation")
    return None if taken is None else int(str(taken))


def kernels_for(device: Device, precision: str, head_dim: int = 128) -> Kernels:
    """Return the kernel model of a device at a compute precision (attention stays in 16 bits).

    The rate of products alone is the measured table's, else the preset's measured best, else the
    generation's; in training all are multiplied by the generation's `training_share`, unless the
    device was itself measured in training (`sustained_…` of `matmul_efficiency`).
    """
    known = generations()[generation(device)]
    number: dict[str, float] = {k: v for k, v in known.items() if isinstance(v, float)}
    eight = precision in ("fp8", "fp4")
    attention = "bf16" if eight else precision
    chip = measured_chip(device)
    like = chip or str(known["like"])
    shape = product_shape(like, precision)
    flash = attention_shape(like, head_dim)
    alone = shape.rate if chip else None
    if alone is None:
        alone = device.matmul_efficiency.get(precision)
    if alone is None:
        alone = number["gemm_reach_8bit" if eight else "gemm_reach"]
    reach = flash.rate if chip else number["flash_reach"] * flash.of_widest
    forward = tuple(reach * share for share in _three(known["flash_relative"]))
    backward = tuple(
        f * share for f, share in zip(forward, _three(known["flash_backward"]), strict=True)
    )
    return Kernels(
        peak_flops=device.peak(precision),
        attention_peak_flops=device.peak(attention),
        bandwidth_bytes_s=device.memory_bandwidth_bytes_s * number["bandwidth_reach"],
        sms=device.sms,
        gemm_sustained=device.matmul_efficiency.get(
            f"sustained_{precision}", alone * number["training_share"]
        ),
        start=shape.start * number.get("start", 1.0),
        small_tile=shape.small_tile,
        grouped=shape.grouped,
        kernel_gap_s=number["kernel_gap_s"],
        attention_start=flash.start * number.get("start", 1.0),
        flash_forward=_three(forward),
        flash_backward=_three(backward),
        unfused_gemm=number["unfused_gemm"],
        fp8_quantize=number["fp8_quantize"] if eight else 0.0,
    )


def _three(values: Any) -> tuple[float, float, float]:
    first, second, third = values
    return float(first), float(second), float(third)


def tiled_compute_s(
    rate_flops: float,
    sms: int,
    start: float,
    small_tile: float,
    m: Ints | Floats,
    n: Ints | Floats,
    k: Ints | Floats,
) -> Floats:
    """Arithmetic of a product (m × k)·(k × n) whose output is cut into tiles, in seconds.

    Tiles run in waves over the multiprocessors, the last one partly split among them; each pays
    for `start` more elements of the inner dimension. The library is taken to choose the tile that
    ends first.
    """
    best: Floats | None = None
    slower = 1.0
    for rows, columns in TILES:
        tiles = np.ceil(m / rows) * np.ceil(n / columns)
        time = _waves_s(rate_flops * slower, sms, tiles, rows * columns, k + start)
        best = time if best is None else np.minimum(best, time)
        slower *= small_tile
    assert best is not None
    return best


def grouped_compute_s(
    rate_flops: float,
    sms: int,
    start: float,
    small_tile: float,
    experts: Ints | Floats,
    each: Ints | Floats,
    n: Ints | Floats,
    k: Ints | Floats,
) -> Floats:
    """Arithmetic of one product per expert with `each` tokens on average, in one launch, in seconds.

    Routing gives no expert exactly the average, so the rows of a group fill half a tile in part and
    the last wave half of the multiprocessors, whatever the average is.
    """
    best: Floats | None = None
    slower = 1.0
    for rows, columns in TILES:
        tiles = experts * (each / rows + PARTIAL_TILE) * np.ceil(n / columns)
        waves = np.maximum(tiles / sms, 1.0) + 0.5 * WHOLE_WAVES
        time = waves * (2.0 * rows * columns * (k + start)) / (rate_flops * slower / sms)
        best = np.asarray(time) if best is None else np.minimum(best, time)
        slower *= small_tile
    assert best is not None
    return best


def _waves_s(rate_flops: float, sms: int, tiles: Floats, tile: int, inner: Any) -> Floats:
    even = np.maximum(tiles / sms, 1.0)
    waves = WHOLE_WAVES * np.ceil(tiles / sms) + (1.0 - WHOLE_WAVES) * even
    return np.asarray(waves * (2.0 * tile * inner) / (rate_flops / sms), dtype=np.float64)


def gemm_time_s(kernels: Kernels, m: Ints, n: Ints, k: Ints, odd: Bools | bool = False) -> Floats:
    """Time of a matrix product (m × k)·(k × n), in seconds.

    `odd` says where one of the layer's widths is odd (`ODD_WIDTH`). A product is never faster than
    its operands can be read.
    """
    rate = kernels.peak_flops * kernels.gemm_sustained
    compute = tiled_compute_s(rate, kernels.sms, kernels.start, kernels.small_tile, m, n, k)
    compute = compute / np.where(odd, ODD_WIDTH, 1.0)
    moved = 2.0 * (m * k + n * k + m * n)
    return np.maximum(compute, moved / kernels.bandwidth_bytes_s) + kernels.kernel_gap_s


def linear_times_s(
    kernels: Kernels, tokens: Ints, out: Ints, into: Ints, *, frozen: bool
) -> tuple[Floats, Floats]:
    """Forward and backward of a linear layer, in seconds.

    Backward multiplies once for the input's gradient and, unless the weight is frozen, once for
    the weight's, whose inner dimension is the tokens. In 8 bits the input and the output's gradient
    are each made 8-bit once for all products that read them.
    """
    odd = (out % 2 == 1) | (into % 2 == 1)
    forward = gemm_time_s(kernels, tokens, out, into, odd)
    backward = gemm_time_s(kernels, tokens, into, out, odd)
    if not frozen:
        backward = backward + gemm_time_s(kernels, out, into, tokens, odd)
    quantize = kernels.fp8_quantize / kernels.bandwidth_bytes_s
    return forward + quantize * tokens * into, backward + quantize * tokens * out


def expert_times_s(
    kernels: Kernels, experts: Ints, each: Floats, out: Ints, into: Ints, *, frozen: bool
) -> tuple[Floats, Floats]:
    """Forward and backward of one linear layer of every local expert as grouped products, in seconds.

    `each` is the mean number of tokens an expert has. The weight's gradient has the tokens as inner
    dimension, so its tiles are whole and each expert pays for its own start.
    """

    def grouped(n: Ints, k: Ints) -> Floats:
        rate = kernels.peak_flops * kernels.gemm_sustained * kernels.grouped
        compute = grouped_compute_s(
            rate, kernels.sms, kernels.start, kernels.small_tile, experts, each, n, k
        )
        moved = 2.0 * experts * (each * k + n * k + each * n)
        return np.maximum(compute, moved / kernels.bandwidth_bytes_s) + kernels.kernel_gap_s

    forward, backward = grouped(out, into), grouped(into, out)
    if not frozen:
        rate = kernels.peak_flops * kernels.gemm_sustained * kernels.grouped
        compute = tiled_compute_s(
            rate, kernels.sms, kernels.start, kernels.small_tile, out * experts, into, each
        )
        moved = 2.0 * experts * (each * (out + into) + out * into)
        backward = backward + np.maximum(compute, moved / kernels.bandwidth_bytes_s)
        backward = backward + kernels.kernel_gap_s
    quantize = kernels.fp8_quantize / kernels.bandwidth_bytes_s
    tokens = experts * each
    return forward + quantize * tokens * into, backward + quantize * tokens * out


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
    # Query tiles of 128 rows spread over the multiprocessors; a partial wave leaves some idle.
    tiles = sequences * heads * ceil_div(query_len, 128)
    waves = ceil_div(tiles, kernels.sms)
    fill = tiles / (waves * kernels.sms)
    # A tile of queries pays for `start` keys more than it meets.
    start = kernels.attention_start * (BACKWARD_START if backward else 1.0)
    started = pairs_per_query / (pairs_per_query + start)
    whole = kernels.attention_peak_flops * rate * fill * started
    return flops / whole + kernels.kernel_gap_s


def scan_time_s(kernels: Kernels, flops: Floats, backward: bool) -> Floats:
    """Time of the chunked scan of a linear mixer whose forward multiplies `flops`, in seconds."""
    products = flops * (SCAN_BACKWARD / table("scans")["backward"]["rate"] if backward else 1.0)
    return products / (kernels.sms * SCAN_FLOPS_PER_SM) + kernels.kernel_gap_s


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
    if qk_dim % 8 or v_dim % 8:
        rate *= ODD_HEADS
    once = max(2.0 * qk_dim / rate, through) + max(2.0 * v_dim / rate, through)
    products = (2.0 if backward else 1.0) * once
    count = 6 if backward else 4
    moved = per_score / kernels.bandwidth_bytes_s
    return np.asarray(scores * (products + moved) + count * kernels.kernel_gap_s, dtype=np.float64)


def stream_time_s(kernels: Kernels, moved_bytes: Floats, count: float) -> Floats:
    """Time of `count` kernels that together move `moved_bytes` through device memory."""
    return moved_bytes / kernels.bandwidth_bytes_s + count * kernels.kernel_gap_s
