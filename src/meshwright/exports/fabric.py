"""Environment variables that put each collective on the link the plan priced."""

from __future__ import annotations

from meshwright.planner.graphs import graphs_of
from meshwright.specs.cluster import Cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.layout import OFFLOAD_MODULES
from meshwright.specs.plan import Plan

_GPU_VENDORS = ("nvidia", "amd")


def network_kind(cluster: Cluster) -> str:
    """The kind of network between hosts: nvlink (one rack), infiniband, efa, ethernet, slingshot, or none."""
    if cluster.nodes == 1:
        return "none"
    name = cluster.levels[-1].name.lower()
    if name.startswith("nvlink"):
        return "nvlink"
    for kind in ("efa", "ethernet", "slingshot", "infiniband", "roce"):
        if kind in name:
            return kind
    return "infiniband" if cluster.levels[-1].nics_per_node > 1 else "ethernet"


MEASURED_BY = "meshwright"
"""What a command is said to start where it trains nothing, and this package measures the cluster."""


def environment(plan: Plan, framework: str = "") -> dict[str, tuple[str, str]]:
    """Variables for one run: name → (value, why). NCCL reads the same names on NVIDIA and AMD.

    Sources: NVIDIA NCCL User Guide, Environment Variables; aws-ofi-nccl README; PyTorch CUDA
    semantics (allocator); Megatron-LM `validate_args` (CUDA_DEVICE_MAX_CONNECTIONS, NCCL_GRAPH_REGISTER).
    """
    layout, cluster = plan.layout, plan.cluster
    found: dict[str, tuple[str, str]] = {"OMP_NUM_THREADS": ("8", "host threads per rank")}
    if cluster.device.vendor not in _GPU_VENDORS:
        if framework == MEASURED_BY:
            found["OMP_NUM_THREADS"] = ("1", "a rank is one core, as the engine trains")
        return found
    if framework == "maxtext":
        found["XLA_PYTHON_CLIENT_MEM_FRACTION"] = ("0.95", "JAX keeps to three quarters otherwise")
        return found | _network(cluster)
    fsdp = layout.zero >= 2 and layout.dp * layout.cp > 1
    if framework.startswith("megatron") and (layout.tp > 1 or layout.cp > 1) and not fsdp:
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = (
            "1",
            "keeps tensor-parallel communication ahead of the matrix product it feeds",
        )
    parts = {"activations", *OFFLOAD_MODULES}
    if framework in ("megatron", "primus", "megatron-bridge") and parts & {*layout.offload}:
        found["NVTE_CPU_OFFLOAD_V1"] = (
            "1",
            "Transformer Engine from 2.10 on: activations leave for host memory, weights do not",
        )
    found["PYTORCH_CUDA_ALLOC_CONF"] = (
        "expandable_segments:True",
        "less fragmentation near the predicted peak",
    )
    if graphs_of(plan.job) != "none":
        found["NCCL_GRAPH_REGISTER"] = (
            "0",
            "CUDA graphs beside expandable segments: NCCL would keep addresses that move",
        )
    found["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = ("1", "a lost rank ends the run, not hangs it")
    found |= _network(cluster)
    return found


def _network(cluster: Cluster) -> dict[str, tuple[str, str]]:
    kind, found = network_kind(cluster), dict[str, tuple[str, str]]()
    if kind == "none":
        return found
    nics = cluster.levels[-1].nics_per_node
    if kind == "efa":
        found["FI_PROVIDER"] = ("efa", "NCCL reaches EFA through aws-ofi-nccl")
        found["FI_EFA_USE_HUGE_PAGE"] = ("0", "huge pages run out when workers fork")
    elif kind == "slingshot":
        found["FI_PROVIDER"] = ("cxi", "NCCL reaches Slingshot through aws-ofi-nccl")
    elif kind == "ethernet":
        found["NCCL_SOCKET_IFNAME"] = ("^lo,docker0", "any interface but loopback and bridges")
        found["NCCL_SOCKET_NTHREADS"] = ("4", "one TCP stream does not fill the link")
    elif kind == "nvlink":
        found["NCCL_SOCKET_IFNAME"] = ("^lo,docker0", "bootstrap over any real interface")
    else:
        if cluster.device.vendor == "nvidia":
            # Beside AMD's devices Broadcom's and Pensando's cards are as usual: RCCL takes what is there.
            found["NCCL_IB_HCA"] = ("mlx5", f"the {nics or 'host'} cards the plan counts per host")
        found["NCCL_SOCKET_IFNAME"] = ("^lo,docker0", "bootstrap over any real interface")
        if nics >= cluster.gpus_per_node:
            found["NCCL_CROSS_NIC"] = ("0", "one card per GPU: stay on its own rail")
    return found


def check_hosts(plan: Plan) -> tuple[int, int]:
    """Return (hosts, ranks per host) of a layout on its cluster.

    Raises:
        SpecError: the layout does not fill whole hosts, or needs more than there are.
    """
    world, per_host = plan.layout.world, plan.cluster.gpus_per_node
    if world <= per_host:
        return 1, world
    if world % per_host or world > plan.cluster.gpus:
        raise SpecError(
            "layout",
            plan.layout.label(),
            f"its {world} devices do not fill whole hosts of {per_host} on {plan.cluster.name} "
            f"({plan.cluster.gpus} devices)",
        )
    return world // per_host, per_host


def resize(cluster: Cluster, devices: int) -> Cluster:
    """The same hosts and links with as many hosts as a run of so many devices fills.

    Raises:
        SpecError: the devices do not fill whole hosts.
    """
    if devices == cluster.gpus:
        return cluster
    per_host = min(cluster.gpus_per_node, devices)
    if devices % per_host:
        raise SpecError(
            "--cluster",
            cluster.name,
            f"the run starts {devices} devices, not whole hosts of {per_host}",
        )
    levels = []
    for level in cluster.levels:
        domain = min(level.domain, devices) if devices < cluster.gpus else level.domain
        levels.append(level.but(domain=domain))
    levels[-1] = levels[-1].but(domain=max(levels[-1].domain, devices))
    # A domain that the run does not fill evenly is cut to what it reaches.
    fitted = [levels[0]]
    for level in levels[1:]:
        inner = fitted[-1].domain
        fitted.append(level.but(domain=-(-level.domain // inner) * inner))
    name = cluster.name.split(":")[0]
    return cluster.but(
        name=f"{name}:{devices // per_host}x{per_host}",
        nodes=devices // per_host,
        gpus_per_node=per_host,
        levels=[level.model_dump() for level in fitted],
    )
