"""The evaluator against closed forms, an independent event loop, and the golden table."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.schedules import FAMILIES, Kind, Shape, build, refusal
from meshwright.simulator import Simulator, StageTimes, evaluate


def event_loop_ends(schedule, durations, comm):
    """An independent oracle: events on a heap, operations looked up by name, no graph."""
    queues = [list(schedule.ops(r)) for r in range(schedule.pp)]
    durations = iter(durations.tolist())
    duration = {op: next(durations) for queue in queues for op in queue}
    chain = schedule.chain_length
    ended, free, at = {}, [0.0] * schedule.pp, [0] * schedule.pp
    events = [(0.0, r) for r in range(schedule.pp)]

    def inputs(op):
        kind, stage, unit = op
        position = stage % chain
        if kind == Kind.F:
            return [] if position == 0 else [[(Kind.F, stage - 1, unit)]]
        if kind == Kind.W:
            return [[(Kind.I, stage, unit)]]
        if position == chain - 1:
            return [[(Kind.F, stage, unit)]]
        return [[(Kind.B, stage + 1, unit), (Kind.I, stage + 1, unit)]]

    while events:
        _, r = heapq.heappop(events)
        if at[r] == len(queues[r]):
            continue
        op = queues[r][at[r]]
        ready = free[r]
        for options in inputs(op):
            found = [o for o in options if o in ended]
            if not found:
                break
            away = schedule.stage_rank[found[0][1]] != r
            ready = max(ready, ended[found[0]] + (comm if away else 0.0))
        else:
            free[r] = ended[op] = ready + duration[op]
            at[r] += 1
            for other in range(schedule.pp):
                heapq.heappush(events, (free[r], other))
    return np.array([ended[op] for queue in queues for op in queue])


@pytest.mark.parametrize("name", sorted(FAMILIES))
@settings(max_examples=15, deadline=None)
@given(
    pp=st.integers(1, 5),
    m=st.integers(1, 9),
    v=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
    comm=st.sampled_from([0.0, 0.05]),
)
def test_start_and_end_equal_those_of_an_event_loop(name, pp, m, v, seed, comm):
    if refusal(name, Shape(pp, m, v)):
        return
    schedule = build(name, pp=pp, micro_batches=m, virtual_stages=v)
    random = np.random.default_rng(seed)
    shape = (schedule.stages, schedule.units)
    # Operations longer than a message, so that messages never queue behind each other.
    times = StageTimes.of(*(random.uniform(0.1, 2.0, shape) for _ in range(3)))
    timeline = evaluate(schedule, times, comm)
    expected = event_loop_ends(schedule, times.durations(schedule), comm)
    np.testing.assert_allclose(timeline.end, expected, rtol=1e-12)
    np.testing.assert_allclose(timeline.end - timeline.start, times.durations(schedule))


GOLDEN = [
    # schedule, virtual stages, pp, m, span, makespan, peak of the first and the last rank
    ("1f1b", 1, 4, 8, 0.2727, 0.2727, 4, 1),
    ("1f1b", 1, 8, 16, 0.3043, 0.3043, 8, 1),
    ("1f1b", 1, 8, 32, 0.1795, 0.1795, 8, 1),
    ("1f1b", 1, 16, 32, 0.3191, 0.3191, 16, 1),
    ("interleaved", 2, 4, 8, 0.1579, 0.1579, 5.5, 2.5),
    ("interleaved", 4, 4, 8, 0.0857, 0.0857, 4.75, 3.25),
    ("interleaved", 2, 8, 16, 0.1795, 0.1795, 11.5, 4.5),
    ("interleaved", 4, 8, 16, 0.0986, 0.0986, 9.75, 6.25),
    ("interleaved", 2, 8, 32, 0.0986, 0.0986, 11.5, 4.5),
    ("interleaved", 4, 8, 32, 0.0519, 0.0519, 9.75, 6.25),
    ("interleaved", 2, 16, 32, 0.1899, 0.1899, 23.5, 8.5),
    ("interleaved", 4, 16, 32, 0.1049, 0.1049, 19.75, 12.25),
]


@pytest.mark.parametrize(("name", "v", "pp", "m", "span", "makespan", "first", "last"), GOLDEN)
def test_golden_bubbles_and_peaks(name, v, pp, m, span, makespan, first, last):
    timeline = evaluate(build(name, pp=pp, micro_batches=m, virtual_stages=v))
    assert round(timeline.bubble.span, 4) == span
    assert round(timeline.bubble.makespan, 4) == makespan
    assert timeline.peak_in_flight[0] == first
    assert timeline.peak_in_flight[-1] == last


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_numba_and_batch_agree_with_plain_python(name):
    schedule = build(name, pp=4, micro_batches=8)
    random = np.random.default_rng(7)
    variants = [
        StageTimes.of(*(random.uniform(0.5, 2, (schedule.stages, 1)) for _ in range(3)))
        for _ in range(5)
    ]
    plain = Simulator(schedule, engine="python")
    one_by_one = [plain.run(v, 0.2).makespan_s for v in variants]
    np.testing.assert_allclose(plain.makespans_s(variants, 0.2), one_by_one, rtol=1e-12)
    fast = Simulator(schedule, engine="numba")
    np.testing.assert_allclose([fast.makespan_s(v, 0.2) for v in variants], one_by_one, rtol=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(FAMILIES)),
    seed=st.integers(0, 2**32 - 1),
    comm=st.floats(0, 3),
)
def test_attribution_adds_up_and_slack_is_what_an_operation_may_grow(name, seed, comm):
    schedule = build(name, pp=4, micro_batches=8)
    random = np.random.default_rng(seed)
    times = StageTimes.of(*(random.uniform(0.2, 2.0, (schedule.stages, 1)) for _ in range(3)))
    timeline = evaluate(schedule, times, comm)
    assert sum(timeline.bubble.attribution.values()) == pytest.approx(timeline.bubble.makespan)
    assert timeline.bubble.span <= timeline.bubble.makespan + 1e-12
    path = timeline.critical_path
    assert timeline.node_end[path[-1]] == timeline.makespan_s
    assert timeline.durations[path].sum() == pytest.approx(timeline.makespan_s)
    # Growing one operation by its slack leaves the makespan; by more, it moves it.
    slack = timeline.slack_s
    chosen = int(random.integers(len(schedule)))
    durations = timeline.durations.copy()
    durations[chosen] += slack[chosen]
    ends = Simulator(schedule).path(comm > 0).ends(durations)
    assert ends.max() == pytest.approx(timeline.makespan_s)
    durations[chosen] += 0.5
    later = Simulator(schedule).path(comm > 0).ends(durations).max()
    assert later == pytest.approx(timeline.makespan_s + 0.5)
