"""A few steps of a plan by the engine on this machine's processes: times, memory, bytes."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.specs.cluster import Cluster
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model
from meshwright.specs.plan import Estimate

WARM_UP = 2
"""Steps left out of the timing: the first builds groups, the second may be counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What to run, and how often."""

    model: Model
    layout: Layout
    job: Job
    steps: int
    seconds: float = 600.0
    """No step begins after so long."""
    count: bool = False
    """Count bytes and tensors' memory in the second step."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What some steps came to."""

    step_s: tuple[float, ...]
    """Wall time of rank 0's steps after the warm-up; `cpu_s` the mean over ranks of their main threads."""
    cpu_s: tuple[float, ...]
    process_bytes: tuple[int, ...]
    """Peak resident size of each rank's process."""
    tensor_bytes: tuple[int, ...] = ()
    sent_bytes: dict[str, float] | None = None
    """Rank 0's, by axis."""
    fresh_bytes: tuple[float, ...] = ()
    """Memory that rank 0's main thread touched first, by step."""


def steps_rank(what: Steps, report: Callable[[Any], None] | None = None) -> Measured:
    """Run steps as one rank; every rank calls it and gets the same figures."""
    import torch
    import torch.distributed as dist

    from meshwright.engine.model.numerics import default_numerics
    from meshwright.engine.parallel.program import Program
    from meshwright.engine.proof.shrink import parameters
    from meshwright.engine.ranks.heap import give_back_freed_memory
    from meshwright.engine.run import precision_of
    from meshwright.engine.watch.meter import Counter, gathered_memory

    model, job = what.model, what.job
    give_back_freed_memory(parameters(model))
    program = Program(
        model, default_numerics(model), what.layout, global_batch=job.global_batch,
        seq_len=job.seq_len, precision=precision_of(job), dropout=job.dropout,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(program.optimizer_groups(0.1), lr=1e-3, fused=True)
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, model.vocab, (job.global_batch, job.seq_len + 1), generator=generator)
    tokens, targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
    begun = time.monotonic()
    cpu: list[float] = []
    fresh: list[float] = []
    wall: list[float] = []
    counted: Any = None
    for number in range(what.steps + WARM_UP):
        late = torch.tensor([time.monotonic() - begun > what.seconds], dtype=torch.float64)
        dist.all_reduce(late, group=program.world.control)
        if float(late) > 0 and len(wall) > WARM_UP:
            break
        if what.count and number == 1:
            counted = Counter(program, optimizer)
            with counted.counting():
                program.step(optimizer, tokens, targets, clip=1.0, number=number)
            continue
        before = touched_bytes()
        began, worked = time.perf_counter(), time.thread_time()
        program.step(optimizer, tokens, targets, clip=1.0, number=number)
        cpu.append(time.thread_time() - worked)
        wall.append(time.perf_counter() - began)
        fresh.append(touched_bytes() - before)
        if report is not None and dist.get_rank() == 0:
            report({"kind": "step", "step": number, "step_time_s": wall[-1]})
    kept = slice(1 if what.count else WARM_UP, None)
    mean = torch.tensor(cpu[kept], dtype=torch.float64)
    dist.all_reduce(mean, group=program.world.control)
    first = torch.tensor(wall[kept], dtype=torch.float64)
    dist.broadcast(first, 0)
    mean_s = (mean / dist.get_world_size()).tolist()
    tensors, sent = _counted(counted, program)
    return Measured(
        tuple(first.tolist()), tuple(mean_s),
        tuple(gathered_memory(program)["peak_memory_bytes"]), tensors, sent, tuple(fresh[kept]),
    )  # fmt: skip


def touched_bytes() -> float:
    """Memory that this thread was the first to write, so far; 0 where the system does not count it."""
    if not hasattr(resource, "RUSAGE_THREAD"):
        return 0.0
    return float(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt * resource.getpagesize())


def _counted(counter: Any, program: Any) -> tuple[tuple[int, ...], dict[str, float] | None]:
    """All ranks' peaks of tensors, and rank 0's bytes."""
    import torch.distributed as dist

    if counter is None:
        return (), None
    everyone: list[Any] = [None] * dist.get_world_size()
    mine = (counter.peak_bytes, counter.sent_bytes)
    dist.all_gather_object(everyone, mine, group=program.world.control)
    return tuple(peak for peak, _ in everyone), everyone[0][1]


def tensor_bytes(estimate: Estimate) -> float:
    """The predicted peak of tensors alone, on the heaviest rank."""
    from meshwright.costs.eager import PARTS

    return sum(estimate.memory_parts.get(name, 0.0) for name in PARTS)


def alone_s(cluster: Cluster, model: Model, job: Job, layout: Layout) -> float:
    """The predicted processor time of the mean rank: what noisy neighbours do not change."""
    from meshwright.measure.probes import processor_s

    return processor_s(cluster, model, job, layout)


def run_here(what: Steps, *, report: Callable[[Any], None] | None = None) -> Measured:
    """Run steps on this machine's processes.

    Raises:
        RankError: a rank failed.
        SpecError: the engine does not run this layout, or there is no memory for it.
    """
    from meshwright.costs.parameters import count_parameters
    from meshwright.engine.ranks.preflight import check_states
    from meshwright.engine.ranks.processes import run_ranks

    def hear(rank: int, message: Any) -> None:
        if report is not None:
            report(message)

    from meshwright.engine.parallel.guards import check

    check(what.model, what.layout, global_batch=what.job.global_batch, seq_len=what.job.seq_len)
    check_states(
        count_parameters(what.model).total, what.model, what.job, what.layout, field="model",
        way_out="choose a smaller model or layout",
    )  # fmt: skip
    results: Sequence[Measured] = run_ranks(
        steps_rank, what.layout.world, what, on_message=hear if report else None,
        timeout_s=what.seconds + 300.0,
    )  # fmt: skip
    return results[0]
