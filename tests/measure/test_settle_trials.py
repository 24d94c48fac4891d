"""The trials of `settle` (benchmarks/settle_trials.py) run: one question, raced and run to the end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from settle_trials import markdown, summary, trial

pytestmark = pytest.mark.dist


def test_a_trial_races_and_runs_every_finalist_to_the_end() -> None:
    made = (trial(seed, "cpu", 2) for seed in range(20))
    row = next(one for one in made if one is not None)
    assert len(row["layouts"]) == len(row["medians_s"]) == 2
    assert row["race_s"] > 0 and row["full_s"] > 0
    assert row["medians_s"][row["truth"]] == min(row["medians_s"])
    assert summary([row]).startswith("1 trials") and row["name"] in markdown([row])
