"""Constants of the cost model chosen to rank measured sweeps as well as its structure lets them.

No command: `benchmarks/ceiling.py` asks it how much of a sweep's order is lost to constants and how much to structure.
Constants stay within the bounds that evidence/data/constants.toml declares. The logarithm of a step time is taken as
linear in their logarithms around where they stand; a loss over pairs (or over the choice) is minimised there, the
step is shortened until the sweeps, priced anew, are ranked best. Every figure is of sweeps priced with the chosen constants, never of the linear model. The optimum is a local one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from meshwright.evidence.constants import constants_set, fitted_constants
from meshwright.evidence.fit import SOURCE_ROWS, TIME_SCALE, Case, Problem, derivatives
from meshwright.evidence.score import Scored, choices, kendall_tau, regret

Numbers = NDArray[np.float64]
Group = Sequence[Scored]

WIDTH = 0.02
"""Logarithmic distance over which a pair goes from wrong to right in the loss: about a repeat's noise."""
HELD = 1e-4
"""Weight of a constant's squared distance (in its prior's spread) from where it stood, against drifting for nothing."""
SHORTER = (1.0, 0.6, 0.35, 0.2, 0.1)
"""Shares of a step that are tried."""


@dataclass(frozen=True)
class Choice:
    """One sweep: the rows of each of its layouts, and measured seconds a layout."""

    members: list[list[int]]
    measured_s: Numbers

    def logs(self, rows: Numbers) -> Numbers:
        """Mean of its layouts' rows."""
        return np.stack([rows[one].mean(axis=0) for one in self.members])


def choice_of(group: Group) -> Choice:
    """A sweep by its layouts, numbered as its rows are."""
    layouts: dict[object, list[int]] = {}
    for index, one in enumerate(group):
        layouts.setdefault(one.run.layout, []).append(index)
    members = list(layouts.values())
    measured = [float(np.mean([group[i].measured_s for i in rows])) for rows in members]
    return Choice(members, np.array(measured))


def ranked(measured_s: Numbers, logs: Numbers) -> tuple[float, Numbers]:
    """Loss of a sweep's order, one unit a sweep, and its derivative by the layouts' logarithmic times."""
    upper = np.triu_indices(len(logs), 1)
    sign = np.sign(measured_s[upper[0]] - measured_s[upper[1]])
    wrong = -sign * (logs[upper[0]] - logs[upper[1]]) / WIDTH
    weight = 1.0 / max(np.count_nonzero(sign), 1)
    slope = -sign * weight / (1.0 + np.exp(-np.clip(wrong, -60, 60))) / WIDTH
    by = np.zeros(len(logs))
    np.add.at(by, upper[0], slope)
    np.add.at(by, upper[1], -slope)
    return weight * float(np.sum(np.logaddexp(0.0, wrong) * (sign != 0))), by


def chosen(measured_s: Numbers, logs: Numbers) -> tuple[float, Numbers]:
    """Loss of a sweep's choice: expected regret if layouts are drawn by their times, in tenths."""
    share = np.exp(-(logs - logs.min()) / WIDTH)
    share /= share.sum()
    excess = np.minimum(measured_s / measured_s.min() - 1.0, 1.0) / 0.1
    mean = float(share @ excess)
    return mean, -share * (excess - mean) / WIDTH


LOSSES: dict[str, Callable[[Numbers, Numbers], tuple[float, Numbers]]] = {
    "tau": ranked, "regret": chosen,
}  # fmt: skip


def score(groups: Sequence[Group], loss: str) -> float:
    """What is to be large: mean tau, or minus mean regret."""
    pairs = [choices(group) for group in groups]
    if loss == "tau":
        return float(np.nanmean([kendall_tau(*pair) for pair in pairs]))
    return -float(np.mean([regret(*pair) for pair in pairs]))


@dataclass(frozen=True)
class Linear:
    """Logarithms of predicted times of some rows, and their derivatives by the constants (rows, constants)."""

    rows: Sequence[Scored]
    logs: Numbers
    slopes: Numbers

    def of(self, group: Group) -> list[int]:
        """Where the rows of a sweep are."""
        where = {one.row.id: index for index, one in enumerate(self.rows)}
        return [where[one.row.id] for one in group]


def linear_at(rows: Sequence[Scored]) -> Linear:
    """The linear model of some rows around where the constants stand."""
    cases = [Case(one.row.table, one.run, 1.0, math.nan) for one in rows]
    problem = Problem(cases, fitted_constants())
    errors = problem.residuals()
    return Linear(rows, errors[0], np.nan_to_num(derivatives(problem, errors)[0]))


def priced(groups: Sequence[Group], values: dict[str, float]) -> list[list[Scored]]:
    """The same sweeps with the predictions of other constants."""
    with constants_set(values):
        rows = [one for group in groups for one in group]
        cases = [Case(one.row.table, one.run, 1.0, math.nan) for one in rows]
        seconds = iter(np.exp(Problem(cases, fitted_constants()).residuals()[0]))
    return [[replace(one, predicted_s=float(next(seconds))) for one in group] for group in groups]


def best_step(
    groups: Sequence[Group], linear: Linear, theta: Numbers, loss: str, times: float = 0.0
) -> Numbers:
    """The step of the constants' logarithms that minimises a loss in the linear model, inside their bounds.

    `times`: weight of what a fit minimises, the errors of all rows' step times (Cauchy, sources alike) and the
    constants' distance from their priors.
    """
    base = []
    for group in groups:
        choice, where = choice_of(group), linear.of(group)
        base.append((choice, choice.logs(linear.logs[where]), choice.logs(linear.slopes[where])))
    errors = linear.logs - np.log([one.measured_s for one in linear.rows])
    weight = times * source_weights(linear.rows)
    constants = fitted_constants()
    spread = np.array([one.spread for one in constants])
    prior = np.log([one.prior for one in constants])
    sources = len({one.row.table for one in linear.rows})
    loose = times / (SOURCE_ROWS * sources) if times else HELD
    moving = np.abs(linear.slopes).max(axis=0) > 1e-6

    def cost(step: Numbers) -> tuple[float, Numbers]:
        away = (theta + step - prior) / spread if times else step / spread
        total, by = loose * float(away @ away), 2 * loose * away / spread
        for choice, at, slope in base:
            value, own = LOSSES[loss](choice.measured_s, at + slope @ step)
            total, by = total + value / len(base), by + slope.T @ own / len(base)
        if times:
            off = (errors + linear.slopes @ step) / TIME_SCALE
            total = total + float(weight @ np.log1p(off**2))
            by = by + linear.slopes.T @ (weight * 2 * off / (1 + off**2)) / TIME_SCALE
        return total, by * moving

    bounds = [
        (math.log(one.low) - t, math.log(one.high) - t) if free else (0.0, 0.0)
        for one, t, free in zip(constants, theta, moving, strict=True)
    ]
    start = np.clip(np.zeros(len(theta)), [b[0] for b in bounds], [b[1] for b in bounds])
    return np.asarray(minimize(cost, start, jac=True, bounds=bounds, method="L-BFGS-B").x)


def source_weights(rows: Sequence[Scored]) -> Numbers:
    """Weights of rows of which every source's sum is as large as any other's, and one all together."""
    count: dict[str, int] = {}
    for one in rows:
        count[one.row.table] = count.get(one.row.table, 0) + 1
    return np.array([1.0 / count[one.row.table] / len(count) for one in rows])


def climb(
    groups: Sequence[Group], linear: Linear, loss: str, times: float = 0.0
) -> dict[str, float]:
    """The constants that rank some sweeps best, all of them with the same ones, by name.

    `linear`: of their rows (and of others, which only `times` counts) as the constants stand. A step of a loss
    alone is shortened until the sweeps, priced anew, are ranked best.
    """
    theta = np.log([one.get() for one in fitted_constants()])
    step = best_step(groups, linear, theta, loss, times)
    if times:
        return named(theta + step)
    tried = [named(theta + share * step) for share in (*SHORTER, 0.0)]
    scores = [score(priced(groups, values), loss) for values in tried]
    return tried[int(np.argmax(scores))]


def named(theta: Numbers) -> dict[str, float]:
    """Constants by name, from their logarithms."""
    return {c.name: float(np.exp(t)) for c, t in zip(fitted_constants(), theta, strict=True)}
