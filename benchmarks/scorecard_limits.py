"""Write the limits that tests/evidence/test_scorecard.py holds the cost model to.

    python benchmarks/scorecard_limits.py

Each limit is the figure of today plus a tenth of it (or half a point), so that CI notices a
figure that gets worse and not the last digit.
"""

import json
from pathlib import Path

from meshwright.evidence.predict import predict
from meshwright.evidence.report import TARGETS, figure
from meshwright.evidence.rows import published_rows
from meshwright.evidence.score import scorecard

FILE = Path(__file__).parent.parent / "tests" / "evidence" / "data" / "scorecard_limits.json"


def main() -> None:
    rows = published_rows()
    scores = {score.name: score for score in scorecard(rows, predict(rows))[0]}
    limits = []
    for group, _, path, _ in TARGETS:
        value = figure(scores[group], path)
        slack = max(0.1 * value, 0.5)
        entry: dict[str, object] = {"group": group, "figure": path}
        if path.startswith("-"):
            slack = 0.02 if "tau" in path else 0.3
            entry["at_least"] = round(value - slack, 3)
        else:
            entry["at_most"] = round(value + slack, 3)
        limits.append(entry)
    FILE.write_text(json.dumps(limits, indent=1) + "\n")
    print(f"{len(limits)} limits written to {FILE}")


if __name__ == "__main__":
    main()
