"""Where a communication group sits on a cluster, and what the links under it achieve.

A `Fabric` holds the constants of a cluster's link levels, innermost first. A `Group` says, for
each of many communication groups at once, how many of its members share one domain of each
level. `meshwright.costs.collectives` prices collectives from the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.costs.tables import table
from meshwright.specs.cluster import Cluster, LinkLevel
from meshwright.specs.errors import SpecError

Column = npt.NDArray[np.float64]
Numbers = npt.ArrayLike


WHOLE = ("nvls_members_max", "mesh_rings", "name")
"""Constants that are facts of the hardware, not rates: never fitted."""


@dataclass(frozen=True)
class Link:
    """Constants of the innermost links (`costs/data/links.toml` says what each one means)."""

    name: str
    ring_fraction: float
    small_group: float
    nvls_fraction: float
    base_s: float
    step_s: float
    nvls_base_s: float
    nvls_fill_s: float
    nvls_half_bytes: float
    fill_base_s: float
    fill_step_s: float
    fill_half_bytes: float
    mesh_rings: tuple[int, ...] = ()


@dataclass(frozen=True)
class Network:
    """Constants of the levels reached through network cards (`costs/data/links.toml`)."""

    reduce_fraction: float
    gather_fraction: float
    alltoall_peer_hops: float
    alltoall_fraction: float
    point_to_point_fraction: float
    nvls_tree_fraction: float
    nvls_members_max: int
    hop_latencies: float
    fill_latencies: float
    fill_half_bytes: float


def link_constants(kind: str, device: str = "") -> Link:
    """Constants of a link kind under a device; the newest generation where none is named.

    Raises:
        SpecError: no constants exist for the kind.
    """
    rows = [row for row in table("links")["link"] if kind in row["kinds"]]
    if not rows:
        raise SpecError("kind", kind, "an innermost level of links or a torus is expected")
    words = device.upper().replace("-", " ").replace("_", " ").split()
    named = [row for row in rows if any(name in words for name in row["devices"])]
    chosen = named[0] if named else _closest(rows, kind)
    plain = {k: v for k, v in chosen.items() if k not in ("kinds", "devices", "source")}
    plain["mesh_rings"] = tuple(plain.get("mesh_rings", ()))
    return Link(**plain)


def _closest(rows: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    generic = [row for row in rows if not row["devices"]]
    if generic:
        return generic[0]
    return next(row for row in rows if row["name"] == "nvlink4") if kind == "nvswitch" else rows[-1]


def network_constants() -> Network:
    """Constants of network levels."""
    return Network(**{k: v for k, v in table("links")["network"].items() if k != "source"})


@dataclass(frozen=True)
class Level:
    """One link level: `domain` devices reach each other at `bandwidth_bytes_s` per device."""

    name: str
    domain: int
    bandwidth_bytes_s: float
    latency_s: float
    kind: str
    devices_per_nic: float = 1.0
    pair_bytes_s: float = 0.0
    """Between one pair of devices, where that is less; 0: the same."""


@dataclass(frozen=True)
class Fabric:
    """The constants of a cluster's link levels, innermost first."""

    levels: tuple[Level, ...]
    link: Link
    network: Network
    torus_axes: int = 3

    @property
    def torus_side(self) -> int:
        """Devices along one axis of the innermost torus."""
        domain = self.levels[0].domain
        return next(s for s in range(1, domain + 1) if s**self.torus_axes >= domain)

    @property
    def hop_s(self) -> float:
        """Latency of the first level above the innermost domain; 0 where there is none."""
        return self.levels[1].latency_s if len(self.levels) > 1 else 0.0

    def without_nvls(self) -> Fabric:
        """The same fabric with in-switch reduction turned off (`NCCL_NVLS_ENABLE=0`)."""
        return replace(self, link=replace(self.link, nvls_fraction=0.0))

    @classmethod
    def of(cls, cluster: Cluster) -> Fabric:
        """Read the levels of a cluster and look up what its links achieve.

        Constants that were fitted to the cluster itself (`Cluster.link_constants`) replace
        the shipped ones.

        Raises:
            SpecError: the innermost level is of a kind without constants, or a fitted constant
                does not exist.
        """
        levels = tuple(_level(i, x, cluster.gpus_per_node) for i, x in enumerate(cluster.levels))
        first = cluster.levels[0]
        if first.kind == "network":
            # One device a host: the network is the only level, and nothing is crossed inside it.
            levels = (Level("device", 1, first.bandwidth_bytes_s, 1e-6, "pcie"), *levels)
        inner = levels[0]
        # A torus joins neighbours along each axis by two links of the pair's rate.
        axes = round(inner.bandwidth_bytes_s / inner.pair_bytes_s / 2) if inner.pair_bytes_s else 3
        link = link_constants(inner.kind, cluster.device.name)
        fabric = cls(levels, link, network_constants(), min(max(axes, 1), 3))
        return with_constants(fabric, cluster.link_constants)


def _level(index: int, level: LinkLevel, gpus_per_node: int) -> Level:
    per_nic = gpus_per_node / level.nics_per_node if level.nics_per_node else 1.0
    bandwidth, latency = level.bandwidth_bytes_s / level.oversubscription, level.latency_s
    if index > 0 and level.kind != "network":
        # Links between domains of one host: no cards, so a hop costs one latency, not several.
        bandwidth *= link_constants(level.kind).ring_fraction
        latency /= network_constants().hop_latencies
    return Level(
        level.name,
        level.domain,
        bandwidth,
        latency,
        level.kind,
        max(1.0, per_nic),
        level.p2p_bytes_s,
    )


def constant_names(fabric: Fabric) -> list[str]:
    """Constants that can be fitted: positive rates, times and sizes."""
    found = []
    for part, kind in (("link", Link), ("network", Network)):
        for field in fields(kind):
            value = getattr(getattr(fabric, part), field.name)
            if field.name not in WHOLE and value > 0:
                found.append(f"{part}.{field.name}")
    return found


def with_constants(fabric: Fabric, constants: Mapping[str, float]) -> Fabric:
    """Return a fabric with some constants replaced, by dotted name.

    Raises:
        SpecError: no such constant, or a value that is not positive.
    """
    parts: dict[str, dict[str, float]] = {"link": {}, "network": {}}
    known = set(constant_names(fabric))
    for name, value in constants.items():
        if name not in known:
            raise SpecError("link_constants", name, f"known: {', '.join(sorted(known))}")
        if not (np.isfinite(value) and value > 0):
            raise SpecError(f"link_constants.{name}", value, "more than 0 is expected")
        part, field = name.split(".")
        parts[part][field] = value
    # mypy cannot check keywords that are data; the names were checked above.
    link = replace(fabric.link, **parts["link"])  # type: ignore[arg-type]
    network = replace(fabric.network, **parts["network"])  # type: ignore[arg-type]
    return replace(fabric, link=link, network=network)


@dataclass(frozen=True)
class Group:
    """Columns that say where groups sit: one element a layout, or one for all.

    `domains[l]` is how many domains of level l a group touches and `members[l]` how many of its
    members share one (ranks / domains). `nic_boost` scales a device's network bandwidth where
    it need not share its card.
    """

    ranks: Column
    domains: tuple[Column, ...]
    members: tuple[Column, ...]
    nic_boost: Column | float = 1.0


def place(
    fabric: Fabric,
    ranks: Numbers,
    *,
    stride: Numbers | None = None,
    local: Numbers | None = None,
    sharing: Numbers | None = None,
) -> Group:
    """Place groups of `ranks` members on a fabric that holds them (`ranks * stride` devices).

    Args:
        fabric: the cluster's links.
        ranks: group sizes, at least 1.
        stride: distance between neighbouring members in global ranks (the product of the
            sizes of the axes inside this one). The default is 1: consecutive ranks.
        local: instead of `stride`, members per innermost domain.
        sharing: concurrent groups per network card. The default is that all devices
            communicate at once, each with its even share of its host's cards.

    Raises:
        SpecError: both `stride` and `local` are given.
    """
    size = np.asarray(ranks, dtype=np.float64)
    if stride is not None and local is not None:
        raise SpecError("local", local, "give stride or local, not both")
    if local is not None:
        inside = np.minimum(np.asarray(local, dtype=np.float64), size)
        step = np.where(size > inside, fabric.levels[0].domain / inside, 1.0)
    else:
        step = np.asarray(1.0 if stride is None else stride, dtype=np.float64)
    domains: list[Column] = []
    members: list[Column] = []
    for level in fabric.levels:
        fit = np.minimum(np.maximum(np.floor(level.domain / step), 1.0), size)
        if local is not None and not members:
            fit = inside
        count = np.ceil(size / fit)
        domains.append(count)
        members.append(size / count)
    boost: Column | float = 1.0
    if sharing is not None:
        per_nic = max((level.devices_per_nic for level in fabric.levels), default=1.0)
        boost = np.maximum(per_nic / np.asarray(sharing, dtype=np.float64), 1.0)
    return Group(size, tuple(domains), tuple(members), boost)
