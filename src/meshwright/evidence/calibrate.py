"""Fit the constants of the user's own cluster to the user's own measurements.

Only constants that the data identify are touched: one whose change moves no prediction is left as
it was, and said to be. Each has one meaning: the sustained matrix-product rate and the memory
bandwidth of the device, and the constants of its links: those of `costs/data/links.toml` from timed
collectives, the bandwidth and latency of each level from whole runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

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


@dataclass(frozen=True, slots=True)
class Calibration:
    """A calibrated cluster and how much its predictions improved (median relative errors)."""

    cluster: Cluster
    constants: tuple[Constant, ...]
    measurements: int
    error_before: float
    error_after: float
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class _Knob:
    name: str
    unit: str
    read: Callable[[Cluster], float]
    write: Callable[[Cluster, float], Cluster]


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

            knobs.append(_Knob(f"levels.{level.name}.{field}", unit, read, write))
    return knobs


def calibrate(
    cluster: Cluster, timings: Sequence[MeasuredCollective] = (), rows: Sequence[Row] = ()
) -> Calibration:
    """Fit a cluster's constants to collective timings and to runs measured on it.

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
    runs, measured, skipped = _measured_runs(rows, cluster)
    if not timings and not runs:
        raise SpecError("from", "nothing", "no timing and no run with a measured step time")
    target = np.log([*(t.time_s for t in timings), *measured])
    start = _predicted(cluster, timings, runs)
    constants: list[Constant] = []
    if timings:
        cluster, constants = _fit_timings(cluster, timings)
    fitted = cluster
    if runs:
        precisions = sorted({run.job.precision.compute for run in runs})
        # Timed collectives say more of the links than whole runs do.
        knobs = ([] if timings else _link_knobs(cluster)) + _device_knobs(cluster, precisions)
        fitted, found = _fit_runs(cluster, runs, np.log(measured), knobs)
        constants += found
    return Calibration(
        cluster=fitted.but(source=f"calibrated on {len(target)} measurements; {cluster.source}"),
        constants=tuple(constants),
        measurements=len(target),
        error_before=_median_error(start, target),
        error_after=_median_error(_predicted(fitted, timings, runs), target),
        skipped=tuple(skipped),
    )


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
) -> tuple[Cluster, list[Constant]]:
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
    return fitted, [
        Constant(knob.name, knob.read(cluster), knob.read(fitted), knob.unit, yes)
        for knob, yes in zip(knobs, speaking, strict=True)
    ]


def _median_error(predicted: Logs, target: Logs) -> float:
    return float(np.median(np.abs(np.exp(predicted - target) - 1.0)))


def _fit(cluster: Cluster, knobs: Sequence[_Knob], residuals: Callable[[Cluster], Logs]) -> Cluster:
    """Damped least squares in the logarithm of the constants; outliers weigh less (Huber)."""
    if not knobs:
        return cluster

    def cost(errors: Logs) -> float:
        size = np.abs(errors)
        return float(np.sum(np.where(size < HUBER, size**2, HUBER * (2.0 * size - HUBER))))

    errors, damping = residuals(cluster), 1e-3
    for _ in range(ITERATIONS):
        slopes = np.stack(
            [(residuals(k.write(cluster, k.read(cluster) * 1.02)) - errors) for k in knobs], axis=1
        ) / math.log(1.02)
        weight = np.minimum(1.0, HUBER / np.maximum(np.abs(errors), 1e-12))
        normal = slopes.T @ (weight[:, None] * slopes)
        damped = normal + damping * np.diag(np.diag(normal) + 1e-9)
        step = np.linalg.solve(damped, -slopes.T @ (weight * errors))
        candidate = cluster
        for knob, change in zip(knobs, np.clip(step, -0.7, 0.7), strict=True):
            candidate = knob.write(candidate, knob.read(cluster) * math.exp(float(change)))
        tried = residuals(candidate)
        gained = cost(errors) - cost(tried)
        if gained > 0:
            cluster, errors, damping = candidate, tried, damping / 4.0
            if gained < 1e-7 * len(errors):
                break
        else:
            damping *= 8.0
            if damping > 1e6:
                break
    return cluster


def _measured_runs(
    rows: Sequence[Row], cluster: Cluster
) -> tuple[list[Run], list[float], list[str]]:
    runs, measured, skipped = [], [], []
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
        runs.append(run)
        measured.append(time)
    return runs, measured, skipped


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
