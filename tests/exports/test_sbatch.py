"""SLURM's own controller takes our scripts: `sbatch --test-only`, then hosts that start their ranks.

Runs wherever Debian's slurmctld, slurmd and slurm-client are (`make validate-more` brings them) and
the tests have the rights that node daemons need; every daemon listens on loopback alone.
"""

import re
import sys
import time
from pathlib import Path

import pytest
from plans import make_plan

from meshwright.exports.targets import export

sys.path.insert(0, str(Path(__file__).parent / "validators"))
from slurm_cluster import SlurmCluster, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"no SLURM here: {missing()}")
PLANS = {
    "megatron": {"tp": 8, "dp": 2, "pp": 4},
    "megatron-bridge": {"tp": 8, "dp": 8, "zero": 1},
    "primus": {"tp": 4, "dp": 2},
    "deepspeed": {"dp": 64, "zero": 3},
    "accelerate": {"dp": 16, "zero": 3},
    "torchtitan": {"tp": 8, "dp": 4, "zero": 3},
    "nanotron": {"tp": 8, "dp": 2},
    "fsdp": {"dp": 32, "zero": 3},
    "lightning": {"dp": 16, "zero": 3},
}


def script(framework):
    model = "llama3.1-8b" if framework == "torchtitan" else "llama3-8b"
    return export(make_plan(model, **PLANS[framework]), "slurm", launches=framework).files


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Eight hosts of DGX H100: 112 cores, eight cards."""
    made = SlurmCluster(tmp_path_factory.mktemp("slurm"), hosts=8, cpus=112, gpus=8)
    yield made
    made.close()


@pytest.mark.parametrize("framework", PLANS)
def test_sbatch_would_start_the_job(framework, cluster, tmp_path):
    (tmp_path / "train.sbatch").write_text(script(framework)["train.sbatch"])
    done = cluster.call("sbatch", "--test-only", "train.sbatch", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    hosts = make_plan(**PLANS[framework]).layout.world // 8
    # Exclusive hosts: every core of each is the job's.
    assert f"using {hosts * 112} processors" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("old", "new"),
    [("--gpus-per-node=8", "--gpus-per-node=9"), ("--nodes=8", "--nodes=9"),
     ("--cpus-per-task=96", "--cpus-per-task=113"), ("--exclusive", "--exlusive")],
)  # fmt: skip
def test_sbatch_refuses_what_the_hosts_do_not_have(old, new, cluster, tmp_path):
    text = script("megatron")["train.sbatch"]
    assert old in text
    (tmp_path / "train.sbatch").write_text(text.replace(old, new))
    assert cluster.call("sbatch", "--test-only", "train.sbatch", cwd=tmp_path).returncode != 0


@pytest.mark.parametrize("framework", ["megatron", "accelerate"])
def test_every_host_starts_its_own_ranks(framework, cluster, tmp_path):
    """The job runs under the real srun; what it starts writes down where and with which words."""
    fake = tmp_path / "bin"
    fake.mkdir()
    for name in ("torchrun", "accelerate"):
        (fake / name).write_text(
            '#!/bin/bash\n{ echo "$SLURMD_NODENAME $SLURM_CPUS_PER_TASK"; printf "%s\\n" "$@"; } '
            f'> "{tmp_path}/$SLURMD_NODENAME.txt"\n'
        )
        (fake / name).chmod(0o755)
    for name, text in script(framework).items():
        (tmp_path / name).write_text(text)
    path = f"{fake}:{cluster.environment['PATH']}"
    told = cluster.call(
        "sbatch", "train.sbatch", "--save", "two words", "$HOME", cwd=tmp_path, PATH=path
    )
    assert told.returncode == 0, told.stderr
    number = told.stdout.split()[-1]
    assert finished(cluster, number) == "COMPLETED", (
        tmp_path / f"llama3-8b-{number}.log"
    ).read_text()
    plan = make_plan(**PLANS[framework])
    hosts = plan.layout.world // 8
    said = {one.stem: one.read_text().splitlines() for one in tmp_path.glob("node*.txt")}
    assert len(said) == hosts
    rank = "--node-rank" if framework == "megatron" else "--machine_rank"
    first = "--master-addr" if framework == "megatron" else "--main_process_ip"
    ranks = set()
    for place, (head, *words) in said.items():
        assert head == f"{place} 96"
        ranks.add(int(words[words.index(rank) + 1]))
        assert words[words.index(first) + 1] == "node0"
        assert words[-3:] == ["--save", "two words", "$HOME"]
    assert ranks == set(range(hosts))


def finished(cluster, number, limit_s=120):
    """The state in which a job ended, or what SLURM says of one that goes on for longer than a busy machine needs."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        text = cluster.call("scontrol", "show", "job", number, "-o").stdout
        state = re.search(r"JobState=(\w+)", text)
        if state and state[1] not in ("PENDING", "RUNNING", "COMPLETING"):
            return state[1]
        time.sleep(0.1)
    return f"still running: {text}{cluster.call('scontrol', 'show', 'step').stdout}"


def test_a_job_that_fails_on_one_host_ends_on_all(cluster, tmp_path):
    """One host leaves when both run: before that, SLURM's own signal may come too early for the other."""
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "torchrun").write_text(
        f'#!/bin/sh\ntouch "{tmp_path}/runs$SLURM_NODEID"\n'
        f'[ "$SLURM_NODEID" = 1 ] || exec sleep 600\n'
        f'until [ -e "{tmp_path}/runs0" ]; do sleep 0.1; done\nexit 3\n'
    )
    (fake / "torchrun").chmod(0o755)
    (tmp_path / "train.sbatch").write_text(script("nanotron")["train.sbatch"])
    path = f"{fake}:{cluster.environment['PATH']}"
    number = cluster.call("sbatch", "train.sbatch", cwd=tmp_path, PATH=path).stdout.split()[-1]
    assert finished(cluster, number) == "FAILED"
