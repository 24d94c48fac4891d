"""Write the ranges of `costs/confidence.py` from the scorecard's residuals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import tomli_w

from meshwright.costs.confidence import COVERAGE, kinds_of
from meshwright.evidence.score import Scored

MINIMUM = 20
"""Published runs that a kind needs to speak for itself."""


def confidence_toml(scored: Sequence[Scored]) -> str:
    """Return the text of costs/data/confidence.toml for scored rows."""
    times = [(one, one.measured_s / one.predicted_s) for one in scored if one.absolute]
    memory = [(one, one.measured_bytes / one.predicted_bytes) for one in scored]
    head = (
        "# Quantiles of measured over predicted by kind of run, which hold "
        f"{100 * COVERAGE:.0f} % of the published\n"
        "# runs of that kind. Written by `meshwright scorecard --confidence FILE`.\n\n"
    )
    return head + tomli_w.dumps({"time": _kinds(times), "memory": _kinds(memory)})


def _kinds(pairs: Iterable[tuple[Scored, float]]) -> list[dict[str, object]]:
    groups: dict[tuple[str, str, str], list[float]] = {}
    for one, ratio in pairs:
        if math.isnan(ratio):
            continue
        for key in kinds_of(one.run.cluster, one.run.job, one.run.gpus):
            groups.setdefault(key, []).append(ratio)
    tail = (1.0 - COVERAGE) / 2.0
    result: list[dict[str, object]] = []
    for (device, framework, scale), ratios in sorted(groups.items()):
        if len(ratios) < MINIMUM:
            continue
        low, high = np.quantile(ratios, [tail, 1.0 - tail])
        result.append(
            {
                "generation": device, "framework": framework, "scale": scale, "rows": len(ratios),
                "low": round(float(low), 4), "high": round(float(high), 4),
            }
        )  # fmt: skip
    return result


def coverage(scored: Sequence[Scored], fitted_on: Sequence[Scored]) -> float:
    """Share of measured step times inside the ranges that other rows give.

    The narrowest kind that `fitted_on` knows speaks for each row.
    """
    pairs = [(one, one.measured_s / one.predicted_s) for one in fitted_on if one.absolute]
    known = {(str(k["generation"]), str(k["framework"]), str(k["scale"])): k for k in _kinds(pairs)}
    inside = total = 0
    for one in scored:
        ratio = one.measured_s / one.predicted_s
        if math.isnan(ratio) or not one.absolute:
            continue
        for key in kinds_of(one.run.cluster, one.run.job, one.run.gpus):
            if key in known:
                total += 1
                inside += float(str(known[key]["low"])) <= ratio <= float(str(known[key]["high"]))
                break
    return inside / total if total else math.nan
