"""Sets of time intervals in columns: unions, lengths, overlaps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Intervals:
    """Disjoint intervals in order of time."""

    start: Array
    end: Array

    @property
    def total(self) -> float:
        """Length of all together."""
        return float((self.end - self.start).sum())

    def within(self, begin: float, finish: float) -> Intervals:
        """Cut to a window."""
        start, end = np.clip(self.start, begin, finish), np.clip(self.end, begin, finish)
        keep = end > start
        return Intervals(start[keep], end[keep])

    def covered(self, moments: Array) -> Array:
        """How much of the time before each moment is covered."""
        if not len(self.start):
            return np.zeros(len(moments))
        before = np.concatenate([[0.0], np.cumsum(self.end - self.start)])
        at = np.searchsorted(self.start, moments, side="right")
        inside = np.where(at > 0, np.minimum(moments, self.end[at - 1]) - self.start[at - 1], 0.0)
        return before[np.maximum(at - 1, 0)] + np.maximum(inside, 0.0)

    def overlap(self, other: Intervals) -> float:
        """Length of what both cover."""
        return float((self.covered(other.end) - self.covered(other.start)).sum())

    def gaps(self) -> Intervals:
        """What lies between the first start and the last end and is not covered."""
        return Intervals(self.end[:-1], self.start[1:])


def union(start: Array, end: Array) -> Intervals:
    """Join intervals that touch or overlap."""
    if not len(start):
        return Intervals(np.zeros(0), np.zeros(0))
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    furthest = np.maximum.accumulate(end)
    opens = np.concatenate([[True], start[1:] > furthest[:-1]])
    closes = np.concatenate([opens[1:], [True]])
    return Intervals(start[opens], furthest[closes])
