"""Schedules with one stage per rank: GPipe, 1F1B, and PipeDream's asynchronous 1F1B."""

from __future__ import annotations

import numpy as np

from meshwright.schedules.ops import Kind, RankColumns, Schedule, from_columns, loop_placement


def gpipe(pp: int, micro_batches: int) -> Schedule:
    """All forwards, then all backwards (Huang et al. 2019, arXiv 1811.06965, section 2.3).

    Every stage holds all micro-batches at its peak; the bubble is (pp - 1)(F + B).
    """
    m = micro_batches
    kind = np.repeat([Kind.F, Kind.B], m)
    unit = np.tile(np.arange(m), 2)
    ranks: list[RankColumns] = [(kind, np.full(2 * m, stage), unit) for stage in range(pp)]
    return from_columns("gpipe", ranks, micro_batches=m, stage_rank=loop_placement(pp, 1))


def one_forward_one_backward(pp: int, micro_batches: int) -> Schedule:
    """1F1B with a flush (PipeDream-flush, arXiv 2006.09503; Megatron, arXiv 2104.04473).

    Stage s holds min(pp - s, m) micro-batches at its peak; the bubble is (pp - 1)(F + B).
    """
    ranks = [one_f_one_b_columns(pp - 1 - s, micro_batches, s) for s in range(pp)]
    return from_columns(
        "1f1b", ranks, micro_batches=micro_batches, stage_rank=loop_placement(pp, 1)
    )


def pipedream(pp: int, micro_batches: int) -> Schedule:
    """PipeDream's asynchronous 1F1B (Narayanan et al. 2019, arXiv 1806.03377): a teaching case.

    The order is that of 1F1B, but steps follow each other without a flush, so stage s keeps
    pp - s versions of its weights and gradients are stale: not synchronous SGD.
    """
    ranks = [one_f_one_b_columns(pp - 1 - s, micro_batches, s) for s in range(pp)]
    return from_columns(
        "pipedream",
        ranks,
        micro_batches=micro_batches,
        stage_rank=loop_placement(pp, 1),
        asynchronous=True,
        notes=(
            f"weights exist in up to {pp} versions (stage s keeps pp - s); the bubble shown is "
            "that of filling and draining once, a running pipeline has none",
        ),
    )


def one_f_one_b_columns(warmup: int, units: int, stage: int) -> RankColumns:
    """Return `warmup` forwards, then forward and backward in turn, then what backwards are left."""
    warmup = min(warmup, units)
    kind, unit = alternate(warmup, np.arange(units), np.arange(units))
    return kind, np.full(2 * units, stage), unit


def alternate(
    warmup: int, forward: np.ndarray, backward: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Merge two index sequences of equal length n into a 1F1B order of 2n operations.

    Returns:
        kind and value per operation: `warmup` forwards, n - warmup pairs, `warmup` backwards.
    """
    n = len(forward)
    kind = np.empty(2 * n, dtype=np.uint8)
    value = np.empty(2 * n, dtype=np.int64)
    steady = slice(warmup, 2 * n - warmup)
    kind[:warmup], value[:warmup] = Kind.F, forward[:warmup]
    kind[steady][0::2], value[steady][0::2] = Kind.F, forward[warmup:]
    kind[steady][1::2], value[steady][1::2] = Kind.B, backward[: n - warmup]
    kind[2 * n - warmup :], value[2 * n - warmup :] = Kind.B, backward[n - warmup :]
    return kind, value
