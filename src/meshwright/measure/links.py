"""Collectives and messages between ranks, on the backend that will train; and cores they share.

Every rank runs `measure_ranks` together. Each case is timed in bursts, one call after another as in a
step, for groups of every size, inside a host and of one rank of each host: once all groups at the same
time, once one group of each host alone while the others wait. Hosts always work alike, as in training.
Bursts of a case are spread over the whole time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from meshwright.engine.parallel.backend import on_gpu, own_device
from meshwright.engine.watch.meter import peak_memory_bytes
from meshwright.measure.fitting import of_shared_resource
from meshwright.measure.machine import cores
from meshwright.measure.sampling import Sample

BURST = 4
SLOW_CALL_S = 0.1
"""A call that takes longer is not repeated in bursts."""
ROUNDS = 24
"""Times that all cases are gone through at most."""
FIRST_SAMPLES, MORE_SAMPLES = 2, (0, 2, 4, 8, 12)
"""Samples of the shared cores before the first round, and rounds after which there is one more."""
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "exchange")
"""What is timed."""
PAIRED = ("send_recv", "exchange")
"""Of these, between pairs: one message, and one each way at once."""
SIZES = (4 * 2.0**10, 64 * 2.0**10, 256 * 2.0**10, 2.0**20, 8 * 2.0**20)
QUICK_SIZES = (4 * 2.0**10, 256 * 2.0**10, 4 * 2.0**20)

Report = Callable[[Any], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What ranks measure together."""

    seconds: float
    sizes: tuple[float, ...]
    quick: bool = False
    work_s: float = 0.15
    """Processor time of the piece of work whose slowdown is measured."""
    per_host: int = 0
    """Ranks of one host, where there are several hosts; 0: all."""
    machine: int = 0
    """A number that hosts have in common which share a machine's cores; 0: each has its own."""


def measure_ranks(task: Task, report: Report) -> dict[str, Any]:
    """Measure as one rank; every rank calls it. Rank 0's result has the figures of all.

    All cases are gone through in rounds, a few calls each, until the time is used: what another
    program does for half a second meets a round of many cases, not all repeats of one.
    """
    ends = time.monotonic() + task.seconds
    world, rank = dist.get_world_size(), dist.get_rank()
    process = peak_memory_bytes()
    inside = task.per_host or world
    shared = _shared_hosts(world // inside, task.machine)
    crowds = _Crowds(world, inside * shared, task.work_s)
    crowds.sample(ends, FIRST_SAMPLES)
    groups = {(members, 1): _groups(world, members, 1) for members in _member_counts(inside)}
    if world > inside:
        for members in _member_counts(world // inside):
            groups[members, inside] = _groups(world, members, inside)
    cases = list(_cases(world, task))
    found: dict[_Case, list[float]] = {case: [] for case in cases}
    known: dict[tuple[str, int, int, int], dict[float, float]] = {}
    for turn in range(ROUNDS):
        if turn and _agreed(ends - time.monotonic()) <= 0:
            break
        for index, case in enumerate(cases):
            left = _agreed(ends - time.monotonic())
            if left <= 0:
                break
            curve = known.setdefault(_curve(case), {})
            if not (burst := _affordable(curve, case[3], left)):
                continue
            if rank == 0:
                what = f"{case[0]} among {case[1]} of {case[2]}"
                share = (turn + index / len(cases)) / ROUNDS
                report({"kind": "measuring", "what": what, "share": share})
            found[case].append(_time(case, groups[case[1], case[4]], burst, inside))
            curve[case[3]] = Sample.of(found[case]).median_s
        if turn in MORE_SAMPLES:
            crowds.sample(ends, 1)
    names = {case: f"{case[0]} among {case[1]} of {case[2]}" for case in cases}
    return {
        "rows": [
            _row(case, times, across=world > inside and case[4] == inside)
            for case, times in found.items()
            if times
        ],
        "slowdown": crowds.slowdown(),
        "disturbed": crowds.disturbed(),
        "hosts": shared,
        "process_bytes": process,
        "skipped": list(dict.fromkeys(names[case] for case in cases if not found[case])),
    }


_Case = tuple[str, int, int, float, int]
"""Collective, members, ranks of a host at once, bytes, distance of neighbours."""


def _curve(case: _Case) -> tuple[str, int, int, int]:
    """A case without its size."""
    return case[0], case[1], case[2], case[4]


def _row(case: _Case, times: list[float], *, across: bool) -> dict[str, Any]:
    sample = Sample.of(times)
    collective, members, active, size, _ = case
    return {
        "collective": collective, "members": members, "active": active, "across": across,
        "size_bytes": size, "time_s": sample.median_s, "spread": sample.spread,
        "disturbed": sample.disturbed, "repeats": sample.repeats,
    }  # fmt: skip


def expected_s(curve: Mapping[float, float], size: float) -> float:
    """What a call of `size` bytes may take by those that are known (seconds by bytes); 0 where nothing says.

    Two sizes tell a rate. One tells a latency above all, so that a disturbed call of 4 KiB is not taken
    for a link on which megabytes take minutes.
    """
    if size in curve:
        return curve[size]
    below = sorted(known for known in curve if known < size)
    if not below:
        return 0.0
    first, last = below[0], below[-1]
    slope = (curve[last] - curve[first]) / (last - first) if last > first else 0.0
    return curve[last] + max(slope, 0.0) * (size - last)


def _affordable(curve: Mapping[float, float], size: float, left_s: float) -> int:
    """Calls in a case's burst of a round; 0 where they would take too long.

    A slow link is known by its smaller messages: fewer repeats of larger ones, none of those that
    would take all the time there is. Where only one size is known the next one is tried by single calls.
    """
    call_s = expected_s(curve, size)
    careful = size not in curve and len(curve) == 1
    burst = 1 if careful or call_s > SLOW_CALL_S else BURST
    return 0 if (burst + 1) * call_s > max(0.1 * left_s, 1.0) else burst


def _member_counts(world: int) -> list[int]:
    """Group sizes: the divisors of the world from 2 on, by doubling, and the world itself."""
    found = [n for n in (2**k for k in range(1, 12)) if n < world and world % n == 0]
    return [*found, world] if world > 1 else []


def _cases(world: int, task: Task) -> Iterator[_Case]:
    """What is timed; groups of neighbours inside each host, then groups of one rank of each host."""
    inside = task.per_host or world
    crowds = []
    for members in _member_counts(inside):
        crowds += [(members, active, 1) for active in dict.fromkeys((inside, members))]
    if world > inside:
        for members in _member_counts(world // inside):
            crowds += [(members, active, inside) for active in dict.fromkeys((inside, 1))]
    # The ends first, in case time runs out; how slow a link is shows in the second smallest.
    for size in (*task.sizes[:2], task.sizes[-1], *task.sizes[2:-1]):
        for members, active, stride in crowds:
            for collective in COLLECTIVES:
                if collective not in PAIRED or members == 2:
                    yield collective, members, active, size, stride


def _groups(world: int, members: int, stride: int) -> Any:
    """This rank's group of `members`, `stride` apart; every rank makes all of them."""
    own, whole = None, members * stride
    for block in range(0, world, whole):
        for first in range(stride):
            ranks = [block + first + stride * at for at in range(members)]
            if ranks[-1] < world:
                group = dist.new_group(ranks)
                own = group if dist.get_rank() in ranks else own
    return own


def _shared_hosts(hosts: int, machine: int) -> int:
    """Hosts whose ranks run on the same cores: all of them, if every rank names one machine, else one."""
    both = torch.tensor([float(machine), -float(machine)], dtype=torch.float64, device=own_device())
    dist.all_reduce(both, op=dist.ReduceOp.MAX)
    return hosts if machine and float(both[0]) == -float(both[1]) else 1


def _agreed(left_s: float) -> float:
    """Rank 0's view of the time left, on every rank."""
    both = torch.tensor([left_s], dtype=torch.float64, device=own_device())
    dist.broadcast(both, 0)
    return float(both)


def _time(case: _Case, mine: Any, burst: int, inside: int) -> float:
    """Seconds of a call in a burst, averaged over the ranks that took part; one before it warms up."""
    collective, members, active, size, _ = case
    takes_part = dist.get_rank() % inside < active and mine is not None
    call = _caller(collective, mine, members, size) if takes_part else None
    if call is not None:
        call()
        _finish()
    dist.barrier()
    start = time.perf_counter()
    if call is not None:
        for _ in range(burst):
            call()
        _finish()
    spent = (time.perf_counter() - start) / burst if takes_part else 0.0
    total = torch.tensor([spent], dtype=torch.float64, device=own_device())
    if takes_part and collective in PAIRED:
        # Who sends is done when the message lies in its own buffers: the receiver knows how long it took.
        dist.all_reduce(total, group=mine, op=dist.ReduceOp.MAX)
    dist.all_reduce(total)
    return float(total[0]) / (active * dist.get_world_size() / inside)


def _finish() -> None:
    if on_gpu():
        torch.cuda.synchronize()


def _caller(collective: str, group: Any, members: int, size: float) -> Callable[[], Any]:
    device = own_device()
    elements = max(int(size) // 4 // members, 1) * members
    whole = torch.ones(elements, device=device)
    part = torch.ones(elements // members, device=device)
    other = torch.ones(elements, device=device)
    if collective == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group, op=dist.ReduceOp.MAX)
    if collective == "all_gather":
        return lambda: dist.all_gather_single(whole, part, group=group)
    if collective == "reduce_scatter":
        return lambda: dist.reduce_scatter_single(part, whole, group=group)
    if collective == "all_to_all":
        return lambda: dist.all_to_all_single(other, whole, group=group)
    return _message(whole, group) if collective == "send_recv" else _exchange(whole, other, group)


def _message(whole: torch.Tensor, group: Any) -> Callable[[], Any]:
    """One message from the first rank of a pair to the second, as pipelines send it, and back."""
    me = dist.get_rank()
    first, second = (dist.get_global_rank(group, at) for at in (0, 1))
    turn = [0]

    def call() -> None:
        sender = (first, second)[turn[0] % 2]
        turn[0] += 1
        other = second if me == first else first
        way = dist.isend if me == sender else dist.irecv
        for request in dist.batch_isend_irecv([dist.P2POp(way, whole, other, group=group)]):
            request.wait()

    return call


def _exchange(whole: torch.Tensor, other: torch.Tensor, group: Any) -> Callable[[], Any]:
    """A message each way between the ranks of a pair at once, as neighbours of a pipeline do."""
    me = dist.get_rank()
    peer = next(r for r in (dist.get_global_rank(group, at) for at in (0, 1)) if r != me)

    def call() -> None:
        for request in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, whole, peer, group=group),
             dist.P2POp(dist.irecv, other, peer, group=group)]
        ):  # fmt: skip
            request.wait()

    return call


class _Crowds:
    """Time of a piece of work while 1, 2, … ranks of each machine do it at once, over its processor time alone."""

    def __init__(self, world: int, inside: int, work_s: float) -> None:
        counts = [1, *(n for n in (2, 3, 4, 6, 8, 12, 16, 24, 32, 64) if n < inside)]
        self.counts = counts + ([inside] if inside > 1 else [])
        self._inside, self._machines = inside, world / inside
        self._samples: dict[int, list[tuple[float, float]]] = {}
        self._piece = None if on_gpu() else _piece()
        self._repeats = 0 if self._piece is None else _calibrated(self._piece, work_s)

    def sample(self, ends: float, samples: int) -> None:
        """Let each number of ranks work `samples` times; every rank calls it."""
        for active in self.counts if self._piece is not None else ():
            if active * self._machines > 1 and _agreed(ends - time.monotonic()) <= 0:
                return
            for _ in range(samples):
                self._samples.setdefault(active, []).append(self._once(active))

    def _once(self, active: int) -> tuple[float, float]:
        assert self._piece is not None
        dist.barrier()
        wall, worked = time.perf_counter(), time.thread_time()
        takes_part = dist.get_rank() % self._inside < active
        for _ in range(self._repeats if takes_part else 0):
            self._piece()
        mine = (
            [time.perf_counter() - wall, time.thread_time() - worked] if takes_part else [0.0, 0.0]
        )
        both = torch.tensor(mine, dtype=torch.float64)
        dist.all_reduce(both)
        wall_s, cpu_s = (both / (active * self._machines)).tolist()
        return wall_s, cpu_s

    def disturbed(self) -> float:
        """How much longer other programs made the work take: the clock's time over the processor's, beyond turns."""
        return disturbance(
            {
                active: statistics.median(wall / cpu for wall, cpu in samples if cpu > 0)
                for active, samples in self._samples.items()
            },
            cores(),
        )

    def slowdown(self) -> dict[int, float]:
        """Median times over the median processor time of one rank, as a shared resource can have them."""
        if self._piece is None:
            return {1: 1.0}
        alone = statistics.median(cpu for _, cpu in self._samples[1])
        return of_shared_resource(
            {
                active: statistics.median(wall for wall, _ in samples) / alone
                for active, samples in self._samples.items()
            }
        )


def disturbance(waiting: Mapping[int, float], cores_here: int) -> float:
    """Mean factor by which other programs lengthen work, 1 or more.

    `waiting` has the clock's time over the processor's by the number of ranks that work at once. Ranks that take
    turns on fewer cores wait for each other, which is no disturbance; what is slower because memory is
    shared is processor time.
    """
    if not waiting:
        return 1.0
    beyond = [ratio / max(1.0, count / cores_here) for count, ratio in waiting.items()]
    return max(statistics.geometric_mean(beyond), 1.0)


def _piece() -> Callable[[], None]:
    """Work that needs arithmetic and memory as a layer does."""
    x, weight = torch.randn(256, 256), torch.randn(1024, 256)

    def work() -> None:
        inner = F.linear(x, weight)
        F.silu(inner).mul_(inner).sum()

    return work


def _calibrated(piece: Callable[[], None], work_s: float) -> int:
    """Repeats that take `work_s` of processor time; the same on every rank."""
    piece()
    began = time.thread_time()
    for _ in range(5):
        piece()
    each = torch.tensor([max((time.thread_time() - began) / 5, 1e-6)], dtype=torch.float64)
    dist.broadcast(each, 0)
    return max(int(work_s / float(each)), 1)
