"""Launchers of clouds: SkyPilot and Ray Train.

Schemas: SkyPilot 0.14 task YAML, Ray 2.x `TorchTrainer`.
"""

from __future__ import annotations

import re
from typing import Any

from meshwright.exports.cluster_files import (
    HUB,
    SHARED,
    host_command,
    job_name,
    kept,
    variables,
    yaml_text,
)
from meshwright.exports.fabric import check_hosts
from meshwright.exports.images import machine_image, needs, setup
from meshwright.exports.launch import Command
from meshwright.specs.errors import SpecError
from meshwright.specs.plan import Plan

_SKY = (
    ("gb300", "GB300"), ("gb200", "GB200"), ("gh200", "GH200"), ("b300", "B300"), ("b200", "B200"),
    ("h200", "H200"), ("h20 ", "H20"), ("h100", "H100"), ("h800", "H800"), ("a800", "A800"),
    ("a100 pcie 80", "A100-80GB"), ("a100 sxm 80", "A100-80GB"), ("a100", "A100"),
    ("v100 sxm 32", "V100-32GB"), ("v100", "V100"), ("l40s", "L40S"), ("l40 ", "L40"), ("l4 ", "L4"),
    ("a10g", "A10G"), ("a10 ", "A10"), ("a40", "A40"), ("t4", "T4"), ("mi250", "MI250"),
    ("mi300x", "MI300X"), ("mi325", "MI325X"), ("mi355", "MI355X"), ("rtx 4090", "RTX4090"),
    ("rtx 3090", "RTX3090"), ("rtx 5090", "RTX5090"), ("rtx a6000", "RTXA6000"),
    ("rtx a5000", "RTXA5000"), ("rtx 6000 ada", "RTX6000-Ada"), ("rtx pro 6000", "RTXPRO6000"), ("tpu v4", "tpu-v4"),
    ("tpu v5e", "tpu-v5litepod"), ("tpu v5p", "tpu-v5p"), ("tpu v6e", "tpu-v6e"),
    ("trainium1", "Trainium"), ("trainium2", "Trainium2"),
)  # fmt: skip


def skypilot(plan: Plan, command: Command, stamp: str) -> str:
    """A SkyPilot task: it numbers its nodes and gives their addresses.

    Raises:
        SpecError: none of its clouds has hosts of such devices.
    """
    hosts, per_host = check_hosts(plan)
    device = plan.cluster.device.name
    known = next((sky for part, sky in _SKY if part in device.lower()), None)
    resources: dict[str, Any] = {"use_spot": False}
    if known and known.startswith("tpu-"):
        resources["accelerators"] = f"{known}-{per_host}"
    elif known:
        resources["accelerators"] = f"{known}:{per_host}"
    elif plan.cluster.device.vendor != "cpu":
        raise SpecError("cluster", plan.cluster.name, f"SkyPilot has no name for hosts of {device}")
    if container := machine_image(plan, command.framework):
        # No machine's own image has PyTorch for ROCm, or Transformer Engine; `setup` runs inside this one.
        resources["image_id"] = f"docker:{container}"
    if hosts > 1:
        resources["network_tier"] = "best"
    shell = host_command(plan, command, '"$SKYPILOT_NODE_RANK"', '"$MASTER_ADDR"', "29500")
    # `setup` runs in a shell of its own: what it exported is said again.
    brought = setup(plan, command.framework, container=container is not None)
    found = [line for line in brought if line.startswith("export ")]
    head = 'MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)\n'
    # Machines end with their disks: a bucket, made where there is none of this name, holds what lasts.
    bucket = {"BUCKET": f"training-{job_name(plan)}"} if command.lasts else {}
    data = {
        "name": job_name(plan),
        "num_nodes": hosts,
        "resources": resources,
        # An empty token is none; `sky launch --env HF_TOKEN` hands on one's own.
        "envs": variables(plan, command)
        | bucket
        | ({"HF_TOKEN": ""} if command.framework in HUB else {}),
        "workdir": ".",
        **(
            {"file_mounts": {SHARED: {"name": "${BUCKET}", "mode": "MOUNT_CACHED"}}}
            if bucket
            else {}
        ),
        "setup": "\n".join(["set -e", *brought]) + "\n",
        "run": command.asked()
        + "".join(f"{line}\n" for line in (*kept(plan, command), *found))
        + head
        + shell,
    }
    return stamp + yaml_text([data])


_RAY = '''"""Start the run through Ray Train: one worker a device, ranks in node order."""

{stamp}

import os
import runpy
import subprocess
import sys
from pathlib import Path

import ray
import ray.train
import torch.distributed
from ray.train.torch import TorchConfig, TorchTrainer

ASKED = {asked}
FILLED = {filled}


def filled():
    """The words that ASKED makes of what was filled in, which workers are told, too; or its sentence, and the end."""
    done = subprocess.run(["bash", "-c", ASKED + "env -0"], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    said = dict(one.split("=", 1) for one in done.stdout.split(chr(0)) if "=" in one)
    os.environ.update({{name: said[name] for name in FILLED}})
    return said.get("INPUTS", "").split() if "INPUTS" in ASKED else []


WORDS = {words}
MORE = filled() + sys.argv[1:]
ENVIRONMENT = {environment}


def expanded(word):
    """A word as a shell reads it on this host, where it names a variable."""
    if '"$' not in word:
        return word
    return subprocess.check_output(["bash", "-c", "printf %s " + word], text=True)


def run():
    """Become one rank: Ray has set RANK, LOCAL_RANK, WORLD_SIZE and the master's address."""
    os.environ.update(ENVIRONMENT)
    # What torchrun's children find as well: programs ask for it, and make the group of ranks themselves.
    os.environ.setdefault("TORCHELASTIC_RUN_ID", "ray")
    torch.distributed.destroy_process_group()
    os.chdir(os.environ["RUN_FOLDER"])
    sys.path.insert(0, os.getcwd())
    program, *rest = [*map(expanded, WORDS), *MORE]
    if program == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [program, *rest]
        runpy.run_path(program, run_name="__main__")


# RUN_FOLDER is where every host finds these files: a shared disk, or the same path on each.
folder = os.environ.get("RUN_FOLDER", str(Path(__file__).resolve().parent))
# Workers have the environment of Ray's own processes: what this shell says of these is told them.
told = {{name: os.environ[name] for name in {told} if name in os.environ}}
ray.init(runtime_env={{"env_vars": told | {{"RUN_FOLDER": folder}}}})
TorchTrainer(
    run,
    torch_config=TorchConfig(backend="{backend}"),
    scaling_config=ray.train.ScalingConfig(
        num_workers={world}, use_gpu={gpu}, placement_strategy="PACK"
    ),
).fit()
'''


def ray_script(plan: Plan, command: Command, stamp: str) -> str:
    """A Ray Train driver that turns each worker into one rank of the program."""
    import pprint

    gpu = plan.cluster.device.vendor != "cpu"
    filled = command.inputs.defaults if command.inputs else {}
    brought = "\n".join(setup(plan, command.framework))
    told = re.findall(r"^export (\w+)=", brought, re.M)  # where a clone lies
    given = {name: value for name, value in variables(plan, command).items() if name not in filled}
    return _RAY.format(
        stamp=(stamp + needs(plan, command.framework)).rstrip(),
        told=tuple(dict.fromkeys((*filled, *told, "HF_TOKEN", "HF_HOME", "HF_ASSETS_PATH"))),
        words=pprint.pformat(list(command.words), width=96, compact=True),
        filled=tuple(filled),
        asked=pprint.pformat(command.asked(), width=96),
        environment=pprint.pformat(given, sort_dicts=False, width=96),
        backend="nccl" if gpu else "gloo",
        world=plan.layout.world,
        gpu=gpu,
    )
