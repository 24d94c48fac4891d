"""What ranks on GPUs measured becomes a file of their GPU with their links. No GPU was asked: timings are made up."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.costs.collectives import collective_cost
from meshwright.costs.fabric import Fabric, place
from meshwright.measure.gpus import gpu_cluster, together
from meshwright.measure.local import Found
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError

FACTS = {"date": "2026-01-01", "host": "00000000", "torch": "2.13", "cuda": "13.0",
         "gpu": "NVIDIA H100 80GB HBM3", "gpu_memory_bytes": 8.4e10, "gpu_taken_bytes": 5e8}  # fmt: skip


def timed(cluster, slower=1.0):
    """Rows as `measure_ranks` has them, of collectives inside hosts and between them."""
    fabric, rows = Fabric.of(cluster), []
    for members, across in ((2, False), (8, False), (2, True), (4, True)):
        stride = 8 if across else 1
        for size in (2.0**22, 2.0**26, 2.0**28):
            for name in ("all_reduce", "all_gather"):
                group = place(fabric, np.array([members]), stride=np.array([stride]))
                time = float(collective_cost(name, fabric, np.array([size]), group).total_s[0])
                rows += [
                    {"collective": name, "members": members, "active": active, "across": across,
                     "size_bytes": size, "spread": 0.0, "time_s": time * (slower if across else 1.0)}
                    for active in dict.fromkeys((8, 1 if across else members))
                ]  # fmt: skip
    return rows


def test_a_slow_network_is_found_and_the_device_is_the_one_that_is_there():
    found = Found(collectives=timed(load_cluster("h100:4x8"), 2.0), took_s=60.0)
    cluster = gpu_cluster(found, FACTS, ranks=8, nodes=4, host_memory=2e12)
    assert cluster.device.preset == "h100" and cluster.device.memory_bytes == 8.4e10
    assert (cluster.nodes, cluster.gpus_per_node, cluster.host_memory_bytes) == (4, 8, 2e12)
    fabric = Fabric.of(cluster)
    group = place(fabric, np.array([4]), stride=np.array([8]))
    after = collective_cost("all_gather", fabric, np.array([2.0**28]), group).total_s[0]
    measured = next(r["time_s"] for r in found.collectives if r["collective"] == "all_gather"
                    and r["members"] == 4 and r["size_bytes"] == 2.0**28)  # fmt: skip
    assert after == pytest.approx(measured, rel=0.1)
    assert "kernels (the preset's)" in cluster.source and "24 collectives" in cluster.source
    assert load_cluster(cluster.plain()).link_constants == cluster.link_constants


def test_only_what_talks_at_once_is_fitted():
    rows = timed(load_cluster("h100:4x8"))
    assert {(r.ranks, r.stride) for r in together(rows, 8)} == {(2, 1), (8, 1), (2, 8), (4, 8)}
    assert len(together(rows, 8)) == sum(row["active"] == 8 for row in rows)
    assert not together([{**rows[0], "collective": "exchange"}], 8)


def test_a_gpu_without_a_preset_is_a_sentence():
    with pytest.raises(SpecError, match="no preset is of this GPU"):
        gpu_cluster(Found(), {**FACTS, "gpu": "Voodoo 2"}, ranks=8, nodes=1, host_memory=1e12)
    alone = gpu_cluster(Found(), FACTS, ranks=1, nodes=1, host_memory=1e12)
    assert "no collective was measured" in alone.source
