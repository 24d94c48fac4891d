"""Write the ranges of `costs/confidence.py` from the residuals of left-out sources."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tomli_w

from meshwright.costs.confidence import (
    ANY,
    COVERAGE,
    SOURCES,
    Facets,
    Residuals,
    candidates,
    facets_of,
    residuals_from,
)
from meshwright.evidence.score import Scored

WIDENINGS = tuple(round(1.0 + 0.05 * step, 2) for step in range(17))
"""Widenings that are tried; the one whose coverage of left-out sources is nearest to 80 % is kept."""


@dataclass(frozen=True, slots=True)
class Residual:
    """A run's measured over predicted value, of a source that was left out."""

    source: str
    facets: Facets
    ratio: float


def residuals_of(scored: Sequence[Scored], quantity: str) -> list[Residual]:
    """Return the known residuals of `time` or `memory`."""
    found = []
    for one in scored:
        run = one.run
        if quantity == "time":
            ratio = one.measured_s / one.predicted_s if one.absolute else math.nan
        else:
            ratio = one.measured_bytes / one.predicted_bytes
        if not math.isnan(ratio):
            facets = facets_of(run.model, run.cluster, run.job, run.gpus)
            found.append(Residual(one.row.table, facets, ratio))
    return found


def confidence_toml(scored: Sequence[Scored]) -> str:
    """Return the text of costs/data/confidence.toml for rows predicted with their source left out."""
    head = (
        f"# Ranges that hold {100 * COVERAGE:.0f} % of measured over predicted, each source left out of "
        "the fit and\n# weighing alike; `sources` counts who measured such a run. Written by\n"
        "# `python benchmarks/fit_constants.py --write`; read by costs/confidence.py.\n\n"
    )
    tables: dict[str, Any] = {}
    times, memory = (residuals_of(scored, quantity) for quantity in ("time", "memory"))
    tables["time"] = _table(times, _best_widening(times))
    # A dozen sources measured memory, by as many conventions: their rows weigh alike instead, and
    # nothing is widened.
    tables["memory"] = _table(memory, 1.0, sources_alike=False)
    return head + tomli_w.dumps(tables)


def _table(
    known: Sequence[Residual], widening: float, sources_alike: bool = True
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
        if len(sources) < SOURCES and (device, kind) != (ANY, ANY):
            continue
        low, high = _quantiles(members, sources_alike)
        ranges.append(
            {
                "generation": device, "kind": kind, "sources": len(sources), "rows": len(members),
                "low": round(low, 4), "high": round(high, 4),
            }
        )  # fmt: skip
    counts = {name: len(sources) for name, sources in sorted(told.items())}
    return {"widening": widening, "range": ranges, "sources": counts}


def _quantiles(members: Sequence[Residual], sources_alike: bool) -> tuple[float, float]:
    """The ends that hold `COVERAGE` of the residuals, every source (or every row) weighing alike."""
    count: dict[str, int] = defaultdict(int)
    for one in members:
        count[one.source] += 1
    ordered = sorted(members, key=lambda one: one.ratio)
    weights = np.array([1.0 / count[one.source] if sources_alike else 1.0 for one in ordered])
    position = (np.cumsum(weights) - 0.5 * weights) / np.sum(weights)
    tail = (1.0 - COVERAGE) / 2.0
    low, high = np.interp([tail, 1.0 - tail], position, [one.ratio for one in ordered])
    return float(low), float(high)


def _best_widening(known: Sequence[Residual]) -> float:
    """The widening whose coverage, each source judged by the others' ranges, is nearest to 80 %."""
    others = _without_each(known)
    return min(WIDENINGS, key=lambda w: (abs(_coverage(known, others, w) - COVERAGE), w))


def _without_each(known: Sequence[Residual]) -> dict[str, dict[str, Any]]:
    names = sorted({one.source for one in known})
    return {name: _table([one for one in known if one.source != name], 1.0) for name in names}


def _coverage(
    known: Sequence[Residual], others: dict[str, dict[str, Any]], widening: float
) -> float:
    inside: dict[str, list[bool]] = defaultdict(list)
    readers: dict[str, Residuals] = {
        name: residuals_from({**entry, "widening": widening}) for name, entry in others.items()
    }
    for one in known:
        low, high, _ = readers[one.source].ends(one.facets)
        inside[one.source].append(low <= one.ratio <= high)
    return float(np.mean([np.mean(hits) for hits in inside.values()])) if inside else math.nan


def coverage(scored: Sequence[Scored], quantity: str = "time") -> float:
    """Share of a left-out source's measurements inside the ranges that the other sources give.

    The mean over sources, each with the widening that suits all of them.
    """
    known = residuals_of(scored, quantity)
    return _coverage(known, _without_each(known), _best_widening(known))
