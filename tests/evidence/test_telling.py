"""Which runs to measure first: those that speak of what is unknown, and not the same one twice."""

from __future__ import annotations

import json

import numpy as np

from meshwright.cli import run as run_command
from meshwright.evidence.calibrate import run_times
from meshwright.evidence.calibrate_fit import NOISE_SD, device_knobs, link_knobs, slope_of
from meshwright.evidence.import_rows import Run
from meshwright.evidence.telling import most_telling
from meshwright.planner.plan import plan
from meshwright.specs.clusters import load_cluster
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.models import load_model
from meshwright.specs.plan import save_plan

CLUSTER, MODEL, JOB = load_cluster("h100:2x8"), load_model("llama3-8b"), Job(global_batch=64)
LAYOUTS = (
    Layout(dp=16, zero=1, micro_batch=1), Layout(dp=16, zero=1, micro_batch=1), Layout(dp=8, tp=2),
    Layout(dp=2, tp=8), Layout(tp=16), Layout(dp=4, pp=4),
)  # fmt: skip
RUNS = [Run("x", MODEL, CLUSTER, JOB, one, "allocated", "heaviest", ()) for one in LAYOUTS]


def left_unknown(picked: list[int]) -> float:
    """Sum of the standard deviations of all step times once some are measured, by Bayes' rule written out."""
    knobs = [*link_knobs(CLUSTER), *device_knobs(CLUSTER, ["bf16"])]
    base = np.log(run_times(CLUSTER, RUNS))
    slopes = np.stack(
        [slope_of(CLUSTER, k, base, lambda c: np.log(run_times(c, RUNS))) for k in knobs], axis=1
    )
    precision = np.diag([1.0 / k.sd**2 for k in knobs])
    precision = precision + slopes[picked].T @ slopes[picked] / NOISE_SD**2
    spread = np.diag(slopes @ np.linalg.inv(precision) @ slopes.T)
    return float(np.sqrt(spread).sum())


def test_the_first_is_the_best_of_all_and_so_is_the_second_after_it() -> None:
    chosen = most_telling(CLUSTER, RUNS, 2)
    assert chosen[0] == int(np.argmin([left_unknown([at]) for at in range(len(RUNS))]))
    after = [left_unknown([chosen[0], at]) for at in range(len(RUNS))]
    assert after[chosen[1]] == min(after[at] for at in range(len(RUNS)) if at != chosen[0])
    assert len(set(most_telling(CLUSTER, RUNS, 99))) == len(RUNS)


def test_alike_runs_priced_together_take_what_each_takes_alone() -> None:
    assert run_times(CLUSTER, RUNS) == [run_times(CLUSTER, [run])[0] for run in RUNS]


def test_a_plan_s_layouts_are_advised(tmp_path, capsys) -> None:
    path = tmp_path / "plan.toml"
    save_plan(plan(load_model("gpt2"), load_cluster("h100:1x4"), Job(global_batch=64, seq_len=1024)), path)  # fmt: skip
    command = ["calibrate", "--cluster", "h100:1x4", "--plan", str(path), "--advise", "3"]
    assert run_command(command) == 0
    assert len(capsys.readouterr().out.strip().splitlines()) == 4
    assert run_command([*command, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 3
    assert run_command(["calibrate", "--cluster", "h100:1x4", "--advise", "3"]) == 2
    assert run_command(["calibrate", "--cluster", "h100:1x4"]) == 2
    assert "--from" in capsys.readouterr().err
