"""Fit the constants of the user's own cluster to the user's own measurements.

Only constants that the data identify are touched: one whose change moves no prediction is left as
it was, and said to be. Each is fitted towards what it was before, so a few runs move it as far as they
can tell; its interval says how far that is, and constants that the runs cannot tell apart are named.
Each has one meaning: the sustained matrix-product rate and the memory
bandwidth of the device, and the constants of its links: those of `costs/data/links.toml` from timed
collectives, the bandwidth and latency of each level from whole runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshwright.costs.fabric import Fabric
from meshwright.costs.kernels import kernels_for
from meshwright.costs.link_fit import MeasuredCollective, fit_links, predicted_times
from meshwright.evidence.import_rows import Run, import_row
from meshwright.evidence.machines import SkipRow
from meshwright.evidence.measured import measured_step_time_s
from meshwright.evidence.predict import predict_runs
from meshwright.evidence.rows import Row
from meshwright.specs.cluster import Cluster
from meshwright.specs.errors import SpecError

HUBER = 0.1
"""Logarithmic error beyond which a measurement counts linearly, not squared."""

ITERATIONS = 25

NOISE_SD = 0.1
"""Logarithmic error of one run about the best model: what the cost model misses of published sweeps."""

REACH = 2.0
"""Prior standard deviations that a constant may move: a run that needs more is not explained by it."""

PRIOR_SD = {"bandwidth_bytes_s": 0.5, "latency_s": 1.0}
"""How far a constant may be from its start, in logarithms: links by their field, others `DEVICE_SD`."""

DEVICE_SD = 0.3

INTERVAL_Z = 1.2816
"""Standard deviations on either side of an 80 % interval."""

IDENTIFIED = 0.03
"""A constant is identified where changing it by 10 % moves some prediction by this share of 10 %."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A fitted constant: what it was and what it became; `identified` if the data speak of it."""

    name: str
    before: float
    after: float
    unit: str
    identified: bool
    low: float = math.nan
    high: float = math.nan
    """80 % interval of `after`; NaN where nothing was fitted or the fit tells none."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A run whose configuration is known, and the step time that somebody measured of it."""

    run: Run
    step_time_s: float
    source: str


@dataclass(frozen=True, slots=True)
class Calibration:
    """A calibrated cluster and how much its predictions improved (median relative errors)."""

    cluster: Cluster
    constants: tuple[Constant, ...]
    measurements: int
    error_before: float
    error_after: float
    skipped: tuple[str, ...]
    rows: tuple[tuple[str, float, float, float], ...] = ()
    """(source, measured, predicted before, predicted after) of every run, in seconds."""
    alike: tuple[str, ...] = ()
    """Sentences about constants that the data cannot tell apart."""
    advice: str = ""
    """What one further measurement would identify most."""


@dataclass(frozen=True)
class _Knob:
    name: str
    unit: str
    read: Callable[[Cluster], float]
    write: Callable[[Cluster, float], Cluster]
    sd: float = DEVICE_SD


def _device_knobs(cluster: Cluster, precisions: Sequence[str]) -> list[_Knob]:
    knobs = []
    for precision in precisions:
        key = f"sustained_{precision}"

        def read(c: Cluster, precision: str = precision) -> float:
            return kernels_for(c.device, precision).gemm_sustained

        def write(c: Cluster, value: float, key: str = key) -> Cluster:
            rates = {**c.device.matmul_efficiency, key: min(value, 1.0)}
            return c.but(device=c.device.but(matmul_efficiency=rates).model_dump())

        knobs.append(_Knob(f"device.{key}", "of peak", read, write))
    knobs.append(
        _Knob(
            "device.memory_bandwidth_bytes_s",
            "bytes/s",
            lambda c: c.device.memory_bandwidth_bytes_s,
            lambda c, v: c.but(device=c.device.but(memory_bandwidth_bytes_s=v).model_dump()),
        )
    )
    return knobs


def _link_knobs(cluster: Cluster) -> list[_Knob]:
    knobs = []
    for index, level in enumerate(cluster.levels):
        for field, unit in (("bandwidth_bytes_s", "bytes/s"), ("latency_s", "s")):

            def read(c: Cluster, index: int = index, field: str = field) -> float:
                return float(getattr(c.levels[index], field))

            def write(c: Cluster, value: float, index: int = index, field: str = field) -> Cluster:
                levels = list(c.levels)
                levels[index] = levels[index].but(**{field: value})
                return c.but(levels=[one.model_dump() for one in levels])

            sd = PRIOR_SD[field]
            knobs.append(_Knob(f"levels.{level.name}.{field}", unit, read, write, sd))
    return knobs


def calibrate(
    cluster: Cluster,
    timings: Sequence[MeasuredCollective] = (),
    rows: Sequence[Row] = (),
    sightings: Sequence[Sighting] = (),
) -> Calibration:
    """Fit a cluster's constants to collective timings and to runs measured on it.

    Runs are rows of tables in the evidence schema, or sightings: read from logs and records.

    Runs are priced on `cluster` scaled to their own number of devices, whatever their table says of
    the machine.

    Raises:
        SpecError: nothing can be compared with the model, or a timing needs more devices than the
            cluster has.
    """
    for timing in timings:
        if timing.ranks > cluster.gpus:
            raise SpecError(
                "from", timing.ranks, f"the cluster has {cluster.gpus} devices; name a larger one"
            )
    seen, skipped = _measured_runs(rows)
    seen += sightings
    for one in sightings:
        if one.run.gpus > cluster.gpus:
            raise SpecError(
                "from", one.source,
                f"used {one.run.gpus} devices, the cluster has {cluster.gpus}; name a larger one",
            )  # fmt: skip
    runs, measured = [one.run for one in seen], [one.step_time_s for one in seen]
    if not timings and not runs:
        raise SpecError("from", "nothing", "no timing and no run with a measured step time")
    target = np.log([*(t.time_s for t in timings), *measured])
    start = _predicted(cluster, timings, runs)
    constants: list[Constant] = []
    if timings:
        cluster, constants = _fit_timings(cluster, timings)
    fitted, advice = cluster, ""
    alike: tuple[str, ...] = ()
    if runs:
        precisions = sorted({run.job.precision.compute for run in runs})
        # Timed collectives say more of the links than whole runs do.
        knobs = ([] if timings else _link_knobs(cluster)) + _device_knobs(cluster, precisions)
        fitted, found, heard = _fit_runs(cluster, runs, np.log(measured), knobs)
        constants += found
        alike = tuple(_told_apart(heard, fitted, lambda c: np.log(np.asarray(_run_times(c, runs)))))
        advice = _advice(fitted, runs, heard)
    before, after = np.exp(start[len(timings) :]), _run_times(fitted, runs)
    return Calibration(
        cluster=fitted.but(source=f"calibrated on {len(target)} measurements; {cluster.source}"),
        constants=tuple(constants),
        measurements=len(target),
        error_before=_median_error(start, target),
        error_after=_median_error(_predicted(fitted, timings, runs), target),
        skipped=tuple(skipped),
        rows=tuple(
            (one.source, one.step_time_s, float(old), new)
            for one, old, new in zip(seen, before, after, strict=True)
        ),
        alike=alike, advice=advice,
    )  # fmt: skip


Logs = np.ndarray[tuple[int], np.dtype[np.float64]]


def _predicted(
    cluster: Cluster, timings: Sequence[MeasuredCollective], runs: Sequence[Run]
) -> Logs:
    times = predicted_times(Fabric.of(cluster), timings).tolist() if timings else []
    return np.log([*times, *_run_times(cluster, runs)])


def _fit_timings(
    cluster: Cluster, timings: Sequence[MeasuredCollective]
) -> tuple[Cluster, list[Constant]]:
    """Fit the constants of the links to timed collectives."""
    fit = fit_links(Fabric.of(cluster), timings)
    constants = [
        Constant(name, fit.before[name], value, "s" if name.endswith("_s") else "", True)
        for name, value in fit.constants.items()
    ]
    constants += [
        Constant(name, value, value, "s" if name.endswith("_s") else "", False)
        for name, value in fit.not_identified.items()
    ]
    fitted = cluster.but(link_constants={**cluster.link_constants, **fit.constants})
    return fitted, constants


def _fit_runs(
    cluster: Cluster, runs: Sequence[Run], target: Logs, knobs: Sequence[_Knob]
) -> tuple[Cluster, list[Constant], _Heard]:
    """Fit device (and level) constants to the step times of whole runs."""

    def predict(candidate: Cluster) -> Logs:
        return np.log(_run_times(candidate, runs))

    start = predict(cluster)
    speaking = []
    for knob in knobs:
        moved = predict(knob.write(cluster, knob.read(cluster) * 1.1))
        speaking.append(float(np.max(np.abs(moved - start))) / math.log(1.1) >= IDENTIFIED)
    heard = [knob for knob, yes in zip(knobs, speaking, strict=True) if yes]
    fitted = _fit(cluster, heard, lambda candidate: predict(candidate) - target)
    told = _Heard.of(fitted, heard, predict)
    constants = []
    for knob, yes in zip(knobs, speaking, strict=True):
        after, sd = knob.read(fitted), told.sd_of(knob)
        low, high = after * math.exp(-INTERVAL_Z * sd), after * math.exp(INTERVAL_Z * sd)
        constants.append(Constant(knob.name, knob.read(cluster), after, knob.unit, yes, low, high))
    return fitted, constants, told


@dataclass(frozen=True)
class _Heard:
    """What the data say of the constants that they move: slopes, and the covariance after the fit."""

    knobs: tuple[_Knob, ...]
    covariance: npt.NDArray[np.float64]

    @classmethod
    def of(
        cls, cluster: Cluster, knobs: Sequence[_Knob], predict: Callable[[Cluster], Logs]
    ) -> _Heard:
        """At the fitted constants, with each one's prior."""
        if not knobs:
            return cls((), np.zeros((0, 0)))
        base = predict(cluster)
        slopes = np.stack([_slope(cluster, knob, base, predict) for knob in knobs], axis=1)
        weight = slopes.T @ slopes / NOISE_SD**2
        prior = np.diag([1.0 / knob.sd**2 for knob in knobs])
        return cls(tuple(knobs), np.asarray(np.linalg.inv(weight + prior), dtype=np.float64))

    def sd_of(self, knob: _Knob) -> float:
        """Standard deviation of a constant's logarithm; NaN where the data do not speak of it."""
        names = [one.name for one in self.knobs]
        if knob.name not in names:
            return math.nan
        at = names.index(knob.name)
        return math.sqrt(float(self.covariance[at, at]))


def _slope(cluster: Cluster, knob: _Knob, base: Logs, predict: Callable[[Cluster], Logs]) -> Logs:
    moved = predict(knob.write(cluster, knob.read(cluster) * 1.05))
    return np.asarray((moved - base) / math.log(1.05))


def _told_apart(heard: _Heard, cluster: Cluster, predict: Callable[[Cluster], Logs]) -> list[str]:
    """A sentence where the runs fix fewer combinations of constants than there are constants.

    A combination counts as fixed where the runs say more of it than the priors do.
    """
    if len(heard.knobs) < 2:
        return []
    base = predict(cluster)
    slopes = np.stack([knob.sd * _slope(cluster, knob, base, predict) for knob in heard.knobs], 1)
    fixed = int(np.sum(np.linalg.svd(slopes / NOISE_SD, compute_uv=False) > 1.0))
    if fixed >= len(heard.knobs):
        return []
    names = ", ".join(knob.name.removeprefix("levels.") for knob in heard.knobs)
    return [
        f"these data fix {fixed} combination{'' if fixed == 1 else 's'} of {len(heard.knobs)} constants "
        f"and cannot tell all of them apart: {names}"
    ]


def _advice(cluster: Cluster, runs: Sequence[Run], heard: _Heard) -> str:
    """The variation of a run whose step time would narrow the constants most, in a sentence."""
    if not heard.knobs:
        return ""
    best, words = 0.05, ""
    for name, run in _variations(runs):

        def predict(candidate: Cluster, run: Run = run) -> Logs:
            return np.log(_run_times(candidate, [run]))

        try:
            base = predict(cluster)
            slopes = np.array([_slope(cluster, k, base, predict)[0] for k in heard.knobs])
        except SpecError:
            continue
        seen = heard.covariance @ slopes
        gained = 0.5 * math.log1p(float(slopes @ seen) / NOISE_SD**2)
        if gained > best:
            narrowed = np.abs(seen) / np.sqrt(np.diag(heard.covariance))
            knob = heard.knobs[int(np.argmax(narrowed))].name
            best, words = gained, f"{name} would tell most, above all of {knob}"
    return words


def _variations(runs: Sequence[Run]) -> list[tuple[str, Run]]:
    """What a person could run next with little work: other micro-batches, lengths, fewer devices."""
    found: list[tuple[str, Run]] = []
    for run in runs[:3]:
        layout, job = run.layout, run.job
        label = f"{run.model.name} {layout.label()}"
        batch = job.global_batch
        if batch % (layout.dp * layout.micro_batch * 4) == 0:
            found.append(
                (
                    f"{label} with four times the micro-batch",
                    replace(run, layout=layout.but(micro_batch=4 * layout.micro_batch)),
                )
            )
        if job.seq_len >= 1024:
            found.append(
                (
                    f"{label} with sequences of {job.seq_len // 4}",
                    replace(run, job=job.but(seq_len=job.seq_len // 4)),
                )
            )
        if layout.dp > 1 and batch % layout.dp == 0:
            alone = layout.but(dp=1, zero=0, shard=0) if layout.cp == 1 else layout
            found.append(
                (
                    f"{label} with one data-parallel rank",
                    replace(run, layout=alone, job=job.but(global_batch=batch // layout.dp)),
                )
            )
        few = layout.dp * layout.micro_batch
        found.append(
            (f"{label} with one micro-batch a step", replace(run, job=job.but(global_batch=few)))
        )
    return found


def _median_error(predicted: Logs, target: Logs) -> float:
    return float(np.median(np.abs(np.exp(predicted - target) - 1.0)))


def _fit(cluster: Cluster, knobs: Sequence[_Knob], residuals: Callable[[Cluster], Logs]) -> Cluster:
    """Damped least squares in the logarithm of the constants; outliers weigh less (Huber)."""
    if not knobs:
        return cluster

    def cost(errors: Logs) -> float:
        size = np.abs(errors)
        return float(np.sum(np.where(size < HUBER, size**2, HUBER * (2.0 * size - HUBER))))

    start = np.array([math.log(knob.read(cluster)) for knob in knobs])
    pull = np.array([(NOISE_SD / knob.sd) ** 2 for knob in knobs])

    def away(candidate: Cluster) -> Logs:
        return np.array([math.log(knob.read(candidate)) for knob in knobs]) - start

    errors, damping = residuals(cluster), 1e-3
    for _ in range(ITERATIONS):
        slopes = np.stack(
            [(residuals(k.write(cluster, k.read(cluster) * 1.02)) - errors) for k in knobs], axis=1
        ) / math.log(1.02)
        weight = np.minimum(1.0, HUBER / np.maximum(np.abs(errors), 1e-12))
        gone = away(cluster)
        normal = slopes.T @ (weight[:, None] * slopes) + np.diag(pull)
        damped = normal + damping * np.diag(np.diag(normal) + 1e-9)
        step = np.linalg.solve(damped, -slopes.T @ (weight * errors) - pull * gone)
        candidate = cluster
        reach = REACH * np.array([knob.sd for knob in knobs])
        step = np.clip(gone + np.clip(step, -0.7, 0.7), -reach, reach) - gone
        for knob, change in zip(knobs, step, strict=True):
            candidate = knob.write(candidate, knob.read(cluster) * math.exp(float(change)))
        tried = residuals(candidate)
        held = float(pull @ gone**2) - float(pull @ away(candidate) ** 2)
        gained = cost(errors) - cost(tried) + held
        if gained > 0:
            cluster, errors, damping = candidate, tried, damping / 4.0
            if gained < 1e-7 * len(errors):
                break
        else:
            damping *= 8.0
            if damping > 1e6:
                break
    return cluster


def _measured_runs(rows: Sequence[Row]) -> tuple[list[Sighting], list[str]]:
    seen, skipped = [], []
    for row in rows:
        try:
            run = import_row(row)
        except SkipRow as skip:
            skipped.append(f"{row.id}: {skip}")
            continue
        time = measured_step_time_s(row, run)
        if not 0 < time < math.inf:
            skipped.append(f"{row.id}: no step time")
            continue
        seen.append(Sighting(run, time, row.id))
    return seen, skipped


def _run_times(cluster: Cluster, runs: Sequence[Run]) -> list[float]:
    """Step times of runs, each on as many devices of the cluster as it used."""
    return [
        predict_runs([replace(run, cluster=resized(cluster, run.gpus))])[0].iter_time_s
        for run in runs
    ]


def resized(cluster: Cluster, gpus: int) -> Cluster:
    """The same machines, `gpus` devices of them: whole hosts, or a part of one."""
    host = min(cluster.gpus_per_node, gpus)
    nodes = -(-gpus // host)
    levels = []
    for level in cluster.levels:
        domain = min(level.domain, nodes * host)
        levels.append(level.but(domain=domain).model_dump())
        if domain == nodes * host:
            break
    if levels[-1]["domain"] < nodes * host:
        levels[-1]["domain"] = nodes * host
    return cluster.but(nodes=nodes, gpus_per_node=host, levels=levels)
