"""Three rows of a cluster in, the rest of its sweep out: what calibrating from a few logs is worth.

    python benchmarks/calibrate_sweeps.py [--rows 3] [--draws 8] [--only nanotron] [--json] [--write]

Rows of one source, model and number of devices are a sweep of one cluster. Nothing is known of it but three rows:
the cost model's constants are those that were fitted to all *other* sources. The cluster is calibrated on the rows
as `meshwright calibrate` does, and all other rows are predicted; error is the median over rows left out. *Random* is the
mean of several draws (fixed seeds). *Advised* are the rows that the tool itself would measure first
(`evidence/telling.py`), which looks at no time. The evidence tables are the shipped ones (`evidence/tables/`).

`fitted to all` is what the calibrated constants can reach at best: fitted to every row of the sweep and
judged on the same rows. `all others` tells how much the residuals of a sweep say of one another: every row is
predicted from the model and from what the model misses of *all other* rows of its sweep, by a Gaussian process over
the constants' slopes, the parts of the step and the degrees of the layout, in which odd rows weigh little. `--write` puts the
table into docs/measure.md.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.costs.columns import from_layouts
from meshwright.costs.step import price
from meshwright.evidence.calibrate import Sighting, calibrate, resized, run_times
from meshwright.evidence.calibrate_fit import device_knobs, fit_to, link_knobs, slope_of
from meshwright.evidence.constants import constants_set
from meshwright.evidence.import_rows import Run, import_row
from meshwright.evidence.machines import SkipRow
from meshwright.evidence.measured import measured_step_time_s
from meshwright.evidence.rows import published_rows, table_names
from meshwright.evidence.telling import most_telling
from meshwright.evidence.validation import stored
from meshwright.specs.cluster import Cluster
from meshwright.specs.errors import SpecError

SWEEPS = ("nanotron", "internevo", "xtuner", "vtrain")
FEWEST, MOST = 8, 60
"""Rows of a sweep: fewer leave too little out; of more, so many are drawn."""


def sweeps(only: str) -> dict[str, list[tuple[Run, float]]]:
    """(run, measured seconds) by sweep."""
    found: dict[str, list[tuple[Run, float]]] = {}
    for table in table_names():
        if not any(name in table for name in SWEEPS) or only not in table:
            continue
        for row in published_rows([table]):
            try:
                run = import_row(row)
            except SkipRow:
                continue
            time = measured_step_time_s(row, run)
            if time > 0:
                name = f"{table}: {run.model.name} on {run.gpus}"
                found.setdefault(name, []).append((run, time))
    drawn = random.Random(1)
    return {
        name: drawn.sample(rows, MOST) if len(rows) > MOST else rows
        for name, rows in found.items()
        if len(rows) >= FEWEST
    }


def error(times: list[float], rows: list[tuple[Run, float]]) -> float:
    """Median relative error."""
    return statistics.median(abs(t / m - 1.0) for t, (_, m) in zip(times, rows, strict=True))


def cluster_of(rows: list[tuple[Run, float]]) -> Cluster:
    """The machine of a sweep."""
    return max((run.cluster for run, _ in rows), key=lambda c: c.gpus)


def calibrated(rows: list[tuple[Run, float]], picked: list[int]) -> float:
    """Median error of all rows but those picked, after calibrating on these."""
    cluster, inside = cluster_of(rows), [rows[i] for i in picked]
    outside = [rows[i] for i in range(len(rows)) if i not in picked]
    seen = [Sighting(run, time, run.id) for run, time in inside]
    fitted = calibrate(cluster, sightings=seen).cluster
    return error(run_times(fitted, [run for run, _ in outside]), outside)


def figures_of(rows: list[tuple[Run, float]], count: int, draws: int) -> tuple[float, ...]:
    """Errors of a sweep: as it comes, random rows in, advised rows in, fitted to all, all others known."""
    cluster, runs = cluster_of(rows), [run for run, _ in rows]
    drawn = [random.Random(seed).sample(range(len(rows)), count) for seed in range(draws)]
    return (
        error(run_times(cluster, runs), rows),
        statistics.mean(calibrated(rows, picked) for picked in drawn),
        calibrated(rows, most_telling(cluster, runs, count)),
        fitted_to_all(rows),
        all_others(rows),
    )


def fitted_to_all(rows: list[tuple[Run, float]]) -> float:
    """Median error on the very rows that the constants were fitted to: no three rows do better."""
    cluster, runs = cluster_of(rows), [run for run, _ in rows]
    precisions = sorted({run.job.precision.compute for run in runs})
    target = np.log([time for _, time in rows])
    fitted, _, _ = fit_to(
        cluster,
        lambda candidate: np.asarray(np.log(run_times(candidate, runs))),
        target,
        link_knobs(cluster) + device_knobs(cluster, precisions),
    )
    return error(run_times(fitted, runs), rows)


ODD = 0.15
"""Logarithmic error at which a row's own noise counts double."""
NOISE, COMMON, SHARES, PLACES, CONSTANTS = 0.002, 0.05, 0.1, 0.02, 0.5
"""Variances of the process: of a row by itself, of all rows together, by parts, by degrees, by constants."""


def all_others(rows: list[tuple[Run, float]]) -> float:
    """Median error where the model is corrected by all other rows of the sweep."""
    cluster, runs = cluster_of(rows), [run for run, _ in rows]
    shares, places = [], []
    for run in runs:
        table = price(run.model, resized(cluster, run.gpus), run.job, from_layouts([run.layout]))
        parts = np.array([float(column[0]) for column in table.time_parts.values()])
        layout, job = run.layout, run.job
        shares.append(parts / parts.sum())
        degrees = [
            layout.tp, layout.pp, layout.dp, layout.cp, layout.ep, layout.micro_batch,
            layout.virtual_stages, job.global_batch, job.seq_len,
        ]  # fmt: skip
        places.append([*np.log2(degrees), layout.zero / 2, float(layout.recompute != "none")])

    def predict(candidate: Cluster) -> Any:
        return np.asarray(np.log(run_times(candidate, runs)))

    base = predict(cluster)
    knobs = link_knobs(cluster) + device_knobs(
        cluster, sorted({run.job.precision.compute for run in runs})
    )
    slopes = np.stack([k.sd * slope_of(cluster, k, base, predict) for k in knobs], axis=1)
    off = np.log([time for _, time in rows]) - base
    share, place = np.array(shares), np.array(places)
    apart: Any = ((place[:, None] - place[None]) ** 2).sum(-1)
    kernel = COMMON + SHARES * share @ share.T + PLACES * np.exp(-apart / 8.0)
    kernel = kernel + CONSTANTS * slopes @ slopes.T
    own = np.full(len(off), NOISE)
    for _ in range(6):
        fitted = kernel @ np.linalg.solve(kernel + np.diag(own), off)
        own = NOISE * (1.0 + ((off - fitted) / ODD) ** 2)
    inverse = np.linalg.inv(kernel + np.diag(own))
    missed = (inverse @ off) / np.diag(inverse)  # each row less what the others say of it
    return float(np.median(np.abs(np.exp(-missed) - 1.0)))


PAGE = Path(__file__).parent.parent / "docs" / "measure.md"
MARKS = "<!-- sweeps: written by benchmarks/calibrate_sweeps.py --write -->", "<!-- /sweeps -->"


COLUMNS = ("as it comes", "random rows", "advised rows", "fitted to all", "all others known")


def write(figures: dict[str, tuple[float, ...]], whole: list[float], rows: int) -> None:
    """Put the table into the page."""
    lines = [
        f"| sweep, {rows} rows in, the others out | " + " | ".join(COLUMNS) + " |",
        "|---|--:|--:|--:|--:|--:|",
        *(
            f"| {name} | " + " | ".join(f"{one:.1%}" for one in told) + " |"
            for name, told in figures.items()
        ),
        f"| **median of {len(figures)} sweeps** | "
        + " | ".join(f"**{w:.1%}**" for w in whole)
        + " |",
    ]
    text = PAGE.read_text()
    head, rest = text.split(MARKS[0])
    _, tail = rest.split(MARKS[1])
    PAGE.write_text("\n".join([head + MARKS[0], *lines, MARKS[1]]) + tail)


def told(figures: tuple[float, ...] | list[float]) -> str:
    """Errors with their names."""
    return ", ".join(f"{name} {one:.1%}" for name, one in zip(COLUMNS, figures, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=3)
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    figures, constants = {}, stored().constants
    for name, rows in sweeps(options.only).items():
        try:
            with constants_set(constants.get(name.partition(":")[0], {})):
                figures[name] = figures_of(rows, options.rows, options.draws)
        except SpecError as error:
            print(f"{name}: {error}")
            continue
        if not options.json:
            print(f"{name}: {len(rows)} rows, {told(figures[name])}", flush=True)
    columns = range(len(COLUMNS))
    whole = [statistics.median(one[side] for one in figures.values()) for side in columns]
    if options.write:
        write(figures, whole, options.rows)
    if options.json:
        print(json.dumps({"sweeps": figures, "median": whole}))
    else:
        print(f"median over {len(figures)} sweeps: {told(whole)}")


if __name__ == "__main__":
    main()
