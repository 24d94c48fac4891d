"""From a row's accelerator, node size and interconnect to a Cluster."""

from __future__ import annotations

import re

from meshwright.evidence.rows import Row
from meshwright.evidence.software import SourceRule
from meshwright.specs.cluster import Cluster, Device
from meshwright.specs.clusters import load_cluster
from meshwright.specs.quantities import parse_bandwidth


class SkipRow(Exception):
    """A row that cannot be priced; the message says why."""


_DEVICES: tuple[tuple[str, str], ...] = (
    (r"GB300", "gb300"),
    (r"GB200", "gb200"),
    (r"B300", "b300"),
    (r"B200", "b200"),
    (r"H200", "h200"),
    (r"H100|H800", "h100"),
    (r"A100[ -]?(?:SXM4?[ -]?)?40 ?GB", "a100-40g"),
    (r"A100|A800", "a100-80g"),
    (r"V100.*16 ?GB", "v100-16g"),
    (r"V100", "v100-32g"),
    (r"MI35\dX", "mi355x"),
    (r"MI325X", "mi325x"),
    (r"MI300", "mi300x"),
    (r"MI250X", "mi250x"),
    (r"L40S", "l40s"),
    (r"L4\b", "l4"),
    (r"A10G", "a10g"),
    (r"6000 Ada", "rtx6000-ada"),
    (r"A6000", "a6000"),
    (r"A5000", "a5000"),
    (r"(?:RTX )?3090", "rtx3090"),
    (r"(?:RTX )?4090", "rtx4090"),
    (r"(?:RTX )?5090", "rtx5090"),
    (r"TPU[- ]v4", "tpu-v4"),
    (r"TPU[- ]v5e", "tpu-v5e"),
    (r"TPU[- ]v5p", "tpu-v5p"),
    (r"TPU[- ]v6e|Trillium", "tpu-v6e"),
    (r"Trainium ?2", "trainium2"),
    (r"Trainium ?1", "trainium1"),
)
"""Accelerators by how tables print them (first match counts) and their preset."""

_HOST_GPUS = {"gb200": 4, "gb300": 4, "tpu-v4": 4, "tpu-v5p": 4}
"""Devices of one host where it is not 8; used where a row does not say."""


def device_key(row: Row) -> str:
    """Return the preset name of a row's accelerator.

    Raises:
        SkipRow: no preset matches.
    """
    text = row["gpu"]
    for pattern, key in _DEVICES:
        if re.search(pattern, text, re.IGNORECASE):
            return key
    raise SkipRow(f"no device preset for {text!r}")


def cluster_of(row: Row, rule: SourceRule, gpus: int, assumed: list[str]) -> Cluster:
    """Return the cluster that a row ran on; what the row leaves open is added to `assumed`.

    A source may document its cluster (`cluster`, a preset) or its network (`network_bytes_s`,
    `network_latency_s`); what the row itself states about its network comes first.

    Raises:
        SkipRow: no device preset matches, or the size is impossible.
    """
    key = device_key(row)
    host = row.count("gpus_per_node")
    if host is None:
        host = _HOST_GPUS.get(key, 8)
        if gpus > 1:
            assumed.append(f"gpus_per_node={host}")
    host = min(host, gpus)
    if gpus % host:
        raise SkipRow(f"{gpus} devices are not whole nodes of {host}")
    if re.search("NeuronCore", row["gpu"]):
        return _of_neuron_cores(key, gpus, host)
    name = rule.default("cluster") or key
    cluster = load_cluster(f"{name}:{gpus // host}x{host}")
    inner = cluster.levels[0]
    if re.search(r"PCIe", row["interconnect"]) and not re.search("NVL", row["interconnect"]):
        cluster = _with_level(cluster, 0, kind="pcie", bandwidth_bytes_s=25e9)
    if gpus > inner.domain and len(cluster.levels) > 1:
        stated = stated_network_bytes_s(row["interconnect"], host)
        if stated:
            cluster = _with_level(cluster, -1, bandwidth_bytes_s=stated)
        elif rule.default("network_bytes_s"):
            rate = float(rule.default("network_bytes_s"))
            cluster = _with_level(cluster, -1, bandwidth_bytes_s=rate)
        else:
            rate = cluster.levels[-1].bandwidth_bytes_s
            assumed.append(f"network={rate * 8 / 1e9:.0f}Gb/s per device")
        if rule.default("network_latency_s"):
            latency = float(rule.default("network_latency_s"))
            cluster = _with_level(cluster, -1, latency_s=latency)
    return cluster.but(source=row["source"])


def _with_level(cluster: Cluster, index: int, **changes: object) -> Cluster:
    levels = list(cluster.levels)
    levels[index] = levels[index].but(**changes)
    return cluster.but(levels=[level.model_dump() for level in levels])


def _of_neuron_cores(key: str, gpus: int, host: int) -> Cluster:
    """A cluster whose devices are the two cores of each chip: half a chip's rates and memory."""
    chips = load_cluster(f"{key}:{max(1, gpus // host)}x{max(1, host // 2)}")
    whole = chips.device
    core = Device(
        **{
            **whole.model_dump(),
            "name": "Trainium1 (one NeuronCore)",
            "peak_flops": {name: peak / 2 for name, peak in whole.peak_flops.items()},
            "memory_bytes": whole.memory_bytes / 2,
            "memory_bandwidth_bytes_s": whole.memory_bandwidth_bytes_s / 2,
        }
    )
    levels = [
        level.but(domain=2 * level.domain, bandwidth_bytes_s=level.bandwidth_bytes_s / 2)
        for level in chips.levels
    ]
    return Cluster(
        name=f"{key}-cores:{max(1, gpus // host)}x{host}",
        device=core,
        nodes=max(1, gpus // host),
        gpus_per_node=host,
        levels=tuple(levels),
        source=chips.source,
    )


_PATTERNS = (
    r"(?P<cards>\d+) ?x +(?:[A-Za-z][\w./-]* +){0,4}?(?P<rate>\d+) ?Gb",
    r"inter (?P<rate>\d+) ?Gb(?:ps|/s)/node",
    r"(?P<rate>\d+) ?Gb(?:ps|/s) per node",
    r"^(?P<rate>\d+) ?Gbps$",
)


def stated_network_bytes_s(interconnect: str, host: int) -> float | None:
    """Network bytes/s per device per direction that an interconnect column states, if it does.

    Cards named for compute are preferred over those for storage; a rate without a number of cards
    is a host's.
    """
    compute = re.search(r"Compute: ?(.*?)(?:,|$)", interconnect)
    for pattern in _PATTERNS:
        for where in (compute.group(1), interconnect) if compute else (interconnect,):
            match = re.search(pattern, where)
            if match:
                cards = int(match.groupdict().get("cards") or 1)
                return cards * parse_bandwidth(f"{match['rate']}Gb/s") / host
    return None
