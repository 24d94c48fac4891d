"""Kubernetes: TrainJob, JobSet and PyTorchJob.

Schemas: `trainer.kubeflow.org/v1alpha1` TrainJob (Trainer 2.2), `jobset.x-k8s.io/v1alpha2` JobSet,
`kubeflow.org/v1` PyTorchJob (training-operator 1.9).
"""

from __future__ import annotations

from typing import Any

from meshwright.exports.cluster_files import (
    CODE_MAP,
    SECRET,
    container_variables,
    host_command,
    job_name,
    kept,
    with_disk,
    yaml_text,
)
from meshwright.exports.fabric import check_hosts, network_kind
from meshwright.exports.images import image, setup
from meshwright.exports.launch import Command
from meshwright.exports.tpu_slices import slice_jobset
from meshwright.specs.errors import SpecError
from meshwright.specs.plan import Plan

_RESOURCE = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "cpu": "cpu",
             "google": "google.com/tpu", "aws": "aws.amazon.com/neuron", "intel": "habana.ai/gaudi",
             "huawei": "huawei.com/Ascend910"}  # fmt: skip
_FABRIC = {
    # Kind of network → the resource of its device plugin, and how many of the cards a pod takes.
    "efa": "vpc.amazonaws.com/efa",
    "infiniband": "rdma/rdma_shared_device_a",
    "roce": "rdma/rdma_shared_device_a",
}
_CHANNEL = "nvlink-channel"
"""What a pod calls its channel of the ComputeDomain."""
_CLIQUE = "nvidia.com/gpu.clique"
"""The label that hosts of one NVLink network share."""
CODE = "/code"
"""Where the exported files are mounted."""


def shares_nvlink(plan: Plan) -> int:
    """Hosts whose devices reach each other over NVLink (a rack of GB200: 18); 1 where only a host's own do."""
    cluster = plan.cluster
    if cluster.device.vendor != "nvidia" or check_hosts(plan)[0] == 1:
        return 1
    return max(cluster.levels[0].domain // cluster.gpus_per_node, 1)


def _domain(plan: Plan) -> list[dict[str, Any]]:
    """The ComputeDomain whose channel lets pods on several hosts use one NVLink network (IMEX).

    Source: API reference of NVIDIA's DRA driver for GPUs, `resource.nvidia.com/v1beta1`; releases that start
    work at once ignore `numNodes`, older ones wait for as many.
    """
    if shares_nvlink(plan) == 1:
        return []
    name = job_name(plan)
    channel = {"resourceClaimTemplate": {"name": f"{name}-channel"}}
    return [
        {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "ComputeDomain",
            "metadata": {"name": name},
            "spec": {"numNodes": check_hosts(plan)[0], "channel": channel},
        }
    ]


def _resources(plan: Plan) -> dict[str, Any]:
    """Accelerators of one host, and the cards of its fabric where a device plugin hands them out."""
    _, per_host = check_hosts(plan)
    wanted = {_RESOURCE.get(plan.cluster.device.vendor, "nvidia.com/gpu"): per_host}
    kind = network_kind(plan.cluster)
    if kind in _FABRIC and plan.cluster.device.vendor != "cpu":
        cards = max(plan.cluster.levels[-1].nics_per_node, 1)
        wanted[_FABRIC[kind]] = cards if kind == "efa" else 1
    found: dict[str, Any] = {"limits": wanted, "requests": dict(wanted)}
    if shares_nvlink(plan) > 1:
        found["claims"] = [{"name": _CHANNEL}]
    return found


def start_with(file: str) -> str:
    """The command that hands the exported files to the cluster, in place of older ones, and starts the job."""
    made = f"kubectl create configmap {CODE_MAP} --from-file=. --dry-run=client -o yaml"
    return f"{made} | kubectl apply -f - && kubectl apply -f {file}"


def token_note() -> str:
    """How pods are told a token of the hub."""
    return f"a token of the hub for the pods: kubectl create secret generic {SECRET} --from-literal=HF_TOKEN=…"


def _prepared(plan: Plan, command: Command) -> str:
    """Lines that a container runs first: a folder it can write to, and the framework."""
    lines = ["set -e", *command.asked().splitlines(), f"mkdir -p /workspace && cp -L {CODE}/* /workspace/ 2>/dev/null || true",
             "cd /workspace", *kept(plan, command), *setup(plan, command.framework, container=True)]  # fmt: skip
    return "\n".join(lines) + "\n"


def _pod(plan: Plan, command: Command, container: dict[str, Any]) -> dict[str, Any]:
    """A pod with the memory, rights and network that collectives between hosts need."""
    privileges = {"capabilities": {"add": ["IPC_LOCK"]}}
    mounts = [
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "code", "mountPath": CODE, "readOnly": True},
    ]
    spec: dict[str, Any] = {
        "containers": [container | {"securityContext": privileges, "volumeMounts": mounts}],
        "volumes": [
            # NCCL and data loaders share memory there; a container's own has 64 MB.
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            {"name": "code", "configMap": {"name": CODE_MAP, "optional": True}},
        ],
    }
    if network_kind(plan.cluster) != "none":
        spec = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} | spec
    if shares_nvlink(plan) > 1:
        template = f"{job_name(plan)}-channel"
        spec["resourceClaims"] = [{"name": _CHANNEL, "resourceClaimTemplateName": template}]
    return with_disk(spec, command)


def _racks(plan: Plan) -> list[tuple[str, int, int]]:
    """Groups of hosts to be placed together: (name, how many of them, hosts of each), ranks in this order."""
    hosts, together = check_hosts(plan)[0], shares_nvlink(plan)
    if together == 1 or hosts <= together:
        return [("host", 1, hosts)]
    rest = hosts % together
    return [("rack", hosts // together, together), *([("rest", 1, rest)] if rest else [])]


def _one_group(plan: Plan, kind: str) -> None:
    """Refuse several NVLink networks where one group of pods is all that a kind of job has.

    Raises:
        SpecError: the plan's hosts lie in several racks, whose order no field of such a job gives.
    """
    if len(racks := _racks(plan)) > 1 or racks[0][1] > 1:
        together = shares_nvlink(plan)
        raise SpecError("--to", kind, f"has one group of hosts, and this plan's lie in NVLink networks of {together} each, "
                        "which ranks must follow: --to jobset places a job in each")  # fmt: skip


def _container(plan: Plan, command: Command, rank: str, address: str, port: str) -> dict[str, Any]:
    shell = _prepared(plan, command) + host_command(plan, command, rank, address, port)
    return {
        "image": image(plan, command.framework),
        "command": ["bash", "-c", shell],
        "env": container_variables(plan, command),
        "resources": _resources(plan),
    }


def trainjob(plan: Plan, command: Command, stamp: str) -> str:
    """A TrainJob and the TrainingRuntime that it runs on: one node a host, numbered by the runtime.

    A job has words for its command, its devices and its variables alone; shared memory, IPC_LOCK, the
    host's network and the files are its runtime's to give, so the file brings a runtime of its own
    instead of leaning on what `torch-distributed` of a cluster happens to hold.
    """
    _one_group(plan, "kubernetes")
    hosts, _ = check_hosts(plan)
    name = job_name(plan)
    shell = _prepared(plan, command) + host_command(
        plan, command, '"$PET_NODE_RANK"', '"$PET_MASTER_ADDR"', '"$PET_MASTER_PORT"'
    )
    container: dict[str, Any] = {"name": "node", "image": image(plan, command.framework)}
    resources: dict[str, Any] = {"resourcesPerNode": _resources(plan)}
    if shares_nvlink(plan) > 1:
        # What a job says of its nodes takes the runtime's place without its claims (Trainer's JobSet builder).
        container, resources = container | {"resources": _resources(plan)}, {}
    pod = {"restartPolicy": "Never"} | _pod(plan, command, container)
    node = {
        "name": "node",
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {"backoffLimit": 0, "template": {"spec": pod}},
        },
    }
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": name, "labels": {"trainer.kubeflow.org/framework": "torch"}},
        "spec": {
            "mlPolicy": {"numNodes": hosts, "torch": {}},
            "template": {"spec": {"replicatedJobs": [node]}},
        },
    }
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": name,
            },
            "trainer": {
                "image": image(plan, command.framework),
                "numNodes": hosts,
                "command": ["bash", "-c", shell],
                "env": container_variables(plan, command),
                **resources,
            },
        },
    }  # fmt: skip
    return stamp + yaml_text([*_domain(plan), runtime, job])


def pytorchjob(plan: Plan, command: Command, stamp: str) -> str:
    """A PyTorchJob: a master and workers, one pod a host, numbered by the operator."""
    _one_group(plan, "pytorchjob")
    hosts, _ = check_hosts(plan)
    container = {"name": "pytorch"} | _container(
        plan, command, '"$PET_NODE_RANK"', '"$PET_MASTER_ADDR"', '"$PET_MASTER_PORT"'
    )
    template = {"spec": _pod(plan, command, container)}

    def replicas(count: int) -> dict[str, Any]:
        return {"replicas": count, "restartPolicy": "OnFailure", "template": template}

    specs = {"Master": replicas(1)}
    if hosts > 1:
        specs["Worker"] = replicas(hosts - 1)
    data = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": job_name(plan)},
        "spec": {"nprocPerNode": str(check_hosts(plan)[1]), "pytorchReplicaSpecs": specs},
    }
    return stamp + yaml_text([*_domain(plan), data])


def jobset(plan: Plan, command: Command, stamp: str) -> str:
    """A JobSet of indexed Jobs, whose index is the host's number.

    Where hosts share an NVLink network, each Job has one such network to itself, and ranks count through them.
    """
    if command.framework == "maxtext":
        return slice_jobset(plan, command, stamp)
    name, racks = job_name(plan), _racks(plan)
    master, first, jobs = f"{name}-{racks[0][0]}-0-0.{name}", 0, []
    for group, count, hosts in racks:
        rank, index = '"$JOB_COMPLETION_INDEX"', []
        if len(racks) > 1 or count > 1:
            rank = f'"$(({first} + {hosts} * JOB_INDEX + JOB_COMPLETION_INDEX))"'
            field = {"fieldPath": "metadata.annotations['jobset.sigs.k8s.io/job-index']"}
            index = [{"name": "JOB_INDEX", "valueFrom": {"fieldRef": field}}]
        container = {"name": "pytorch"} | _container(plan, command, rank, master, "29500")
        container["env"] += index
        pod = {"restartPolicy": "Never"} | _pod(plan, command, container)
        job = {
            "parallelism": hosts, "completions": hosts, "completionMode": "Indexed", "backoffLimit": 0,
            "template": {"spec": pod},
        }  # fmt: skip
        jobs.append({"name": group, "replicas": count, "template": {"spec": job}})
        first += count * hosts
    metadata: dict[str, Any] = {"name": name}
    if shares_nvlink(plan) > 1:
        metadata["annotations"] = {"alpha.jobset.sigs.k8s.io/exclusive-topology": _CLIQUE}
    data = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {"network": {"enableDNSHostnames": True}, "replicatedJobs": jobs},
    }
    return stamp + yaml_text([*_domain(plan), data])
