"""What failures and checkpoints leave of a run: optimum checkpoint interval and goodput.

A job of n nodes fails n times as often as one node. Checkpoints cost blocking time; a failure costs
the restart and, on average, half an interval of work done twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.specs.errors import SpecError


@dataclass(frozen=True)
class Goodput:
    """A run's useful share of wall time, and where the rest goes; shares add up to 1.

    Attributes:
        mtbf_s: mean time between failures of the whole job.
        interval_s: work between two checkpoints.
        useful: share of the wall time that advances the training.
        checkpointing: share spent blocked in checkpoints.
        lost_work: share spent on work that a failure threw away.
        restarting: share spent detecting, restarting and reloading.
    """

    mtbf_s: float
    interval_s: float
    useful: float
    checkpointing: float
    lost_work: float
    restarting: float


def job_mtbf_s(node_mtbf_s: float, nodes: int) -> float:
    """Return the mean time between failures of a job on `nodes` nodes, failures independent.

    Raises:
        SpecError: a number is not positive.
    """
    _positive("mtbf_node", node_mtbf_s)
    _positive("nodes", nodes)
    return node_mtbf_s / nodes


def young_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Return sqrt(2 C M): Young 1974, "A first order approximation to the optimum interval"."""
    return math.sqrt(2.0 * checkpoint_s * mtbf_s)


def daly_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Return Daly's higher-order optimum (Daly 2006, "A higher order estimate", equation 37).

    sqrt(2CM) [1 + (1/3) sqrt(C/2M) + (1/9)(C/2M)] - C for C < 2M, else M.
    """
    if checkpoint_s >= 2.0 * mtbf_s:
        return mtbf_s
    ratio = checkpoint_s / (2.0 * mtbf_s)
    series = 1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0
    return math.sqrt(2.0 * checkpoint_s * mtbf_s) * series - checkpoint_s


def goodput(interval_s: float, *, checkpoint_s: float, mtbf_s: float, restart_s: float) -> Goodput:
    """Return the shares of wall time for failures that arrive as a Poisson process.

    The expected wall time of one interval T with its checkpoint C, started again after every
    failure with a restart R, is M e^(R/M) (e^((T+C)/M) - 1) (Daly 2006, equation 20); failures may
    strike during checkpoints and restarts. Useful is T over that.

    Raises:
        SpecError: a time is not positive (checkpoint and restart may be 0).
    """
    _positive("interval", interval_s)
    _positive("mtbf", mtbf_s)
    for name, value in (("checkpoint_cost", checkpoint_s), ("restart", restart_s)):
        if not (value >= 0 and math.isfinite(value)):
            raise SpecError(name, value, "a time of at least 0 is expected")
    exponent = (interval_s + checkpoint_s) / mtbf_s
    if exponent + restart_s / mtbf_s > 700:
        return Goodput(mtbf_s, interval_s, 0.0, 0.0, 1.0, 0.0)
    failures = math.expm1(exponent)  # expected failures of the attempts until one gets through
    wall_s = mtbf_s * math.exp(restart_s / mtbf_s) * failures
    useful, checkpointing = interval_s / wall_s, checkpoint_s / wall_s
    # Each failed attempt also pays restarts, which may fail themselves.
    restarting_s = failures * mtbf_s * math.expm1(restart_s / mtbf_s)
    restarting = restarting_s / wall_s
    return Goodput(
        mtbf_s=mtbf_s,
        interval_s=interval_s,
        useful=useful,
        checkpointing=checkpointing,
        lost_work=max(1.0 - useful - checkpointing - restarting, 0.0),
        restarting=restarting,
    )


def best_interval_s(*, checkpoint_s: float, mtbf_s: float, restart_s: float) -> float:
    """Return the interval of most goodput, by golden-section search on `goodput` itself.

    Raises:
        SpecError: as `goodput`.
    """
    if checkpoint_s <= 0:
        return 0.0

    def useful(log_interval: float) -> float:
        interval = math.exp(log_interval)
        return goodput(
            interval, checkpoint_s=checkpoint_s, mtbf_s=mtbf_s, restart_s=restart_s
        ).useful

    low, high = math.log(checkpoint_s * 1e-3), math.log(mtbf_s * 10 + checkpoint_s)
    golden = (math.sqrt(5.0) - 1.0) / 2.0
    for _ in range(100):
        a, b = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, b) if useful(a) > useful(b) else (a, high)
    return math.exp((low + high) / 2.0)


def _positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise SpecError(name, value, "a number above 0 is expected")
