"""Repeating a measurement: a deadline, the median, its dispersion, and what stood out."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Clock = Callable[[], float]

OUTLIER = 2.0
"""Times the median from which on a repeat counts as disturbed; it is kept, and counted."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Repeats of one measurement, in seconds."""

    median_s: float
    spread: float
    """Half the distance between the quartiles over the median."""
    repeats: int
    disturbed: int
    """Repeats of more than `OUTLIER` medians: a neighbour, or throttling."""

    @classmethod
    def of(cls, times: Sequence[float]) -> Sample:
        """Summarise repeats.

        Raises:
            ValueError: there are none.
        """
        median = statistics.median(times)
        if len(times) > 1:
            low, _, high = statistics.quantiles(times, n=4, method="inclusive")
        else:
            low = high = median
        spread = (high - low) / 2.0 / median if median > 0 else 0.0
        return cls(median, spread, len(times), sum(t > OUTLIER * median for t in times))


class Deadline:
    """A budget of seconds that measurements share: each asks for a share of what is left."""

    def __init__(self, seconds: float, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self.ends = clock() + seconds

    @property
    def left_s(self) -> float:
        """Seconds left; 0 when it is over."""
        return max(self.ends - self._clock(), 0.0)

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return self.left_s <= 0.0

    def share(self, parts: int) -> float:
        """An even share of what is left, for one of `parts` measurements still to come."""
        return self.left_s / max(parts, 1)


def repeat(
    call: Callable[[int], tuple[float, ...]],
    budget_s: float,
    *,
    least: int = 3,
    most: int = 60,
    clock: Clock = time.perf_counter,
) -> tuple[Sample, ...]:
    """Call until the budget is used; the summary of each figure that the call returns.

    One call warms up and is not counted. `call` gets the number of the repeat.
    """
    call(0)
    began, rows = clock(), []
    for index in range(1, most + 1):
        rows.append(call(index))
        if len(rows) >= least and clock() - began > budget_s:
            break
    return tuple(Sample.of([row[at] for row in rows]) for at in range(len(rows[0])))
