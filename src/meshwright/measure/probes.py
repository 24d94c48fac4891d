"""Short steps of the engine itself: what its own Python costs beside the modules.

A probe is a small model under one layout. Its processor time, less what its modules take by their own
measurement, is the engine's own work: per step, layer, micro-batch, FSDP unit, pipeline action… Each
is identified by probes that differ in it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshwright.costs import measured_step
from meshwright.costs.columns import from_layouts, strides
from meshwright.costs.fabric import Fabric
from meshwright.costs.frameworks import behaviour
from meshwright.costs.measured_machine import Machine, measured_modules
from meshwright.costs.memory import MemoryColumns, memory
from meshwright.costs.stages import stage_layers
from meshwright.costs.step import estimate
from meshwright.measure.fitting import seconds_per_unit
from meshwright.measure.runs import Steps, steps_rank
from meshwright.specs.cluster import Cluster
from meshwright.specs.job import RECIPES, Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Experts, Model

OWN = (
    "cold_call", "step", "micro_batch", "tensor", "unit", "gather", "reduction", "tensor_call",
    "tensor_element", "context_call", "context_element", "exchange_call", "action", "weight_action",
)  # fmt: skip
"""The engine's own work, by the names that costs/synchronous.py and measured_step.py count; what goes
with the parameters is timed by itself (`whole_tensors.py`)."""

MOST_PASSES = 4.0
"""Copies of what is exchanged that the engine can make around a collective, at most: in, out, and the
order changed on the way (engine/model/collectives.py, attention.py)."""

EXPERTS = Experts(experts=8, top_k=2, ffn=128)
"""Of the probes that have some."""

STEPS = 60
"""Of a probe at most; a passing load falls on some of many steps, which the median does not see."""

STEPS_SHARE = 0.7
"""Of a probe's share of the time that is left; the others go into building it."""

MOST_S = 2.0
"""For the steps of one probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A small run."""

    name: str
    model: Model
    layout: Layout
    batch: int
    seq_len: int = 64
    precision: str = "fp32"

    @property
    def job(self) -> Job:
        """What one step does."""
        return Job(
            seq_len=self.seq_len,
            global_batch=self.batch,
            precision=RECIPES[self.precision],
            framework="meshwright",
        )


@dataclass(frozen=True, slots=True)
class Probed:
    """A probe's measured medians: processor and wall seconds of rank 0's steps, peak bytes."""

    probe: Probe
    cpu_s: float
    wall_s: float
    peak_bytes: float
    fresh_bytes: float = 0.0
    """Memory that a step touched first: its cost is measured apart (`machine.fresh_byte_s`)."""


def small(layers: int, hidden: int = 128, vocab: int = 512, **changes: Any) -> Model:
    """A Llama-like model of few parameters, whose layers' tensors are more than a core's own caches.

    Python and kernels' starts take half the time where a step's whole memory stays in the caches, which
    no real step's does.
    """
    heads = max(hidden // 32, 2)
    return Model(
        name=f"probe-{layers}x{hidden}", layers=layers, hidden=hidden, heads=heads, kv_heads=heads,
        head_dim=hidden // heads, ffn=2 * hidden, vocab=vocab, **changes,
    )  # fmt: skip


def probes(ranks: int, *, quick: bool, precisions: Sequence[str] = ("fp32", "bf16")) -> list[Probe]:
    """Probes for one or two ranks, smallest first; each constant is identified by a difference."""
    return [one for one in _probes(ranks, quick=quick) if one.precision in precisions]


def _probes(ranks: int, *, quick: bool) -> list[Probe]:
    one = Layout(micro_batch=4)
    wide = Layout(micro_batch=8)
    if ranks == 1:
        found = [
            Probe(name="2 layers", model=small(2), layout=one, batch=4),
            Probe(name="8 layers", model=small(8), layout=one, batch=4),
            Probe(name="4 micro-batches", model=small(2), layout=Layout(micro_batch=1), batch=4),
            Probe(name="wide", model=small(3, 192, 2048), layout=wide, batch=8),
            Probe(name="bf16, 2 layers", model=small(2), layout=one, batch=4, precision="bf16"),
            Probe(name="bf16, 8 layers", model=small(8), layout=one, batch=4, precision="bf16"),
            Probe(name="bf16, micro-batches", model=small(4), layout=Layout(micro_batch=1), batch=4,
                  precision="bf16"),
        ]  # fmt: skip
        if not quick:
            found += [
                Probe(name="wider", model=small(2, 384, 4096), layout=one, batch=4, seq_len=128),
                Probe(name="long", model=small(4, 128), layout=one, batch=4, seq_len=256),
                Probe(name="bf16, wide", model=small(2, 128, 1024), layout=one, batch=4,
                      precision="bf16"),
                Probe(name="experts", model=small(4, experts=EXPERTS), layout=one, batch=4),
            ]  # fmt: skip
        return found
    found = [
        Probe(name="zero 3, 2 layers", model=small(2), layout=Layout(dp=2, zero=3, micro_batch=2),
              batch=4),
        Probe(name="zero 3, 6 layers", model=small(6), layout=Layout(dp=2, zero=3, micro_batch=1),
              batch=4),
        Probe(name="zero 2", model=small(4), layout=Layout(dp=2, zero=2, micro_batch=1), batch=4),
        Probe(name="replicas", model=small(3, 192), layout=Layout(dp=2, micro_batch=2), batch=4),
        Probe(name="tensor", model=small(6), layout=Layout(tp=2, micro_batch=4), batch=4),
        Probe(name="tensor, wide", model=small(3, 192), batch=8,
              layout=Layout(tp=2, micro_batch=8, sequence_parallel=True)),
        Probe(name="pipeline", model=small(4), layout=Layout(pp=2, micro_batch=1, schedule="1f1b"),
              batch=8),
        Probe(name="pipeline, 2 chunks", model=small(4), batch=8,
              layout=Layout(pp=2, virtual_stages=2, micro_batch=1, schedule="interleaved")),
    ]  # fmt: skip
    if not quick:
        found += [
            Probe(name="zero 3, wide", model=small(3, 192, 1024),
                  layout=Layout(dp=2, zero=3, micro_batch=2), batch=4),
            Probe(name="pipeline, split backward", model=small(4), batch=4,
                  layout=Layout(pp=2, virtual_stages=2, micro_batch=1, schedule="zb-v")),
            Probe(name="experts exchanged", model=small(4, experts=EXPERTS),
                  layout=Layout(dp=2, ep=2, micro_batch=2), batch=4),
            Probe(name="context", model=small(4), layout=Layout(cp=2, micro_batch=2), batch=4,
                  seq_len=128),
        ]  # fmt: skip
    return found


def run_probes(
    todo: Sequence[Probe], seconds: float, report: Callable[[Any], None]
) -> list[Probed]:
    """Run probes as one rank; every rank calls it. Those after the deadline are left out."""
    import torch.distributed as dist

    from meshwright.measure.links import _agreed

    ends, done = time.monotonic() + seconds, []
    for index, probe in enumerate(todo):
        if _agreed(ends - time.monotonic()) <= 0:
            break
        if dist.get_rank() == 0:
            report(
                {"kind": "measuring", "what": f"steps: {probe.name}", "share": index / len(todo)}
            )
        share = max(ends - time.monotonic(), 0.0) / (len(todo) - index)
        done.append(_run(probe, min(STEPS_SHARE * share, MOST_S)))
    return done


def _run(probe: Probe, seconds: float) -> Probed:
    measured = steps_rank(
        Steps(model=probe.model, layout=probe.layout, job=probe.job, steps=STEPS, seconds=seconds)
    )
    return Probed(
        probe,
        statistics.median(measured.cpu_s),
        statistics.median(measured.step_s),
        max(measured.process_bytes),
        statistics.median(measured.fresh_bytes),
    )


def alone(cluster: Cluster) -> Cluster:
    """The same device on cores of its own, with messages that take no time."""
    levels = [
        level.but(bandwidth_bytes_s=1e18, latency_s=1e-15).model_dump() for level in cluster.levels
    ]
    return cluster.but(
        device=cluster.device.model_dump(exclude_unset=True),
        levels=levels,
        collectives=(),
        shared_cores=None,
    )


def counts(cluster: Cluster, probe: Probe) -> dict[str, float]:
    """How much of each of the engine's own work, and of modules' time, a probe's mean rank has.

    The cost model is linear in these constants, so each count is its price with that constant alone.
    """
    price = _pricer(cluster, probe.model, probe.job, probe.layout)
    base = price({})
    found: dict[str, float] = {}
    for name in OWN:
        amount = price({name: 1.0}) - base
        if amount > 1e-6:
            found[name] = amount
    return found


def processor_s(cluster: Cluster, model: Model, job: Job, layout: Layout) -> float:
    """Predicted processor time of the mean rank's main thread in one step."""
    measured = cluster.device.measured
    return _pricer(cluster, model, job, layout)(measured.engine_s if measured else {})


def _pricer(
    cluster: Cluster, model: Model, job: Job, layout: Layout
) -> Callable[[Mapping[str, float]], float]:
    """A function of the engine's constants: the processor time of a step of the mean rank."""
    lonely = alone(cluster)
    machine = Machine.of(lonely, job, model, Fabric.of(lonely))
    assert machine is not None
    columns = from_layouts([layout])
    layers = stage_layers(model, columns)
    micro = np.array([layout.micro_batches(job.global_batch)])
    used = memory(model, job, behaviour(job), columns, layers, micro, process_bytes=0.0)
    distances = strides(columns)

    def price(engine_s: Mapping[str, float]) -> float:
        setup = measured_step.Setup(
            replace(machine, engine_s=engine_s), model, job, columns, layers, distances, micro
        )
        return _cpu_s(setup, used)

    return price


def _cpu_s(setup: measured_step.Setup, used: MemoryColumns) -> float:
    """Modelled processor time of the mean rank: everything but waiting."""
    parts, pp = measured_step.stage_parts(setup), int(setup.columns.pp[0])
    many = {"first": 1.0, "middle": max(pp - 2, 0), "last": float(pp > 1)}
    work = sum(
        many[role] * float(forward[0] + backward[0])
        for role, held in parts.items()
        for forward, backward in held.values()
    )
    update, fixed = measured_step.update_s(setup, used)
    data = measured_step.data_parallel_s(setup, used)
    mean = work * float(setup.micro_batches[0]) / pp
    return mean + float(update[0] + fixed[0] + data[0])


def fit_own(
    cluster: Cluster, done: Sequence[Probed], known: Mapping[str, float] | None = None
) -> tuple[dict[str, float], float]:
    """The engine's constants from probes, and the median error of their processor times.

    `known`: constants that were timed by themselves; `fresh_byte` among them counts as often as the
    probe's thread did touch memory first.

    Probes at a precision whose modules were not measured say nothing.
    """
    done = [
        one for one in done if measured_modules(cluster, one.probe.job, one.probe.model) is not None
    ]
    if not done:
        return {}, 0.0
    rows = [counts(cluster, one.probe) for one in done]
    timed = {name: value for name, value in (known or {}).items() if name != "fresh_byte"}
    fresh_byte_s = (known or {}).get("fresh_byte", 0.0)
    targets = [max(one.cpu_s - fresh_byte_s * one.fresh_bytes, 1e-9) for one in done]
    # Modules and what is known count in full; what a module takes more in a step, where others have the
    # caches between its calls, than alone is `cold_call`.
    sure = [_known_s(cluster, one.probe, timed) for one in done]
    rest = [target - priced for target, priced in zip(targets, sure, strict=True)]
    element = MOST_PASSES * 4.0 * timed["copied_byte"] if "copied_byte" in timed else math.inf
    found, error = seconds_per_unit(
        rows, rest, targets, {"tensor_element": element, "context_element": element}
    )
    return found | dict(known or {}), error


def _known_s(cluster: Cluster, probe: Probe, known: Mapping[str, float]) -> float:
    """What a probe's modules and the work of known price take of its mean rank's processor."""
    return _pricer(cluster, probe.model, probe.job, probe.layout)(known)


def predicted_s(cluster: Cluster, probe: Probe) -> float:
    """The cost model's step time of a probe."""
    return estimate(probe.model, cluster, probe.job, probe.layout).step_time_s
