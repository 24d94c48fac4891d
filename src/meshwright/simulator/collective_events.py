"""Timing a collective's messages on links that they share.

A message takes its latency, then its bytes flow at the rate that max-min fair sharing of every
port and uplink on its way leaves it; rates change whenever a flow starts or ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshwright.costs.fabric import Fabric
from meshwright.simulator.collective_steps import Array, Program
from meshwright.specs.errors import SpecError
from meshwright.specs.stopping import go_on


class Wires:
    """Links as shared resources with capacities in bytes/s, found as messages need them."""

    def __init__(self, way: Callable[[Wires, int, int], tuple[list[int], float]]) -> None:
        self._way = way
        self._capacity: list[float] = []
        self._index: dict[str, int] = {}
        self._routes: dict[tuple[int, int], tuple[tuple[int, ...], float]] = {}

    def resource(self, name: str, capacity_bytes_s: float) -> int:
        """Index of a resource, which is made on first use."""
        if name not in self._index:
            self._index[name] = len(self._capacity)
            self._capacity.append(capacity_bytes_s)
        return self._index[name]

    def route(self, src: int, dst: int) -> tuple[tuple[int, ...], float]:
        """Resources and latency of a message.

        Raises:
            SpecError: no link joins the two.
        """
        if (src, dst) not in self._routes:
            way, latency = self._way(self, src, dst)
            self._routes[src, dst] = (tuple(way), latency)
        return self._routes[src, dst]

    def scale(self, factors: Mapping[str, float]) -> None:
        """Slow some resources down (or speed them up): a failing card, a busy uplink."""
        for name, factor in factors.items():
            self._capacity[self._index[name]] *= factor

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the resources used so far."""
        return tuple(self._index)

    @property
    def capacity_bytes_s(self) -> Array:
        """Capacities, in the order of the names."""
        return np.asarray(self._capacity)


def uniform_wires(ranks: int, bandwidth_bytes_s: float, latency_s: float) -> Wires:
    """Every rank sends and receives at one rate through a switch that never blocks.

    Numbers from `ranks` on are reducers inside that switch, whose own ports do not limit.
    """

    def way(wires: Wires, src: int, dst: int) -> tuple[list[int], float]:
        ports = [("out", src), ("in", dst)]
        found = [wires.resource(f"{k} {r}", bandwidth_bytes_s) for k, r in ports if r < ranks]
        return found, latency_s

    return Wires(way)


def cluster_wires(fabric: Fabric, ranks: int, stride: int = 1) -> Wires:
    """The links of a cluster under a group of `ranks` members, `stride` apart.

    Inside the innermost domain each device has a port in and out (one for each peer, where
    links are point to point); a network level adds the device's share of its host's cards; an
    outer level adds the uplink of each domain below it, shared by the devices in it.
    Rates are what links achieve (`costs/data/links.toml`), not what they state. Numbers from
    `ranks` on are reducers in the innermost switch, unless `ranks` is 0: then there are none.
    """
    inner, link = fabric.levels[0], fabric.link

    def way(wires: Wires, src: int, dst: int) -> tuple[list[int], float]:
        if ranks == 0 or (src < ranks and dst < ranks):
            return _way(wires, fabric, src * stride, dst * stride)
        if ranks * stride > inner.domain or link.nvls_fraction == 0:
            raise SpecError("algorithm", "nvls", "one domain with reducing switches is expected")
        rate = inner.bandwidth_bytes_s * link.nvls_fraction
        name = f"nvls out {src}" if src < ranks else f"nvls in {dst}"
        # A chunk passes the switch four times: in, out, in again, and out to all.
        return [wires.resource(name, rate)], link.nvls_base_s / 4

    return Wires(way)


def _way(wires: Wires, fabric: Fabric, here: int, there: int) -> tuple[list[int], float]:
    """Resources between two devices, by their global numbers."""
    inner, link, net = fabric.levels[0], fabric.link, fabric.network
    if here // inner.domain == there // inner.domain:
        rate = inner.bandwidth_bytes_s * link.ring_fraction
        if inner.kind == "mesh":
            pair = inner.pair_bytes_s or inner.bandwidth_bytes_s / max(inner.domain - 1, 1)
            return [wires.resource(f"{here} to {there}", pair * link.ring_fraction)], link.step_s
        out = wires.resource(f"{inner.name} out {here}", rate)
        return [out, wires.resource(f"{inner.name} in {there}", rate)], link.step_s
    level = next(
        (i for i, x in enumerate(fabric.levels) if here // x.domain == there // x.domain), None
    )
    if level is None:
        raise SpecError("ranks", (here, there), "the outermost level does not join these devices")
    card = fabric.levels[1]
    rate = card.bandwidth_bytes_s * net.reduce_fraction * card.devices_per_nic
    share = round(card.devices_per_nic)
    way = [
        wires.resource(f"{card.name} out {here // share}", rate),
        wires.resource(f"{card.name} in {there // share}", rate),
    ]
    for i in range(2, level + 1):
        below, uplink = fabric.levels[i - 1].domain, fabric.levels[i]
        rate = uplink.bandwidth_bytes_s * net.reduce_fraction * below
        way.append(wires.resource(f"{uplink.name} up {here // below}", rate))
        way.append(wires.resource(f"{uplink.name} down {there // below}", rate))
    return way, net.hop_latencies * fabric.levels[level].latency_s


def concurrent(program: Program, groups: Sequence[Sequence[int]]) -> Program:
    """The same collective in many groups at once, over global device numbers.

    For timing only: chunks of different groups have the same names.

    Raises:
        SpecError: a group has another size than the program, or reducers in a switch.
    """
    if program.switches or any(len(g) != program.ranks for g in groups):
        raise SpecError(
            "groups", len(groups), f"groups of {program.ranks} without switches are expected"
        )
    top = 1 + max(max(g) for g in groups)
    many = Program(program.collective, program.algorithm, top, program.per_tensor)
    for index, members in enumerate(groups):
        offset = index * len(program.messages)
        for m in program.messages:
            after = tuple(before + offset for before in m.after)
            many.messages.append(replace(m, src=members[m.src], dst=members[m.dst], after=after))
    return many


def strided_groups(devices: int, ranks: int, stride: int) -> list[list[int]]:
    """All groups of `ranks` members `stride` apart that tile the devices."""
    block = ranks * stride
    return [
        [start + offset + i * stride for i in range(ranks)]
        for start in range(0, devices - block + 1, block)
        for offset in range(stride)
    ]


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
    capacity = wires.capacity_bytes_s
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
        go_on()
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
        rates = fair_rates(ways[flowing], capacity)
    return Run(program, size_bytes, start, end, wires)
