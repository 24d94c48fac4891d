"""Host memory as a place for what a device does not need all the time: what it frees, what it costs.

Activations leave layer by layer in forward and come back in backward (Megatron-Core's fine-grained
activation offloading, torchtune's and TRL's enable_activation_offloading, MaxText's remat policies):
the link works beside the compute, and what outlasts it is exposed. The optimizer's states stay with the
host, which updates them (ZeRO-Offload, arXiv 2101.06840): gradients go, weights come back. Parameters
come for every pass (ZeRO-Infinity, arXiv 2104.07857; FSDP's CPU offload), and their gradients go.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.costs.columns import Bools, Floats, Ints, LayoutColumns
from meshwright.costs.pipeline import StageTimes
from meshwright.specs.cluster import Cluster
from meshwright.specs.job import Job
from meshwright.specs.layout import OFFLOAD_MODULES, OFFLOADS, Offload
from meshwright.specs.model import Model

LINK_REACH = 0.8
"""Share of a host link's data sheet that copies of pinned memory reach: 25 of PCIe 4 x16's 31.5 GB/s
(NVIDIA's bandwidthTest and most published runs of it)."""
HOST_LINK_BYTES_S = 31.5e9
"""Data sheet of PCIe 4 x16, each way: where neither the device nor the cluster names its host link."""
HOST_UPDATE_S = 0.26e-9
"""Of one parameter by a host's vectorised Adam, all its devices together: 2.57 s for ten billion on two
Xeon Platinum 8168 (ZeRO-Offload, arXiv 2101.06840, table 4)."""
HOST_SHARE = 0.75
"""Share of a host's memory that may be pinned: the rest is for its programs, data and file caches
(assumed)."""
IN_HOST = ("activations", "optimizer", "gradients", "parameters")
"""Memory parts that host memory can take."""
RESIDENT_LAYERS = 2.0
"""Layers whose activations stay on the device: the one in use and the one on its way."""


def host_link_bytes_s(cluster: Cluster) -> float:
    """Bandwidth between a device and its host, each way, as copies reach it."""
    sheet = cluster.device.host_link_bytes_s
    if not sheet:
        found = [level.bandwidth_bytes_s for level in cluster.levels if level.kind == "pcie"]
        sheet = found[0] if found else HOST_LINK_BYTES_S
    return LINK_REACH * sheet


def in_host(columns: LayoutColumns, what: Offload) -> Bools:
    """Rows that keep something in host memory; shape (rows,)."""
    return (columns.offload >> OFFLOADS.index(what)) & 1 > 0


def modules_in_host(columns: LayoutColumns) -> bool:
    """Whether any row keeps the inputs of named parts of its layers there."""
    named = sum(1 << OFFLOADS.index(module) for module in OFFLOAD_MODULES)
    return bool((columns.offload & named).any())


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes of one rank in host memory; arrays of shape (rows,). Activations: of one micro-batch."""

    activations: Floats
    optimizer: Floats
    parameters: Floats
    gradients: Floats
    held: Floats
    """All of it at once."""


def leave_device(
    model: Model, job: Job, columns: LayoutColumns, parts: dict[str, Floats], layers: Floats,
    flight: Floats, gaps: float, of_modules: Floats | float = 0.0,
) -> tuple[dict[str, Floats], Moved]:  # fmt: skip
    """A rank's memory parts with what is offloaded gone, and the bytes that went.

    `layers` are those of the rank, `flight` its micro-batches in flight, `gaps` the allocator's share
    on what comes and goes, `of_modules` what the named parts of its layers keep for one micro-batch. Where no other rank holds a share, embedding and head stay, as do three
    layers' weights: before, in and after use.
    """
    count = np.maximum(layers, 1.0)
    stay = np.minimum(RESIDENT_LAYERS / (count * np.maximum(flight, 1.0)), 1.0)
    named = np.minimum(of_modules * flight, parts["activations"])
    gone = np.where(in_host(columns, "activations"), parts["activations"], named) * (1.0 - stay)
    optimizer = np.where(in_host(columns, "optimizer"), parts["optimizer"], 0.0)
    away = in_host(columns, "parameters")
    gradients = np.where(away, parts["gradients"], 0.0)
    copies = 1 if model.tied_embeddings else 2
    root = copies * model.vocab * model.hidden * job.precision.parameter_bytes / columns.tp
    alone = (columns.zero < 3) | (columns.shard_degree == 1)
    window = np.where(alone, root + 3.0 * parts["parameters"] / count, 0.0)
    parameters = np.where(away, np.maximum(parts["parameters"] - window, 0.0), 0.0)
    changed = parts | {
        "activations": parts["activations"] - gone,
        "optimizer": parts["optimizer"] - optimizer,
        "gradients": parts["gradients"] - gradients,
        "parameters": parts["parameters"] - parameters,
        "fragmentation": np.maximum(parts["fragmentation"] - gaps * gone, 0.0),
    }
    held = gone + optimizer + gradients + parameters
    each = gone / np.maximum(flight, 1.0)
    return changed, Moved(each, optimizer, parameters, gradients, held)


def offload_s(
    cluster: Cluster, job: Job, columns: LayoutColumns, moved: dict[str, Moved],
    times: StageTimes, micro_batches: Ints,
) -> Floats:  # fmt: skip
    """Seconds that a step takes longer for what travels to the host and back; shape (rows,)."""
    link = host_link_bytes_s(cluster)
    passes = {
        "first": (times.first_forward, times.first_backward),
        "middle": (times.middle_forward, times.middle_backward),
        "last": (times.last_forward, times.last_backward),
    }
    worst = np.zeros(columns.rows)
    states = job.precision.master_bytes + job.optimizer.state_bytes
    wire = job.precision.gradient_bytes + job.precision.parameter_bytes
    for role, one in moved.items():
        travel = one.activations / link
        forward, backward = passes[role]
        exposed = np.maximum(travel - forward, 0.0) + np.maximum(travel - backward, 0.0)
        updated = one.optimizer / max(states, 1e-9)
        on_host = updated * HOST_UPDATE_S * min(cluster.gpus_per_node, cluster.gpus)
        step = (
            micro_batches * (exposed + 2.0 * one.parameters / link)
            + one.gradients / link
            + updated * wire / link
            + on_host
        )
        worst = np.maximum(worst, step)
    return worst


def host_short_bytes(cluster: Cluster, moved: dict[str, Moved]) -> Floats:
    """How much more memory a host would need for all its devices; negative: that much is left.

    Zero where the cluster does not say how much a host has.
    """
    most: Floats = np.zeros(1)
    for one in moved.values():
        most = np.maximum(most, one.held)
    if not cluster.host_memory_bytes:
        return np.zeros_like(most)
    return most * min(cluster.gpus_per_node, cluster.gpus) - HOST_SHARE * cluster.host_memory_bytes
