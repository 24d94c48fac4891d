"""How much of vtrain_singlenode's regret is the noise of single profiles: docs/accuracy.md, limits.

    python benchmarks/profile_noise.py

Its rows fall into cells of one hidden width, tensor-parallel degree and micro-batch. Prints the spread of
the errors inside a cell and between cells, the regret with each cell's median error taken
out, which no constant of a device or framework could do, and how long a layer takes in each cell: the
slope of measured times over depth. Where a layer takes less time for more sequences no model of the work
can follow; the last lines count what such cells decide.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshwright.evidence.predict import predict
from meshwright.evidence.rows import published_rows
from meshwright.evidence.score import Scored, choices, pair, regret, sweep_figures, sweeps

BAD = 0.08
"""Regret that the goal allows nine sweeps in ten."""


def cell(one: Scored) -> tuple[int, int, int]:
    return one.run.model.hidden, one.run.layout.tp, one.run.layout.micro_batch


def layer_ms(rows: Sequence[Scored]) -> float:
    """Measured milliseconds of a layer, forward and backward of one micro-batch: slope over depth."""
    alike: dict[tuple[int, ...], list[tuple[int, float]]] = defaultdict(list)
    for one in rows:
        layout, batch = one.run.layout, one.run.job.global_batch
        key = (layout.pp, layout.dp, batch // layout.dp // layout.micro_batch)
        alike[key].append((one.run.model.layers, one.measured_s))
    slopes = []
    for (pp, _, micro_batches), points in alike.items():
        if len({layers for layers, _ in points}) > 2:
            layers, seconds = np.array(points).T
            slots = (micro_batches + pp - 1) / pp
            slopes.append(1e3 * float(np.polyfit(layers, seconds, 1)[0]) / slots)
    return float(np.median(slopes)) if slopes else float("nan")


def layer_lines(scored: Sequence[Scored]) -> None:
    """Print each cell's layer time, and what the cells that are faster than a smaller one decide."""
    cells: dict[tuple[int, int, int], list[Scored]] = defaultdict(list)
    for one in scored:
        cells[cell(one)].append(one)
    times = {key: layer_ms(rows) for key, rows in cells.items()}
    print("hidden, tp: milliseconds of a layer with 1, 2, 4 and 8 sequences")
    for hidden, tp in sorted({key[:2] for key in times}):
        row = [times.get((hidden, tp, size), float("nan")) for size in (1, 2, 4, 8)]
        print(f"  {hidden}, {tp}: " + ", ".join(f"{one:.2f}" for one in row))
    faster = {
        key for key, one in times.items()
        if any(one < other for less, other in times.items() if less[:2] == key[:2] and less[2] < key[2])
    }  # fmt: skip
    bad = [group for group in sweeps(scored) if regret(*choices(group)) > BAD]
    best = [cell(min(group, key=lambda one: one.measured_s)) in faster for group in bad]
    print(f"a layer takes less time than with fewer sequences in the cells {sorted(faster)}")
    print(
        f"sweeps with a regret above {BAD:.0%}: {len(bad)}, the fastest row in such a cell: {sum(best)}"
    )


def main() -> None:
    rows = published_rows(["vtrain_singlenode"])
    scored = pair(rows, predict(rows))
    cells: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for one in scored:
        cells[cell(one)].append(one.time_error)
    median = {key: float(np.median(errors)) for key, errors in cells.items()}
    inside = [error - median[key] for key, errors in cells.items() for error in errors]
    print("cell (hidden, tp, micro-batch): median error, largest distance from it, rows")
    for key, errors in sorted(cells.items()):
        far = max(abs(error - median[key]) for error in errors)
        print(f"  {key}: {median[key]:+.1%}  {far:.1%}  {len(errors)}")
    print(f"standard deviation inside cells {np.std(inside):.1%}, of the cells' medians", end=" ")
    print(f"{np.std(list(median.values())):.1%}")
    shifted = [
        replace(one, predicted_s=one.predicted_s / (1.0 + median[cell(one)])) for one in scored
    ]
    for name, group in (("as predicted", scored), ("without the cells' medians", shifted)):
        figures = sweep_figures(group)
        print(
            f"{name}: regret {figures.regret_mean:.1f} %, p90 {figures.regret_p90:.1f} %, "
            f"tau {figures.tau:.2f}"
        )
    layer_lines(scored)


if __name__ == "__main__":
    main()
