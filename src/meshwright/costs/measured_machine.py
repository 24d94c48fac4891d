"""A machine's measured side: which jobs it prices, and what messages and shared cores cost on it.

Times of collectives lie on measured curves (`Cluster.collectives`), by kind, group size and crowd, inside
a host and between hosts; without those, what leaves a host is priced by the network's own bandwidth. Ranks that share cores
(`Cluster.shared_cores`) slow each other by a measured factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.costs import synchronous as count
from meshwright.costs.collectives import _Crossing, ceil_log2
from meshwright.costs.columns import Floats
from meshwright.costs.fabric import Fabric, place
from meshwright.specs.cluster import Cluster
from meshwright.specs.job import Job
from meshwright.specs.measured import ModuleTimes
from meshwright.specs.model import Model


def measured_modules(cluster: Cluster, job: Job, model: Model) -> Mapping[str, ModuleTimes] | None:
    """The measured modules that price a job; None where the kernel model must."""
    device = cluster.device.measured
    if device is None or job.framework != "meshwright" or job.finetune is not None:
        return None
    if model.latent_attention is not None or model.mixer is not None or model.layer_kinds:
        return None
    modules = device.modules.get(job.precision.compute, {})
    return modules if needed_modules(model) <= set(modules) else None


def needed_modules(model: Model) -> set[str]:
    """Modules without whose times a model cannot be priced from measurements."""
    needed = {"linear", "add", "embedding", "loss", "attention", "attention_masked"}
    needed |= {model.norm} & {"rmsnorm", "layernorm"}
    needed |= {"silu_product" if model.gated else "gelu"}
    if model.positions == "rope":
        needed.add("rotate")
    if model.kv_heads != model.heads:
        needed.add("attention_grouped")
    if model.experts is not None:
        needed.add("mixture")
    return needed


@dataclass(frozen=True)
class Machine:
    """A cluster's measured side."""

    cluster: Cluster
    modules: Mapping[str, ModuleTimes]
    engine_s: Mapping[str, float]
    fabric: Fabric

    @classmethod
    def of(cls, cluster: Cluster, job: Job, model: Model, fabric: Fabric) -> Machine | None:
        """What prices a job from measurements; None where the kernel model must."""
        modules, device = measured_modules(cluster, job, model), cluster.device.measured
        if modules is None or device is None:
            return None
        return cls(cluster, modules, device.engine_s, fabric)

    def own_s(self, amounts: Mapping[str, Floats], rows: int) -> Floats:
        """Seconds of the engine's own work."""
        total = np.zeros(rows)
        for name, amount in amounts.items():
            total = total + self.engine_s.get(name, 0.0) * amount
        return total

    def slowdown(self, active: Floats) -> Floats:
        """Time of a rank over its time alone, while `active` ranks of a host compute."""
        shared = self.cluster.shared_cores
        if shared is None:
            return np.ones_like(active)
        inside = np.interp(active, shared.ranks, shared.slowdown)
        beyond = np.maximum(active / shared.ranks[-1], 1.0)
        crowded = shared.ranks[-1] >= shared.cores
        return np.asarray(inside * (beyond if crowded else 1.0))

    def message_s(
        self, collective: str, size_bytes: Floats, members: Floats, stride: Floats, active: Floats
    ) -> Floats:
        """Time of one collective of `members` ranks, `stride` apart, while `active` ranks of each host communicate."""
        local = self.local_members(members, stride)
        time = self._inside(collective, size_bytes, members, active)
        alone = self._inside(collective, np.minimum(size_bytes, 1.0), members, active)
        if any(c.collective == collective and c.level for c in self.cluster.collectives):
            # Who shares a host adds latency to the ring; its bytes cross inside while the card is busy.
            near = np.where(local > 1.0, alone, 0.0)
            crossed = self._between(collective, size_bytes, members, local, active) + near
            crossed = np.where(local > 1.0, np.maximum(time, crossed), crossed)
        else:
            crossed = self._by_bandwidth(collective, size_bytes, members, stride, time, alone)
        spans = members > local
        return np.where(members > 1.0, np.where(spans, crossed, time), 0.0)

    def local_members(self, members: Floats, stride: Floats) -> Floats:
        """Members of a group that share a host."""
        per_host = float(self.cluster.gpus_per_node)
        return np.minimum(members, np.maximum(per_host // np.maximum(stride, 1.0), 1.0))

    def _by_bandwidth(
        self, collective: str, size_bytes: Floats, members: Floats, stride: Floats,
        inside: Floats, alone: Floats,
    ) -> Floats:  # fmt: skip
        """Between hosts whose collectives were not timed: rings hand everything on once through each card."""
        up = _Crossing.of(self.fabric, place(self.fabric, members, stride=stride))
        crossing = count.sent_bytes(collective, size_bytes, members) * up.ring_s_per_byte
        trips = 2.0 if collective in ("all_reduce", "reduce_scatter") else 1.0
        hops = trips * np.where(collective == "send_recv", up.tree_hops_s, up.ring_hops_s)
        return np.maximum(inside, alone + crossing) + hops

    def _between(
        self, collective: str, size_bytes: Floats, members: Floats, local: Floats, active: Floats
    ) -> Floats:
        """From the curves between hosts, timed with one member of each.

        A group with several members in a host is one that takes the bytes of its ring (of an
        all-to-all: of all of them) over the card once, and leaves the card to fewer groups.
        """
        curves = [c for c in self.cluster.collectives if c.collective == collective and c.level]
        known = np.array(sorted({c.members for c in curves}), dtype=np.float64)
        rate = self.fabric.levels[-1].bandwidth_bytes_s
        result = np.zeros_like(size_bytes)
        hosts, groups = np.maximum(members / local, 2.0), np.maximum(active / local, 1.0)
        together = np.stack([members, local, hosts, groups], axis=1)
        for of, inside, over, at_once in np.unique(together, axis=0):
            here = np.all(together == (of, inside, over, at_once), axis=1)
            nearest = float(known[np.argmin(np.abs(np.log2(known / over)))])
            one = np.ones(1)
            measured = float(count.sent_bytes(collective, one, nearest * one)[0])
            if collective == "all_to_all":
                carried = inside * (of - inside) / of
            else:
                carried = float(count.sent_bytes(collective, one, of * one)[0])
            mine = [c for c in curves if c.members == nearest]
            slope = _slope_of(curves, measured / rate)
            equal = size_bytes[here] * carried / measured
            least = _on_curves(mine, np.zeros_like(equal), nearest, at_once, slope)
            hops = least * max(over / nearest - 1.0, 0.0)
            result[here] = _on_curves(mine, equal, nearest, at_once, slope) + hops
        return result

    def _inside(
        self, collective: str, size_bytes: Floats, members: Floats, active: Floats
    ) -> Floats:
        """From the measured curves: the nearest group size and crowd, straight lines in between."""
        curves = [c for c in self.cluster.collectives if c.collective == collective and not c.level]
        if not curves:
            level = self.fabric.levels[0]
            steps = np.maximum(2.0 * ceil_log2(np.maximum(members, 1.0)), 1.0)
            sent = count.sent_bytes(collective, size_bytes, members)
            return np.asarray(steps * level.latency_s + sent / level.bandwidth_bytes_s)
        result = np.zeros_like(size_bytes)
        level = self.fabric.levels[0]
        for members_now, active_now in {
            (float(m), float(a)) for m, a in zip(members, active, strict=True)
        }:
            here = (members == members_now) & (active == active_now)
            sent = count.sent_bytes(collective, np.ones(1), np.full(1, members_now))
            slope = _slope_of(curves, float(sent[0] / level.bandwidth_bytes_s))
            result[here] = _on_curves(curves, size_bytes[here], members_now, active_now, slope)
        return result


def _slope_of(curves: list, otherwise: float) -> float:  # type: ignore[type-arg]
    """Seconds a byte beyond what was measured, for curves that do not say: of the steepest that does.

    A curve of one size, which is all that a busy machine may leave time for, is latency above all; its
    time over its size is no rate. Nor is a curve that falls.
    """
    known = [_last_slope(c.sizes_bytes, c.times_s) for c in curves if len(c.sizes_bytes) > 1]
    return max([slope for slope in known if slope > 0.0], default=otherwise)


def _last_slope(sizes: tuple[float, ...], times: tuple[float, ...]) -> float:
    return (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])


def _on_curves(
    curves: list,  # type: ignore[type-arg]
    sizes: Floats,
    members: float,
    active: float,
    slope: float,
) -> Floats:
    """Interpolate between the crowds measured for the nearest group size, then scale by members."""
    known = sorted({curve.members for curve in curves})
    nearest = min(known, key=lambda m: (abs(np.log2(m / max(members, 2.0))), m))
    mine = sorted((c for c in curves if c.members == nearest), key=lambda c: c.active)
    times = np.stack([_on_curve(c.sizes_bytes, c.times_s, sizes, slope) for c in mine])
    crowds = [c.active for c in mine]
    at = np.clip(active, crowds[0], crowds[-1])
    upper = int(np.searchsorted(crowds, at))
    lower = max(upper - 1, 0) if crowds[min(upper, len(crowds) - 1)] > at else upper
    upper = min(upper, len(crowds) - 1)
    share = 0.0 if upper == lower else (at - crowds[lower]) / (crowds[upper] - crowds[lower])
    time = (1.0 - share) * times[lower] + share * times[upper]
    beyond = max(active / crowds[-1], 1.0) * max(members / nearest, 1.0)
    return np.asarray(time * beyond)


def _on_curve(
    known: tuple[float, ...], times: tuple[float, ...], sizes: Floats, slope: float
) -> Floats:
    """Straight lines between measured sizes; beyond the largest its own rate, below the least its time.

    `slope`: the rate where the curve has none of its own, in seconds a byte.
    """
    own = _last_slope(known, times) if len(known) > 1 else 0.0
    beyond = np.maximum(sizes - known[-1], 0.0)
    return np.asarray(np.interp(sizes, known, times) + beyond * (own if own > 0.0 else slope))
