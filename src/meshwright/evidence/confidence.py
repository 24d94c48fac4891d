"""Write the ranges of `costs/confidence.py` from the residuals of left-out sources."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from meshwright.costs.confidence import (
    ANY,
    COVERAGE,
    SOURCES,
    Facets,
    candidates,
    facets_of,
    residuals_from,
)
from meshwright.evidence.rows import Row
from meshwright.evidence.score import Scored
from meshwright.evidence.software import rule_for
from meshwright.specs.plan import Range

NEWCOMERS = tuple(round(1.0 + 0.05 * step, 2) for step in range(21))
WIDENINGS = tuple(round(1.1 + 0.05 * step, 2) for step in range(15))
"""Widenings that are tried, of every range and for each facet that lacks evidence, which always widens;
the pair whose coverage of left-out sources is nearest to 80 % is kept, of equal ones the narrower."""

FEW = {"time": 0.0, "memory": 100.0}
"""Rows that a source must have to weigh much: each of its n rows weighs 1 / (n + this). Times are of
sources that weigh alike. Memory was measured by one source in nearly nine hundred rows and by the others in
one to a few hundred: neither may it speak for all, nor one row as much as a hundred. `promise_kept` says what that is
worth."""

FEWEST_ROWS = round(2.0 / (1.0 - COVERAGE))
"""Rows from which on a group has ends of its own: of fewer, an end that leaves a tenth outside is a single row."""

READ_FEW = 100.0
"""The same for rows as people have them, of step times as of memory."""

Widening = tuple[float, float]
"""(`newcomer`, `widening`) of `costs.confidence.Residuals`."""


@dataclass(frozen=True, slots=True)
class Residual:
    """A run's measured over predicted value, of a source that was left out."""

    source: str
    facets: Facets
    ratio: float


def residuals_of(
    scored: Sequence[Scored], quantity: str, source: Callable[[Row], str] = lambda row: row.table
) -> list[Residual]:
    """Return the known residuals of `time` or `memory`; `source` says which rows are of one."""
    found = []
    for one in scored:
        run = one.run
        if quantity == "memory" and rule_for(one.row).default("stand_in"):
            continue  # what another framework's memory is off by, says nothing of the one priced
        if quantity == "time":
            ratio = one.measured_s / one.predicted_s if one.absolute else math.nan
        else:
            ratio = one.measured_bytes / one.predicted_bytes
        if not math.isnan(ratio):
            facets = facets_of(run.model, run.cluster, run.job, run.gpus)
            found.append(Residual(source(one.row), facets, ratio))
    return found


def confidence_toml(scored: Sequence[Scored], read: Mapping[str, Sequence[Residual]]) -> str:
    """Return the text of costs/data/confidence.toml for rows predicted with their source left out.

    `read`: residuals, by quantity, of rows of whose source no more was known than what they say.
    """
    head = (
        f"# Ranges that hold {100 * COVERAGE:.0f} % of measured over predicted, each source left out of "
        "the fit;\n# `sources` counts who measured such a run. `read`: of rows as people have them. Written by\n"
        "# `python benchmarks/fit_constants.py --write`; read by costs/confidence.py.\n\n"
    )
    tables: dict[str, Any] = {}
    for quantity in ("time", "memory"):
        known, few = residuals_of(scored, quantity), FEW[quantity]
        tables[quantity] = _table(known, _best_widening(known, few), few)
        if rows := read.get(quantity):
            tables[quantity]["read"] = _table(rows, _best_widening(rows, READ_FEW), READ_FEW)
    return head + tomli_w.dumps(tables)


def read_coverage(read: Sequence[Residual]) -> float:
    """Share of a left-out source's rows, as people have them, inside the ranges of the others; mean over sources."""
    return _coverage(_judged(read, READ_FEW), _best_widening(read, READ_FEW))


def _table(
    known: Sequence[Residual], widening: Widening = (1.0, 1.0), few: float = 0.0
) -> dict[str, Any]:
    groups: dict[tuple[str, str], list[Residual]] = defaultdict(list)
    told: dict[str, set[str]] = defaultdict(set)
    for one in known:
        for key in candidates(one.facets):
            groups[key].append(one)
        for facet, value in one.facets.named():
            told[f"{facet}: {value}"].add(one.source)
    ranges = []
    for (device, kind), members in sorted(groups.items()):
        sources = {one.source for one in members}
        known_little = len(sources) < SOURCES or len(members) < FEWEST_ROWS
        if known_little and (device, kind) != (ANY, ANY):
            continue
        low, high = _quantiles(members, few)
        ranges.append(
            {
                "generation": device, "kind": kind, "sources": len(sources), "rows": len(members),
                "low": round(low, 4), "high": round(high, 4),
            }
        )  # fmt: skip
    counts = {name: len(sources) for name, sources in sorted(told.items())}
    newcomer, lacking = widening
    return {"newcomer": newcomer, "widening": lacking, "range": ranges, "sources": counts}


def _quantiles(members: Sequence[Residual], few: float) -> tuple[float, float]:
    """The ends that hold `COVERAGE` of the residuals, a source's rows weighing as `FEW` says."""
    count: dict[str, int] = defaultdict(int)
    for one in members:
        count[one.source] += 1
    ordered = sorted(members, key=lambda one: one.ratio)
    weights = np.array([1.0 / (count[one.source] + few) for one in ordered])
    position = (np.cumsum(weights) - 0.5 * weights) / np.sum(weights)
    tail = (1.0 - COVERAGE) / 2.0
    low, high = np.interp([tail, 1.0 - tail], position, [one.ratio for one in ordered])
    return float(low), float(high)


def _best_widening(known: Sequence[Residual], few: float = 0.0) -> Widening:
    """The widening whose coverage, each source judged by the others' ranges, is nearest to 80 %."""
    if len({one.source for one in known}) < 2:  # nothing to judge one by
        return NEWCOMERS[0], WIDENINGS[0]
    judged = _judged(known, few)
    pairs = [(newcomer, lacking) for newcomer in NEWCOMERS for lacking in WIDENINGS]
    return min(
        pairs, key=lambda pair: (round(abs(_coverage(judged, pair) - COVERAGE), 3), sum(pair), pair)
    )


@dataclass(frozen=True)
class _Judged:
    """Residuals beside the ends, as they are, of the range that the other sources give; arrays."""

    source: NDArray[np.int64]
    ratio: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    lacking: NDArray[np.int64]


def _judged(known: Sequence[Residual], few: float) -> _Judged:
    """Residuals beside the ranges that the other sources give."""
    names = sorted({one.source for one in known})
    others = {
        name: residuals_from(_table([one for one in known if one.source != name], few=few))
        for name in names
    }
    told: dict[tuple[str, Facets], tuple[float, float, int]] = {}
    rows = []
    for one in known:
        key = (one.source, one.facets)
        if key not in told:
            range_ = others[one.source]
            told[key] = (*range_.ends(one.facets)[:2], len(range_.lacking(one.facets)))
        rows.append((names.index(one.source), one.ratio, *told[key]))
    source, ratio, low, high, lacking = (np.array(column) for column in zip(*rows, strict=True))
    return _Judged(source, ratio, low, high, lacking)


def _coverage(judged: _Judged, widening: Widening) -> float:
    """Share of residuals inside, the mean over sources."""
    newcomer, each = widening
    wider = newcomer * each**judged.lacking
    inside = (judged.low**wider <= judged.ratio) & (judged.ratio <= judged.high**wider)
    count = np.bincount(judged.source)
    share = np.bincount(judged.source, weights=inside)[count > 0] / count[count > 0]
    return float(np.mean(share))


def promise_kept(scored: Sequence[Scored], probability: float) -> tuple[float, float]:
    """Share of measured peaks of left-out sources within what was said to hold them with a probability.

    Each source is judged by the range that the others give, with the widening that suits the others. The mean
    over sources, and the share of all rows.
    """
    return _promise_kept(residuals_of(scored, "memory"), probability)


def _promise_kept(known: Sequence[Residual], probability: float) -> tuple[float, float]:
    held: dict[str, list[bool]] = {}
    few = FEW["memory"]
    for name in sorted({one.source for one in known}):
        others = [one for one in known if one.source != name]
        if not others:
            return math.nan, math.nan
        told = residuals_from(_table(others, _best_widening(others, few), few))
        rooms: dict[Facets, float] = {}
        for one in known:
            if one.source == name:
                if one.facets not in rooms:
                    low, high, _ = told.ends(one.facets)
                    rooms[one.facets] = Range(low=low, high=high).quantile(probability)
                held.setdefault(name, []).append(one.ratio <= rooms[one.facets])
    rows = [one for some in held.values() for one in some]
    return float(np.mean([np.mean(some) for some in held.values()])), float(np.mean(rows))


def coverage(scored: Sequence[Scored], quantity: str = "time") -> float:
    """Share of a left-out source's measurements inside the ranges that the other sources give.

    The mean over sources, each with the widening that suits all of them.
    """
    known = residuals_of(scored, quantity)
    if len({one.source for one in known}) < 2:
        return math.nan
    few = FEW[quantity]
    return _coverage(_judged(known, few), _best_widening(known, few))
