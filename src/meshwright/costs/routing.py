"""The hottest rank's share of routed tokens, in columns: how many times the mean it gets."""

from __future__ import annotations

import random
from functools import cache

import numpy as np

from meshwright.costs.columns import Floats, Ints
from meshwright.specs.routing import Routing, hottest

DRAWS = 64
"""Random placements of experts on ranks, over which a power law's hottest rank is averaged."""


def hottest_rank(routing: Routing, experts: int, ep: Ints, *, at_peak: bool = False) -> Floats:
    """Tokens of the hottest of `ep` ranks over the mean; shape (rows,).

    `at_peak`: of the worst one in twenty layers and steps, which memory must hold, instead of the mean.
    """
    if routing.balanced:
        return np.ones(len(ep))
    degrees, inverse = np.unique(ep, return_inverse=True)
    ratios = [_ratio(routing, experts, int(degree))[at_peak] for degree in degrees]
    return np.array(ratios)[inverse]


@cache
def _ratio(routing: Routing, experts: int, groups: int) -> tuple[float, float]:
    """(mean, peak) of the hottest of so many groups over the mean."""
    if groups <= 1:
        return 1.0, 1.0
    if routing.counted:
        # Counts per rank say nothing of fewer experts a rank: the most groups counted stand for more.
        known = [hot for hot in routing.counted if hot.groups <= groups]
        hot = max(known, key=lambda one: one.groups) if known else routing.counted[0]
        return hot.mean, hot.peak
    loads = [(place + 1.0) ** -routing.power for place in range(experts)]
    draw = random.Random(0)
    found = []
    for _ in range(DRAWS):
        draw.shuffle(loads)
        found.append(hottest(loads, min(groups, experts)))
    found.sort()
    return sum(found) / DRAWS, found[int(0.95 * DRAWS)]
