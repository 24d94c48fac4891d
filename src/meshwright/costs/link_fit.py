"""Fit the constants of links to measured collectives, as far as the measurements identify them.

Constants are fitted in logarithms, towards their current values: each starts with a prior of a
factor e either way, and a measurement counts as right within a tenth. Constants on which the
measurements do not depend stay as they were and are reported so; those on which they depend
are fitted together, so that two that cannot be told apart share a change. Runs inside one
innermost domain fit its links, runs across domains the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.costs.collectives import collective_cost
from meshwright.costs.fabric import Column, Fabric, constant_names, place, with_constants
from meshwright.specs.errors import SpecError

PRIOR_SD, NOISE_SD = 1.0, 0.1
IDENTIFIED_SD = 0.5
"""A constant is fitted if, the others being known, the data narrow its prior to half."""

_RATE_OF = {
    "all_reduce": "network.reduce_fraction",
    "all_gather": "network.gather_fraction",
    "reduce_scatter": "network.gather_fraction",
    "broadcast": "network.gather_fraction",
    "all_to_all": "network.alltoall_fraction",
    "send_recv": "network.point_to_point_fraction",
}
"""The network rate that bounds each collective once it leaves a domain."""

HOPS = ("network.hop_latencies", "network.fill_latencies")
"""What every collective across a network depends on, even if little at the shipped values."""


@dataclass(frozen=True)
class MeasuredCollective:
    """One measured time; sizes as in nccl-tests, `stride` between members in global ranks."""

    collective: str
    ranks: int
    size_bytes: float
    time_s: float
    stride: int = 1
    nvls: bool = True


@dataclass(frozen=True)
class LinkFit:
    """Constants that the measurements identify, and how much better they predict."""

    constants: dict[str, float]
    """`link.step_s` and the like → fitted value."""
    before: dict[str, float]
    not_identified: dict[str, float]
    """Constants on which the measurements do not depend, as they were and stay."""
    error_before: float
    """Median of |predicted / measured - 1|."""
    error_after: float
    measurements: int


def predicted_times(fabric: Fabric, rows: Sequence[MeasuredCollective]) -> Column:
    """Seconds that the model gives for each measurement."""
    times = np.empty(len(rows))
    keys = [(r.collective, r.nvls) for r in rows]
    for key in sorted(set(keys)):
        index = [i for i, k in enumerate(keys) if k == key]
        chosen = [rows[i] for i in index]
        on = fabric if key[1] else fabric.without_nvls()
        group = place(on, [r.ranks for r in chosen], stride=[r.stride for r in chosen])
        sizes = np.array([r.size_bytes for r in chosen])
        times[index] = collective_cost(key[0], on, sizes, group).total_s
    return times


def fit_shared(
    sets: Sequence[tuple[Fabric, Sequence[MeasuredCollective]]],
    names: Sequence[str],
    rounds: int = 40,
) -> tuple[dict[str, float], dict[str, float]]:
    """Fit constants that several fabrics share, by damped Gauss-Newton on log ratios.

    Outliers count by their logarithm's absolute value (iteratively reweighted), so that one
    odd row does not move a constant.

    Returns:
        Fitted values, and the standard deviation of each one's logarithm, the others known.

    Raises:
        SpecError: there is nothing to fit to.
    """
    sets = [(fabric, rows) for fabric, rows in sets if rows]
    if not sets or any(r.time_s <= 0 for _, rows in sets for r in rows):
        raise SpecError("measurements", len(sets), "positive measured times are expected")
    measured = np.log(np.concatenate([[r.time_s for r in rows] for _, rows in sets]))
    first = np.log([_value(sets[0][0], name) for name in names])

    def residual(theta: Column) -> Column:
        values = dict(zip(names, np.exp(theta).tolist(), strict=True))
        got = [
            predicted_times(
                with_constants(f, {n: v for n, v in values.items() if n in known[i]}), rows
            )
            for i, (f, rows) in enumerate(sets)
        ]
        return np.asarray(np.log(np.concatenate(got)) - measured)

    known = [set(constant_names(fabric)) for fabric, _ in sets]

    def objective(theta: Column, error: Column) -> float:
        return float(np.abs(error).sum() / NOISE_SD + ((theta - first) ** 2).sum() / 2)

    def differentiate(theta: Column, error: Column) -> Column:
        columns = []
        for j in range(len(names)):
            moved = theta.copy()
            moved[j] += 1e-4
            columns.append((residual(moved) - error) / 1e-4)
        return np.stack(columns, axis=1)

    def descend(theta: Column) -> tuple[float, Column, Column]:
        error, damping = residual(theta), 1e-2
        jacobian = differentiate(theta, error)
        for _ in range(rounds):
            weight = 1 / (NOISE_SD * np.maximum(np.abs(error), 0.02))
            normal = (jacobian.T * weight) @ jacobian + np.eye(len(names)) / PRIOR_SD**2
            gradient = (jacobian.T * weight) @ error + (theta - first) / PRIOR_SD**2
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
            trial = theta + np.clip(step, -0.5, 0.5)
            trial_error = residual(trial)
            if objective(trial, trial_error) < objective(theta, error):
                theta, error, damping = trial, trial_error, damping / 3
                jacobian = differentiate(theta, error)
                if np.abs(step).max() < 1e-5:
                    break
            else:
                damping *= 4
                if damping > 1e6:
                    break
        return objective(theta, error), theta, jacobian

    # A link that does not bind has no slope, so the fit also starts from slow networks.
    slow = np.array([n in _RATE_OF.values() for n in names])
    starts = [first + np.where(slow, np.log(factor), 0.0) for factor in (1.0, 0.5, 0.25)]
    if rounds == 0 or not slow.any():
        starts = starts[:1]
    _, theta, jacobian = min((descend(start) for start in starts), key=lambda found: found[0])
    precision = (jacobian**2).sum(axis=0) / NOISE_SD**2 + 1 / PRIOR_SD**2
    spread = 1 / np.sqrt(precision)
    return (
        dict(zip(names, np.exp(theta).tolist(), strict=True)),
        dict(zip(names, spread.tolist(), strict=True)),
    )


def _value(fabric: Fabric, name: str) -> float:
    part, field = name.split(".")
    return float(getattr(getattr(fabric, part), field))


def fit_links(fabric: Fabric, measurements: Sequence[MeasuredCollective]) -> LinkFit:
    """Fit one cluster's constants to its own measurements.

    Args:
        fabric: the cluster's links with their shipped constants.
        measurements: times of one or more collectives, sizes and group shapes.

    Returns:
        The fitted constants, for `Cluster.link_constants`; the others stay as shipped.

    Raises:
        SpecError: no measurement, or a time that is not positive.
    """
    if not measurements or any(r.time_s <= 0 for r in measurements):
        raise SpecError("measurements", len(measurements), "positive times are expected")
    every = constant_names(fabric)
    before = _errors(fabric, measurements)
    domain = fabric.levels[0].domain
    inside = [r for r in measurements if r.ranks * r.stride <= domain]
    across = [r for r in measurements if r.ranks * r.stride > domain]
    kept: dict[str, float] = {}
    for rows, part in ((inside, "link."), (across, "network.")):
        if not rows:
            continue
        # Where the network binds, a run across it says little of the links inside a domain.
        now = with_constants(fabric, kept)
        candidates = [n for n in every if n.startswith(part)]
        _, spread = fit_shared([(now, rows)], candidates, rounds=0)
        sure = {_RATE_OF[r.collective] for r in rows} | set(HOPS) if rows is across else set()
        names = [n for n in candidates if spread[n] < IDENTIFIED_SD or n in sure]
        if names:
            kept |= fit_shared([(now, rows)], names)[0]
    after = _errors(with_constants(fabric, kept), measurements)
    return LinkFit(
        kept,
        {n: _value(fabric, n) for n in kept},
        {n: _value(fabric, n) for n in every if n not in kept},
        float(np.median(before)),
        float(np.median(after)),
        len(measurements),
    )


def _errors(fabric: Fabric, rows: Sequence[MeasuredCollective]) -> Column:
    measured = np.array([r.time_s for r in rows])
    return np.abs(predicted_times(fabric, rows) / measured - 1.0)
