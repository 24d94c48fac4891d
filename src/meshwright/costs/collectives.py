"""The time of a collective, for one layout or a million in the same line of code.

    T = latency + intra + inter

*latency* is the start, the hops of the chosen algorithm and the time until its pipeline of
chunks runs full (`fill * x / (x + half)`); *intra* or *inter* is the bytes through the link that
binds, over what that link achieves. Constants: `costs/data/links.toml`.

Sizes follow nccl-tests: `size_bytes` is the whole tensor (all-gather: the gathered output,
reduce-scatter: the full input, all-to-all: one rank's send buffer).

Only +, -, *, /, minimum, maximum, where, floor, ceil and frexp are used: each is exact or
correctly rounded, so an element has the same bits alone and inside a column of any length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshwright.costs.fabric import Column, Fabric, Group, Numbers
from meshwright.specs.errors import SpecError, nearest

ALGORITHMS = ("none", "ring", "tree", "nvls", "nvls-tree", "pairwise", "direct")
"""Names of the codes in `CollectiveCost.algorithm`."""


@dataclass(frozen=True)
class CollectiveCost:
    """Named parts of a collective's time, in seconds; they add up to `total_s` exactly."""

    latency_s: Column
    intra_s: Column
    inter_s: Column
    sent_bytes: Column
    """Bytes that one rank sends in all."""
    algorithm: npt.NDArray[np.int8]
    """Index into `ALGORITHMS`."""
    crossing_s: Column | float = 0.0
    """Of an all-to-all, the time of what leaves the innermost domain, whether or not it binds."""

    @property
    def total_s(self) -> Column:
        """The time of the collective."""
        return self.latency_s + (self.intra_s + self.inter_s)


def bus_factor(collective: str, ranks: Numbers) -> Column:
    """Bus bandwidth over algorithm bandwidth (size / time), as nccl-tests defines it."""
    n = np.asarray(ranks, dtype=np.float64)
    if collective == "all_reduce":
        return np.asarray(2.0 * (n - 1.0) / n)
    if collective in ("all_gather", "reduce_scatter", "all_to_all"):
        return np.asarray((n - 1.0) / n)
    return np.ones_like(n)


def ceil_log2(count: Numbers) -> Column:
    """ceil(log2 k) of whole numbers k >= 1, from the exponent's bits."""
    k = np.asarray(count, dtype=np.float64)
    return np.where(k > 1.0, np.frexp(k - 1.0)[1], 0).astype(np.float64)


def ring_bandwidth(fabric: Fabric, members: Column) -> Column:
    """Bus bandwidth in bytes/s of a ring of `members` devices inside one innermost domain.

    A switch gives every ring the whole link, PCIe what a pair gets. Point-to-point links (AMD)
    add up with the number of peers; on a torus a group uses the axes it spans; on the V100 hybrid
    cube mesh the number of rings depends on the group's size.
    """
    level, link = fabric.levels[0], fabric.link
    full = level.bandwidth_bytes_s * link.ring_fraction
    if level.kind == "mesh":
        pair = level.pair_bytes_s or level.bandwidth_bytes_s / max(level.domain - 1, 1)
        together = pair * link.ring_fraction * np.maximum(members - 1.0, 1.0)
        return np.asarray(np.minimum(full, together))
    if level.kind == "torus":
        side, axes = fabric.torus_side, fabric.torus_axes
        spanned = 1.0 + (members > side)
        spanned = spanned + (members > side * side) if axes == 3 else spanned
        return np.asarray(full / axes * spanned)
    if link.mesh_rings and level.kind == "nvlink":
        rings = np.asarray(link.mesh_rings, dtype=np.float64)
        index = np.minimum(members, len(rings) - 1).astype(np.int64)
        return np.asarray(full * (np.maximum(rings[index], 1.0) / rings.max()))
    if level.kind == "pcie" and level.pair_bytes_s > 0.0:
        full = min(full, level.pair_bytes_s * link.ring_fraction)
    return np.asarray(full * (members / (members + link.small_group)))


@dataclass(frozen=True)
class _Crossing:
    """What a group crosses above its innermost domain."""

    ring_s_per_byte: Column  # of ring traffic, through the binding level, at the stated rate
    scatter_s_per_byte: Column  # of a rank's all-to-all buffer, likewise
    ring_hops_s: Column  # latency of all crossings on one trip round the ring
    tree_hops_s: Column  # latency of one way up a binary tree over the domains

    @classmethod
    def of(cls, fabric: Fabric, group: Group) -> _Crossing:
        ring_rate = scatter_rate = ring = tree = np.zeros_like(group.ranks)
        for index, level in enumerate(fabric.levels[1:], start=1):
            inner, outer = group.domains[index - 1], group.domains[index]
            members = group.members[index - 1]
            crossed = inner > outer
            device_rate = level.bandwidth_bytes_s * group.nic_boost
            ring_rate = np.maximum(ring_rate, np.where(crossed, 1 / (device_rate * members), 0.0))
            leaving = (group.ranks - members) / group.ranks
            scatter_rate = np.maximum(scatter_rate, np.where(crossed, leaving / device_rate, 0.0))
            ring = ring + level.latency_s * (inner - outer)
            tree = tree + level.latency_s * ceil_log2(np.ceil(inner / outer))
        return cls(ring_rate, scatter_rate, ring, tree)


def _cost(
    group: Group, latency: Column, intra: Column, inter: Column, sent: Column, algorithm: Numbers
) -> CollectiveCost:
    """Keep the binding link's time; a group of one, or an empty tensor, costs nothing."""
    active = (group.ranks > 1.0) & (sent > 0.0)
    inside = intra >= inter
    return CollectiveCost(
        np.where(active, latency, 0.0),
        np.where(active & inside, intra, 0.0),
        np.where(active & ~inside, inter, 0.0),
        np.where(active, sent, 0.0),
        np.where(active, algorithm, 0).astype(np.int8),
    )


def _saturating(fill_s: Column | float, x: Column, half: float) -> Column:
    return np.asarray(fill_s * (x / (x + half)))


def _ring(
    fabric: Fabric,
    group: Group,
    up: _Crossing,
    size: Column,
    trips: float,
    fraction: float,
    whole: bool = False,
) -> CollectiveCost:
    """A ring over all members, `trips` times round (all-reduce 2, all-gather 1).

    Every member starts with its share of the tensor; `whole`: one starts with all of it (broadcast), so that
    each hop further waits for the chunks of a long message, not of a share.
    """
    link, net = fabric.link, fabric.network
    inside = group.members[0] - 1.0
    if fabric.levels[0].kind == "torus":
        # Dimension by dimension: no chunk travels further than along each axis once.
        inside = np.minimum(inside, float(fabric.torus_axes * (fabric.torus_side - 1)))
    inner_hops = trips * group.domains[0] * inside
    outer_hops_s = trips * up.ring_hops_s
    share = size / group.ranks
    piece = size if whole else share
    latency = (
        link.base_s
        + inner_hops * link.step_s
        + net.hop_latencies * outer_hops_s
        + _saturating(link.fill_base_s + inner_hops * link.fill_step_s, piece, link.fill_half_bytes)
        + _saturating(net.fill_latencies * outer_hops_s, piece, net.fill_half_bytes)
    )
    sent = trips * (group.ranks - 1.0) * share
    members = group.members[0]
    intra = np.where(members > 1.0, sent / ring_bandwidth(fabric, members), 0.0)
    return _cost(group, latency, intra, sent * up.ring_s_per_byte / fraction, sent, 1)


def _tree(fabric: Fabric, group: Group, up: _Crossing, size: Column) -> CollectiveCost:
    """All-reduce by NVLS or a chain inside a domain, by a double binary tree between domains.

    With two domains every byte crosses once each way; with more, a domain sends twice the
    tensor (as a parent in one tree, a leaf in the other).
    """
    link, net = fabric.link, fabric.network
    members, domains = group.members[0], group.domains[0]
    switch = (link.nvls_fraction > 0.0) & (members > 2.0) & (members <= net.nvls_members_max)
    single = domains <= 1.0
    chain_hops = 2.0 * (members - 1.0)
    tree_hops_s = 2.0 * up.tree_hops_s
    latency = (
        np.where(switch, link.nvls_base_s, link.base_s + chain_hops * link.step_s)
        + net.hop_latencies * tree_hops_s
        + np.where(
            switch,
            _saturating(link.nvls_fill_s, size, link.nvls_half_bytes),
            _saturating(
                link.fill_base_s + chain_hops * link.fill_step_s,
                size / members,
                link.fill_half_bytes,
            ),
        )
        + _saturating(net.fill_latencies * tree_hops_s, size / members, net.fill_half_bytes)
    )
    ring_sent = 2.0 * (group.ranks - 1.0) * (size / group.ranks)
    switch_sent = size * (1.0 + 1.0 / members)
    sent = np.where(switch, switch_sent, ring_sent)
    full_rate = fabric.levels[0].bandwidth_bytes_s * max(link.nvls_fraction, 1e-9)
    switch_rate = full_rate * np.where(single, 1.0, net.nvls_tree_fraction)
    rate = np.where(switch, switch_rate, ring_bandwidth(fabric, members))
    intra = np.where(members > 1.0, sent / rate, 0.0)
    crossing = size * np.where(domains <= 2.0, 1.0, 2.0)
    inter = crossing * up.ring_s_per_byte / net.reduce_fraction
    algorithm = np.where(switch, np.where(single, 3, 4), 2)
    return _cost(group, latency, intra, inter, sent, algorithm)


def all_reduce_cost(fabric: Fabric, size_bytes: Numbers, group: Group) -> CollectiveCost:
    """Parts of an all-reduce: the faster of a ring and of NVLS or a tree."""
    size = np.asarray(size_bytes, dtype=np.float64)
    up = _Crossing.of(fabric, group)
    ring = _ring(fabric, group, up, size, 2.0, fabric.network.reduce_fraction)
    if fabric.levels[0].kind in ("torus", "mesh") and len(fabric.levels) == 1:
        return ring
    tree = _tree(fabric, group, up, size)
    better = tree.total_s < ring.total_s
    return CollectiveCost(
        np.where(better, tree.latency_s, ring.latency_s),
        np.where(better, tree.intra_s, ring.intra_s),
        np.where(better, tree.inter_s, ring.inter_s),
        np.where(better, tree.sent_bytes, ring.sent_bytes),
        np.where(better, tree.algorithm, ring.algorithm),
    )


def all_gather_cost(fabric: Fabric, size_bytes: Numbers, group: Group) -> CollectiveCost:
    """Parts of an all-gather of `size_bytes` gathered bytes, by ring."""
    size = np.asarray(size_bytes, dtype=np.float64)
    up = _Crossing.of(fabric, group)
    return _ring(fabric, group, up, size, 1.0, fabric.network.gather_fraction)


def reduce_scatter_cost(fabric: Fabric, size_bytes: Numbers, group: Group) -> CollectiveCost:
    """Parts of a reduce-scatter of `size_bytes` on every rank: an all-gather run backwards."""
    return all_gather_cost(fabric, size_bytes, group)


def broadcast_cost(fabric: Fabric, size_bytes: Numbers, group: Group) -> CollectiveCost:
    """Parts of a broadcast: chunks pipelined round a ring, every rank forwards the tensor.

    A reduction to one rank is the same run backwards.
    """
    size = np.asarray(size_bytes, dtype=np.float64)
    up = _Crossing.of(fabric, group)
    ring = _ring(fabric, group, up, size, 1.0, fabric.network.gather_fraction, whole=True)
    # The ring above moves (n-1)/n of the tensor through each link; a broadcast moves all of it.
    whole = group.ranks / np.maximum(group.ranks - 1.0, 1.0)
    return CollectiveCost(
        ring.latency_s, ring.intra_s * whole, ring.inter_s * whole,
        ring.sent_bytes * whole, ring.algorithm,
    )  # fmt: skip


def all_to_all_cost(fabric: Fabric, size_bytes: Numbers, group: Group) -> CollectiveCost:
    """Parts of an all-to-all of a send buffer of `size_bytes` a rank: pairwise exchange.

    What stays inside the domain and what leaves it travel at the same time; the slower binds.
    On a torus the links of an axis carry a quarter of its extent (scaling-book, "AllToAll").
    """
    size = np.asarray(size_bytes, dtype=np.float64)
    link, net, up = fabric.link, fabric.network, _Crossing.of(fabric, group)
    n, members = group.ranks, group.members[0]
    latency = (
        link.base_s
        + (members - 1.0) * link.step_s
        + net.hop_latencies * np.where(up.tree_hops_s > 0.0, fabric.hop_s, 0.0)
        + net.alltoall_peer_hops * fabric.hop_s * (n - members)
    )
    inside = size * ((members - 1.0) / n)
    if fabric.levels[0].kind == "torus":
        axis = fabric.levels[0].bandwidth_bytes_s * fabric.link.ring_fraction / fabric.torus_axes
        intra = size * np.minimum(members, fabric.torus_side) / (4.0 * axis)
    else:
        intra = inside / ring_bandwidth(fabric, members)
    inter = size * up.scatter_s_per_byte / net.alltoall_fraction
    cost = _cost(group, latency, intra, inter, size * ((n - 1.0) / n), 5)
    return replace(cost, crossing_s=inter)


def send_recv_cost(fabric: Fabric, size_bytes: Numbers, group: Group) -> CollectiveCost:
    """Parts of one message between two neighbours of the group (`ranks` = 2)."""
    size = np.asarray(size_bytes, dtype=np.float64)
    link, net, up = fabric.link, fabric.network, _Crossing.of(fabric, group)
    apart = up.tree_hops_s > 0.0
    latency = link.base_s + np.where(apart, net.hop_latencies * up.tree_hops_s, link.step_s)
    intra = np.where(apart, 0.0, size / ring_bandwidth(fabric, np.minimum(group.ranks, 2.0)))
    rate = up.scatter_s_per_byte * (group.ranks / np.maximum(group.ranks - group.members[0], 1.0))
    inter = np.where(apart, size * rate / net.point_to_point_fraction, 0.0)
    return _cost(group, latency, intra, inter, size + np.zeros_like(group.ranks), 6)


COSTS: dict[str, Callable[[Fabric, Numbers, Group], CollectiveCost]] = {
    "all_reduce": all_reduce_cost,
    "all_gather": all_gather_cost,
    "reduce_scatter": reduce_scatter_cost,
    "broadcast": broadcast_cost,
    "all_to_all": all_to_all_cost,
    "send_recv": send_recv_cost,
}
"""The pricing function of each collective, by name."""


def collective_cost(
    collective: str, fabric: Fabric, size_bytes: Numbers, group: Group
) -> CollectiveCost:
    """Price a collective by name (`all_reduce` or `all-reduce`).

    Raises:
        SpecError: no such collective.
    """
    name = collective.replace("-", "_")
    if name not in COSTS:
        raise SpecError("collective", collective, nearest(name, COSTS))
    return COSTS[name](fabric, size_bytes, group)


def all_reduce(fabric: Fabric, size_bytes: Numbers, group: Group) -> Column:
    """Seconds of an all-reduce; `all_reduce_cost` has the parts."""
    return all_reduce_cost(fabric, size_bytes, group).total_s


def all_gather(fabric: Fabric, size_bytes: Numbers, group: Group) -> Column:
    """Seconds of an all-gather; `all_gather_cost` has the parts."""
    return all_gather_cost(fabric, size_bytes, group).total_s


def reduce_scatter(fabric: Fabric, size_bytes: Numbers, group: Group) -> Column:
    """Seconds of a reduce-scatter; `reduce_scatter_cost` has the parts."""
    return reduce_scatter_cost(fabric, size_bytes, group).total_s


def broadcast(fabric: Fabric, size_bytes: Numbers, group: Group) -> Column:
    """Seconds of a broadcast; `broadcast_cost` has the parts."""
    return broadcast_cost(fabric, size_bytes, group).total_s


def all_to_all(fabric: Fabric, size_bytes: Numbers, group: Group) -> Column:
    """Seconds of an all-to-all; `all_to_all_cost` has the parts."""
    return all_to_all_cost(fabric, size_bytes, group).total_s


def send_recv(fabric: Fabric, size_bytes: Numbers, group: Group) -> Column:
    """Seconds of one message; `send_recv_cost` has the parts."""
    return send_recv_cost(fabric, size_bytes, group).total_s
