"""Pairs of layouts of measured sweeps: which are misordered, what stands between them, what no column tells apart.

No command: the tables are part of `benchmarks/ceiling.py`. A misordered pair costs 2 / (pairs of its sweep · sweeps)
of the mean tau.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

import noise_floor
from meshwright.evidence.score import Scored
from meshwright.specs.layout import Layout

AXES = ("tp", "pp", "dp", "cp", "ep", "micro_batch", "virtual_stages", "zero", "recompute")
"""What a pair's difference is named by, larger against smaller in the first of them that is a degree."""
FEWEST = 3
"""Pairs of a source from which on it has a direction."""
SHOWN = 14


@dataclass(frozen=True)
class Pair:
    """Two layouts of one sweep, the first larger in the first axis that differs."""

    source: str
    axes: tuple[str, ...]
    measured: float
    """Logarithm of first over second, as `predicted`."""
    predicted: float
    within_noise: bool
    one_state: bool
    """Whether both were measured under one stated release (`noise_floor.state`)."""
    one_cell: bool
    share: float

    @property
    def wrong(self) -> bool:
        return self.measured * self.predicted < 0

    @property
    def cost(self) -> float:
        return 2 * self.share * self.wrong


def pairs_of(
    groups: Sequence[Sequence[Scored]],
    found: dict[str, list[list[Scored]]],
    cell: Callable[[Scored], object],
) -> list[Pair]:
    """All pairs of layouts of all sweeps."""
    result = []
    for group in groups:
        source = group[0].row.table
        noise = 2 * math.sqrt(2) * noise_floor.sigma_of(source, found)
        layouts: dict[Layout, list[Scored]] = defaultdict(list)
        for one in group:
            layouts[one.run.layout].append(one)
        count = len(layouts) * (len(layouts) - 1) / 2
        for first, second in itertools.combinations(layouts, 2):
            axes = tuple(axis for axis in AXES if getattr(first, axis) != getattr(second, axis))
            degrees = [axis for axis in axes if axis != "recompute"]
            if degrees and getattr(first, degrees[0]) < getattr(second, degrees[0]):
                first, second = second, first
            a, b = layouts[first], layouts[second]
            measured = _ratio([one.measured_s for one in a], [one.measured_s for one in b])
            states = {noise_floor.state(one) for one in a} & {noise_floor.state(one) for one in b}
            result.append(Pair(
                source, axes, measured, _ratio([one.predicted_s for one in a], [one.predicted_s for one in b]),
                abs(measured) <= noise, bool(states), cell(a[0]) == cell(b[0]), 1 / count / len(groups),
            ))  # fmt: skip
    return result


def _ratio(first: Sequence[float], second: Sequence[float]) -> float:
    return math.log(float(np.mean(first)) / float(np.mean(second)))


def kind_lines(pairs: Sequence[Pair], vtrain: str) -> list[str]:
    """What the misordered pairs cost, by what a model of the columns could know of them; the first kind that holds counts."""
    kinds: tuple[tuple[str, Callable[[Pair], bool]], ...] = (
        ("measured only under two stated releases of the software", lambda one: not one.one_state),
        ("of two of vTrain's profiles", lambda one: one.source == vtrain and not one.one_cell),
        ("so near that a second measurement may turn them round", lambda one: one.within_noise),
        ("all others", lambda one: True),
    )  # fmt: skip
    lines = ["| pairs of layouts | number | misordered | cost of tau |", "|---|--:|--:|--:|"]
    rest = list(pairs)
    for name, belongs in kinds:
        own, rest = [one for one in rest if belongs(one)], [one for one in rest if not belongs(one)]
        lines.append(_kind(name, own))
    return [*lines, _kind("together", pairs)]


def _kind(name: str, own: Sequence[Pair]) -> str:
    cost = sum(one.cost for one in own)
    return f"| {name} | {len(own)} | {sum(one.wrong for one in own)} | {cost:.3f} |"


def state_lines(groups: Sequence[Sequence[Scored]]) -> list[str]:
    """Layouts that were measured under several stated releases: equal in all that describes a run."""
    apart: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        layouts: dict[Layout, dict[object, list[float]]] = defaultdict(lambda: defaultdict(list))
        for one in group:
            layouts[one.run.layout][noise_floor.state(one)].append(one.measured_s)
        for states in layouts.values():
            means = [float(np.mean(times)) for times in states.values()]
            apart[group[0].row.table] += [
                abs(math.log(a / b)) for a, b in itertools.combinations(means, 2)
            ]
    lines = ["| source | pairs of equal runs | apart, median | largest |", "|---|--:|--:|--:|"]
    for source, values in sorted(apart.items()):
        if values:
            lines.append(
                f"| {source} | {len(values)} | {100 * math.expm1(float(np.median(values))):.1f} % | "
                f"{100 * math.expm1(max(values)):.1f} % |"
            )
    return lines


def axis_lines(pairs: Sequence[Pair]) -> list[str]:
    """Which axes differ between misordered pairs, and in which direction the model is wrong, source by source."""
    by_axes: dict[tuple[str, ...], list[Pair]] = defaultdict(list)
    for one in pairs:
        by_axes[one.axes].append(one)
    lines = [
        "| differ in | pairs | misordered | beyond noise | cost of tau | cost in | larger first axis: too slow in | "
        "too fast in | median over sources |",
        "|---|--:|--:|--:|--:|---|--:|--:|--:|",
    ]
    for axes, own in sorted(by_axes.items(), key=lambda item: -sum(one.cost for one in item[1]))[
        :SHOWN
    ]:
        sources: dict[str, list[Pair]] = defaultdict(list)
        for one in own:
            sources[one.source].append(one)
        off = [
            float(np.median([one.predicted - one.measured for one in members]))
            for members in sources.values()
            if len(members) >= FEWEST
        ]
        dear = max(sources, key=lambda name: sum(one.cost for one in sources[name]))
        share = sum(one.cost for one in sources[dear]) / max(sum(one.cost for one in own), 1e-12)
        middle = f"{100 * float(np.median(off)):+.1f} %" if off else "–"
        wrong = [one for one in own if one.wrong]
        lines.append(
            f"| {', '.join(axes)} | {len(own)} | {len(wrong)} | {sum(not one.within_noise for one in wrong)} | "
            f"{sum(one.cost for one in own):.3f} | {dear} {100 * share:.0f} % | {sum(o > 0.01 for o in off)} | "
            f"{sum(o < -0.01 for o in off)} | {middle} |"
        )
    return lines
