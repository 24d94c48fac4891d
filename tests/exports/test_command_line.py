"""`meshwright export` and `meshwright import` as a person types them."""

import json

from plans import make_plan

from meshwright.cli import run
from meshwright.specs.plan import load_plan, save_plan


def test_import_prices_and_compares_and_writes_a_plan(tmp_path, capsys):
    save_plan(
        make_plan("llama3-8b", tp=8, dp=1, zero=0, sequence_parallel=True), tmp_path / "a.toml"
    )
    assert run(["export", str(tmp_path / "a.toml"), "--to", "megatron", "-o", str(tmp_path)]) == 0
    capsys.readouterr()
    out = tmp_path / "b.toml"
    code = run(["import", str(tmp_path / "run.sh"), "--json", "-o", str(out)])
    said = json.loads(capsys.readouterr().out)
    assert set(said) == {"format", "plan", "findings", "planner"}
    assert code == (0 if said["plan"]["fits"] else 1)
    plan = load_plan(out)
    assert plan.layout.tp == 8
    assert plan.estimate.step_time_s > 0
    assert sum(plan.estimate.time_parts.values()) > 0
    theirs = said["planner"]["estimate"]["step_time_s"]
    changes = [f for f in said["findings"] if f["severity"] == "change"]
    assert bool(changes) == (theirs < 0.99 * plan.estimate.step_time_s or not plan.estimate.fits)
    assert plan.notes[0] == "imported: Megatron-LM script"


def test_a_run_that_does_not_fit_exits_with_1_and_says_by_how_much(tmp_path, capsys):
    plan = make_plan("llama3-70b", dp=8, cluster="h100:1x8")
    save_plan(plan, tmp_path / "a.toml")
    assert run(["export", str(tmp_path / "a.toml"), "--to", "deepspeed", "-o", str(tmp_path)]) == 0
    capsys.readouterr()
    assert run(["import", str(tmp_path / "ds_config.json"), "--no-compare"]) == 1
    assert run(["import", str(tmp_path / "ds_config.json")]) == 1
    said = capsys.readouterr().out
    assert "does not fit" in said


def test_export_prints_what_it_would_write(tmp_path, capsys):
    save_plan(make_plan("llama3-8b", dp=8, zero=2), tmp_path / "a.toml")
    assert run(["export", str(tmp_path / "a.toml"), "--to", "slurm", "--for", "nanotron"]) == 2
    assert "layout.zero = 2: nanotron expresses ZeRO stage 0, 1" in capsys.readouterr().err
    assert (
        run(["export", str(tmp_path / "a.toml"), "--to", "slurm", "--for", "fsdp", "--json"]) == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert set(said["files"]) == {"train.sbatch", "train_fsdp.py", "corpus.py", "progress.py"}
    assert said["start"] == "sbatch train.sbatch"
    assert run(["export", str(tmp_path / "a.toml"), "--to", "fsdp", "--for", "slurm"]) == 2
    assert run(["export", "-", "--to", "list"]) == 0
    assert "megatron-bridge" in capsys.readouterr().out
