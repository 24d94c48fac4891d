"""Measuring this machine: modules on one rank, links among several, the engine's own steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from meshwright.measure.sampling import Deadline
from meshwright.specs.measured import ModuleTimes

Progress = Callable[[str, float], Any]

LINKS_SHARE = 0.3
"""Of the time wanted, for links among ranks."""

STARTS = 2
"""Of the probes' processes: where a process' memory comes to lie changes its pace by up to a fifth."""

GRACE_S = 90.0
"""More than the deadline that ranks get to start, end a case and say goodbye."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to measure, and for how long."""

    seconds: float
    ranks: int
    quick: bool
    precisions: tuple[str, ...] = ("fp32", "bf16")


@dataclass(slots=True)
class Found:
    """What was measured on one machine."""

    modules: dict[str, dict[str, ModuleTimes]] = field(default_factory=dict)
    known_s: dict[str, float] = field(default_factory=dict)
    """Constants of the engine's own work that were timed by themselves."""
    timings: list[dict[str, Any]] = field(default_factory=list)
    collectives: list[dict[str, Any]] = field(default_factory=list)
    slowdown: dict[int, float] = field(default_factory=dict)
    disturbed: float = 1.0
    hosts: int = 1
    """That share the cores of one machine."""
    probed: list[Any] = field(default_factory=list)
    process_bytes: float = 0.0
    disk: dict[str, float] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    took_s: float = 0.0


def modules_rank(wanted: Wanted, seconds: float, report: Callable[[Any], None]) -> dict[str, Any]:
    """One rank's modules; run alone."""
    from meshwright.engine.watch.meter import peak_memory_bytes
    from meshwright.measure.machine import fresh_byte_s
    from meshwright.measure.modules import measure_modules
    from meshwright.measure.whole_tensors import seconds_per_element

    process = peak_memory_bytes()

    def tell(what: str, share: float) -> None:
        report({"kind": "measuring", "what": what, "share": share})

    fitted, every, skipped = measure_modules(
        wanted.precisions, Deadline(seconds), quick=wanted.quick, progress=tell
    )
    timings = [
        {
            "module": one.case.module, "precision": one.precision, **dict(one.case.forward),
            "forward_s": one.forward.median_s, "backward_s": one.backward.median_s,
            "spread": one.forward.spread, "disturbed": one.forward.disturbed,
            "repeats": one.forward.repeats,
        }
        for one in every
    ]  # fmt: skip
    return {
        "modules": fitted, "timings": timings, "skipped": skipped, "process_bytes": process,
        "known_s": {**seconds_per_element(), "fresh_byte": fresh_byte_s()},
    }  # fmt: skip


def probe_rank(
    ranks: int, wanted: Wanted, seconds: float, report: Callable[[Any], None]
) -> list[Any]:
    """One rank of the engine's probes."""
    from meshwright.measure.probes import probes, run_probes

    todo = probes(ranks, quick=wanted.quick, precisions=wanted.precisions)
    return run_probes(todo, seconds, report)


def measure(wanted: Wanted, progress: Progress, *, links: bool = True) -> Found:
    """Measure this machine within the time wanted; ranks are ended whatever happens.

    Without `links` the collectives among `wanted.ranks` are left to whoever measures them with other
    hosts (`__main__.py`).

    Raises:
        RankError: a rank was lost, in one sentence.
        SpecError: there is no memory for so many ranks.
    """
    from meshwright.engine.ranks.processes import RankError, run_ranks
    from meshwright.measure.links import QUICK_SIZES, SIZES, Task, measure_ranks
    from meshwright.measure.machine import disk_bytes_s

    began = time.perf_counter()
    # Links come last and keep a share of their own, however long the others take to start.
    reserved = LINKS_SHARE * wanted.seconds if links and wanted.ranks > 1 else 0.0
    deadline, found = Deadline(wanted.seconds - reserved), Found()

    def run(function: Any, world: int, *arguments: Any, seconds: float, part: str) -> list[Any]:
        def hear(_rank: int, message: dict[str, Any]) -> None:
            progress(f"{part}: {message['what']}", message["share"])

        progress(part, 0.0)
        limit_s = seconds + GRACE_S
        try:
            return run_ranks(function, world, *arguments, on_message=hear, timeout_s=limit_s)
        except RankError as error:
            if "time limit" not in str(error):
                raise
            found.skipped.append(f"{part} (no answer within {limit_s:.0f} s)")
            return []

    share = 0.5 * deadline.left_s
    for modules in run(modules_rank, 1, wanted, share, seconds=share, part="modules"):
        found.modules, found.timings = modules["modules"], modules["timings"]
        found.skipped += modules["skipped"]
        found.process_bytes = modules["process_bytes"]
        found.known_s = modules["known_s"]
    worlds = ([1, 2] if wanted.ranks > 1 else [1]) * (1 if wanted.quick else STARTS)
    for done, world in enumerate(worlds):
        left = len(worlds) - done
        share = (0.9 if left > 1 else 0.8) * deadline.left_s / left
        part = f"steps, {('one rank', 'two ranks')[world - 1]}"
        for probed in run(probe_rank, world, world, wanted, share, seconds=share, part=part)[:1]:
            found.probed += probed
    if links and wanted.ranks > 1:
        task = Task(
            seconds=reserved + deadline.left_s,
            sizes=QUICK_SIZES if wanted.quick else SIZES,
            quick=wanted.quick,
            work_s=0.06 if wanted.quick else 0.15,
        )
        part = f"links among {wanted.ranks} ranks"
        for result in run(measure_ranks, wanted.ranks, task, seconds=task.seconds, part=part)[:1]:
            found.collectives, found.slowdown = result["rows"], result["slowdown"]
            found.disturbed = result["disturbed"]
            found.skipped += result["skipped"]
    progress("disk", 0.9)
    found.disk = disk_bytes_s()
    found.took_s = time.perf_counter() - began
    return found
