"""Looking several times at a growing sample: where the bound must lie so that noise seldom crosses it at all.

Pocock's constant bound (Biometrika 64, 1977), for looks at any sizes, by the recursion of Armitage,
McPherson and Rowe (J. R. Stat. Soc. A 132, 1969): the density of the sum that has not crossed yet is carried
from look to look. Splitting the risk evenly among the looks instead (Bonferroni) asks for a third more samples,
since what is seen at one look is mostly what was seen at the one before.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

_STEP = 0.05
"""Of the grid, in standard deviations of one sample."""
_REACH = 8.0
"""How many standard deviations of a sum the grid spans."""


def crossing(looks: tuple[int, ...], bound: float) -> float:
    """Chance that the mean of so many standard normal samples lies `bound` of its deviations high at any look."""
    sums = np.arange(-_REACH * math.sqrt(looks[-1]), bound * math.sqrt(looks[-1]) + _STEP, _STEP)
    density, seen = None, 0
    for size in looks:
        added = size - seen
        reach = np.arange(-_REACH * math.sqrt(added), _REACH * math.sqrt(added) + _STEP, _STEP)
        if density is None:
            density = _normal(sums, added)
        else:
            centre = len(reach) // 2
            spread = np.convolve(density, _normal(reach - reach[centre], added)) * _STEP
            density = spread[centre : centre + len(sums)]
        density = np.where(sums <= bound * math.sqrt(size), density, 0.0)
        seen = size
    assert density is not None
    return 1.0 - float(density.sum()) * _STEP


def _normal(x: np.ndarray, variance: float) -> np.ndarray:
    return np.asarray(np.exp(-(x**2) / (2.0 * variance)) / math.sqrt(2.0 * math.pi * variance))


@cache
def constant_bound(looks: tuple[int, ...], risk: float) -> float:
    """The bound, in deviations of the mean, that noise alone crosses with this chance at any of the looks."""
    low, high = 0.0, 6.0
    for _ in range(24):
        middle = (low + high) / 2.0
        low, high = (middle, high) if crossing(looks, middle) > risk else (low, middle)
    return high
