"""How far a prediction of a kind of run may be off: ranges from the scorecard's residuals.

The quantiles are in `costs/data/confidence.toml`, written by `meshwright scorecard --confidence`.
A kind is a device generation, a framework and a scale; where too few runs of one were published,
the next wider kind speaks for it.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from meshwright.costs.kernels import generation
from meshwright.specs.cluster import Cluster
from meshwright.specs.job import Job
from meshwright.specs.plan import Range

COVERAGE = 0.8
"""Share of measured values that a range is meant to hold."""

SCALES = ((8, "one host"), (64, "up to 64 devices"), (1 << 62, "more than 64 devices"))
"""Largest world of each scale, and its name."""

ANY = "any"


@dataclass(frozen=True, slots=True)
class Kind:
    """Quantiles of measured over predicted among the published runs of one kind."""

    generation: str
    framework: str
    scale: str
    rows: int
    low: float
    high: float

    def basis(self, quantity: str) -> str:
        """Say what a range rests on."""
        told = [name for name in (self.generation, self.framework, self.scale) if name != ANY]
        return (
            f"{100 * COVERAGE:.0f} % of {self.rows} published {quantity} "
            f"({', '.join(told) if told else 'all of them'})"
        )


def kinds_of(cluster: Cluster, job: Job, gpus: int) -> list[tuple[str, str, str]]:
    """Return the kinds that a run belongs to, from the narrowest to all runs."""
    device = generation(cluster.device)
    scale = next(name for limit, name in SCALES if gpus <= limit)
    framework = job.framework
    return [
        (device, framework, scale),
        (device, framework, ANY),
        (device, ANY, scale),
        (device, ANY, ANY),
        (ANY, ANY, scale),
        (ANY, ANY, ANY),
    ]


@cache
def kinds(quantity: str) -> dict[tuple[str, str, str], Kind]:
    """Return the kinds with known residuals of `time` or `memory`."""
    file = resources.files("meshwright.costs").joinpath("data/confidence.toml")
    table = tomllib.loads(file.read_text("utf-8"))
    known = [Kind(**entry) for entry in table.get(quantity, [])]
    return {(kind.generation, kind.framework, kind.scale): kind for kind in known}


def time_range(cluster: Cluster, job: Job, gpus: int, step_time_s: float) -> Range | None:
    """Return the range that should hold the measured step time about 80 % of the time."""
    return _range("time", "step times", cluster, job, gpus, step_time_s)


def memory_range(cluster: Cluster, job: Job, gpus: int, peak_bytes: float) -> Range | None:
    """Return the range that should hold the measured peak memory about 80 % of the time."""
    return _range("memory", "memory peaks", cluster, job, gpus, peak_bytes)


def _range(
    quantity: str, name: str, cluster: Cluster, job: Job, gpus: int, value: float
) -> Range | None:
    known = kinds(quantity)
    for key in kinds_of(cluster, job, gpus):
        if key in known:
            kind = known[key]
            return Range(low=value * kind.low, high=value * kind.high, basis=kind.basis(name))
    return None
