"""How fast the simulator is, beside a plain event heap and simpy on the same step.

    python benchmarks/simulator.py            # 16 ranks, 128 micro-batches, 4 chunks: 16,384 operations
    python benchmarks/simulator.py --large    # and 64 ranks, 2,048 micro-batches, 8 chunks: 2,097,152

All engines run in one process, in turn, and must agree on the makespan. A re-evaluation starts from
new stage times and ends with the makespan; the schedule is prepared once, as in a search. simpy is
optional: `pip install simpy`.
"""

from __future__ import annotations

import argparse
import heapq
import resource
import statistics
import time

import numpy as np

from meshwright.schedules import build
from meshwright.schedules.dependencies import dependencies
from meshwright.simulator import Simulator, StageTimes


def median_s(function, repeats):
    function()
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


class Problem:
    """A schedule as the other engines need it: queues, producers, consumers."""

    def __init__(self, schedule):
        self.schedule = schedule
        self.producer = dependencies(schedule).producer.tolist()
        self.offsets = schedule.offsets.tolist()
        self.rank = schedule.rank.tolist()
        self.consumers = [[] for _ in self.producer]
        for op, source in enumerate(self.producer):
            if source >= 0:
                self.consumers[source].append(op)


def heap_makespan(problem, durations):
    """Discrete events on `heapq`: an operation ends, its rank and its consumers may go on."""
    offsets, rank_of, consumers = problem.offsets, problem.rank, problem.consumers
    missing = [1 if source >= 0 else 0 for source in problem.producer]
    cursor, busy = offsets[:-1], [False] * (len(offsets) - 1)
    events = []
    now = 0.0

    def start(rank):
        i = cursor[rank]
        if not busy[rank] and i < offsets[rank + 1] and not missing[i]:
            busy[rank] = True
            heapq.heappush(events, (now + durations[i], i))

    for rank in range(len(busy)):
        start(rank)
    while events:
        now, i = heapq.heappop(events)
        rank = rank_of[i]
        busy[rank] = False
        cursor[rank] += 1
        start(rank)
        for op in consumers[i]:
            missing[op] -= 1
            if cursor[rank_of[op]] == op:
                start(rank_of[op])
    return now


def simpy_makespan(problem, durations):
    """One simpy process per rank, one event per operation."""
    import simpy

    environment = simpy.Environment()
    done = [environment.event() for _ in durations]

    def run(rank):
        for i in range(problem.offsets[rank], problem.offsets[rank + 1]):
            source = problem.producer[i]
            if source >= 0 and not done[source].processed:
                yield done[source]
            yield environment.timeout(durations[i])
            done[i].succeed()

    for rank in range(problem.schedule.pp):
        environment.process(run(rank))
    environment.run()
    return environment.now


def small():
    schedule = build("interleaved", pp=16, micro_batches=128, virtual_stages=4)
    random = np.random.default_rng(0)
    times = StageTimes.of(*(random.uniform(0.8, 1.2, schedule.stages) for _ in range(3)))
    durations = times.durations(schedule).tolist()
    problem = Problem(schedule)
    python, fast = Simulator(schedule, engine="python"), Simulator(schedule, engine="numba")
    variants = [times.scaled(random.uniform(0.9, 1.1, (schedule.stages, 1))) for _ in range(200)]
    engines = {
        "numba (fast extra)": (lambda: fast.makespan_s(times), 50, 1),
        "plain Python": (lambda: python.makespan_s(times), 20, 1),
        "batch of 200, NumPy": (lambda: python.makespans_s(variants)[0], 3, 200),
        "event heap": (lambda: heap_makespan(problem, durations), 5, 1),
    }
    try:
        import simpy  # noqa: F401

        engines["simpy"] = (lambda: simpy_makespan(problem, durations), 3, 1)
    except ImportError:
        print("simpy is not installed; skipped")
    answers = {name: run() for name, (run, _, _) in engines.items()}
    exact = answers["plain Python"]
    for name, answer in answers.items():
        assert "batch" in name or abs(answer / exact - 1) < 1e-12, (name, answer, exact)
    taken = {name: median_s(run, n) / share for name, (run, n, share) in engines.items()}
    print(f"{len(schedule):,} operations (16 ranks, 128 micro-batches, 4 chunks), per evaluation:")
    for name, seconds in taken.items():
        ratio = seconds / taken["plain Python"]
        print(f"  {name:22} {1e3 * seconds:9.3f} ms   {ratio:8.3f} x plain Python")


def large():
    begin = time.perf_counter()
    schedule = build("interleaved", pp=64, micro_batches=2048, virtual_stages=8)
    built = time.perf_counter()
    simulator = Simulator(schedule, engine="numba")
    makespan = simulator.makespan_s()
    first = time.perf_counter()
    simulator.makespan_s((1.0, 1.1, 0.9))
    again = time.perf_counter()
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{len(schedule):,} operations (64 ranks, 2,048 micro-batches, 8 chunks), numba:")
    print(f"  build the schedule   {built - begin:6.3f} s")
    print(f"  prepare and evaluate {first - built:6.3f} s   (makespan {makespan:g})")
    print(f"  evaluate again       {again - first:6.3f} s")
    print(f"  peak resident memory {rss:6.2f} GiB, the whole process")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--large", action="store_true", help="two million operations as well")
    options = parser.parse_args()
    small()
    if options.large:
        large()


if __name__ == "__main__":
    main()
