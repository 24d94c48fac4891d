"""How much of vtrain_singlenode's regret is the noise of single profiles: docs/accuracy.md, limits.

    python benchmarks/profile_noise.py

Its rows fall into cells of one hidden width, tensor-parallel degree and micro-batch. Prints the spread of
the errors inside a cell and between cells, and the regret with each cell's median error taken
out, which no constant of a device or framework could do.
"""

from collections import defaultdict
from dataclasses import replace

import numpy as np

from meshwright.evidence.predict import predict
from meshwright.evidence.rows import published_rows
from meshwright.evidence.score import Scored, pair, sweep_figures


def cell(one: Scored) -> tuple[int, int, int]:
    return one.run.model.hidden, one.run.layout.tp, one.run.layout.micro_batch


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


if __name__ == "__main__":
    main()
