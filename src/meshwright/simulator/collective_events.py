"""Timing a collective's messages on links that they share.

A message takes its latency, then its bytes flow at the rate that max-min fair sharing of every
port and uplink on its way leaves it; rates change whenever a flow starts or ends.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.costs.fabric import Fabric
from meshwright.simulator.collective_steps import Array, Program
from meshwright.specs.errors import SpecError


@dataclass(frozen=True)
class Wires:
    """Links between ranks as shared resources with capacities in bytes/s.

    `route(src, dst)` names the resources of a message and its latency. Resources appear in the
    order in which `capacity_bytes_s` lists them.
    """

    capacity_bytes_s: Array
    names: tuple[str, ...]
    routes: dict[tuple[int, int], tuple[tuple[int, ...], float]]

    def route(self, src: int, dst: int) -> tuple[tuple[int, ...], float]:
        """Resources and latency of a message.

        Raises:
            SpecError: no link joins the two.
        """
        if (src, dst) not in self.routes:
            raise SpecError("route", (src, dst), "no link joins these ranks")
        return self.routes[src, dst]


class _Builder:
    def __init__(self) -> None:
        self.capacity: list[float] = []
        self.index: dict[str, int] = {}
        self.routes: dict[tuple[int, int], tuple[tuple[int, ...], float]] = {}

    def resource(self, name: str, capacity: float) -> int:
        if name not in self.index:
            self.index[name] = len(self.capacity)
            self.capacity.append(capacity)
        return self.index[name]

    def done(self) -> Wires:
        return Wires(np.asarray(self.capacity), tuple(self.index), self.routes)


def uniform_wires(
    ranks: int, bandwidth_bytes_s: float, latency_s: float, switches: int = 0
) -> Wires:
    """Every rank sends and receives at one rate through a switch that never blocks."""
    wires = _Builder()
    everyone = range(ranks + switches)
    for src in everyone:
        for dst in everyone:
            if src == dst:
                continue
            way = [wires.resource(f"out {r}", bandwidth_bytes_s) for r in (src,) if r < ranks]
            way += [wires.resource(f"in {r}", bandwidth_bytes_s) for r in (dst,) if r < ranks]
            wires.routes[src, dst] = (tuple(way), latency_s)
    return wires.done()


def cluster_wires(fabric: Fabric, ranks: int, stride: int = 1, switches: int = 0) -> Wires:
    """The links of a cluster under a group of `ranks` members, `stride` apart.

    Inside the innermost domain each device has a port in and out (one for each peer, where
    links are point to point); a network level adds the device's share of its host's cards; an
    outer level adds the uplink of each domain below it, shared by the devices in it.
    Rates are what links achieve (`costs/data/links.toml`), not what they state.
    """
    wires, inner, net = _Builder(), fabric.levels[0], fabric.network
    for src in range(ranks):
        for dst in range(ranks):
            if src != dst:
                wires.routes[src, dst] = _way(wires, fabric, src, dst, stride)
    rate = inner.bandwidth_bytes_s * (fabric.link.nvls_fraction or fabric.link.ring_fraction)
    if switches and ranks * stride > inner.domain:
        raise SpecError("algorithm", "nvls", f"one domain of {inner.domain} devices is expected")
    for switch in range(ranks, ranks + switches):
        for r in range(ranks):
            out = wires.resource(f"nvls out {r}", rate)
            back = wires.resource(f"nvls in {r}", rate)
            latency = fabric.link.nvls_base_s / 4 or net.hop_latencies * inner.latency_s
            wires.routes[r, switch] = ((out,), latency)
            wires.routes[switch, r] = ((back,), latency)
    return wires.done()


def _way(
    wires: _Builder, fabric: Fabric, src: int, dst: int, stride: int
) -> tuple[tuple[int, ...], float]:
    inner, link, net = fabric.levels[0], fabric.link, fabric.network
    here, there = src * stride, dst * stride
    if here // inner.domain == there // inner.domain:
        rate = inner.bandwidth_bytes_s * link.ring_fraction
        if inner.kind == "mesh":
            pair = wires.resource(f"{src} to {dst}", rate / max(inner.domain - 1, 1))
            return (pair,), link.step_s
        out = wires.resource(f"{inner.name} out {src}", rate)
        back = wires.resource(f"{inner.name} in {dst}", rate)
        return (out, back), link.step_s
    level = next(
        (i for i, x in enumerate(fabric.levels) if here // x.domain == there // x.domain), None
    )
    if level is None:
        raise SpecError("ranks", (src, dst), "the outermost level does not join these devices")
    card = fabric.levels[1]
    rate = card.bandwidth_bytes_s * net.reduce_fraction * card.devices_per_nic
    share = round(card.devices_per_nic)
    way = [
        wires.resource(f"{card.name} out {here // share}", rate),
        wires.resource(f"{card.name} in {there // share}", rate),
    ]
    for i in range(2, level + 1):
        below, uplink = fabric.levels[i - 1].domain, fabric.levels[i]
        rate = uplink.bandwidth_bytes_s * net.reduce_fraction * max(1, below // stride)
        way.append(wires.resource(f"{uplink.name} up {here // below}", rate))
        way.append(wires.resource(f"{uplink.name} down {there // below}", rate))
    return tuple(way), net.hop_latencies * fabric.levels[level].latency_s


@dataclass(frozen=True)
class Run:
    """When each message of a program started and ended."""

    program: Program
    size_bytes: float
    start_s: Array
    end_s: Array
    wires: Wires

    @property
    def time_s(self) -> float:
        """When the last message arrived."""
        return float(self.end_s.max()) if len(self.end_s) else 0.0

    def busy_fraction(self) -> dict[str, float]:
        """Share of the run during which each resource was at its capacity's worth of bytes."""
        carried = np.zeros(len(self.wires.names))
        chunk = self.size_bytes / self.program.per_tensor
        for message in self.program.messages:
            for resource in self.wires.route(message.src, message.dst)[0]:
                carried[resource] += message.count * chunk
        used = carried / self.wires.capacity_bytes_s / max(self.time_s, 1e-30)
        return {name: float(u) for name, u in zip(self.wires.names, used, strict=True)}


def fair_rates(ways: npt.NDArray[np.int64], capacity: Array) -> Array:
    """Max-min fair rates of flows over shared resources, by progressive filling.

    Args:
        ways: [flows, resources on the way], padded with -1.
        capacity: bytes/s of each resource.

    Returns:
        Bytes/s of each flow; infinite for a flow over no resource.
    """
    rates = np.full(len(ways), np.inf)
    left = capacity.astype(np.float64).copy()
    undecided = (ways >= 0).any(axis=1)
    while undecided.any():
        used = ways[undecided]
        count = np.bincount(used[used >= 0], minlength=len(left))
        share = np.where(count > 0, left / np.maximum(count, 1), np.inf)
        padded = np.append(share, np.inf)
        least = padded[ways].min(axis=1)
        level = least[undecided].min()
        # Everyone whose tightest resource is the tightest of all gets that share for good.
        settled = undecided & (least <= level * (1 + 1e-12))
        rates[settled] = level
        taken = ways[settled]
        left = np.maximum(left - level * np.bincount(taken[taken >= 0], minlength=len(left)), 0.0)
        undecided &= ~settled
    return rates


def simulate(program: Program, size_bytes: float, wires: Wires) -> Run:
    """Time every message.

    Raises:
        SpecError: a message has no link to travel on.
    """
    messages = program.messages
    count = len(messages)
    routes = [wires.route(m.src, m.dst) for m in messages]
    width = max((len(way) for way, _ in routes), default=1) or 1
    ways = np.full((count, width), -1, dtype=np.int64)
    for i, (way, _) in enumerate(routes):
        ways[i, : len(way)] = way
    left = np.array([m.count * size_bytes / program.per_tensor for m in messages])
    waiting = np.array([len(m.after) for m in messages])
    followers: list[list[int]] = [[] for _ in messages]
    for i, message in enumerate(messages):
        for before in message.after:
            followers[before].append(i)
    start, end = np.zeros(count), np.zeros(count)
    launches = [(routes[i][1], i) for i in range(count) if waiting[i] == 0]
    heapq.heapify(launches)
    flowing, rates = np.zeros(0, dtype=np.int64), np.zeros(0)
    now = 0.0
    while launches or len(flowing):
        finish = now + (left[flowing] / rates).min() if len(flowing) else np.inf
        upcoming = min(finish, launches[0][0] if launches else np.inf)
        left[flowing] -= (upcoming - now) * np.where(np.isinf(rates), 0.0, rates)
        # Flows that end together must end together despite rounding.
        over = (left[flowing] <= 1e-9 * size_bytes) | np.isinf(rates)
        done, flowing = flowing[over], flowing[~over]
        now = upcoming
        for i in done:
            end[i] = now
            for j in followers[i]:
                waiting[j] -= 1
                if waiting[j] == 0:
                    start[j] = now
                    heapq.heappush(launches, (now + routes[j][1], j))
        begun = []
        while launches and launches[0][0] <= now * (1 + 1e-12):
            begun.append(heapq.heappop(launches)[1])
        flowing = np.concatenate([flowing, np.asarray(begun, dtype=np.int64)])
        rates = fair_rates(ways[flowing], wires.capacity_bytes_s)
    return Run(program, size_bytes, start, end, wires)
