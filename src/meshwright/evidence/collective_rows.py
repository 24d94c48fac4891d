"""Published nccl-tests tables (`nccl.csv`): rows become clusters and groups, and are priced.

A row names hardware, nodes, GPUs, interconnect, collective, size and time or bus bandwidth.
Constants of links were fitted on these same tables (`benchmarks/collectives.py --fit`), so
their error is that of a fit; `--holdout` of that benchmark prices each table with constants
fitted on the others.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass

import numpy as np

from meshwright.costs.collectives import bus_factor, collective_cost
from meshwright.costs.fabric import Fabric, place
from meshwright.costs.link_fit import MeasuredCollective
from meshwright.evidence.rows import read_table
from meshwright.specs.cluster import Cluster, LinkKind, LinkLevel
from meshwright.specs.devices import load_device

_DEVICES = {
    "V100": "v100-32g", "A100": "a100-80g", "H100": "h100", "H200": "h200", "B200": "b200",
    "GB200": "gb200", "MI300X": "mi300x", "MI355X": "mi355x",
}  # fmt: skip
_LINK_RATES = {
    "V100": 150e9, "A100": 300e9, "H100": 450e9, "H200": 450e9, "B200": 900e9, "GB200": 900e9,
    "MI300X": 448e9, "MI355X": 535.5e9,
}  # fmt: skip
_NAMES = {"alltoall": "all_to_all"}


@dataclass(frozen=True)
class CollectiveRow:
    """One measured collective on the cluster that its table describes."""

    id: str
    table: str
    cluster: Cluster
    collective: str
    ranks: int
    size_bytes: float
    time_s: float
    nvls: bool
    network_stated: bool

    def measurement(self) -> MeasuredCollective:
        """The row as the fit of links takes it."""
        return MeasuredCollective(
            self.collective, self.ranks, self.size_bytes, self.time_s, nvls=self.nvls
        )


def _network(text: str) -> tuple[float, int, float]:
    """(bytes/s per GPU, cards per node, latency) that an `interconnect` cell states.

    Latencies are those of the cluster presets: 5 us on InfiniBand and RoCE, 15 us on EFA. A
    cell that does not state the network is read as one 400 Gb/s card a GPU.
    """
    latency = 15e-6 if "EFA" in text else 5e-6
    for mark, rate, cards in (
        ("16 RDMA", 25e9, 16), ("4x100Gb", 6.25e9, 4), ("32x100Gb", 50e9, 32),
        ("8x50GB/s", 50e9, 8), ("OCI BM.GPU.GB200", 50e9, 4),
    ):  # fmt: skip
        if mark in text:
            return rate, cards, latency
    return 50e9, 8, latency


def _cluster(hardware: str, interconnect: str, nodes: int, gpus: int) -> Cluster:
    name = max((n for n in _DEVICES if n in hardware), key=len)
    kind: LinkKind = "nvswitch"
    if name == "V100":
        kind = "nvlink"
    elif name.startswith("MI"):
        kind = "mesh"
    # Two racks of 72 with half the run's GPUs in each: the domain is what the run uses of it.
    racks = "NVL72 racks" in interconnect
    inner = LinkLevel(
        name="scale-up", domain=gpus // 2 if racks else 8, bandwidth_bytes_s=_LINK_RATES[name],
        latency_s=2e-6, kind=kind,
    )  # fmt: skip
    levels = [inner]
    if nodes > 1:
        rate, cards, latency = _network(interconnect)
        levels.append(
            LinkLevel(name="network", domain=gpus, bandwidth_bytes_s=rate, latency_s=latency,
                      nics_per_node=cards)
        )  # fmt: skip
    return Cluster(
        device=load_device(_DEVICES[name]),
        nodes=nodes,
        gpus_per_node=gpus // nodes if racks else 8,
        levels=tuple(levels),
    )


def read_collective_rows(text: str | None = None) -> list[CollectiveRow]:
    """Rows that state a collective, its group, its size, and a time or a bus bandwidth.

    Args:
        text: a table in the schema of `nccl.csv`; the shipped one unless given.
    """
    rows = []
    for r in csv.DictReader(io.StringIO(read_table("nccl") if text is None else text)):
        collective = _NAMES.get(r["collective"], r["collective"])
        if not (r["size_bytes"] and r["gpus"]) or collective.startswith("ib_"):
            continue
        gpus, size = int(r["gpus"]), float(r["size_bytes"])
        time_s = float(r["time_us"]) * 1e-6 if r["time_us"] else 0.0
        if not time_s and float(r["busbw_gbps"] or 0) > 0:
            time_s = size * float(bus_factor(collective, gpus)) / (float(r["busbw_gbps"]) * 1e9)
        if size <= 0 or time_s <= 0:
            continue
        words = (r["hardware"], f"{gpus} GPUs", collective, r["algo"], r["interconnect"])
        rows.append(
            CollectiveRow(
                r["id"],
                f"{', '.join(w for w in words if w)} ({r['source'].split(' (')[0]})",
                _cluster(r["hardware"], r["interconnect"], int(r["nodes"] or 1), gpus),
                collective,
                gpus,
                size,
                time_s,
                # "Ring" says that reduction in the switch was off, or not chosen.
                "Ring" not in r["algo"],
                "not stated" not in r["interconnect"],
            )
        )
    return rows


def predicted_s(row: CollectiveRow, fabric: Fabric | None = None) -> float:
    """Our time of a row, on its own cluster's links unless others are given."""
    on = fabric or Fabric.of(row.cluster)
    on = on if row.nvls else on.without_nvls()
    cost = collective_cost(row.collective, on, row.size_bytes, place(on, row.ranks))
    return float(cost.total_s)


def relative_errors(rows: list[CollectiveRow]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Predicted over measured, minus one, of each row."""
    return np.array([predicted_s(row) / row.time_s - 1.0 for row in rows])


@dataclass(frozen=True)
class CollectiveScore:
    """Median and 90th percentile of |predicted / measured - 1| over some rows, in percent."""

    rows: int
    median: float
    p90: float


def collective_score(above_bytes: float = 2**20) -> CollectiveScore:
    """Score the shipped tables above a size, by the shipped constants."""
    rows = [row for row in read_collective_rows() if row.size_bytes > above_bytes]
    errors = 100.0 * np.abs(relative_errors(rows))
    return CollectiveScore(len(rows), float(np.median(errors)), float(np.quantile(errors, 0.9)))
