"""A priced layout as a step: the simulator and the planner's closed forms tell the same story."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.simulator.memory import memory_over_time
from meshwright.simulator.plan_balance import balance_plan
from meshwright.simulator.plan_step import plan_step
from meshwright.specs import load_cluster, load_model
from meshwright.specs.errors import SpecError
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout

JOB = Job(seq_len=4096, global_batch=128)


@pytest.fixture(scope="module")
def where():
    return load_model("llama3-70b"), load_cluster("h100:8x8")


def layout(**changes):
    base = {"tp": 8, "pp": 4, "dp": 2, "zero": 1, "sequence_parallel": True}
    return Layout(**{**base, **changes})


LAYOUTS = [
    layout(),
    layout(pp=1, dp=8, zero=3),
    layout(pp=2, dp=4),
    layout(schedule="gpipe"),
    layout(schedule="interleaved", virtual_stages=5),
    layout(schedule="zb-h1"),
    layout(schedule="zb-v", virtual_stages=2),
    layout(schedule="dualpipe-v", virtual_stages=2),
    layout(recompute="full"),
]


@pytest.mark.parametrize("one", LAYOUTS, ids=lambda x: f"{x.schedule} {x.label()}")
def test_step_time_is_near_the_closed_forms_and_work_is_conserved(where, one):
    step = plan_step(*where, JOB, one)
    timeline = step.run()
    assert timeline.step_s == pytest.approx(step.closed_form.step_time_s, rel=0.05)
    assert timeline.makespan_s + step.tail_s == pytest.approx(timeline.step_s)
    # Every rank's busy time is its stages' time for all micro-batches.
    durations = step.times.durations(step.schedule)
    busy = np.bincount(step.schedule.rank, weights=durations, minlength=one.pp)
    np.testing.assert_allclose(timeline.busy_s, busy)
    assert sum(timeline.bubble.attribution.values()) == pytest.approx(timeline.bubble.makespan)


@pytest.mark.parametrize("one", LAYOUTS[:3] + LAYOUTS[4:6], ids=lambda x: x.label())
def test_simulated_peak_memory_is_the_priced_one(where, one):
    step = plan_step(*where, JOB, one)
    peaks = [rank.peak_bytes for rank in memory_over_time(step.run(), step.memory)]
    priced = {stage.stage: stage.total_bytes for stage in step.closed_form.stages}
    for rank in priced:
        assert peaks[rank] == pytest.approx(priced[rank], rel=1e-9)


def test_an_explicit_split_moves_time_between_stages(where):
    even = plan_step(*where, JOB, layout(stage_layers=(20, 20, 20, 20)))
    moved = plan_step(*where, JOB, layout(stage_layers=(22, 22, 20, 16)))
    before, after = even.run(), moved.run()
    assert after.busy_s[3] < before.busy_s[3]
    assert after.busy_s.sum() == pytest.approx(before.busy_s.sum(), rel=0.02)
    assert after.makespan_s > before.makespan_s  # 22 layers are slower than 20 and the head


def test_balancing_a_plan_does_not_slow_it_and_speaks_megatron(where):
    uneven = layout(stage_layers=(17, 21, 21, 21))
    found = balance_plan(*where, JOB, uneven)
    assert sum(found.partition.stage_layers()) == 80
    assert found.step_s < 0.99 * found.plan_step_s
    text = found.partition.megatron_layout()
    assert text.startswith("Et*") and text.endswith("L") and text.count("|") >= 2
    capacity = found.partition.stages[0].memory_bytes
    assert capacity < 80 * 2**30


def test_balancing_recomputes_where_memory_asks_for_it(where):
    model, cluster = where
    long = Job(seq_len=8192, global_batch=128)
    tight = cluster.but(reserve_bytes=cluster.reserve_bytes + 39 * 2**30)
    found = balance_plan(model, tight, long, layout())
    recomputed = [len(stage.recomputed) for stage in found.partition.stages]
    assert recomputed[0] > recomputed[-1]
    assert sorted(recomputed, reverse=True) == recomputed


def test_balancing_refuses_what_it_cannot_price(where):
    with pytest.raises(SpecError, match="one stage per rank"):
        balance_plan(*where, JOB, layout(schedule="interleaved", virtual_stages=5))
