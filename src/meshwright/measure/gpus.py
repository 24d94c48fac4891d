"""A cluster file from what ranks on GPUs measured: their links; kernels are the preset's.

Kernels of GPUs are not timed: the preset of the device, by the name that its driver tells, stands for them, and
the file says so. What NCCL's collectives took moves the constants of the links, as nccl-tests do for `calibrate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.costs.fabric import Fabric
from meshwright.costs.link_fit import MeasuredCollective, fit_links
from meshwright.measure.assemble import curves
from meshwright.measure.local import Found
from meshwright.specs.cluster import Cluster
from meshwright.specs.clusters import NOT_MEASURED, load_cluster
from meshwright.specs.devices import load_device
from meshwright.specs.errors import SpecError
from meshwright.specs.quantities import format_bytes

FITTED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
"""Collectives that the constants of links describe; messages both ways at once are kept as curves only."""


def gpu_facts() -> dict[str, Any]:
    """What this rank's GPU is; call it before the first tensor is made, and on CUDA only."""
    import torch

    from meshwright.engine.parallel.backend import own_device

    free, total = torch.cuda.mem_get_info(own_device())
    return {
        "gpu": torch.cuda.get_device_name(own_device()), "gpu_memory_bytes": float(total),
        "gpu_taken_bytes": float(total - free), "cuda": str(torch.version.cuda),
    }  # fmt: skip


def gpu_cluster(
    found: Found, facts: Mapping[str, Any], *, ranks: int, nodes: int, host_memory: float
) -> Cluster:
    """Hosts of `ranks` GPUs as measured.

    Raises:
        SpecError: no preset is of this GPU.
    """
    try:
        device = load_device(str(facts["gpu"]), "device")
    except SpecError:
        raise SpecError(
            "device", facts["gpu"], "no preset is of this GPU: describe it in a [device] table (docs/clusters.md) "
            "and give what nccl-tests print to `calibrate --from`",
        ) from None  # fmt: skip
    preset = load_cluster(f"{device.preset}:{nodes}x{ranks}")
    missing = ["kernels (the preset's)", *found.skipped]
    timings = together(found.collectives, ranks)
    fit = fit_links(Fabric.of(preset), timings) if timings else None
    told = (
        f"links fitted to {fit.measurements} collectives, off by {100 * fit.error_before:.0f} % before and "
        f"{100 * fit.error_after:.0f} % after"
        if fit is not None
        else "no collective was measured"
    )
    own = preset.device.but(
        memory_bytes=facts["gpu_memory_bytes"],
        sources={**preset.device.sources, "memory": "what CUDA tells a program"},
    )
    return preset.but(
        name="measured", device=own.model_dump(exclude_unset=True), host_memory_bytes=host_memory,
        link_constants=fit.constants if fit is not None else {},
        collectives=curves(found.collectives, preset.levels[-1].name),
        source=f"measured {facts['date']} on host {facts['host']} ({ranks} × {facts['gpu']} a host, {nodes} of them) "
        f"in {found.took_s:.0f} s, torch {facts['torch']}, CUDA {facts['cuda']}; {told}; before any tensor "
        f"{format_bytes(facts['gpu_taken_bytes'])} of a device are taken{NOT_MEASURED}{', '.join(missing)}",
    )  # fmt: skip


def together(rows: Sequence[Mapping[str, Any]], ranks: int) -> list[MeasuredCollective]:
    """Timings in which all groups talked at once, as in a step: neighbours of a host, and one rank of each host."""
    return [
        MeasuredCollective(
            row["collective"], row["members"], row["size_bytes"], row["time_s"],
            stride=ranks if row.get("across") else 1,
        )
        for row in rows
        if row["collective"] in FITTED and row["active"] == ranks
    ]  # fmt: skip
