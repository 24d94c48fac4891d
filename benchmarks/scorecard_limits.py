"""Write the limits that tests/evidence/test_validation.py holds the left-out figures to.

    python benchmarks/scorecard_limits.py

Each limit is the stored left-out figure of today (evidence/data/validation.json) plus a tenth of it
(or half a point), so that CI notices a figure that gets worse and not the last digit.
"""

import json
from pathlib import Path

from meshwright.evidence.validation import GUARDED, figure_of, stored

FILE = Path(__file__).parent.parent / "tests" / "evidence" / "data" / "left_out_limits.json"


def main() -> None:
    limits = []
    for mode, group, path in GUARDED:
        value = figure_of(stored(), mode, group, path)
        entry: dict[str, object] = {"mode": mode, "group": group, "figure": path}
        if path in ("sweeps.tau", "verdicts.accuracy"):
            entry["at_least"] = round(value - (0.02 if "tau" in path else 0.5), 3)
        else:
            entry["at_most"] = round(value + max(0.1 * value, 0.5), 3)
        limits.append(entry)
    FILE.write_text(json.dumps(limits, indent=1) + "\n")
    print(f"{len(limits)} limits written to {FILE.name}")


if __name__ == "__main__":
    main()
