"""Fit every fitted constant to the published runs, leave each source out in turn, and store the result.

    python benchmarks/fit_constants.py             # show what each constant would become
    python benchmarks/fit_constants.py --write     # and write everything that follows from it
    python benchmarks/fit_constants.py --check     # exit 1 if writing would change a constant
    python benchmarks/fit_constants.py --validate  # score again, with the stored left-out constants

Written: costs/data/*.toml (the constants that evidence/data/constants.toml declares),
evidence/data/validation.json (every source left out, and as a user) and costs/data/confidence.toml
(ranges from the left-out residuals; of rows as people have them also from data/outside_rows.csv, to which nothing is
fitted), docs/accuracy.md. All constants move together, from their priors: the result
depends on the runs, the declarations and the cost model alone, so the files come out byte for byte.
Constants of links are fitted on collectives instead: `python benchmarks/collectives.py --fit`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from meshwright import costs, evidence
from meshwright.evidence.confidence import (
    confidence_toml,
    coverage,
    promise_kept,
    read_coverage,
    residuals_of,
)
from meshwright.evidence.constants import fitted_constants, put_all, rounded, write_constants
from meshwright.evidence.fit import Problem, cases_of, fit
from meshwright.evidence.report import accuracy_page
from meshwright.evidence.rows import Row, published_rows
from meshwright.evidence.validation import left_out_constants, stored, validate
from meshwright.specs.writing import write_atomically
from outside import house
from outside import scored_rows as outside_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--validate", action="store_true")
    options = parser.parse_args()
    begun = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - begun:4.0f} s  {line}", flush=True)

    rows = published_rows()
    if options.validate:
        store(rows, stored().constants, say)
        return
    fitted = fit(Problem(cases_of(rows), fitted_constants()), say)
    differ = []
    for one in fitted_constants():
        value = fitted.values[one.name]
        if value != rounded(one.get()):
            differ.append(one.name)
        print(f"{one.name:48} prior {one.prior:<9.3g} shipped {one.get():<9.4g} fitted {value:.4g}")
    if options.check and differ:
        sys.exit(f"{len(differ)} constants are not what the runs give: {', '.join(differ)}")
    if not options.write:
        return
    say("written: " + (", ".join(write_constants(fitted.values)) or "no constant changed"))
    put_all(fitted.values)
    sources = sorted({case.source for case in fitted.problem.cases})
    store(rows, left_out_constants(fitted, sources), say)


def store(
    rows: list[Row], constants: Mapping[str, Mapping[str, float]], say: Callable[[str], None]
) -> None:
    """Predict each source left out, and write the result, the ranges and the page of both."""
    checked = validate(rows, constants, say)
    data = Path(evidence.__file__).parent / "data"
    write_atomically(data / "validation.json", checked.validation.text())
    left_out = checked.scored["left out"]
    ranges = Path(costs.__file__).parent / "data" / "confidence.toml"
    outside = outside_rows()
    read = {
        quantity: [
            *residuals_of(checked.scored["as a user"], quantity),
            *residuals_of(outside, quantity, house),
        ]
        for quantity in ("time", "memory")
    }
    write_atomically(ranges, confidence_toml(left_out, read))
    page = Path(__file__).parent.parent / "docs" / "accuracy.md"
    write_atomically(page, accuracy_page(checked.fitted, checked.scored["fitted"]))
    for quantity in ("time", "memory"):
        say(
            f"ranges hold {100 * coverage(left_out, quantity):.0f} % of {quantity}, left out, "
            f"{100 * read_coverage(read[quantity]):.0f} % of rows as people have them"
        )
    for promised in (0.9, 0.75, 0.5):
        sources, peaks = promise_kept(left_out, promised)
        say(
            f"what is said to hold a peak with {promised:.0%} does for {sources:.0%} (the mean over left-out "
            f"sources), {peaks:.0%} of all rows"
        )


if __name__ == "__main__":
    main()
