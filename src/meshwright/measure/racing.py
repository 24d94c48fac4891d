"""A race of finalists, step by step in interleaved order, until one is the fastest at a confidence.

Every round each runner that is left makes one step, in an order drawn anew, so that whatever else the
machine does falls on all alike. After 4, 6, 8, 11, 16… rounds each is compared with the leader by the
logarithms of their times in the same rounds. One is out where it is not faster than the leader by more than
`TIE`, at the confidence: what wins is the fastest, or as good. The bound allows for looking several times
(`looking`), and the risk is shared among the runners. Where all that are left lie within `TIE`, it is a tie.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

from meshwright.measure.looking import constant_bound

FIRST_LOOK = 4
TIE = 0.01
"""Relative difference that no choice depends on."""


def looks(most_rounds: int) -> list[int]:
    """Rounds after which runners are compared: 4, 6, 8, 11, 16, … (by the root of two), and the last."""
    found, at = [], float(FIRST_LOOK)
    while round(at) < most_rounds:
        found.append(round(at))
        at *= math.sqrt(2.0)
    return [*found, most_rounds]


def quantile(confidence: float, samples: int) -> float:
    """Student's t quantile of one side, from the normal one (Cornish-Fisher; Abramowitz 26.7.5)."""
    z, n = NormalDist().inv_cdf(confidence), max(samples - 1, 1)
    first = (z**3 + z) / 4.0
    second = (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0
    third = (3.0 * z**7 + 19.0 * z**5 + 17.0 * z**3 - 15.0 * z) / 384.0
    return z + first / n + second / n**2 + third / n**3


@dataclass(slots=True)
class Race:
    """The state of a race: times by runner and round, who is left, and the rules."""

    runners: int
    confidence: float = 0.95
    most_rounds: int = 50
    seed: int = 0
    times: dict[int, list[float]] = field(default_factory=dict)
    left: list[int] = field(default_factory=list)
    out: dict[int, str] = field(default_factory=dict)
    rounds: int = 0
    tied: bool = False

    def __post_init__(self) -> None:
        self.left = list(range(self.runners))
        self.times = {runner: [] for runner in self.left}

    @property
    def over(self) -> bool:
        """Whether nothing is left to settle."""
        return len(self.left) <= 1 or self.tied or self.rounds >= self.most_rounds

    def order(self) -> list[int]:
        """Who is left, in this round's order; the same wherever the race has the same seed."""
        drawn = random.Random(1000003 * self.seed + self.rounds)
        return drawn.sample(self.left, len(self.left))

    def drop(self, runner: int, why: str) -> None:
        """A runner cannot go on: out of memory, or failed."""
        self.out[runner] = why
        self.left = [one for one in self.left if one != runner]

    def round(self, times_s: Mapping[int, float]) -> list[int]:
        """Take one round's times; returns who is out after it."""
        for runner, time in times_s.items():
            self.times[runner].append(time)
        self.rounds += 1
        return self._look() if self.rounds in looks(self.most_rounds) else []

    def leader(self) -> int | None:
        """The one of those left with the least mean logarithm; None: nobody is."""
        if not self.left or not self.times[self.left[0]]:
            return self.left[0] if self.left else None
        return min(self.left, key=lambda one: statistics.fmean(map(math.log, self.times[one])))

    def level(self, compared: Sequence[int]) -> float:
        """Of one comparison, where all runners are compared with the leader after these rounds."""
        risk = (1.0 - self.confidence) / max(self.runners - 1, 1)
        return NormalDist().cdf(constant_bound(tuple(compared), risk))

    def _look(self) -> list[int]:
        first, level = self.leader(), self.level(looks(self.most_rounds))
        gone, close = [], 0
        for runner in [one for one in self.left if one != first]:
            assert first is not None
            mean, error = self.difference(runner, first, level)
            if mean + error < TIE:
                close += 1
            elif mean - error > -TIE:
                self.drop(runner, "slower")
                gone.append(runner)
        self.tied = len(self.left) > 1 and close == len(self.left) - 1
        return gone

    def difference(self, runner: int, other: int, level: float) -> tuple[float, float]:
        """Mean logarithm of a runner's time over another's in the same rounds, and its half-width."""
        both = zip(self.times[runner], self.times[other], strict=False)
        logs = trimmed([math.log(a / b) for a, b in both])
        if len(logs) < 2:
            return 0.0, math.inf
        spread = statistics.stdev(logs) / math.sqrt(len(logs))
        return statistics.fmean(logs), quantile(level, len(logs)) * spread

    def error(self, runner: int) -> float:
        """Relative half-width of a runner's own mean time, at the confidence."""
        logs = trimmed([math.log(time) for time in self.times[runner]])
        if len(logs) < 2:
            return 0.0
        level = 0.5 + self.confidence / 2.0
        return quantile(level, len(logs)) * statistics.stdev(logs) / math.sqrt(len(logs))


def trimmed(logs: Sequence[float]) -> list[float]:
    """Values drawn in to where they no longer decide alone: three middle-half widths off the median."""
    if len(logs) < 4:
        return list(logs)
    low, middle, high = statistics.quantiles(logs, n=4, method="inclusive")
    reach = 3.0 * max(high - low, 1e-9)
    return [min(max(value, middle - reach), middle + reach) for value in logs]
