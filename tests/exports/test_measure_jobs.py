"""Jobs that measure a cluster: what a scheduler starts runs on every rank, and its file comes back."""

from __future__ import annotations

import subprocess
import tomllib

import pytest
import yaml

from meshwright.cli import run as run_command
from meshwright.exports.targets import LAUNCHERS, PODS, export
from meshwright.planner.plan import price_layout
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.models import load_model
from meshwright.specs.plan import save_plan


@pytest.fixture(scope="module")
def plan():
    layout = Layout(dp=8, tp=2, micro_batch=1)
    return price_layout(load_model("llama3-8b"), load_cluster("h100:2x8"), Job(global_batch=64), layout)  # fmt: skip


def words_of(bundle):
    (text,) = bundle.files.values()
    if text.startswith("#!"):
        done = subprocess.run(
            ["bash", "-n"], input=text, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return text
    return " ".join(str(document) for document in yaml.safe_load_all(text))


@pytest.mark.parametrize("launcher", [name for name in LAUNCHERS if name != "ray"])
def test_each_launcher_measures_on_all_ranks(plan, launcher):
    bundle = export(plan, launcher, launches="measure")
    text = words_of(bundle)
    where = "-o -" if launcher in PODS else "-o mine.toml"
    assert "-m meshwright.measure" in text and where in text
    assert "--nnodes 2" in text and "--nproc-per-node 8" in text
    assert "meshwright[engine]" in text and "pretrain_gpt" not in text
    (file,) = bundle.files
    assert file in bundle.start and "train.sbatch" not in text
    assert "mine.toml" in bundle.notes[0]


def test_ranks_of_a_processor_measure_on_one_core_each():
    layout = Layout(dp=4, micro_batch=1)
    own = price_layout(load_model("gpt2"), load_cluster("cpu:2x2"), Job(global_batch=8), layout)
    assert "OMP_NUM_THREADS=1 " in words_of(export(own, "slurm", launches="measure"))


def test_what_cannot_measure_says_so(plan):
    with pytest.raises(SpecError, match="not --to ray"):
        export(plan, "ray", launches="measure")
    with pytest.raises(SpecError, match="is itself a framework"):
        export(plan, "megatron", launches="measure")


def test_the_command_line_writes_it(plan, tmp_path, capsys):
    save_plan(plan, tmp_path / "plan.toml")
    command = ["export", str(tmp_path / "plan.toml"), "--to", "slurm", "--for", "measure"]
    assert run_command([*command, "-o", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "measure.sbatch").exists()
    assert "mine.toml" in capsys.readouterr().err


def test_a_cluster_file_is_printed_where_asked(capsys, tmp_path):
    pytest.importorskip("torch")
    from meshwright.measure.__main__ import deliver

    cluster = load_cluster("cpu:1x2")
    deliver(cluster, "-")
    told = capsys.readouterr()
    assert load_cluster(tomllib.loads(told.out)).gpus == 2 and cluster.source in told.err
    deliver(cluster, str(tmp_path / "mine.toml"))
    assert load_cluster(str(tmp_path / "mine.toml")).gpus == 2
    # After whatever a pod's log has before it, the file starts with its name.
    assert told.out.startswith("name = ")
