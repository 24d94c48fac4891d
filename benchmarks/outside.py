"""Runs of public tables that no constant was fitted to: what the model says of them, by draw and source.

    python benchmarks/outside.py            # a line per source
    python benchmarks/outside.py --rows     # a line per run

`data/outside_rows.csv` holds figures that others published, each with its source, in the evidence schema.
Each draw was blind once: what it showed of reading was mended afterwards (docs/accuracy.md says the first
sight). They are kept apart from the evidence, so that they go on telling how a source fares that nobody
tuned for.
"""

import argparse
import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from meshwright.evidence.predict import Prediction, predict
from meshwright.evidence.rows import Row, read_rows
from meshwright.evidence.score import Scored, pair

FILE = Path(__file__).parent / "data" / "outside_rows.csv"


def scored_rows() -> list[Scored]:
    """Return the rows beside what the model says of them."""
    rows = list(read_rows(FILE))
    return pair(rows, predict(rows, possible=True))


def house(row: Row) -> str:
    """Who published a row: rows of one house tell less than those of several."""
    return f"outside {row['source'].split(' ')[0]}"


def time_error(row: Row, made: Prediction) -> float:
    """Predicted over measured step time, less one; NaN where none was measured."""
    if seconds := row.number("measured_iter_time_s"):
        return made.iter_time_s / seconds - 1
    if rate := row.number("measured_tokens_per_s_per_gpu"):
        return rate / made.tokens_per_s_per_gpu - 1
    return math.nan


def memory_error(row: Row, made: Prediction) -> float:
    """Predicted over measured peak memory, less one; NaN where none was measured."""
    measured = row.number("measured_peak_mem_gib")
    return made.peak_memory_bytes / 2**30 / measured - 1 if measured else math.nan


def line(name: str, pairs: Sequence[tuple[Row, Prediction]]) -> str:
    """Median and 90th percentile of both errors, how many lie in their ranges, how many fits were judged right."""
    priced = [(row, made) for row, made in pairs if made.priced]
    cells = [f"{name[:44]:44} {len(pairs):4} {len(pairs) - len(priced):4}"]
    for error in (time_error, memory_error):
        found = np.array([error(row, made) for row, made in priced])
        found = 100 * found[np.isfinite(found)]
        if len(found):
            size = np.abs(found)
            spread = f"{np.median(size):6.1f} {np.quantile(size, 0.9):6.1f}"
            cells.append(f"{spread} {np.median(found):+6.1f}")
        else:
            cells.append(f"{'–':>20}")
    for index, error in enumerate((time_error, memory_error)):
        inside = [
            range_.low <= value / (1.0 + off) <= range_.high
            for row, made in priced
            for value, range_ in [
                ((made.iter_time_s, made.peak_memory_bytes)[index], made.ranges()[index])
            ]
            if math.isfinite(off := error(row, made))
        ]
        cells.append(f"{100 * np.mean(inside):3.0f}" if inside else "  –")
    right = [(row["outcome"] != "oom") == made.fits for row, made in priced]
    cells.append(f"{100 * np.mean(right):4.0f}" if right else "   –")
    return "  ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", action="store_true", help="a line for every run")
    options = parser.parse_args()
    with FILE.open(newline="") as stream:
        draws = [table["draw"] for table in csv.DictReader(stream)]
    rows = list(read_rows(FILE))
    pairs = list(zip(rows, predict(rows, possible=True), strict=True))
    if options.rows:
        for row, made in pairs:
            if made.run is None or not made.priced:
                print(f"{row.id:18} refused: {made.reason}")
                continue
            time, memory = time_error(row, made), memory_error(row, made)
            print(
                f"{row.id:18} time {100 * time:+5.0f} %  memory {100 * memory:+5.0f} %  "
                f"{made.run.job.framework}, {made.run.layout.label()}"
            )
        return
    print(
        f"{'% of the measured':44} rows  ref    time: median, p90, bias  memory: the same  in range: time, memory  fits right"
    )
    for draw in sorted(set(draws)):
        print(
            line(
                f"draw {draw}",
                [pair for pair, one in zip(pairs, draws, strict=True) if one == draw],
            )
        )
    for source in sorted({row["source"] for row in rows}):
        print(line(source, [pair for pair in pairs if pair[0]["source"] == source]))


if __name__ == "__main__":
    main()
