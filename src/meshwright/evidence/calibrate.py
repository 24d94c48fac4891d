"""Fit the constants of the user's own cluster to the user's own measurements.

Only constants that the data identify are touched: one whose change moves no prediction is left as
it was, and said to be. Each is fitted towards what it was before, so a few runs move it as far as they
can tell; its interval says how far that is, and constants that the runs cannot tell apart are named.
Each has one meaning: the sustained matrix-product rate and the memory
bandwidth of the device, and the constants of its links: those of `costs/data/links.toml` from timed
collectives, the bandwidth and latency of each level from whole runs; of a machine that measured itself, the
paces of what it measured (`measured_knobs.py`). Runs that a fit to the others does
not foretell move nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.costs.fabric import Fabric
from meshwright.costs.link_fit import MeasuredCollective, fit_links, predicted_times
from meshwright.evidence.calibrate_fit import (
    NOISE_SD,
    Constant,
    Heard,
    Logs,
    device_knobs,
    fit_to,
    foretells,
    link_knobs,
    slope_of,
    told_apart,
)
from meshwright.evidence.import_rows import Run, import_row
from meshwright.evidence.machines import SkipRow
from meshwright.evidence.measured import measured_step_time_s
from meshwright.evidence.measured_knobs import measured_knobs
from meshwright.evidence.predict import predict_runs
from meshwright.evidence.rows import Row
from meshwright.specs.cluster import Cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.quantities import counted

UNMOVED = (
    "no constant of this cluster moves what is predicted of the {}: nothing was changed for them"
)
REFUSED = (
    "the {} runs do not share one cause: left out in turn, each is predicted better by the constants as "
    "they were than by a fit to the others; nothing was changed for them"
)


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
    refused: str = ""
    """Why the runs moved no constant, if they did not."""


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
                "from",
                one.source,
                f"used {one.run.gpus} devices, the cluster has {cluster.gpus}; name a larger one",
            )
    runs, measured = [one.run for one in seen], [one.step_time_s for one in seen]
    if not timings and not runs:
        raise SpecError(
            "from",
            skipped[0] if skipped else "nothing",
            "no timing and no run with a measured step time; a table's heads say the unit, and whose a rate is "
            "(`step time (s)`, `tokens/s/GPU`)",
        )
    target = np.log([*(t.time_s for t in timings), *measured])
    start = _predicted(cluster, timings, runs)
    constants: list[Constant] = []
    if timings:
        cluster, constants = _fit_timings(cluster, timings)
    fitted, advice, refused = cluster, "", ""
    alike: tuple[str, ...] = ()
    if runs:
        precisions = sorted({run.job.precision.compute for run in runs})
        # Timed collectives say more of the links than whole runs do.
        knobs = ([] if timings else link_knobs(cluster)) + device_knobs(cluster, precisions)
        knobs += measured_knobs(cluster)

        def predict(candidate: Cluster) -> Logs:
            return np.asarray(np.log(run_times(candidate, runs)))

        fitted, found, heard = fit_to(cluster, predict, np.log(measured), knobs)
        if not heard.knobs:
            fitted, refused = cluster, UNMOVED.format(counted(len(runs), "run"))
        elif foretells(cluster, predict, np.log(measured), heard.knobs):
            constants += found
            alike = tuple(told_apart(heard, fitted, predict))
            advice = _advice(fitted, runs, heard)
        else:
            fitted, refused = cluster, REFUSED.format(len(runs))
    before, after = np.exp(start[len(timings) :]), run_times(fitted, runs)
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
        alike=alike,
        advice=advice,
        refused=refused,
    )


def _predicted(
    cluster: Cluster, timings: Sequence[MeasuredCollective], runs: Sequence[Run]
) -> Logs:
    times = predicted_times(Fabric.of(cluster), timings).tolist() if timings else []
    return np.log([*times, *run_times(cluster, runs)])


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


def _advice(cluster: Cluster, runs: Sequence[Run], heard: Heard) -> str:
    """The variation of a run whose step time would narrow the constants most, in a sentence."""
    if not heard.knobs:
        return ""
    best, words = 0.05, ""
    for name, run in _variations(runs):

        def predict(candidate: Cluster, run: Run = run) -> Logs:
            return np.log(run_times(candidate, [run]))

        try:
            base = predict(cluster)
            slopes = np.array([slope_of(cluster, k, base, predict)[0] for k in heard.knobs])
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


def run_times(cluster: Cluster, runs: Sequence[Run]) -> list[float]:
    """Step times of runs, each on as many devices of the cluster as it used, alike ones together."""
    alike: dict[tuple[int, str, str], list[int]] = {}
    for at, run in enumerate(runs):
        key = run.gpus, run.model.model_dump_json(), run.job.model_dump_json()
        alike.setdefault(key, []).append(at)
    parts = {gpus: resized(cluster, gpus) for gpus in {run.gpus for run in runs}}
    times = [0.0] * len(runs)
    for (gpus, _, _), members in alike.items():
        priced = predict_runs([replace(runs[at], cluster=parts[gpus]) for at in members])
        for at, one in zip(members, priced, strict=True):
            times[at] = one.iter_time_s
    return times


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
