"""Three rows of a cluster in, the rest of its sweep out: what calibrating from a few logs is worth.

    python benchmarks/calibrate_sweeps.py [--rows 3] [--draws 3] [--only nanotron] [--json]

Rows of one source, model and number of devices are a sweep of one cluster. Some rows are drawn (fixed
seeds), the cluster is calibrated on them alone as `meshwright calibrate` does, and all other rows are
predicted; error is the median over rows left out, before and after, then the median over draws. The
evidence tables are the shipped ones (`evidence/tables/`).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics

from meshwright.evidence.calibrate import Sighting, _run_times, calibrate
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=3)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = {}
    for name, rows in sweeps(options.only).items():
        try:
            figures[name] = left_out(rows, options.rows, options.draws)
        except SpecError as error:
            print(f"{name}: {error}")
            continue
        before, after = figures[name]
        if not options.json:
            print(f"{name}: {len(rows)} rows, {before:.1%} before, {after:.1%} after", flush=True)
    whole = [statistics.median(pair[side] for pair in figures.values()) for side in (0, 1)]
    if options.json:
        print(json.dumps({"sweeps": figures, "median": whole}))
    else:
        print(f"median over {len(figures)} sweeps: {whole[0]:.1%} before, {whole[1]:.1%} after")


if __name__ == "__main__":
    main()
