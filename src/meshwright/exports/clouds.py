"""Launchers of clusters: Kubernetes (TrainJob, PyTorchJob), SkyPilot and Ray Train.

Schemas: `trainer.kubeflow.org/v1alpha1` TrainJob (Trainer 2.2), `kubeflow.org/v1` PyTorchJob
(training-operator 1.9), SkyPilot 0.14 task YAML, Ray 2.x `TorchTrainer`.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from meshwright.exports.fabric import check_hosts, environment
from meshwright.exports.launch import Command, launch_words
from meshwright.specs.plan import Plan

_IMAGE = "pytorch/pytorch:2.13.0-cuda12.8-cudnn9-runtime"
_RESOURCE = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "cpu": "cpu",
             "google": "google.com/tpu"}  # fmt: skip


def _name(plan: Plan) -> str:
    """A DNS label: what Kubernetes and SkyPilot accept as a name."""
    name = re.sub(r"[^a-z0-9]+", "-", plan.model.name.lower()).strip("-")
    return (name or "training")[:50].strip("-")


def _variables(plan: Plan, command: Command) -> dict[str, str]:
    return {name: value for name, (value, _) in environment(plan, command.framework).items()}


def _shell(plan: Plan, command: Command, rank: str, address: str, port: str) -> str:
    launcher = launch_words(plan, command, rank, address, port)
    return " \\\n  ".join(["exec " + " ".join(launcher), *command.lines()]) + "\n"


def _container(plan: Plan, command: Command, rank: str, address: str, port: str) -> dict[str, Any]:
    _, per_host = check_hosts(plan)
    resource = _RESOURCE.get(plan.cluster.device.vendor, "nvidia.com/gpu")
    return {
        "image": _IMAGE,
        "command": ["bash", "-c", _shell(plan, command, rank, address, port)],
        "env": [{"name": k, "value": v} for k, v in _variables(plan, command).items()],
        "resources": {"limits": {resource: per_host}, "requests": {resource: per_host}},
    }


def trainjob(plan: Plan, command: Command, stamp: str) -> str:
    """A TrainJob on the `torch-distributed` runtime: one node a host, numbered by the runtime."""
    hosts, per_host = check_hosts(plan)
    resource = _RESOURCE.get(plan.cluster.device.vendor, "nvidia.com/gpu")
    shell = _shell(plan, command, '"$PET_NODE_RANK"', '"$PET_MASTER_ADDR"', '"$PET_MASTER_PORT"')
    data = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": _name(plan)},
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime",
                "name": "torch-distributed",
            },
            "trainer": {
                "image": _IMAGE,
                "numNodes": hosts,
                "command": ["bash", "-c", shell],
                "env": [{"name": k, "value": v} for k, v in _variables(plan, command).items()],
                "resourcesPerNode": {
                    "limits": {resource: per_host}, "requests": {resource: per_host},
                },
            },
        },
    }  # fmt: skip
    return stamp + yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=100)


def pytorchjob(plan: Plan, command: Command, stamp: str) -> str:
    """A PyTorchJob: a master and workers, one pod a host, numbered by the operator."""
    hosts, _ = check_hosts(plan)
    container = {"name": "pytorch"} | _container(
        plan, command, '"$PET_NODE_RANK"', '"$PET_MASTER_ADDR"', '"$PET_MASTER_PORT"'
    )
    template = {"spec": {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet",
                         "containers": [container]}}  # fmt: skip

    def replicas(count: int) -> dict[str, Any]:
        return {"replicas": count, "restartPolicy": "OnFailure", "template": template}

    specs = {"Master": replicas(1)}
    if hosts > 1:
        specs["Worker"] = replicas(hosts - 1)
    data = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": _name(plan)},
        "spec": {"nprocPerNode": str(check_hosts(plan)[1]), "pytorchReplicaSpecs": specs},
    }
    return stamp + yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=100)


def jobset(plan: Plan, command: Command, stamp: str) -> str:
    """A JobSet of one indexed Job: the completion index is the host's number."""
    hosts, _ = check_hosts(plan)
    name = _name(plan)
    container = {"name": "pytorch"} | _container(
        plan, command, '"$JOB_COMPLETION_INDEX"', f"{name}-host-0-0.{name}", "29500"
    )
    pod = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet", "restartPolicy": "Never",
           "containers": [container]}  # fmt: skip
    job = {
        "parallelism": hosts, "completions": hosts, "completionMode": "Indexed", "backoffLimit": 0,
        "template": {"spec": pod},
    }  # fmt: skip
    data = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "network": {"enableDNSHostnames": True},
            "replicatedJobs": [{"name": "host", "replicas": 1, "template": {"spec": job}}],
        },
    }
    return stamp + yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=100)


_SKY = (
    ("b300", "B300"), ("b200", "B200"), ("h200", "H200"), ("h100", "H100"), ("gh200", "GH200"),
    ("a100 pcie 80", "A100-80GB"), ("a100 sxm 80", "A100-80GB"), ("a100", "A100"),
    ("v100", "V100"), ("l40s", "L40S"), ("l4", "L4"), ("a10g", "A10G"), ("t4", "T4"),
    ("mi300", "MI300X"), ("rtx 4090", "RTX4090"), ("rtx 3090", "RTX3090"),
)  # fmt: skip


def skypilot(plan: Plan, command: Command, stamp: str) -> str:
    """A SkyPilot task: it numbers its nodes and gives their addresses."""
    hosts, per_host = check_hosts(plan)
    device = plan.cluster.device.name
    known = next((sky for part, sky in _SKY if part in device.lower()), None)
    resources: dict[str, Any] = {"use_spot": False}
    if known:
        resources["accelerators"] = f"{known}:{per_host}"
    if hosts > 1:
        resources["network_tier"] = "best"
    shell = _shell(plan, command, '"$SKYPILOT_NODE_RANK"', '"$MASTER_ADDR"', "29500")
    head = 'MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)\n'
    data = {
        "name": _name(plan),
        "num_nodes": hosts,
        "resources": resources,
        "envs": _variables(plan, command),
        "workdir": ".",
        "run": head + shell,
    }
    return stamp + yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=100)


_RAY = '''"""Start the run through Ray Train: one worker a device, ranks in node order."""

{stamp}

import os
import runpy
import sys

import ray.train
from ray.train.torch import TorchConfig, TorchTrainer

WORDS = {words}
ENVIRONMENT = {environment}


def run():
    """Become one rank: Ray has set RANK, LOCAL_RANK, WORLD_SIZE and the master's address."""
    os.environ.update(ENVIRONMENT)
    program, *rest = [os.path.expandvars(word) for word in WORDS]
    if program == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [program, *rest]
        runpy.run_path(program, run_name="__main__")


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

    words = [re.sub(r"\$\{(\w+):-\.\}", r".", word.strip('"')) for word in command.words]
    gpu = plan.cluster.device.vendor != "cpu"
    return _RAY.format(
        stamp=stamp.rstrip(),
        words=pprint.pformat(words, width=96, compact=True),
        environment=pprint.pformat(_variables(plan, command), sort_dicts=False, width=96),
        backend="nccl" if gpu else "gloo",
        world=plan.layout.world,
        gpu=gpu,
    )


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, so that people can read the command."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _block)
