"""Fit constants on half of the published rows, score the other half: does a fit generalise?

    python benchmarks/split_check.py [--only ampere hopper …] [--rounds 1]

Rows are halved by a hash of their identifier. Prints the error of each half with the shipped constants,
and of the half that was not fitted after constants were fitted to the other. Were the shipped
constants bent to single rows, a fit on half of them would do much worse on the rest.
"""

import argparse
import hashlib

import numpy as np

from fit_constants import Fit, descend
from meshwright.evidence.predict import predict_runs
from meshwright.evidence.rows import Row


def half(row: Row) -> int:
    return hashlib.sha256(row.id.encode()).digest()[0] % 2


def errors(fit: Fit) -> dict[str, list[float]]:
    result: dict[str, list[float]] = {}
    for members in fit.groups.values():
        predictions = predict_runs([run for _, run, _ in members])
        for prediction, (table, _, measured) in zip(predictions, members, strict=True):
            result.setdefault(table, []).append(abs(prediction.iter_time_s / measured - 1.0))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--step", type=float, default=0.1)
    options = parser.parse_args()
    fitted, other = (Fit(lambda row, side=side: half(row) == side) for side in (0, 1))
    shipped = errors(fitted), errors(other)
    descend(fitted, options.rounds, options.only, options.step)
    after = errors(fitted), errors(other)
    print("median error in percent     fitted half: shipped, fitted   other half: shipped, fitted")
    for table in [*sorted(shipped[1]), "all"]:
        cells = []
        for side in (0, 1):
            for which in (shipped, after):
                rows = which[side]
                everything = [error for errors_ in rows.values() for error in errors_]
                values = everything if table == "all" else rows.get(table, [np.nan])
                cells.append(f"{100 * np.median(values):6.1f}")
        print(f"{table:34s} {'  '.join(cells[:2])}    {'  '.join(cells[2:])}")


if __name__ == "__main__":
    main()
