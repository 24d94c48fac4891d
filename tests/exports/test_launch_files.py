"""Launchers: no hang without a meeting point, words passed on, cores, memory, fabric, images."""

import os
import subprocess

import pytest
import yaml
from plans import make_plan

from meshwright.exports.targets import export
from meshwright.specs import Job, load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES

TWO = make_plan("llama3-8b", tp=8, dp=2, cluster="h100:2x8")


def run(text, tmp_path, *words, **environment):
    fake = tmp_path / "bin"
    fake.mkdir(exist_ok=True)
    for name, body in {
        "torchrun": 'printf "%s\\n" "$@"',
        "scontrol": "echo host0",
        "srun": 'echo "srun $1"; while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
    }.items():
        (fake / name).write_text(f"#!/bin/sh\n{body}\n")
        (fake / name).chmod(0o755)
    script = tmp_path / "run.sh"
    script.write_text(text)
    return subprocess.run(
        ["bash", str(script), *words], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={"PATH": f"{fake}:{os.environ['PATH']}", "DATA": "mock", **environment},
    )  # fmt: skip


@pytest.mark.parametrize("missing", ["MASTER_ADDR", "NODE_RANK"])
def test_several_hosts_without_a_meeting_point_are_an_error(missing, tmp_path):
    told = {"MASTER_ADDR": "host0", "NODE_RANK": "1"}
    told.pop(missing)
    done = run(export(TWO, "megatron").files["run.sh"], tmp_path, **told)
    assert done.returncode != 0
    assert missing in done.stderr and "2 hosts" in done.stderr
    assert done.stdout == ""


def test_one_host_needs_no_meeting_point_and_words_go_on(tmp_path):
    one = make_plan("llama3-8b", tp=2, dp=4)
    done = run(export(one, "megatron").files["run.sh"], tmp_path, "--save", "two words")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["--save", "two words"]


def test_slurm_hands_cores_and_words_on(tmp_path):
    text = export(TWO, "slurm", launches="megatron").files["train.sbatch"]
    assert "#SBATCH --cpus-per-task=96" in text
    done = run(text, tmp_path, "--save", "two words", SLURM_CPUS_PER_TASK="96", SLURM_NODEID="1",
               SLURM_JOB_NODELIST="host[0-1]")  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "srun --cpus-per-task=96"
    assert lines[-2:] == ["--save", "two words"]


@pytest.mark.parametrize("launcher", ["kubernetes", "jobset", "pytorchjob"])
def test_pods_have_shared_memory_rights_and_cards(launcher):
    text = next(iter(export(TWO, launcher, launches="megatron").files.values()))
    assert "medium: Memory" in text and "mountPath: /dev/shm" in text and "IPC_LOCK" in text
    assert "hostNetwork: true" in text and "rdma/rdma_shared_device_a" in text
    assert "configMap" in text


def test_an_image_that_has_the_framework_on_the_vendor_s_devices():
    amd = make_plan("llama3-8b", tp=8, dp=2, cluster="mi300x:2x8")
    assert "image: rocm/primus" in export(amd, "jobset", launches="megatron").files["jobset.yaml"]
    assert "nvcr.io/nvidia/nemo" in export(TWO, "jobset", launches="megatron").files["jobset.yaml"]


@pytest.mark.parametrize(
    ("device", "named"),
    [("gb200:2x4", "GB200:4"), ("mi325x:2x8", "MI325X:8"), ("v100:2x8", "V100-32GB:8"),
     ("l40s:2x4", "L40S:4"), ("h20:2x8", "H20:8"), ("rtx-pro-6000:2x8", "RTXPRO6000:8")],
)  # fmt: skip
def test_skypilot_knows_the_devices_and_sets_the_framework_up(device, named):
    cluster = load_cluster(device)
    half = RECIPES["bf16" if "bf16" in cluster.device.peak_flops else "fp16"]
    job = Job(global_batch=cluster.gpus * 8, precision=half)
    plan = make_plan("llama3-8b", job=job, dp=cluster.gpus, zero=3, cluster=device)
    task = yaml.safe_load(export(plan, "skypilot", launches="deepspeed").files["sky.yaml"])
    assert task["resources"]["accelerators"] == named
    assert "deepspeed==" in task["setup"]


def test_every_exported_device_has_a_name_at_skypilot_or_is_refused():
    for name in ("l40:2x8", "mi350x:1x8", "mi300a:1x4"):
        cluster = load_cluster(name)
        plan = make_plan("llama3-8b", dp=cluster.gpus, zero=3, cluster=name)
        if name.startswith("l40"):
            task = yaml.safe_load(export(plan, "skypilot", launches="fsdp").files["sky.yaml"])
            assert task["resources"]["accelerators"] == "L40:8"
        else:
            with pytest.raises(SpecError, match="SkyPilot has no name for hosts of MI3"):
                export(plan, "skypilot", launches="fsdp")


def test_skypilot_brings_an_image_where_no_machine_has_the_framework():
    plan = make_plan("llama3-8b", tp=8, dp=2, cluster="mi300x:2x8")
    task = yaml.safe_load(export(plan, "skypilot", launches="megatron").files["sky.yaml"])
    assert task["resources"]["image_id"] == "docker:rocm/primus:v26.5"
    engine = yaml.safe_load(export(TWO, "skypilot", launches="megatron").files["sky.yaml"])
    assert engine["resources"]["image_id"].startswith("docker:nvcr.io/nvidia/nemo")
    plain = make_plan("llama3-8b", dp=16, zero=3, cluster="h100:2x8")
    other = yaml.safe_load(export(plain, "skypilot", launches="fsdp").files["sky.yaml"])
    assert "image_id" not in other["resources"]


@pytest.mark.parametrize("framework", ["accelerate", "deepspeed"])
def test_a_loss_without_all_its_logits_is_asked_for_and_brought(framework):
    for loss in ("framework", "liger"):
        job = Job(seq_len=4096, global_batch=64, loss=loss)
        plan = make_plan("llama3-8b", dp=16, zero=3, job=job)
        assert f"LIGER = {loss == 'liger'} " in export(plan, framework).files["train.py"]
        task = export(plan, "skypilot", launches=framework).files["sky.yaml"]
        assert ("liger-kernel" in task) == (loss == "liger")
