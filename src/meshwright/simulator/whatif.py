"""Variants of a step: a slow rank, random jitter, and hundreds of them evaluated at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from meshwright.schedules.ops import Schedule
from meshwright.simulator.evaluate import Simulator, Times, as_times
from meshwright.simulator.times import StageTimes
from meshwright.specs.errors import SpecError


def slow_rank(schedule: Schedule, times: Times, rank: int, factor: float) -> StageTimes:
    """Return times with everything on one rank `factor` times as long.

    Raises:
        SpecError: there is no such rank, or the factor is not positive.
    """
    if not 0 <= rank < schedule.pp:
        raise SpecError("slow_rank", rank, f"ranks 0 to {schedule.pp - 1} exist")
    if not (factor > 0 and np.isfinite(factor)):
        raise SpecError("slow_rank", factor, "a factor above 0 is expected, as 1.5")
    return as_times(schedule, times).scaled(
        np.where(schedule.stage_rank == rank, factor, 1.0)[:, None]
    )


def jittered(
    schedule: Schedule, times: Times, relative_sd: float, count: int, seed: int = 0
) -> list[StageTimes]:
    """Return variants in which every operation's time is drawn anew, the mean unchanged.

    Times are gamma-distributed, so never negative; one factor per stage and micro-batch.

    Raises:
        SpecError: the deviation is negative or above 1.
    """
    if not 0 <= relative_sd <= 1:
        raise SpecError("jitter", relative_sd, "a relative deviation between 0 and 1 is expected")
    given = as_times(schedule, times)
    if relative_sd == 0:
        return [given] * count
    random = np.random.default_rng(seed)
    shape = 1.0 / relative_sd**2
    size = (schedule.stages, schedule.units)
    return [given.scaled(random.gamma(shape, 1.0 / shape, size)) for _ in range(count)]


@dataclass(frozen=True)
class Spread:
    """Makespans of many variants."""

    count: int
    even: float
    mean: float
    p5: float
    p95: float


def spread(
    simulator: Simulator, times: Times, relative_sd: float, *, count: int = 200,
    comm_s: ArrayLike = 0.0, seed: int = 0,
) -> Spread:  # fmt: skip
    """Evaluate a step under jitter: what uneven operations cost a pipeline.

    Raises:
        SpecError: as `jittered`.
    """
    variants = jittered(simulator.schedule, times, relative_sd, count, seed)
    makespans = simulator.makespans_s(list(variants), comm_s)
    p5, p95 = np.percentile(makespans, [5, 95])
    return Spread(
        count, simulator.makespan_s(times, comm_s), float(makespans.mean()), float(p5), float(p95)
    )
