"""TPUs on Kubernetes (GKE): a JobSet of one slice, one pod a host, for MaxText.

Topologies and hosts: Google's page "TPUs in GKE". Slices of v4, v5p and v7 are three-dimensional, v5e's and v6e's
two-dimensional; a slice of several hosts has four chips on each, whatever a single host's machine has.
"""

from __future__ import annotations

from typing import Any

from meshwright.exports.cluster_files import (
    CODE_MAP,
    host_command,
    job_name,
    variables,
    with_disk,
    yaml_text,
)
from meshwright.exports.images import setup
from meshwright.exports.launch import Command
from meshwright.specs.errors import SpecError
from meshwright.specs.plan import Plan

_ACCELERATOR = {
    # Part of the device's name → GKE's word for it, and the dimensions of its slices.
    "v4": ("tpu-v4-podslice", 3), "v5e": ("tpu-v5-lite-podslice", 2), "v5p": ("tpu-v5p-slice", 3),
    "v6e": ("tpu-v6e-slice", 2), "v7": ("tpu7x", 3),
}  # fmt: skip
_FLAT = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
_SMALL = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4"}
CHIPS_PER_HOST = 4
_IMAGE = "python:3.12"


def topology(plan: Plan) -> tuple[str, str]:
    """GKE's names of a plan's devices and of a slice of as many: ("tpu-v5p-slice", "4x4x4").

    Raises:
        SpecError: no such TPU on GKE, or no slice of as many chips.
    """
    device, chips = plan.cluster.device.name, plan.layout.world
    found = next((word for part, word in _ACCELERATOR.items() if part in device.lower()), None)
    if found is None:
        raise SpecError("cluster", plan.cluster.name, f"GKE has TPU {', '.join(_ACCELERATOR)}")
    accelerator, dimensions = found
    shape = _FLAT.get(chips) if dimensions == 2 else _SMALL.get(chips) or _cube(chips)
    if not shape:
        sizes = (
            ", ".join(map(str, _FLAT))
            if dimensions == 2
            else f"{', '.join(map(str, _SMALL))} or 64 · n"
        )
        raise SpecError("layout", chips, f"GKE has slices of {sizes} chips of {device}")
    return accelerator, shape


def _cube(chips: int) -> str:
    """The three multiples of four nearest to a cube whose product is the number of chips; empty if none is."""
    shapes = [
        (a, b, chips // (a * b))
        for a in range(4, round(chips ** (1 / 3)) + 1, 4)
        for b in range(a, round((chips / a) ** 0.5) + 1, 4)
        if chips % (a * b) == 0 and chips // (a * b) % 4 == 0
    ]
    best = min(shapes, key=lambda shape: max(shape) - min(shape), default=())
    return "x".join(map(str, best))


def slice_jobset(plan: Plan, command: Command, stamp: str) -> str:
    """A JobSet that takes one slice whole; JAX learns its hosts from what GKE tells each pod.

    Raises:
        SpecError: GKE has no such slice.
    """
    accelerator, shape = topology(plan)
    chips = plan.layout.world
    single = chips <= plan.cluster.gpus_per_node
    hosts, each = (1, chips) if single else (chips // CHIPS_PER_HOST, CHIPS_PER_HOST)
    shell = "\n".join(
        ["set -e", *command.asked().splitlines(), "mkdir -p /workspace && cp -L /code/* /workspace/ 2>/dev/null || true", "cd /workspace",
         *setup(plan, command.framework, container=True), host_command(plan, command, "", "", "")]
    )  # fmt: skip
    wanted = {"google.com/tpu": each}
    container: dict[str, Any] = {
        "name": "jax", "image": _IMAGE, "command": ["bash", "-c", shell],
        "env": [{"name": name, "value": value} for name, value in variables(plan, command).items()],
        "ports": [{"containerPort": port, "protocol": "TCP"} for port in (8471, 8080)],
        "resources": {"limits": wanted, "requests": dict(wanted)},
        "securityContext": {"privileged": True},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"},
                         {"name": "code", "mountPath": "/code", "readOnly": True}],
    }  # fmt: skip
    pod = {
        "restartPolicy": "Never", "hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet",
        "nodeSelector": {
            "cloud.google.com/gke-tpu-accelerator": accelerator, "cloud.google.com/gke-tpu-topology": shape,
        },
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}},
                    {"name": "code", "configMap": {"name": CODE_MAP, "optional": True}}],
    }  # fmt: skip
    job = {
        "parallelism": hosts, "completions": hosts, "completionMode": "Indexed", "backoffLimit": 0,
        "template": {"spec": with_disk(pod, command)},
    }  # fmt: skip
    whole = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    data = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job_name(plan), "annotations": whole},
        "spec": {
            "network": {"enableDNSHostnames": True},
            "replicatedJobs": [{"name": "slice", "replicas": 1, "template": {"spec": job}}],
        },
    }
    return stamp + yaml_text([data])
