"""Fit every declared constant to published runs at once, and to all but one source.

Bounded robust least squares in the logarithm of the constants. The residual of a run is the
logarithm of predicted over measured: of its step time, of its peak memory. The larger one is the
less it pulls (Cauchy's loss): what the model has no term for must not bend the terms that it has.
Every source weighs like at most `SOURCE_ROWS` independent runs however many rows it
prints, because the rows of one source share its machine, its software and its mistakes. Each
constant has a prior (data/constants.toml), so that what no run speaks of stays where data
sheets, papers and microbenchmarks put it. A fit starts at the priors, so it does not depend on
the values shipped at the time.

Leaving a source out changes only weights. The residuals are nearly linear in the logarithms near the
optimum, so the left-out constants follow from the Jacobian there, without pricing any run again
(`Fitted.without`); tests hold that against fits from scratch.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from meshwright.costs.frameworks import Behaviour, behaviour_on
from meshwright.costs.kernels import Kernels, kernels_for
from meshwright.costs.tables import changed
from meshwright.evidence.constants import FittedConstant, put_all, rounded
from meshwright.evidence.import_rows import Run, import_row
from meshwright.evidence.machines import SkipRow
from meshwright.evidence.measured import (
    absolute_time_trusted,
    measured_memory_bytes,
    measured_step_time_s,
)
from meshwright.evidence.predict import group_key, predict_runs
from meshwright.evidence.rows import Row

Numbers = NDArray[np.float64]

SOURCE_ROWS = 2.5
"""Independent runs that a source weighs at most: with fewer rows it weighs as many as it has. One over
the correlation of residuals inside a source (intraclass): 0.39 of memory, 0.18 of time."""

MOST_ROWS = 20
"""Rows of one source that enter a fit, evenly spaced through its table: more say the same again."""

TIME_SCALE, MEMORY_SCALE = 0.08, 0.06
"""Logarithmic errors of time and memory from which on a run pulls less and less: what a good model
leaves."""

STEP = 0.02
"""Relative change of a constant by which the residuals are differentiated."""

ROUNDS = 2
SETTLED = 5e-3
"""A fit ends after this many rounds (one set of derivatives each), or when no constant moves by more
than this share."""

CHORDS = 3
"""Steps with the same derivatives: pricing all runs once costs a twentieth of differentiating them."""

PROCESSES, SMALL = 2, 2000
"""Processes that share the derivatives of a problem, and the groups times constants of a small one."""

LONGEST = 0.5
"""Largest change of a constant's logarithm in one step."""


@dataclass(frozen=True)
class Case:
    """A run that enters a fit; NaN where it measured no time, or no memory."""

    source: str
    run: Run
    time_s: float
    memory_bytes: float


def cases_of(rows: Iterable[Row], most: int = MOST_ROWS) -> list[Case]:
    """Return the runs that a fit may use: scorable, priced, measured; at most `most` of a source."""
    by_source: dict[str, list[Case]] = {}
    for row in rows:
        if not row.scorable:
            continue
        try:
            run = import_row(row)
        except SkipRow:
            continue
        time = measured_step_time_s(row, run) if absolute_time_trusted(row) else math.nan
        memory = measured_memory_bytes(row)
        if not (math.isnan(time) and math.isnan(memory)):
            by_source.setdefault(row.table, []).append(Case(row.table, run, time, memory))
    chosen = []
    for members in by_source.values():
        stride = max(1.0, len(members) / most)
        chosen += [members[int(i * stride)] for i in range(math.ceil(len(members) / stride))]
    return chosen


@dataclass
class Problem:
    """Runs in groups that are priced together, and what their prices depend on."""

    cases: list[Case]
    constants: tuple[FittedConstant, ...]
    groups: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        by_key: dict[str, list[int]] = {}
        for index, case in enumerate(self.cases):
            by_key.setdefault(group_key(case.run), []).append(index)
        self.groups = list(by_key.values())

    def residuals(
        self, groups: Iterable[int] | None = None, into: Numbers | None = None
    ) -> Numbers:
        """Logarithmic errors of shape (2, cases): time, memory; of some groups, the others as in `into`."""
        result = np.full((2, len(self.cases)), math.nan) if into is None else into.copy()
        for group in range(len(self.groups)) if groups is None else groups:
            members = self.groups[group]
            predictions = predict_runs([self.cases[i].run for i in members])
            for i, one in zip(members, predictions, strict=True):
                case = self.cases[i]
                result[0, i] = math.log(one.iter_time_s / case.time_s)
                result[1, i] = math.log(one.peak_memory_bytes / case.memory_bytes)
        return result

    def weights(self, without: str | None = None) -> Numbers:
        """Weight of each residual, of shape (2, cases); a left-out source weighs nothing."""
        measured = np.array([[c.time_s for c in self.cases], [c.memory_bytes for c in self.cases]])
        known = ~np.isnan(measured)
        result = np.zeros(measured.shape)
        sources = np.array([case.source for case in self.cases])
        for source in set(sources) - {without}:
            for kind in range(2):
                among = known[kind] & (sources == source)
                if count := int(among.sum()):
                    result[kind, among] = min(SOURCE_ROWS, count) / count
        return result

    def signature(self, group: int) -> tuple[Behaviour, Kernels]:
        """What a group's price depends on of kernels and framework."""
        run = self.cases[self.groups[group][0]].run
        device = run.cluster.device
        return behaviour_on(run.job, device), kernels_for(device, run.job.precision.compute)

    def measures_memory(self, group: int) -> bool:
        """Whether any run of a group measured its memory."""
        return any(not math.isnan(self.cases[i].memory_bytes) for i in self.groups[group])


@dataclass(frozen=True)
class Fitted:
    """The optimum of a problem: constants, residuals and their derivatives there."""

    problem: Problem
    values: dict[str, float]
    residuals: Numbers
    jacobian: NDArray[np.float64]
    """Shape (2, cases, constants), in the logarithm of the constants."""

    def without(self, source: str) -> dict[str, float]:
        """Return the constants that the other sources alone would give."""
        constants = self.problem.constants
        start = np.log([self.values[one.name] for one in constants])
        weights = self.problem.weights(source)
        theta = start
        for _ in range(4 * ROUNDS):
            linear = self.residuals + self.jacobian @ (theta - start)
            step = _step(constants, theta, linear, self.jacobian, weights, damping=0.0)
            theta = theta + step
            if np.max(np.abs(step)) < SETTLED:
                break
        return _named(constants, theta)


def _named(constants: Sequence[FittedConstant], theta: Numbers) -> dict[str, float]:
    return {one.name: rounded(float(np.exp(t))) for one, t in zip(constants, theta, strict=True)}


def _scales(residuals: Numbers) -> Numbers:
    return np.array([[TIME_SCALE], [MEMORY_SCALE]]) * np.ones_like(residuals)


def _cost(
    constants: Sequence[FittedConstant], theta: Numbers, errors: Numbers, weights: Numbers
) -> float:
    size = np.nan_to_num(errors / _scales(errors))
    runs = float(np.sum(weights * np.log1p(size**2)))
    prior = [
        ((t - math.log(c.prior)) / c.spread) ** 2 for c, t in zip(constants, theta, strict=True)
    ]
    return runs + float(np.sum(prior))


def _step(
    constants: Sequence[FittedConstant],
    theta: Numbers,
    errors: Numbers,
    jacobian: Numbers,
    weights: Numbers,
    damping: float,
) -> Numbers:
    """One damped Gauss-Newton step of the reweighted problem, inside the bounds."""
    scales = _scales(errors)
    size = np.nan_to_num(errors / scales)
    robust = (weights / (1.0 + size**2) / scales**2).ravel()
    slopes = np.nan_to_num(jacobian).reshape(-1, len(constants))
    tight = np.array([c.spread**-2.0 for c in constants])
    away = theta - np.log([c.prior for c in constants])
    normal = slopes.T @ (robust[:, None] * slopes) + np.diag(tight)
    gradient = slopes.T @ (robust * np.nan_to_num(errors).ravel()) + tight * away
    low = np.log([c.low for c in constants]) - theta
    high = np.log([c.high for c in constants]) - theta
    free = np.ones(len(constants), dtype=bool)
    step = np.zeros(len(constants))
    for _ in range(len(constants)):  # a constant that would leave its bounds stays on them
        damped = normal + damping * np.diag(np.diag(normal))
        held = damped[np.ix_(free, ~free)] @ step[~free]
        step[free] = np.linalg.solve(damped[np.ix_(free, free)], -gradient[free] - held)
        outside = free & ((step < low - 1e-12) | (step > high + 1e-12))
        if not outside.any():
            break
        step[outside] = np.clip(step[outside], low[outside], high[outside])
        free &= ~outside
    return step


def fit(problem: Problem, say: Callable[[str], None] = lambda line: None) -> Fitted:
    """Fit the constants of a problem, from their priors; the shipped values are put back after.

    `say` is called with a line after each round.
    """
    constants = problem.constants
    before = {one.name: one.get() for one in constants}
    try:
        return _fit(problem, say)
    finally:
        put_all(before)


def _fit(problem: Problem, say: Callable[[str], None]) -> Fitted:
    constants, weights = problem.constants, problem.weights()
    theta = np.log([one.prior for one in constants])
    put_all(_exact(constants, theta))
    errors = problem.residuals()
    cost = _cost(constants, theta, errors, weights)
    say(
        f"{len(problem.cases)} runs in {len(problem.groups)} groups, {len(constants)} constants, "
        f"cost {cost:.1f}"
    )
    damping = 1e-2
    jacobian = np.zeros((*errors.shape, len(constants)))
    for round_ in range(1, ROUNDS + 1):
        jacobian = derivatives(problem, errors)
        at, moved = theta, 0.0
        for _ in range(CHORDS):
            step = np.clip(
                _step(constants, theta, errors, jacobian, weights, damping), -LONGEST, LONGEST
            )
            if np.max(np.abs(step)) < SETTLED:
                break
            put_all(_exact(constants, theta + step))
            tried = problem.residuals()
            gained = cost - _cost(constants, theta + step, tried, weights)
            if gained > 0:
                theta, errors, cost, damping = theta + step, tried, cost - gained, damping / 10
            else:
                damping = max(damping, 1e-3) * 30
        put_all(_exact(constants, theta))
        moved = float(np.max(np.abs(theta - at)))
        say(f"round {round_}: cost {cost:.1f}, largest change {100 * moved:.1f} %")
        if moved < SETTLED:
            break
    return Fitted(problem, _named(constants, theta), errors, jacobian)


def _exact(constants: Sequence[FittedConstant], theta: Numbers) -> dict[str, float]:
    return {one.name: float(np.exp(t)) for one, t in zip(constants, theta, strict=True)}


def derivatives(problem: Problem, errors: Numbers) -> Numbers:
    """Derivatives of the residuals; a large problem's are shared by two processes."""
    count = len(problem.constants)
    if len(problem.groups) * count < SMALL or "fork" not in multiprocessing.get_all_start_methods():
        return np.stack([_slope(problem, errors, i) for i in range(count)], axis=2)
    with multiprocessing.get_context("fork").Pool(
        PROCESSES, initializer=_share, initargs=(problem, errors)
    ) as pool:
        return np.stack(pool.map(_shared_slope, range(count), chunksize=1), axis=2)


_SHARED: list[tuple[Problem, Numbers]] = []


def _share(problem: Problem, errors: Numbers) -> None:
    _SHARED[:] = [(problem, errors)]


def _shared_slope(index: int) -> Numbers:
    return _slope(*_SHARED[0], index)


def _slope(problem: Problem, errors: Numbers, index: int) -> Numbers:
    """Derivative by one constant; only the groups that it reaches are priced again."""
    one = problem.constants[index]
    known = [problem.signature(group) for group in range(len(problem.groups))]
    value = one.get()
    one.put(value * (1.0 + STEP))
    changed()
    reached: Iterable[int] = range(len(problem.groups))
    if one.file in ("kernels", "frameworks"):
        reached = [g for g in reached if problem.signature(g) != known[g]]
    elif one.file == "host":
        reached = [
            g
            for g in reached
            if problem.signature(g) != known[g] or known[g][0].collectives_checked
        ]
    elif one.file == "memory":
        reached = [g for g in reached if problem.measures_memory(g)]
    slope = (problem.residuals(reached, errors) - errors) / math.log1p(STEP)
    one.put(value)
    changed()
    return np.asarray(slope)
