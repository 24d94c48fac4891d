"""From a row's accelerator, node size and interconnect to a Cluster."""

from __future__ import annotations

import re

from meshwright.evidence.presets import device_preset
from meshwright.evidence.rows import Row
from meshwright.specs.cluster import Cluster, LinkLevel
from meshwright.specs.quantities import parse_bandwidth


class SkipRow(Exception):
    """A row that cannot be priced; the message says why."""


_DEVICES: tuple[tuple[str, str], ...] = (
    (r"GB300", "gb300"),
    (r"GB200", "gb200"),
    (r"B300", "b300"),
    (r"B200", "b200"),
    (r"H200", "h200"),
    (r"H100", "h100"),
    (r"A100.*40 ?GB", "a100-40g"),
    (r"A100", "a100-80g"),
    (r"V100.*16 ?GB", "v100-16g"),
    (r"V100", "v100-32g"),
    (r"MI35\dX", "mi355x"),
    (r"MI325X", "mi325x"),
    (r"MI300", "mi300x"),
    (r"MI250X", "mi250x"),
    (r"L40S", "l40s"),
    (r"L4\b", "l4"),
    (r"A10G", "a10g"),
    (r"TPU[- ]v4", "tpu-v4"),
    (r"TPU[- ]v5e", "tpu-v5e"),
    (r"TPU[- ]v5p", "tpu-v5p"),
    (r"TPU[- ]v6e", "tpu-v6e"),
    (r"Trainium ?2", "trainium2"),
    (r"Trainium ?1", "trainium1"),
)
"""Accelerators by how tables print them (first match counts) and their preset."""

# Scale-up link of one device, per direction, and its domain where it is not the host:
# NVLink generations and domains by NVIDIA's data sheets; see specs/presets/clusters.toml.
_SCALE_UP: dict[str, tuple[str, float, int | None]] = {
    "v100-16g": ("nvlink", 150e9, None),
    "v100-32g": ("nvlink", 150e9, None),
    "a100-40g": ("nvswitch", 300e9, None),
    "a100-80g": ("nvswitch", 300e9, None),
    "h100": ("nvswitch", 450e9, None),
    "h200": ("nvswitch", 450e9, None),
    "b200": ("nvswitch", 900e9, None),
    "b300": ("nvswitch", 900e9, None),
    "gb200": ("nvswitch", 900e9, 72),
    "gb300": ("nvswitch", 900e9, 72),
    "mi250x": ("mesh", 100e9, None),
    "mi300x": ("mesh", 448e9, None),
    "mi325x": ("mesh", 448e9, None),
    "mi355x": ("mesh", 535.5e9, None),
    "l40s": ("pcie", 31e9, None),
    "l4": ("pcie", 31e9, None),
    "a10g": ("pcie", 32e9, None),
    "tpu-v4": ("torus", 135e9, 4096),
    "tpu-v5e": ("torus", 90e9, 256),
    "tpu-v5p": ("torus", 270e9, 8192),
    "tpu-v6e": ("torus", 180e9, 256),
    "trainium1": ("torus", 96e9, 32),
    "trainium2": ("torus", 320e9, 16),
}

# Network of one device, per direction, where the row does not state it: the maker's own system.
_SCALE_OUT: dict[str, float] = {
    "v100-16g": 6.25e9, "v100-32g": 6.25e9, "a100-40g": 25e9, "a100-80g": 25e9, "h100": 50e9,
    "h200": 50e9, "b200": 50e9, "b300": 100e9, "gb200": 50e9, "gb300": 100e9, "mi250x": 12.5e9,
    "mi300x": 50e9, "mi325x": 50e9, "mi355x": 50e9, "l40s": 12.5e9, "l4": 3.1e9, "a10g": 1.5e9,
    "tpu-v4": 6.25e9, "tpu-v5e": 3.1e9, "tpu-v5p": 6.25e9, "tpu-v6e": 6.25e9, "trainium1": 3.1e9,
    "trainium2": 25e9,
}  # fmt: skip

_HOST_GPUS = {"gb200": 4, "gb300": 4, "tpu-v4": 4, "tpu-v5p": 4, "tpu-v6e": 8, "trainium1": 32}


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


def cluster_of(row: Row, gpus: int, assumed: list[str]) -> Cluster:
    """Return the cluster that a row ran on; what the row leaves open is added to `assumed`.

    Raises:
        SkipRow: no device preset matches, or the size is impossible.
    """
    key = device_key(row)
    device = device_preset(key)
    host = row.count("gpus_per_node")
    if host is None:
        host = _HOST_GPUS.get(key, 8)
        if gpus > 1:
            assumed.append(f"gpus_per_node={host}")
    host = min(host, gpus)
    if gpus % host:
        raise SkipRow(f"{gpus} devices are not whole nodes of {host}")
    kind, scale_up, domain = _SCALE_UP[key]
    if re.search(r"PCIe", row["interconnect"]) and not re.search("NVLink", row["interconnect"]):
        kind, scale_up = "pcie", 25e9
    inner = min(domain or host, gpus)
    if gpus % inner:
        inner = host
    network, stated = _network(row, key, host)
    if not stated and gpus > inner:
        assumed.append(f"network={network * 8 / 1e9:.0f}Gb/s per device")
    levels = [
        LinkLevel(
            name=kind if kind != "nvswitch" else "nvlink",
            domain=inner,
            bandwidth_bytes_s=scale_up,
            latency_s=2e-6,
            kind=kind,
        )
    ]
    if gpus > inner:
        nics = min(8, max(1, round(network * host / 25e9)))
        levels.append(
            LinkLevel(
                name="network", domain=gpus, bandwidth_bytes_s=network, latency_s=5e-6,
                kind="network", nics_per_node=nics,
            )
        )  # fmt: skip
    return Cluster(
        name=f"{key}:{gpus // host}x{host}",
        device=device,
        nodes=gpus // host,
        gpus_per_node=host,
        levels=tuple(levels),
        source=row["source"],
    )


def _network(row: Row, key: str, host: int) -> tuple[float, bool]:
    """Network bytes/s per device per direction, and whether the row states it."""
    text = row["interconnect"]
    patterns = (
        (r"(\d+) ?x +(?:[A-Za-z][\w./-]* +){0,4}?(\d+) ?Gb", True),
        (r"inter (\d+) ?Gb(?:ps|/s)/node", False),
        (r"(\d+) ?Gb(?:ps|/s) per node", False),
        (r"^(\d+) ?Gbps$", False),
    )
    compute = re.search(r"Compute: ?(.*?)(?:,|$)", text)
    for pattern, cards in patterns:
        for where in (compute.group(1), text) if compute else (text,):
            match = re.search(pattern, where)
            if match and cards:
                each = parse_bandwidth(f"{match.group(2)}Gb/s")
                return int(match.group(1)) * each / host, True
            if match:
                return parse_bandwidth(f"{match.group(1)}Gb/s") / host, True
    if "HDR InfiniBand" in text and host <= 8:
        return 25e9, True
    return _SCALE_OUT[key], False
