"""Fit every constant that src/meshwright/evidence/data/constants.toml declares to the published runs.

    python benchmarks/fit_constants.py             # show what each would become
    python benchmarks/fit_constants.py --write     # and write costs/data/*.toml
    python benchmarks/fit_constants.py --check     # exit 1 if writing would change a file

All constants move together, from their priors: the result depends on the runs, the declarations and
the cost model alone, so the data files come out byte for byte. See `meshwright.evidence.fit`.
"""

from __future__ import annotations

import argparse
import sys
import time

from meshwright.evidence.constants import fitted_constants, rounded, write_constants
from meshwright.evidence.fit import Problem, cases_of, fit
from meshwright.evidence.rows import published_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    begun = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - begun:4.0f} s  {line}", flush=True)

    fitted = fit(Problem(cases_of(published_rows()), fitted_constants()), say)
    differ = []
    for one in fitted_constants():
        value = fitted.values[one.name]
        if value != rounded(one.get()):
            differ.append(one.name)
        print(f"{one.name:48} prior {one.prior:<9.3g} shipped {one.get():<9.4g} fitted {value:.4g}")
    if options.write:
        print("written:", ", ".join(write_constants(fitted.values)) or "nothing changed")
    if options.check and differ:
        sys.exit(f"{len(differ)} constants are not what the runs give: {', '.join(differ)}")


if __name__ == "__main__":
    main()
