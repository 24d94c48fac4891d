"""Bad input and bad machines: one sentence, exit code 2, no process and no half a checkpoint left."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from meshwright.cli import run
from meshwright.engine.admission import check_run
from meshwright.engine.model.numerics import default_numerics
from meshwright.engine.model.toy import TOY
from meshwright.engine.run import Run
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.job import OPTIMIZERS, RECIPES, Job
from meshwright.specs.layout import Layout

pytestmark = pytest.mark.dist
SCRIPT = """
import contextlib, io, json, resource, sys
from meshwright.cli import run
from meshwright.engine.ranks.faults import flip_a_bit

def call(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(["train", "toy", "--seq", "16", "--global-batch", "8", *arguments])
    return [code, err.getvalue()]

def on_a_full_disk(folder):
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    steps = ("--steps", "3", "--save-every", "2", "--no-tensorboard")
    return {
        "disk full": call("--out", folder + "/g", *steps),
        "export": call("--out", folder + "/h", "--steps", "1", "--export", folder + "/hf"),
    }

def on_a_good_disk(folder):
    good = folder + "/good"
    found = {
        "good": call("--dp", "2", "--out", good, "--steps", "2", "--save-every", "2"),
        "missing data": call("--data", folder + "/absent.txt", "--out", folder + "/a"),
        "wrong vocabulary": call("--data", folder + "/tokens.npy", "--out", folder + "/b"),
        "too many ranks": call("--dp", "65536", "--global-batch", "65536", "--out", folder + "/c"),
        "no checkpoint": call("--resume", folder, "--out", folder + "/d"),
        "a file in the way": call("--out", folder + "/tokens.npy/x"),
        "not empty": call("--out", good, "--save-every", "2"),
        "nowhere to export": call("--out", folder + "/i", "--export", folder + "/tokens.npy/x"),
        "no saves": call("--out", folder + "/j", "--fewer-ranks"),
        "no such layout": call("--tp", "3", "--out", folder + "/e"),
    }
    flip_a_bit(good)
    found["damaged"] = call("--dp", "2", "--resume", good, "--out", folder + "/f")
    return found

if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](sys.argv[2])))
"""


def _left_of(session):
    """Processes of a session that are still there, after a moment to go."""
    deadline = time.monotonic() + 120
    while True:
        left = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                name, _, fields = stat.read_text().rpartition(")")
            except OSError:
                continue
            if int(fields.split()[3]) == session and fields.split()[0] != "Z":
                left.append(name)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)


def test_each_is_refused_in_one_sentence_and_nothing_is_left(tmp_path):
    np.save(tmp_path / "tokens.npy", np.array([1, 2, 300, *range(200)], dtype=np.uint16))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    both = [
        subprocess.Popen(
            [sys.executable, str(script), name, str(tmp_path)], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )
        for name in ("on_a_good_disk", "on_a_full_disk")
    ]  # fmt: skip
    found = {}
    for done in both:
        out, err = done.communicate(timeout=300)
        assert done.returncode == 0, err
        assert not _left_of(done.pid)
        found |= json.loads(out.splitlines()[-1])
    assert found.pop("good")[0] == 0
    code, told = found.pop("disk full")
    assert code == 2
    *before, last = told.splitlines()
    reason = "is not written (rank 0: File too large)"
    assert [f"the checkpoint of step {n} {reason}" for n in (2, 3)] == [
        line for line in before if "checkpoint" in line
    ]
    assert last.startswith("error: out = ")
    assert last.endswith(f"the last checkpoint {reason}")
    code, told = found.pop("export")
    assert code == 2
    assert told.splitlines()[-1].startswith("error: export = ")
    assert not list((tmp_path / "hf").iterdir())
    wanted = {
        "missing data": "cannot be read (No such file or directory)",
        "wrong vocabulary": "token 2 of the data is 300; the model's vocabulary must be",
        "too many ranks": "ranks = 65536: this machine has memory for",
        "no checkpoint": "holds no checkpoint (a folder step-N)",
        "a file in the way": "cannot be made (Not a directory)",
        "not empty": "holds the checkpoints of an earlier run; go on with --resume",
        "no such layout": "tp = 3",
        "nowhere to export": "cannot be made (Not a directory)",
        "no saves": "needs --save-every",
        "damaged": "no complete checkpoint: step-00000002 is damaged (",
    }
    for name, sentence in wanted.items():
        code, told = found.pop(name)
        assert code == 2, (name, told)
        assert sentence in told, name
        assert told.count("\n") == 1, told
    assert not found
    assert not list(tmp_path.rglob(".step-*"))
    assert not list((tmp_path / "g").glob("step-*"))


@pytest.fixture
def plan(tmp_path):
    estimate = {
        "step_time_s": 1, "tokens_per_s_per_gpu": 1, "mfu": 0, "hfu": 0, "bubble_fraction": 0,
        "peak_memory_bytes": 1, "capacity_bytes": 1, "fits": True, "memory_parts": {},
        "time_parts": {},
    }  # fmt: skip
    content = {
        "model": TOY.but(layers=2).plain(), "cluster": load_cluster("cpu:1x2").plain(),
        "layout": Layout(dp=2).plain(), "fits": True, "estimate": estimate,
        "job": Job(seq_len=16, global_batch=8, precision=RECIPES["fp32"]).plain(),
    }  # fmt: skip
    (tmp_path / "plan.json").write_text(json.dumps(content))
    return tmp_path / "plan.json"


def test_a_model_that_this_machine_cannot_hold(plan, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("meshwright.engine.ranks.preflight._available_bytes", lambda: 1000.0)
    monkeypatch.setattr("meshwright.engine.ranks.preflight.RANK_BYTES", 1.0)
    assert run(["train", str(plan), "--data", "demo", "--out", str(tmp_path / "run")]) == 2
    assert "at the very least, and this machine has 1000 B free" in capsys.readouterr().err


def test_a_taken_port_and_a_rank_that_does_not_come(plan, tmp_path):
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        socket.create_server(("127.0.0.1", 0)) as free,
    ):
        ports = taken.getsockname()[1], free.getsockname()[1]
        free.close()
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "meshwright.engine", str(plan), "--data", "demo", "--out",
                 str(tmp_path / f"run{port}"), "--join-timeout", "2"],
                env=os.environ | {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                                  "MASTER_PORT": str(port)},
                stderr=subprocess.PIPE, text=True,
            )
            for port in ports
        ]  # fmt: skip
        told = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [2, 2]
    assert told[0].startswith(f"error: MASTER_PORT = '{ports[0]}': is taken on this machine")
    assert told[1] == "error: WORLD_SIZE = 2: after 2 s rank 1 has not come\n"
    assert told[0].count("\n") == 1


def test_a_checkpoint_of_another_model_is_refused_before_any_process_starts(tmp_path):
    from meshwright.engine.checkpoints import manifest

    folder = tmp_path / "step-00000001"
    folder.mkdir()
    manifest.write(folder, {"step": 1, "model": TOY.plain(), "files": {}, "tensors": {}})
    other = TOY.but(layers=2)
    run = Run(
        model=other, numerics=default_numerics(other), layout=Layout(), data="demo", steps=1,
        job=Job(seq_len=16, global_batch=8, precision=RECIPES["fp32"],
                optimizer=OPTIMIZERS["adamw"]),
        out=str(tmp_path), resume=str(tmp_path),
    )  # fmt: skip
    with pytest.raises(SpecError, match="another model"):
        check_run(run)
