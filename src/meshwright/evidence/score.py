"""How far predictions are from measurements: errors, out-of-memory verdicts, ranking in sweeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.evidence.baselines import fit_constant_mfu, mfu_time_s, three_term_fits
from meshwright.evidence.import_rows import Run
from meshwright.evidence.measured import (
    absolute_time_trusted,
    measured_memory_bytes,
    measured_step_time_s,
)
from meshwright.evidence.predict import Prediction
from meshwright.evidence.rows import Row
from meshwright.specs.layout import Layout

SWEEP_MINIMUM = 3
"""Measured layouts that make a sweep: with fewer, choosing among them shows nothing."""

LARGE_MEMORY_BYTES = 8.0 * 2**30
"""Peaks above this are scored once more apart: below it fixed overheads decide the error."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One row beside its prediction; NaN where nothing was measured."""

    row: Row
    run: Run
    predicted_s: float
    measured_s: float
    predicted_bytes: float
    measured_bytes: float
    fits: bool
    absolute: bool

    @property
    def time_error(self) -> float:
        """Relative error of the step time: positive means predicted too slow."""
        return self.predicted_s / self.measured_s - 1.0 if self.absolute else math.nan

    @property
    def memory_error(self) -> float:
        """Relative error of the peak memory: positive means predicted too much."""
        return self.predicted_bytes / self.measured_bytes - 1.0

    @property
    def out_of_memory(self) -> bool:
        """Whether the run failed for memory."""
        return self.row["outcome"] == "oom"


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of some rows, in percent."""

    rows: int
    median: float
    p90: float
    mean: float
    bias: float

    @staticmethod
    def of(values: Iterable[float]) -> Errors:
        """Summarise relative errors; NaN ones are left out."""
        errors = np.array([v for v in values if not math.isnan(v)])
        if not len(errors):
            return Errors(0, math.nan, math.nan, math.nan, math.nan)
        size = 100.0 * np.abs(errors)
        return Errors(
            rows=len(errors),
            median=float(np.median(size)),
            p90=float(np.quantile(size, 0.9)),
            mean=float(np.mean(size)),
            bias=100.0 * float(np.median(errors)),
        )


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Out-of-memory classification, in percent.

    `false_fits` is the share of runs that ran out of memory which were said to fit (the error that
    hurts); `false_misfits` the share of runs that fitted which were said not to.
    """

    rows: int
    accuracy: float
    false_fits: float
    false_misfits: float

    @staticmethod
    def of(cases: Sequence[tuple[bool, bool]]) -> Verdicts:
        """Count (said to fit, did fit) pairs."""
        said = np.array([s for s, _ in cases], dtype=bool)
        did = np.array([d for _, d in cases], dtype=bool)
        if not len(said):
            return Verdicts(0, math.nan, math.nan, math.nan)

        def share(of: NDArray[np.bool_], among: NDArray[np.bool_]) -> float:
            return 100.0 * float(np.mean(of[among])) if among.any() else math.nan

        return Verdicts(
            rows=len(said),
            accuracy=100.0 * float(np.mean(said == did)),
            false_fits=share(said, ~did),
            false_misfits=share(~said, did),
        )


@dataclass(frozen=True, slots=True)
class Sweeps:
    """Choosing within measured sweeps: regret in percent, Kendall's tau."""

    sweeps: int
    regret_mean: float
    regret_p90: float
    tau: float

    @staticmethod
    def of(regrets: Sequence[float], taus: Sequence[float]) -> Sweeps:
        """Summarise sweeps."""
        if not regrets:
            return Sweeps(0, math.nan, math.nan, math.nan)
        return Sweeps(
            len(regrets),
            100.0 * float(np.mean(regrets)),
            100.0 * float(np.quantile(regrets, 0.9)),
            _mean(taus),
        )


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


@dataclass(frozen=True, slots=True)
class Score:
    """Everything that is said of one group of rows."""

    name: str
    rows: int
    priced: int
    time: Errors
    memory: Errors
    large_memory: Errors
    verdicts: Verdicts
    sweeps: Sweeps
    baseline_time: Errors
    baseline_verdicts: Verdicts
    baseline_sweeps: Sweeps

    def plain(self) -> dict[str, Any]:
        """Return JSON-ready data; NaN becomes null."""
        return _without_nan(asdict(self))


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 4)
    return value


def pair(rows: Sequence[Row], predictions: Sequence[Prediction]) -> list[Scored]:
    """Put rows beside their predictions; leaves out what is not priced or not fit to be scored."""
    result = []
    for row, prediction in zip(rows, predictions, strict=True):
        if not prediction.priced or prediction.run is None or not row.scorable:
            continue
        result.append(
            Scored(
                row=row,
                run=prediction.run,
                predicted_s=prediction.iter_time_s,
                measured_s=measured_step_time_s(row, prediction.run),
                predicted_bytes=prediction.peak_memory_bytes,
                measured_bytes=measured_memory_bytes(row),
                fits=prediction.fits,
                absolute=absolute_time_trusted(row),
            )
        )
    return result


def group_name(one: Row, run: Run | None, by: str) -> str:
    """Name of the group that a row belongs to, by `source`, `gpu` or `framework`."""
    if by == "gpu":
        return run.cluster.device.name if run else one["gpu"]
    if by == "framework":
        return run.job.framework if run else "?"
    return one.table


def scorecard(
    rows: Sequence[Row], predictions: Sequence[Prediction], by: str = "source"
) -> tuple[list[Score], list[Scored]]:
    """Score predictions by group, then all together (the last entry, named `all`).

    Returns the scores and the rows they rest on.
    """
    scored = pair(rows, predictions)
    timed = [one for one in scored if one.absolute and not math.isnan(one.measured_s)]
    mfu = fit_constant_mfu([one.run for one in timed], [one.measured_s for one in timed])
    counts: dict[str, list[int]] = {}
    for row, prediction in zip(rows, predictions, strict=True):
        count = counts.setdefault(group_name(row, prediction.run, by), [0, 0])
        count[0] += 1
        count[1] += prediction.priced
    members: dict[str, list[Scored]] = {name: [] for name in sorted(counts)}
    for one in scored:
        members[group_name(one.row, one.run, by)].append(one)
    scores = [_score(name, counts[name], group, mfu) for name, group in members.items()]
    whole = [sum(count[i] for count in counts.values()) for i in (0, 1)]
    scores.append(_score("all", whole, scored, mfu))
    return scores, scored


def score_of(name: str, group: list[Scored]) -> Score:
    """Score some rows by themselves, whatever they have in common."""
    timed = [one for one in group if one.absolute and not math.isnan(one.measured_s)]
    mfu = fit_constant_mfu([one.run for one in timed], [one.measured_s for one in timed])
    return _score(name, [len(group), len(group)], group, mfu)


def _score(name: str, count: list[int], group: list[Scored], mfu: float) -> Score:
    baseline = [replace(one, predicted_s=mfu_time_s(one.run, mfu)) for one in group]
    judged = [
        one for one in group if one.out_of_memory or not math.isnan(one.measured_bytes)
        or (one.row["outcome"] == "ok" and not math.isnan(one.measured_s))
    ]  # fmt: skip
    return Score(
        name=name,
        rows=count[0],
        priced=count[1],
        time=Errors.of(one.time_error for one in group),
        memory=Errors.of(one.memory_error for one in group),
        large_memory=Errors.of(
            one.memory_error for one in group if one.measured_bytes > LARGE_MEMORY_BYTES
        ),
        verdicts=Verdicts.of([(one.fits, not one.out_of_memory) for one in judged]),
        sweeps=sweep_figures(group),
        baseline_time=Errors.of(one.time_error for one in baseline),
        baseline_verdicts=Verdicts.of(
            [(three_term_fits(one.run), not one.out_of_memory) for one in judged]
        ),
        baseline_sweeps=sweep_figures(baseline),
    )


def sweep_key(one: Scored) -> tuple[object, ...]:
    """Runs with the same key differ only in how they were laid out."""
    model, job = one.run.model, one.run.job
    return (
        one.row.table, model.name, model.layers, model.hidden, model.vocab, model.kv_heads,
        one.run.cluster.device.name, one.run.gpus, job.global_batch, job.seq_len,
        job.precision.compute,
    )  # fmt: skip


def sweeps(scored: Iterable[Scored]) -> list[list[Scored]]:
    """Return the measured sweeps: at least three timed runs of one key, in at least two layouts.

    Repeated runs of one layout (other releases, other machines of the kind) offer no choice.
    """
    groups: dict[tuple[object, ...], list[Scored]] = {}
    for one in scored:
        if not math.isnan(one.measured_s):
            groups.setdefault(sweep_key(one), []).append(one)
    return [
        group
        for group in groups.values()
        if len(group) >= SWEEP_MINIMUM and len({one.run.layout for one in group}) > 1
    ]


def sweep_figures(scored: Iterable[Scored]) -> Sweeps:
    """Regret and rank correlation over the sweeps among some rows."""
    regrets, taus = [], []
    for group in sweeps(scored):
        predicted, measured = choices(group)
        regrets.append(regret(predicted, measured))
        taus.append(kendall_tau(predicted, measured))
    return Sweeps.of(regrets, taus)


def choices(group: Sequence[Scored]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return predicted and measured seconds of the layouts of a sweep, one element a layout.

    A layout that was run several times counts with the means of its runs: whoever chooses it cannot
    choose its luckiest run.
    """
    runs: dict[Layout, list[Scored]] = {}
    for one in group:
        runs.setdefault(one.run.layout, []).append(one)
    predicted = [float(np.mean([one.predicted_s for one in same])) for same in runs.values()]
    measured = [float(np.mean([one.measured_s for one in same])) for same in runs.values()]
    return np.array(predicted), np.array(measured)


def regret(predicted_s: NDArray[np.float64], measured_s: NDArray[np.float64]) -> float:
    """How much slower than the best measured run is the one that is predicted best.

    Runs tied for best prediction count with the mean of their measurements.
    """
    chosen = predicted_s <= predicted_s.min() * (1 + 1e-9)
    return float(measured_s[chosen].mean() / measured_s.min() - 1.0)


def kendall_tau(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Kendall's τ-b of two rankings; NaN where one of them is constant."""
    upper = np.triu_indices(len(a), 1)
    left = np.sign(a[:, None] - a[None, :])[upper]
    right = np.sign(b[:, None] - b[None, :])[upper]
    pairs = math.sqrt(float(np.count_nonzero(left)) * float(np.count_nonzero(right)))
    return float(np.sum(left * right) / pairs) if pairs else math.nan


def worst(scored: Iterable[Scored], count: int, key: Callable[[Scored], float]) -> list[Scored]:
    """Return the rows with the largest absolute value of an error."""
    able = [one for one in scored if not math.isnan(key(one))]
    return sorted(able, key=lambda one: -abs(math.log(max(1e-6, 1.0 + key(one)))))[:count]
