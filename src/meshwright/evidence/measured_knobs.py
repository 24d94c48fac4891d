"""Constants of a machine that `meshwright measure` timed, which its own later runs may move.

A measured machine is priced by counting: modules, the engine's own work, curves of collectives, shared cores.
Peak rates and link bandwidths say nothing there; what a run can correct is the pace of each of these as a
whole, since a few runs cannot tell one module's seconds from another's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from meshwright.evidence.calibrate_fit import Knob
from meshwright.specs.cluster import Cluster
from meshwright.specs.measured import MeasuredDevice, ModuleTimes

MEASURED_SD = 0.15
"""Prior of a measured pace, in logarithms: two starts of one machine differ by up to a fifth."""

CROWD_SD = 0.3
"""Of what ranks and messages lose to each other, which depends on what else the machine does."""


def measured_knobs(cluster: Cluster) -> list[Knob]:
    """The paces of what was measured of a cluster; none for one that was not."""
    knobs = []
    measured = cluster.device.measured
    if measured is not None:
        paces = [_modules(precision) for precision in measured.modules]
        knobs += [pace for pace in paces if pace.read(cluster) > 0]
        if any(measured.engine_s.values()):
            knobs.append(
                Knob(
                    "device.measured.engine_s", "s, in sum",
                    lambda c: sum(_of(c).engine_s.values()), _engine, MEASURED_SD,
                )
            )  # fmt: skip
    knobs += [_curves(level) for level in dict.fromkeys(one.level for one in cluster.collectives)]
    shared = cluster.shared_cores
    if shared is not None and shared.slowdown[-1] > shared.slowdown[0]:
        knobs.append(
            Knob("shared_cores.slowdown", "× beyond one rank's", _crowded, _crowding, CROWD_SD)
        )
    return knobs


def _of(cluster: Cluster) -> MeasuredDevice:
    assert cluster.device.measured is not None
    return cluster.device.measured


def _with(cluster: Cluster, **changes: object) -> Cluster:
    measured = _of(cluster).but(**changes)
    return cluster.but(device=cluster.device.but(measured=measured.model_dump()).model_dump())


def _times(seconds: Mapping[str, float], factor: float) -> dict[str, float]:
    return {name: value * factor for name, value in seconds.items()}


def _modules(precision: str) -> Knob:
    """All modules of a precision; read as the seconds of their units in sum, which none alone stands for."""

    def read(cluster: Cluster) -> float:
        modules = _of(cluster).modules[precision].values()
        return sum(sum(m.forward.values()) + sum(m.backward.values()) for m in modules)

    def write(cluster: Cluster, value: float) -> Cluster:
        modules, factor = _of(cluster).modules, value / read(cluster)
        paced: dict[str, ModuleTimes] = {
            name: one.but(
                forward=_times(one.forward, factor), backward=_times(one.backward, factor)
            )
            for name, one in modules[precision].items()
        }
        plain = {key: {n: m.model_dump() for n, m in held.items()} for key, held in modules.items()}
        plain[precision] = {name: one.model_dump() for name, one in paced.items()}
        return _with(cluster, modules=plain)

    return Knob(f"device.measured.modules.{precision}", "s, in sum", read, write, MEASURED_SD)


def _engine(cluster: Cluster, value: float) -> Cluster:
    own = _of(cluster).engine_s
    return _with(cluster, engine_s=_times(own, value / sum(own.values())))


def _curves(level: str) -> Knob:
    """All timed collectives of a level (inside a host: ""), read as the geometric mean of their times."""

    def read(cluster: Cluster) -> float:
        times = [t for one in cluster.collectives if one.level == level for t in one.times_s]
        return math.exp(sum(math.log(t) for t in times) / len(times))

    def write(cluster: Cluster, value: float) -> Cluster:
        factor = value / read(cluster)
        curves = [
            one.but(times_s=tuple(t * factor for t in one.times_s)) if one.level == level else one
            for one in cluster.collectives
        ]
        return cluster.but(collectives=[one.model_dump() for one in curves])

    where = f" over {level}" if level else ""
    return Knob(f"collectives{where}", "s, mean", read, write, CROWD_SD)


def _crowded(cluster: Cluster) -> float:
    assert cluster.shared_cores is not None
    times = cluster.shared_cores.slowdown
    return times[-1] / times[0] - 1.0


def _crowding(cluster: Cluster, value: float) -> Cluster:
    shared = cluster.shared_cores
    assert shared is not None
    factor, alone = value / _crowded(cluster), shared.slowdown[0]
    times = tuple(alone * (1.0 + (one / alone - 1.0) * factor) for one in shared.slowdown)
    return cluster.but(shared_cores=shared.but(slowdown=times).model_dump())
