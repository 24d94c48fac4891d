"""Three rows of a cluster in, the rest of its sweep out: what calibrating from a few logs is worth.

    python benchmarks/calibrate_sweeps.py [--rows 3] [--draws 3] [--only nanotron] [--json] [--write]

Rows of one source, model and number of devices are a sweep of one cluster. Some rows are drawn (fixed
seeds), the cluster is calibrated on them alone as `meshwright calibrate` does, and all other rows are
predicted; error is the median over rows left out, before and after, then the median over draws. The
evidence tables are the shipped ones (`evidence/tables/`).

`fitted to all` is what the calibrated constants can reach at best: fitted to every row of the sweep and
judged on the same rows. `all others` tells how much the residuals of a sweep say of one another: every row is predicted from the
model and from what the model misses of *all other* rows of its sweep, by a Gaussian process over the
parts of the step and the degrees of the layout. `--write` puts the table into
docs/measure.md.
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
from meshwright.evidence.calibrate import Sighting, _run_times, calibrate, resized
from meshwright.evidence.calibrate_fit import device_knobs, fit_to, link_knobs
from meshwright.evidence.import_rows import Run, import_row
from meshwright.evidence.machines import SkipRow
from meshwright.evidence.measured import measured_step_time_s
from meshwright.evidence.rows import published_rows, table_names
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


def left_out(rows: list[tuple[Run, float]], count: int, draws: int) -> tuple[float, float]:
    """Median error of rows left out, before and after calibrating on `count` others."""
    before, after = [], []
    for seed in range(draws):
        picked = random.Random(seed).sample(range(len(rows)), count)
        inside = [rows[i] for i in picked]
        outside = [rows[i] for i in range(len(rows)) if i not in picked]
        cluster = max((run.cluster for run, _ in rows), key=lambda c: c.gpus)
        fitted = calibrate(
            cluster, sightings=[Sighting(run, time, run.id) for run, time in inside]
        ).cluster
        runs = [run for run, _ in outside]
        before.append(error(_run_times(cluster, runs), outside))
        after.append(error(_run_times(fitted, runs), outside))
    return statistics.median(before), statistics.median(after)


def fitted_to_all(rows: list[tuple[Run, float]]) -> float:
    """Median error on the very rows that the constants were fitted to: no three rows do better."""
    cluster = max((run.cluster for run, _ in rows), key=lambda c: c.gpus)
    runs = [run for run, _ in rows]
    precisions = sorted({run.job.precision.compute for run in runs})
    target = np.log([time for _, time in rows])
    fitted, _, _ = fit_to(
        cluster,
        lambda candidate: np.asarray(np.log(_run_times(candidate, runs))),
        target,
        link_knobs(cluster) + device_knobs(cluster, precisions),
    )
    return error(_run_times(fitted, runs), rows)


def all_others(rows: list[tuple[Run, float]]) -> float:
    """Median error where the model is corrected by all other rows of the sweep."""
    cluster = max((run.cluster for run, _ in rows), key=lambda c: c.gpus)
    shares, places, missed = [], [], []
    for run, time in rows:
        table = price(run.model, resized(cluster, run.gpus), run.job, from_layouts([run.layout]))
        parts = np.array([float(column[0]) for column in table.time_parts.values()])
        layout = run.layout
        shares.append(parts / parts.sum())
        places.append(
            [*np.log2([layout.tp, layout.pp, layout.dp, layout.micro_batch, run.job.global_batch]),
             layout.zero / 2]
        )  # fmt: skip
        missed.append(np.log(time / parts.sum()))
    share, place, off = np.array(shares), np.array(places), np.array(missed)
    apart: Any = ((place[:, None] - place[None]) ** 2).sum(-1)
    kernel = 0.3 * share @ share.T + 0.05 + 0.15 * np.exp(-apart / 8.0)
    left = []
    for one in range(len(off)):
        others = np.arange(len(off)) != one
        inside = kernel[np.ix_(others, others)] + 0.01 * np.eye(len(off) - 1)
        known = kernel[one, others] @ np.linalg.solve(inside, off[others])
        left.append(abs(np.exp(known - off[one]) - 1.0))
    return float(np.median(left))


PAGE = Path(__file__).parent.parent / "docs" / "measure.md"
MARKS = "<!-- sweeps: written by benchmarks/calibrate_sweeps.py --write -->", "<!-- /sweeps -->"


def write(figures: dict[str, tuple[float, ...]], whole: list[float], rows: int) -> None:
    """Put the table into the page."""
    lines = [
        f"| sweep, {rows} rows in, the others out | as it comes | calibrated | fitted to all, the same "
        "rows | all others known |",
        "|---|--:|--:|--:|--:|",
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=3)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    figures = {}
    for name, rows in sweeps(options.only).items():
        try:
            calibrated = left_out(rows, options.rows, options.draws)
            figures[name] = (*calibrated, fitted_to_all(rows), all_others(rows))
        except SpecError as error:
            print(f"{name}: {error}")
            continue
        before, after, best, known = figures[name]
        if not options.json:
            print(
                f"{name}: {len(rows)} rows, {before:.1%} before, {after:.1%} after; fitted to all: "
                f"{best:.1%}; all others known: {known:.1%}",
                flush=True,
            )
    whole = [statistics.median(told[side] for told in figures.values()) for side in range(4)]
    if options.write:
        write(figures, whole, options.rows)
    if options.json:
        print(json.dumps({"sweeps": figures, "median": whole}))
    else:
        print(
            f"median over {len(figures)} sweeps: {whole[0]:.1%} before, {whole[1]:.1%} after; fitted to "
            f"all: {whole[2]:.1%}; all others known: {whole[3]:.1%}"
        )


if __name__ == "__main__":
    main()
