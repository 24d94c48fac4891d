"""Hand-made zero-bubble schedules with one stage per rank: ZB-H1 and ZB-H2.

Qi et al. 2024, "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241), section 2: the backward is
split into I, which the previous stage waits for, and W, which nobody does and which can fill gaps.
"""

from __future__ import annotations

from meshwright.schedules.looped import forward_sequence
from meshwright.schedules.ops import Kind, Schedule, from_lists, loop_placement


def zb_h1(pp: int, micro_batches: int, virtual_stages: int = 1, group: int = 0) -> Schedule:
    """ZB-H1: 1F1B with W of rank r run r micro-batches late; memory of 1F1B's first stage.

    The bubble is (pp - 1)(F + I - W). With virtual stages it is the interleaved form that torch
    calls InterleavedZeroBubble: (virtual_stages - 1) · group + pp - 1 - r warm-up forwards.
    """
    m, v = micro_batches, virtual_stages
    chunk, unit = forward_sequence(m, v, group or m)
    forwards = list(zip(chunk.tolist(), unit.tolist(), strict=True))
    ranks = []
    for r in range(pp):
        warmup = (v - 1) * group + pp - r
        there = [(c * pp + r, u) for c, u in forwards]
        back = [((v - 1 - c) * pp + r, u) for c, u in forwards]
        ranks.append(delayed_weights(there, back, warmup=warmup, delay=r))
    return from_lists(
        "zb-h1", ranks, micro_batches=m, stage_rank=loop_placement(pp, v), virtual_stages=v
    )


def zb_h2(pp: int, micro_batches: int) -> Schedule:
    """ZB-H2: twice the warm-up forwards, so that the first backward finds every rank busy.

    Each rank holds 2 pp - 1 micro-batches. The bubble of a span is (pp - 1)(F + I - 2W); that of
    the makespan is ZB-H1's, unless the optimizer step is validated afterwards instead of awaited.
    """
    ranks = []
    for s in range(pp):
        units = [(s, unit) for unit in range(micro_batches)]
        ranks.append(delayed_weights(units, units, warmup=2 * (pp - s) - 1, delay=2 * s))
    return from_lists("zb-h2", ranks, micro_batches=micro_batches, stage_rank=loop_placement(pp, 1))


def delayed_weights(
    there: list[tuple[int, int]], back: list[tuple[int, int]], *, warmup: int, delay: int
) -> list[tuple[int, int, int]]:
    """Return `warmup` forwards, then I and F in turn, each W `delay` turns after its I.

    Args:
        there: stage and unit of the rank's forwards, in order.
        back: stage and unit of its backwards, in order.
    """
    count = len(there)
    warmup = min(warmup, count)
    ops: list[tuple[int, int, int]] = [(Kind.F, *there[turn]) for turn in range(warmup)]
    for turn in range(count):
        ops.append((Kind.I, *back[turn]))
        if turn >= delay:
            ops.append((Kind.W, *back[turn - delay]))
        if warmup + turn < count:
            ops.append((Kind.F, *there[warmup + turn]))
    ops += [(Kind.W, *back[turn]) for turn in range(max(count - delay, 0), count)]
    return ops
