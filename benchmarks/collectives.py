"""Collective times against published nccl-tests tables, next to torch's own estimator.

python benchmarks/collectives.py rows.csv [--above 1MiB] [--by table|row] [--torch]

`rows.csv` has the columns hardware, nodes, gpus, interconnect, collective, algo, size_bytes,
time_us, busbw_gbps (GB/s, 1e9). Rows without a time get one from their bus bandwidth.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meshwright.costs.collectives import bus_factor, collective_cost
from meshwright.costs.fabric import Fabric, place
from meshwright.costs.link_fit import (
    MeasuredCollective,
    constant_names,
    fit_shared,
    with_constants,
)
from meshwright.specs.cluster import Cluster, Device, LinkLevel
from meshwright.specs.quantities import parse_bytes

LINK_RATES = {"V100": 150e9, "A100": 300e9, "H100": 450e9, "H200": 450e9, "B200": 900e9,
              "GB200": 900e9, "MI300X": 448e9, "MI355X": 535.5e9}  # fmt: skip
NAMES = {"alltoall": "all_to_all"}


@dataclass(frozen=True)
class Row:
    """One measured collective."""

    table: str
    cluster: Cluster
    collective: str
    algo: str
    ranks: int
    size_bytes: float
    time_s: float


def network_of(text: str) -> tuple[float, int, float]:
    """(bytes/s per GPU, cards per node, latency) that an `interconnect` cell states.

    Latencies are of one message: 5 us on InfiniBand and RoCE, 15 us on EFA. A cell that does
    not state the network is read as one 400 Gb/s card a GPU.
    """
    efa = 15e-6 if "EFA" in text else 5e-6
    for mark, rate, cards in (
        ("16 RDMA", 25e9, 16), ("4x100Gb", 6.25e9, 4), ("32x100Gb", 50e9, 32),
        ("8x50GB/s", 50e9, 8), ("OCI BM.GPU.GB200", 50e9, 4),
    ):  # fmt: skip
        if mark in text:
            return rate, cards, efa
    return 50e9, 8, efa


def cluster_of(hardware: str, interconnect: str, nodes: int, gpus: int) -> Cluster:
    """The cluster that a row names."""
    name = max((n for n in LINK_RATES if n in hardware), key=len)
    amd = name.startswith("MI")
    kind = "mesh" if amd else ("nvlink" if name == "V100" else "nvswitch")
    racks = "NVL72 racks" in interconnect
    # Two racks of 72 with 64 GPUs of the run in each: the domain is what the run uses of it.
    domain = gpus // 2 if racks else 8
    levels = [LinkLevel(name="scale-up", domain=domain, bandwidth_bytes_s=LINK_RATES[name],
                        latency_s=1e-6, kind=kind)]  # fmt: skip
    if nodes > 1:
        rate, cards, latency = network_of(interconnect)
        levels.append(LinkLevel(name="network", domain=gpus, bandwidth_bytes_s=rate,
                                latency_s=latency, nics_per_node=cards))  # fmt: skip
    device = Device(name=name, peak_flops={"bf16": 1e15}, memory_bytes=80e9,
                    memory_bandwidth_bytes_s=2e12, vendor="amd" if amd else "nvidia")  # fmt: skip
    per_node = gpus // nodes if racks else 8
    return Cluster(device=device, nodes=max(nodes, 1), gpus_per_node=per_node, levels=tuple(levels))


def read(path: Path) -> list[Row]:
    """Rows that state what is needed: a collective, its group and its size."""
    rows = []
    with path.open(newline="", encoding="utf-8") as file:
        for r in csv.DictReader(file):
            collective = NAMES.get(r["collective"], r["collective"])
            if not (r["size_bytes"] and r["gpus"]) or collective.startswith("ib_"):
                continue
            gpus, size = int(r["gpus"]), float(r["size_bytes"])
            if size <= 0:
                continue
            if r["time_us"]:
                time_s = float(r["time_us"]) * 1e-6
            elif float(r["busbw_gbps"]) > 0:
                factor = float(bus_factor(collective, gpus))
                time_s = size * factor / (float(r["busbw_gbps"]) * 1e9)
            else:
                continue
            words = (r["hardware"][:18], f"{gpus:3d}", collective, r["algo"][:12])
            table = " ".join(f"{w:14}" for w in (*words, r["interconnect"][:20], r["source"][:14]))
            cluster = cluster_of(r["hardware"], r["interconnect"], int(r["nodes"] or 1), gpus)
            rows.append(Row(table, cluster, collective, r["algo"], gpus, size, time_s))
    return rows


def measured(rows: list[Row]) -> list[MeasuredCollective]:
    """Rows of one fabric, as the fit takes them."""
    return [
        MeasuredCollective(r.collective, r.ranks, r.size_bytes, r.time_s, nvls="Ring" not in r.algo)
        for r in rows
    ]


LINK = ("ring_fraction", "small_group", "nvls_fraction", "base_s", "step_s", "nvls_base_s",
        "nvls_fill_s", "nvls_half_bytes", "fill_base_s", "fill_step_s", "fill_half_bytes")  # fmt: skip
NETWORK = ("reduce_fraction", "gather_fraction", "hop_latencies", "fill_latencies",
           "fill_half_bytes", "nvls_tree_fraction")  # fmt: skip


def fit(rows: list[Row]) -> None:
    """Fit each generation of links on its single hosts, then the network on all larger runs."""
    rows = [r for r in rows if r.size_bytes >= 65536 and "not st" not in r.table]
    found: dict[str, dict[str, float]] = defaultdict(dict)
    fabrics = {id(r): Fabric.of(r.cluster) for r in rows}
    for name in sorted({f.link.name for f in fabrics.values()}):
        sets = grouped([r for r in rows if fabrics[id(r)].link.name == name
                        and len(r.cluster.levels) == 1], {})  # fmt: skip
        if not sets:
            continue
        known = [c for c in constant_names(sets[0][0]) if c.startswith("link.")]
        values, spread = fit_shared(sets, known)
        found[name] = values
        print(f"[{name}] {sum(len(m) for _, m in sets)} rows")
        for key, value in values.items():
            print(f"  {key:24} {value:.4g}   (log sd {spread[key]:.2f})")
    sets = grouped([r for r in rows if len(r.cluster.levels) > 1], found)
    known = [f"network.{n}" for n in NETWORK]
    values, spread = fit_shared(sets, known)
    print(f"[network] {sum(len(m) for _, m in sets)} rows")
    for key, value in values.items():
        print(f"  {key:24} {value:.4g}   (log sd {spread[key]:.2f})")


def grouped(
    rows: list[Row], constants: dict[str, dict[str, float]]
) -> list[tuple[Fabric, list[MeasuredCollective]]]:
    """Rows by table, each with its fabric."""
    tables: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        tables[row.table].append(row)
    sets = []
    for members in tables.values():
        fabric = Fabric.of(members[0].cluster)
        fabric = with_constants(fabric, constants.get(fabric.link.name, {}))
        sets.append((fabric, measured(members)))
    return sets


def predict(row: Row) -> float:
    """Our time of a row; "Ring (NVLS off)" rows are priced with the switch's reduction off."""
    fabric = Fabric.of(row.cluster)
    if "Ring" in row.algo:
        fabric = fabric.without_nvls()
    cost = collective_cost(row.collective, fabric, row.size_bytes, place(fabric, row.ranks))
    return float(cost.total_s)


def main() -> None:
    """Print the errors by table, or row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--above", default="1MiB")
    parser.add_argument("--by", choices=("table", "row"), default="table")
    parser.add_argument("--fit", action="store_true", help="fit the constants of links.toml")
    arguments = parser.parse_args()
    if arguments.fit:
        fit(read(arguments.csv))
        return
    floor = parse_bytes(arguments.above)
    rows = [row for row in read(arguments.csv) if row.size_bytes > floor]
    if not rows:
        sys.exit("no rows above that size")
    errors = defaultdict(list)
    for row in rows:
        ours = predict(row)
        errors[row.table].append(ours / row.time_s - 1.0)
        if arguments.by == "row":
            print(f"{row.table} {row.size_bytes / 2**20:9.3f} MiB {row.time_s * 1e6:10.1f} us "
                  f"{ours * 1e6:10.1f} us {100 * (ours / row.time_s - 1):+7.1f} %")  # fmt: skip
    for table, signed in errors.items():
        e = np.asarray(signed)
        print(f"{table:96} {len(e):3d}  median |e| {100 * np.median(abs(e)):6.1f} %"
              f"  bias {100 * np.mean(e):+6.1f} %  max {100 * abs(e).max():6.1f} %")  # fmt: skip
    every = np.abs(np.concatenate([np.asarray(e) for e in errors.values()]))
    print(
        f"{len(every)} rows: median |e| {100 * np.median(every):.1f} %,"
        f" p90 {100 * np.quantile(every, 0.9):.1f} %, mean {100 * every.mean():.1f} %"
    )


if __name__ == "__main__":
    main()
