"""How far a prediction may be off: ranges from the residuals of sources that were left out of the fit.

The quantiles are in `costs/data/confidence.toml`, written with the constants. A user is a source that
nobody fitted to, so a range holds about 80 % of what *left-out* sources measured, each source weighing
alike. It is taken from runs of the same device generation and kind of model where at least
`SOURCES` sources speak of them, else of the kind, else of all; it is widened because a new source strays
further than the known ones do from each other, and once more for each of device, framework, scale and
kind of model that fewer sources than that have measured.

A run as a row of somebody's table describes it (`predict`) has ranges of its own (`read`), from residuals of rows read
so: the same sources without what they document, and sources from outside that nothing is fitted to. What a row leaves
open is guessed, and a guess strays further than a model does.

A machine that was measured by `meshwright measure` has residuals of its own kind: those of runs that were
predicted from such a file and then made: on one host (`costs/data/closed_loop.toml`, by
benchmarks/closed_loop.py), or between hosts (`costs/data/between_hosts.toml`, step times only, by
benchmarks/emulated_networks.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from meshwright.costs.frameworks import behaviour
from meshwright.costs.kernels import generation
from meshwright.costs.measured_machine import measured_modules
from meshwright.costs.tables import table
from meshwright.specs.cluster import Cluster
from meshwright.specs.job import Job
from meshwright.specs.model import Model
from meshwright.specs.plan import Range

COVERAGE = 0.8
"""Share of measured values that a range is meant to hold."""

SOURCES = 3
"""Sources that must have measured a kind of run for it to count as known."""

LEAST = 0.02
"""Half-width that every range has: repeated runs of one configuration differ by as much."""

SCALES = ((8, "one host"), (64, "up to 64 devices"), (1 << 62, "more than 64 devices"))
"""Largest world of each scale, and its name."""

ANY = "any"


@dataclass(frozen=True, slots=True)
class Facets:
    """What a run has in common with others: who has measured such a thing says how far to trust."""

    generation: str
    framework: str
    scale: str
    kind: str

    def named(self) -> tuple[tuple[str, str], ...]:
        """(facet, value) pairs."""
        return (
            ("device", self.generation),
            ("framework", self.framework),
            ("scale", self.scale),
            ("kind of model", self.kind),
        )


def facets_of(model: Model, cluster: Cluster, job: Job, gpus: int) -> Facets:
    """Return the facets of a run."""
    if job.finetune is not None:
        # What adapters leave out (gradients and states of all weights) is most of what training holds.
        kind = "adapters" if job.finetune.adapts else "full fine-tuning"
    else:
        kind = "mixture of experts" if model.experts else "dense"
    scale = next(name for limit, name in SCALES if gpus <= limit)
    return Facets(generation(cluster.device), job.framework, scale, kind)


def candidates(facets: Facets) -> tuple[tuple[str, str], ...]:
    """(device generation, kind of model) of the runs that may speak for a run, nearest first."""
    return ((facets.generation, facets.kind), (ANY, facets.kind), (ANY, ANY))


@dataclass(frozen=True, slots=True)
class Residuals:
    """What is known of one quantity's residuals (measured over predicted)."""

    ranges: dict[tuple[str, str], dict[str, Any]]
    """By (device generation, kind): `low`, `high`, `sources`, `rows`."""
    sources: dict[str, int]
    """By `facet: value`: sources that measured such a run."""
    newcomer: float
    """Factor on the logarithm of both ends: a source not seen yet, over those that the ends rest on."""
    widening: float
    """The same, once more for each facet that too few sources measured."""
    read: Residuals | None = None
    """Those of runs that published rows describe: what a row leaves open was assumed."""

    def lacking(self, facets: Facets) -> list[str]:
        """Facets that fewer than `SOURCES` sources have measured, as `facet: value`."""
        named = [f"{facet}: {value}" for facet, value in facets.named()]
        return [name for name in named if self.sources.get(name, 0) < SOURCES]

    def ends(self, facets: Facets, as_read: bool = False) -> tuple[float, float, str]:
        """Lower and upper end over the prediction, and what they rest on; `as_read`: of a published row."""
        if as_read and self.read is not None:
            return self.read.ends(facets)
        key = next(key for key in candidates(facets) if key in self.ranges)
        found = self.ranges[key]
        lacking = self.lacking(facets)
        wider = self.newcomer * self.widening ** len(lacking)
        # The estimate is always inside, also where most sources err to one side.
        low = min(float(found["low"]) ** wider, 1.0 - LEAST)
        high = max(float(found["high"]) ** wider, 1.0 + LEAST)
        told = ", ".join(name for name in key if name != ANY) or "all of them"
        basis = f"{found['rows']} published {{quantity}} of {found['sources']} sources ({told})"
        missing = [name for name in lacking if not self.sources.get(name)]
        few = [name for name in lacking if self.sources.get(name)]
        if missing:
            basis += f"; none measured with {', '.join(missing)}"
        if few:
            basis += f"; hardly any with {', '.join(few)}"
        return low, high, basis


@cache
def residuals(quantity: str) -> Residuals:
    """Return the known residuals of `time` or `memory`."""
    return residuals_from(table("confidence")[quantity])


def residuals_from(entry: dict[str, Any]) -> Residuals:
    """Read one table of data/confidence.toml."""
    ranges = {(one["generation"], one["kind"]): one for one in entry["range"]}
    newcomer, widening = float(entry["newcomer"]), float(entry["widening"])
    read = residuals_from(entry["read"]) if "read" in entry else None
    return Residuals(ranges, dict(entry["sources"]), newcomer, widening, read)


def time_range(
    model: Model, cluster: Cluster, job: Job, gpus: int, step_time_s: float, as_read: bool = False
) -> Range:
    """Return the range that should hold the measured step time about 80 % of the time.

    `as_read`: of a run as a published row describes it.
    """
    if measured_modules(cluster, job, model) is not None:
        runs = "closed_loop" if cluster.nodes == 1 else "between_hosts"
        shared = cluster.shared_cores
        disturbed = shared.disturbed if shared is not None else 1.0
        return _measured(runs, "time", "step times", step_time_s, disturbed)
    facets = facets_of(model, cluster, job, gpus)
    return _range("time", "step times", facets, step_time_s, as_read)


def memory_range(
    model: Model, cluster: Cluster, job: Job, gpus: int, peak_bytes: float, as_read: bool = False
) -> Range:
    """Return the range that should hold the measured peak memory about 80 % of the time.

    `as_read`: of a run as a published row describes it.
    """
    if cluster.nodes == 1 and measured_modules(cluster, job, model) is not None:
        return _measured("closed_loop", "memory", "memory peaks", peak_bytes)
    facets = facets_of(model, cluster, job, gpus)
    held = _range("memory", "memory peaks", facets, peak_bytes, as_read)
    return _captured(held, peak_bytes) if behaviour(job).graphs == "all" else held


def _captured(held: Range, peak_bytes: float) -> Range:
    """A range of memory whose upper end allows for what published figures of whole iterations' graphs differ by.

    That doubt and the model's own have nothing to do with each other: logarithms add up by their squares.
    """
    own, more = (
        math.log(held.high / peak_bytes),
        math.log(float(table("memory")["graphs"]["widest"])),
    )
    high = peak_bytes * math.exp(math.hypot(own, more))
    told = f"{held.basis}; for a CUDA graph of the whole iteration, published figures from 1.05 to 2 times"
    return held.but(high=high, basis=told)


def _measured(runs: str, quantity: str, name: str, value: float, disturbed: float = 1.0) -> Range:
    """By the runs that were predicted from a machine's own measurements, and then made there.

    Those machines were idle. One that other programs made `disturbed` times as slow while it was measured may be
    free of them when it trains, or have as many more.
    """
    known = table(runs)[quantity]
    low, high = min(known["low"], 1.0 - LEAST), max(known["high"], 1.0 + LEAST)
    where = " between emulated hosts" if runs == "between_hosts" else ""
    told = (
        f"{100 * COVERAGE:.0f} % of {known['runs']} {name} of the engine{where}, each predicted from a "
        "measurement of the machine that it then ran on"
    )
    if disturbed > 1.0:
        low, high = low / disturbed, high * disturbed
        told += f"; other programs made the measurement take {disturbed:.2f} times as long"
    return Range(low=value * low, high=value * high, basis=told)


def _range(quantity: str, name: str, facets: Facets, value: float, as_read: bool) -> Range:
    low, high, basis = residuals(quantity).ends(facets, as_read)
    told = f"{100 * COVERAGE:.0f} % of {basis.format(quantity=name)}, each left out of the fit"
    return Range(low=value * low, high=value * high, basis=told)
