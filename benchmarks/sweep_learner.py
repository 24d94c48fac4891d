"""A learner that sees the other rows of a sweep or of a source: what the axes that rows state explain by themselves.

No command: `benchmarks/ceiling.py` asks it. A Gaussian process over logarithms of a layout's degrees, of its work, over
the parts of its predicted step and over the slopes of the cost model's constants, with the model's prediction as mean
or without it. Every *pair* of layouts is compared as the process says after both (or all that shares their cell) are
taken out, so that no row speaks of itself: leaving out one row at a time would turn the order round in small sweeps,
since the mean of the others is the higher the lower the row is. (Only how little an odd row weighs follows from all
rows.) The layout that wins most comparisons is the choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.costs.columns import from_layouts
from meshwright.costs.step import price
from meshwright.evidence.predict import group_key
from meshwright.evidence.score import Scored

Numbers = NDArray[np.float64]

ODD = 0.15
"""Logarithmic error at which a row's own noise counts double."""
COMMON, SHARES, CONSTANTS = 0.05, 0.1, 0.5
"""Variances: of all rows together, by parts of the step, by constants."""


@dataclass(frozen=True)
class Settings:
    """Variances that were chosen with all sweeps in view: of axes, of a row by itself; and the axes' length."""

    scale: float
    noise: float
    length: float


GRID = (
    Settings(0.1, 0.0005, 4.0), Settings(0.1, 0.004, 1.5), Settings(0.5, 0.0005, 1.5), Settings(0.5, 0.004, 4.0),
)  # fmt: skip


@dataclass(frozen=True)
class Points:
    """Layouts of some sweeps, one after another."""

    sweep: NDArray[np.int64]
    cell: NDArray[np.int64]
    measured: Numbers
    """Logarithm of seconds, as of all that follow."""
    predicted: Numbers
    places: Numbers
    shares: Numbers
    slopes: Numbers


def place(one: Scored) -> list[float]:
    """Logarithms of what a row states of its layout, its job and its model."""
    layout, job, model = one.run.layout, one.run.job, one.run.model
    sequences = job.global_batch / (layout.dp * layout.micro_batch)
    degrees = (
        layout.tp, layout.pp, layout.dp, layout.cp, layout.ep, layout.micro_batch, layout.virtual_stages,
        max(sequences, 1.0), one.run.gpus, job.global_batch, job.seq_len, model.hidden, model.layers,
    )  # fmt: skip
    said = (layout.zero / 2, float(layout.recompute != "none"), float(layout.recompute == "full"))
    return [*np.log2(degrees), *said, float(layout.sequence_parallel)]


def shares_of(rows: Sequence[Scored]) -> list[Numbers]:
    """Each row's parts of its predicted step."""
    found: list[Numbers] = [np.zeros(0)] * len(rows)
    groups: dict[str, list[int]] = {}
    for index, one in enumerate(rows):
        groups.setdefault(group_key(one.run), []).append(index)
    for members in groups.values():
        run = rows[members[0]].run
        table = price(
            run.model, run.cluster, run.job, from_layouts([rows[i].run.layout for i in members])
        )
        parts = np.stack([np.asarray(column) for column in table.time_parts.values()])
        for i, column in zip(members, (parts / parts.sum(axis=0)).T, strict=True):
            found[i] = column
    return found


def points_of(
    groups: Sequence[Sequence[Scored]], slopes: Numbers, cell: Callable[[Scored], object]
) -> Points:
    """Layouts of sweeps; `slopes` has a row for each of their rows."""
    rows = [one for group in groups for one in group]
    shares, cells = shares_of(rows), {}
    columns: list[list[object]] = []
    start = 0
    for number, group in enumerate(groups):
        layouts: dict[object, list[int]] = {}
        for index, one in enumerate(group, start):
            layouts.setdefault(one.run.layout, []).append(index)
        start += len(group)
        for members in layouts.values():
            one = rows[members[0]]
            name = cells.setdefault(cell(one), len(cells))
            columns.append([
                number, name, math.log(np.mean([rows[i].measured_s for i in members])),
                math.log(np.mean([rows[i].predicted_s for i in members])), place(one), shares[members[0]],
                slopes[members].mean(axis=0),
            ])  # fmt: skip
    sweep, names, *rest = zip(*columns, strict=True)
    return Points(np.array(sweep), np.array(names), *(np.array(one, dtype=float) for one in rest))


def process(points: Points, settings: Settings, model: bool) -> tuple[Numbers, Numbers, Numbers]:
    """Inverse covariance, what is explained, and what it is added to; odd rows weigh little."""
    width = points.places.std(axis=0)
    axes = points.places[:, width > 0] - points.places[:, width > 0].mean(axis=0)
    apart = ((axes[:, None] - axes[None]) ** 2).sum(-1)
    if model:
        known, off = points.predicted, points.measured - points.predicted
        kernel = COMMON + settings.scale * (
            0.04 * np.exp(-apart / (2 * settings.length**2))
            + SHARES * points.shares @ points.shares.T
            + CONSTANTS * points.slopes @ points.slopes.T
        )
    else:
        known = np.full(len(points.measured), points.measured.mean())
        off = points.measured - known
        kernel = 4.0 + axes @ axes.T + settings.scale * np.exp(-apart / (2 * settings.length**2))
    own = np.full(len(off), settings.noise)
    for _ in range(5):
        fitted = kernel @ np.linalg.solve(kernel + np.diag(own), off)
        own = settings.noise * (1.0 + ((off - fitted) / ODD) ** 2)
    return np.linalg.inv(kernel + np.diag(own)), off, known


def compared(
    points: Points, settings: Settings, model: bool, by_cell: bool
) -> dict[tuple[int, int], float]:
    """Logarithm of the ratio of two layouts of one sweep, both (or their whole cells) taken out."""
    inverse, off, known = process(points, settings, model)
    pull = inverse @ off
    cells = points.cell if by_cell else np.arange(len(off))
    rows_of = {name: np.flatnonzero(cells == name) for name in np.unique(cells)}
    solved: dict[tuple[int, int], dict[int, float]] = {}
    result = {}
    for i, j in zip(*np.triu_indices(len(off), 1), strict=True):
        if points.sweep[i] != points.sweep[j]:
            continue
        names = tuple(sorted((int(cells[i]), int(cells[j]))))
        if names not in solved:
            out = np.unique(np.concatenate([rows_of[name] for name in names]))
            missed = np.linalg.solve(inverse[np.ix_(out, out)], pull[out])
            solved[names] = dict(zip(out.tolist(), missed.tolist(), strict=True))
        missed_i, missed_j = solved[names][int(i)], solved[names][int(j)]
        result[int(i), int(j)] = float(known[i] + off[i] - missed_i - known[j] - off[j] + missed_j)
    return result


def figures(points: Points, ratios: dict[tuple[int, int], float]) -> dict[int, tuple[float, float]]:
    """Regret and Kendall's tau of each sweep, by number: the choice wins most comparisons."""
    result = {}
    for number in np.unique(points.sweep):
        own = np.flatnonzero(points.sweep == number)
        pairs = [(i, j) for a, i in enumerate(own) for j in own[a + 1 :]]
        said = np.sign([ratios[int(i), int(j)] for i, j in pairs])
        did = np.sign([points.measured[i] - points.measured[j] for i, j in pairs])
        wins = dict.fromkeys(own.tolist(), 0.0)
        for (i, j), sign in zip(pairs, said, strict=True):
            wins[int(i)] -= sign
            wins[int(j)] += sign
        most = max(wins.values())
        seconds = np.exp(points.measured[[i for i, won in wins.items() if won == most]])
        size = math.sqrt(float(np.count_nonzero(said)) * float(np.count_nonzero(did)))
        tau = float(np.sum(said * did)) / size if size else math.nan
        result[int(number)] = float(seconds.mean() / np.exp(points.measured[own]).min()) - 1.0, tau
    return result
