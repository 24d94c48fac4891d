"""Under torchrun the engine trains the same run and leaves the same things behind."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from meshwright.cli import run as command_line
from meshwright.costs.step import estimate
from meshwright.engine.model.toy import TOY
from meshwright.engine.watch.report import NAME
from meshwright.engine.watch.runlog import read_log
from meshwright.specs.clusters import load_cluster
from meshwright.specs.job import OPTIMIZERS, RECIPES, Job
from meshwright.specs.layout import Layout
from meshwright.specs.plan import Plan, save_plan

pytestmark = pytest.mark.dist

MODEL = TOY.but(layers=2)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    file = tmp_path_factory.mktemp("plan") / "plan.toml"
    cluster, layout = load_cluster("cpu:1x2"), Layout(dp=2, zero=1)
    job = Job(
        seq_len=32, global_batch=8, precision=RECIPES["fp32"], optimizer=OPTIMIZERS["adamw"],
        framework="meshwright",
    )  # fmt: skip
    priced = estimate(MODEL, cluster, job, layout)
    save_plan(
        Plan(model=MODEL, cluster=cluster, job=job, layout=layout, estimate=priced, fits=True), file
    )
    return file


def _command(plan, out, *more):
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "meshwright.engine", str(plan), "--data", "demo", "--out", str(out), "--no-tensorboard",
        *map(str, more),
    ]  # fmt: skip


ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def _torchrun(plan, out, *more):
    done = subprocess.run(
        _command(plan, out, *more), capture_output=True, text=True, timeout=240, env=ENVIRONMENT,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def _losses(folder):
    return [step["loss"] for step in read_log(folder).steps]


def test_torchrun_leaves_what_train_leaves(plan, tmp_path):
    """Same losses, bit for bit, same records, page, checkpoints and exported weights."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    options = ["--steps", "4", "--save-every", "2", "--no-tensorboard"]
    assert command_line(
        ["train", str(plan), "-o", str(ours), "--export", str(tmp_path / "a"), *options]
    ) == 0  # fmt: skip
    shown = _torchrun(plan, theirs, "--export", tmp_path / "b", *options)
    assert _losses(theirs) == _losses(ours)
    logs = [read_log(folder) for folder in (ours, theirs)]
    # Checkpoints are written beside the steps, so their records may come a step earlier or later.
    assert sorted(r["kind"] for r in logs[0].records) == sorted(r["kind"] for r in logs[1].records)
    for kind in ("start", "step", "ledger", "saved", "summary"):
        assert logs[0].last(kind).keys() == logs[1].last(kind).keys(), kind
    for log in logs:
        counted = log.last("ledger")
        assert counted["sent_bytes"] == pytest.approx(counted["predicted_bytes"], rel=1e-12)
        assert log.last("start")["predicted_by"] == "the plan"
        assert len(log.last("summary")["peak_memory_bytes"]) == 2
    assert sorted(os.listdir(ours)) == sorted(os.listdir(theirs))
    assert (theirs / NAME).read_text().count("<section") == (ours / NAME).read_text().count(
        "<section"
    )
    for name in sorted(os.listdir(tmp_path / "a")):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    for said in ("step 4/4", "MFU", "grad norm", "tokens/s: predicted", "2 × 100 GFLOP/s", "equal"):
        assert said in shown, said

    # It goes on from train's checkpoint, and starts from train's exported weights.
    _torchrun(plan, tmp_path / "more", "--steps", 6, "--resume", ours)
    assert command_line(
        ["train", str(plan), "-o", str(tmp_path / "more-ours"), "--steps", "6", "--resume", str(ours)]
    ) == 0  # fmt: skip
    assert _losses(tmp_path / "more") == _losses(tmp_path / "more-ours")
    assert [s["step"] for s in read_log(tmp_path / "more").steps] == [5, 6]
    lines = _torchrun(plan, tmp_path / "new", "--steps", 2, "--init", tmp_path / "a", "--json")
    records = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    assert [r["kind"] for r in records] == ["start", "step", "step", "ledger", "summary"]
    assert records[1]["loss"] < _losses(ours)[0] - 0.1


def test_a_frozen_rank_is_named_under_torchrun(plan, tmp_path):
    out = tmp_path / "run"
    job = subprocess.Popen(
        _command(plan, out, "--steps", 100000, "--collective-timeout", 5), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=ENVIRONMENT,
    )  # fmt: skip
    frozen = 0
    try:
        _wait_for(lambda: (out / "metrics.jsonl").is_file() and len(read_log(out).steps) > 2, job)
        frozen = json.loads((out / "flight" / "generation-0" / "rank-00001.json").read_text())[
            "pid"
        ]
        os.kill(frozen, signal.SIGSTOP)
        _wait_for((out / NAME).is_file, job)
        os.kill(frozen, signal.SIGCONT)
        said, _ = job.communicate(timeout=120)
    finally:
        if job.poll() is None:
            if frozen:
                os.kill(frozen, signal.SIGCONT)
            job.terminate()
            job.wait(60)
    assert job.returncode != 0
    seen = read_log(out).last("failure")["collectives"]
    assert seen["missing_ranks"] == [1], said[-3000:]
    # Whether the signal strikes inside a collective or before one is chance.
    wordings = ("rank 1 has not started", "rank 1 stopped", "its process stands still")
    assert any(words in seen["sentence"] for words in wordings), seen["sentence"]
    assert seen["sentence"] in said
    assert seen["sentence"][:12] in (out / NAME).read_text()


def _wait_for(happens, job):
    deadline = time.monotonic() + 120
    while not happens():
        assert job.poll() is None, job.stdout.read()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.2)
