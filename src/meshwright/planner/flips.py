"""Flip points: the circumstances under which another layout would be chosen, computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from meshwright.costs.columns import LayoutColumns, from_layouts
from meshwright.planner.legality import Question, legal
from meshwright.planner.search import (
    Candidates,
    SearchResult,
    _best,
    concatenate,
    reprice,
    with_network,
)
from meshwright.planner.space import MEMORY_MARGIN
from meshwright.specs.layout import Layout
from meshwright.specs.plan import FlipPoint
from meshwright.specs.quantities import format_bytes

FACTORS = (2.0, 4.0, 8.0, 16.0)
POOL = 1500
"""Layouts re-priced when circumstances change: the best under today's, fitting or not."""


def flip_points(question: Question, result: SearchResult, chosen: Layout) -> tuple[FlipPoint, ...]:
    """Find what would change the choice: network, memory, global batch, one at a time."""
    pool = _pool(result)
    # Circumstances are judged by the closed forms, so the choice to compare with is theirs too.
    today = _winner(question, pool) or chosen
    found = [*_network_flips(question, pool, today), *_memory_flips(question, result, chosen)]
    found += _batch_flips(question, pool, today)
    return tuple(found)


def _pool(result: SearchResult) -> LayoutColumns:
    """Candidates worth re-pricing: the best of every degree triple, so that all shapes are there."""
    columns = result.ranked.columns
    seen: dict[tuple[int, ...], int] = {}
    picks = []
    for row in range(columns.rows):
        key = (
            int(columns.tp[row]), int(columns.pp[row]), int(columns.cp[row]), int(columns.ep[row]),
            int(columns.zero[row]), int(columns.recompute[row]),
        )  # fmt: skip
        if seen.get(key, 0) < 4:
            seen[key] = seen.get(key, 0) + 1
            picks.append(row)
        if len(picks) >= POOL:
            break
    import numpy as np

    tables = [columns.take(np.array(picks, dtype=np.int64))]
    if result.over_memory.columns.rows:
        tables.append(result.over_memory.columns)
    return concatenate(tables)


def _winner(question: Question, pool: LayoutColumns) -> Layout | None:
    import numpy as np

    alive, _ = legal(question, pool)
    if not alive.any():
        return None
    candidates = reprice(question, pool.take(alive))
    fitting = candidates.take(np.flatnonzero(candidates.fits))
    if not fitting.columns.rows:
        return None
    return _best(fitting, "time", 1).columns.layout(0)


def _differs(layout: Layout | None, chosen: Layout) -> bool:
    """Whether the choice is a different kind of layout: degrees, sharding or recomputation."""
    if layout is None:
        return False
    fields = ("tp", "pp", "cp", "ep", "zero", "recompute")
    return any(getattr(layout, name) != getattr(chosen, name) for name in fields)


def _bisect(
    at: Callable[[float], Layout | None], inside: float, outside: float, chosen: Layout
) -> tuple[float, Layout]:
    """Narrow the factor between one that keeps the choice and one that changes it to 2 %."""
    becomes = at(outside)
    assert becomes is not None
    while max(inside, outside) / min(inside, outside) > 1.02:
        middle = (inside * outside) ** 0.5
        layout = at(middle)
        if layout is not None and _differs(layout, chosen):
            outside, becomes = middle, layout
        else:
            inside = middle
    return outside, becomes


def _first_change(
    at: Callable[[float], Layout | None], factors: Iterable[float], chosen: Layout
) -> tuple[float, float] | None:
    inside = 1.0
    for factor in factors:
        if _differs(at(factor), chosen):
            return inside, factor
        inside = factor
    return None


def _network_flips(question: Question, pool: LayoutColumns, chosen: Layout) -> list[FlipPoint]:
    cluster = question.cluster
    if len(cluster.levels) < 2 or cluster.gpus <= cluster.fast_domain:
        return []
    level = cluster.levels[-1]
    current = level.bandwidth_bytes_s / 1e9

    def at(factor: float) -> Layout | None:
        return _winner(with_network(question, factor), pool)

    found = []
    for direction, factors in (("above", FACTORS), ("below", tuple(1 / f for f in FACTORS))):
        change = _first_change(at, factors, chosen)
        if change is None:
            continue
        threshold, becomes = _bisect(at, *change, chosen)
        value = current * threshold
        found.append(
            FlipPoint(
                quantity="inter-node bandwidth, GB/s per device per direction",
                current=current,
                threshold=value,
                direction=direction,
                becomes=becomes.label(),
                sentence=f"{direction} {value:.3g} GB/s per device between nodes "
                f"(now {current:.3g}), {becomes.label()} would win",
            )
        )
    return found


def _memory_flips(question: Question, result: SearchResult, chosen: Layout) -> list[FlipPoint]:
    """Memory thresholds follow from the peaks themselves: no search is needed."""
    found = []
    current = question.cluster.device.memory_bytes
    ranked, over = result.ranked, result.over_memory
    winner = reprice(question, from_layouts([chosen]))
    best, peak = float(winner.pessimistic_s[0]), float(winner.peak_bytes[0])
    need = peak * (1 + MEMORY_MARGIN) + question.cluster.reserve_bytes
    lighter = _first_lighter(ranked, chosen, peak)
    text = "nothing priced here would fit"
    label = "none"
    if lighter is not None:
        label = ranked.columns.layout(lighter).label()
        slower = float(ranked.pessimistic_s[lighter]) / best - 1
        text = f"{label} would be chosen ({slower:.1%} slower)"
    found.append(
        FlipPoint(
            quantity="device memory, bytes",
            current=current,
            threshold=need,
            direction="below",
            becomes=label,
            sentence=f"below {format_bytes(need)} of memory per device (now {format_bytes(current)}), {text}",
        )
    )
    for row in range(over.columns.rows):
        layout = over.columns.layout(row)
        if float(over.peak_bytes[row]) > 4.0 * current:
            continue  # no such device is sold
        if float(over.pessimistic_s[row]) < best * 0.995 and _differs(layout, chosen):
            need = (
                float(over.peak_bytes[row]) * (1 + MEMORY_MARGIN) + question.cluster.reserve_bytes
            )
            gain = 1 - float(over.pessimistic_s[row]) / best
            found.append(
                FlipPoint(
                    quantity="device memory, bytes",
                    current=current,
                    threshold=need,
                    direction="above",
                    becomes=layout.label(),
                    sentence=f"above {format_bytes(need)} of memory per device, {layout.label()} "
                    f"would win ({gain:.1%} faster)",
                )
            )
            break
    return found


def _first_lighter(ranked: Candidates, chosen: Layout, peak: float) -> int | None:
    for row in range(ranked.columns.rows):
        if ranked.peak_bytes[row] < peak * 0.98 and _differs(ranked.columns.layout(row), chosen):
            return row
    return None


def _batch_flips(question: Question, pool: LayoutColumns, chosen: Layout) -> list[FlipPoint]:
    batch = question.job.global_batch
    found = []
    for direction, factors in (("below", (0.5, 0.25, 0.125)), ("above", (2.0, 4.0, 8.0))):
        for factor in factors:
            size = round(batch * factor)
            if size < 1:
                break
            other = replace(question, job=question.job.but(global_batch=size))
            layout = _winner(other, pool)
            if _differs(layout, chosen):
                assert layout is not None
                found.append(
                    FlipPoint(
                        quantity="global batch, sequences",
                        current=batch,
                        threshold=size,
                        direction=direction,
                        becomes=layout.label(),
                        sentence=f"with a global batch of {size} sequences (now {batch}), "
                        f"{layout.label()} would win",
                    )
                )
                break
    return found
