"""The search: exhaustive, honest about memory, stable under its own uncertainty."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costs.step import capacity_bytes, estimate
from meshwright.planner.legality import Question, why_illegal
from meshwright.planner.odds import MEMORY_MARGIN
from meshwright.planner.plan import plan, price_layout
from meshwright.planner.search import HYBRID_MARGIN, pareto, search
from meshwright.planner.space import Constraints, shard_degrees
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import DoesNotFitError, SpecError
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model

LLAMA = Model(
    name="llama3-70b", layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128, ffn=28672,
    vocab=128256,
)  # fmt: skip
SMALL = Model(
    name="small", layers=4, hidden=512, heads=8, kv_heads=4, head_dim=64, ffn=1536, vocab=32000
)
QUESTION = Question(
    LLAMA, load_cluster("h100:8x8"), Job(seq_len=8192, global_batch=512, framework="any")
)


@pytest.fixture(scope="module")
def result():
    return search(QUESTION)


@pytest.fixture(scope="module")
def made():
    return plan(LLAMA, QUESTION.cluster, QUESTION.job)


def test_everything_ranked_fits_with_the_reserve(result):
    assert (
        result.ranked.peak_bytes * (1 + MEMORY_MARGIN) <= capacity_bytes(QUESTION.cluster)
    ).all()
    assert (np.diff(result.ranked.pessimistic_s) >= -1e-9).all()


def test_the_search_finds_what_brute_force_finds():
    """Against an independent enumeration with plain loops over one small question."""
    question = Question(SMALL, load_cluster("a100-80g:1x4"), Job(seq_len=1024, global_batch=8))
    best = None
    for tp, pp, dp, mb, zero, mode, sp, (schedule, v) in itertools.product(
        (1, 2, 4), (1, 2, 4), (1, 2, 4), (1, 2, 4, 8), (0, 1, 2, 3), ("none", "selective", "full"),
        (False, True), (("1f1b", 1), ("interleaved", 2), ("zb-v", 2)),
    ):  # fmt: skip
        if tp * pp * dp != 4 or (dp == 1 and zero) or (pp == 1 and schedule != "1f1b"):
            continue
        layout = Layout(
            tp=tp, pp=pp, dp=dp, micro_batch=mb, zero=zero, recompute=mode, sequence_parallel=sp,
            schedule=schedule, virtual_stages=v,
        )  # fmt: skip
        if why_illegal(question, layout) is None:
            time = estimate(question.model, question.cluster, question.job, layout).step_time_s
            best = time if best is None else min(best, time)
    found = search(question, Constraints(cp=1)).ranked
    assert found.step_time_s.min() == best


@given(
    nodes=st.sampled_from([1, 2, 3, 4, 16, 48]),
    tp=st.sampled_from([1, 2, 4, 8]),
    cp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 4]),
)
def test_shard_degrees_are_whole_groups_and_include_every_border(nodes, tp, cp, pp):
    question = Question(LLAMA, load_cluster(f"h100:{nodes}x8"), Job(global_batch=768))
    gpus = nodes * 8
    if gpus % (tp * cp * pp):
        return
    dp = gpus // (tp * cp * pp)
    degrees = shard_degrees(question, tp=tp, cp=cp, pp=pp, dp=dp)
    assert degrees == sorted(set(degrees))
    assert all(1 < d < dp * cp and (dp * cp) % d == 0 and d % cp == 0 for d in degrees)
    inside = 8 // tp  # a node's worth of data ranks, pipeline ranks outside
    if 1 < inside < dp * cp and (dp * cp) % inside == 0 and inside % cp == 0:
        assert inside in degrees
    assert {2**e for e in range(1, 12)} & {
        d for d in range(cp, dp * cp, cp) if (dp * cp) % d == 0 and d > 1
    } <= set(degrees)


def test_the_search_prices_every_shard_degree_and_prefers_the_plain_one():
    question = Question(SMALL, load_cluster("h100:4x8"), Job(seq_len=1024, global_batch=64))
    found = search(question, Constraints(tp=1, pp=1, cp=1, zero=3), keep=10**6).ranked
    assert set(found.columns.shard) == {0, 2, 4, 8, 16}
    hybrid = found.columns.shard > 0
    assert found.pessimistic_s[0] <= found.pessimistic_s[hybrid].min() * (1 + HYBRID_MARGIN)


def test_a_framework_without_hybrid_sharding_is_not_offered_it():
    question = Question(
        SMALL, load_cluster("h100:4x8"), Job(seq_len=1024, global_batch=64, framework="deepspeed")
    )
    found = search(question, Constraints(zero=3))
    assert set(found.ranked.columns.shard) == {0}
    assert found.searched.pruned["framework: shard degree"] > 0
    assert "all data-parallel ranks or none" in why_illegal(
        question, Layout(dp=32, zero=3, shard=8)
    )


def test_constraints_hold():
    found = search(QUESTION, Constraints(tp=4, pp=4, no_recompute=True, max_tp=8)).ranked.columns
    assert set(found.tp) == {4}
    assert set(found.pp) == {4}
    assert set(found.recompute) == {0}


def test_pareto_front_is_not_dominated(result):
    rows = pareto(result.ranked)
    times, peaks = result.ranked.step_time_s[rows], result.ranked.peak_bytes[rows]
    assert (np.diff(times) >= 0).all()
    assert (np.diff(peaks) < 0).all()
    assert times[0] == result.ranked.step_time_s.min()


def test_memory_objective_finds_the_lightest(result):
    lightest = search(QUESTION, objective="memory").ranked
    assert lightest.peak_bytes[0] <= result.ranked.peak_bytes.min()


def test_a_plan_is_defended(made):
    assert made.fits
    assert made.searched.priced > 10_000
    assert sum(made.searched.pruned.values()) > 0
    axes = {a.axis.split()[0] for a in made.alternatives}
    assert {"tp", "pp", "micro-batch", "recompute", "another"} <= axes
    assert all(a.why_not for a in made.alternatives)
    assert made.flip_points
    assert all(f.sentence for f in made.flip_points)


def test_neighbours_that_do_not_fit_say_by_how_much(made):
    losers = [a for a in made.alternatives if a.estimate and not a.estimate.fits]
    assert all("out of memory by" in a.why_not for a in losers)
    assert all(a.estimate.peak_memory_bytes > a.estimate.capacity_bytes for a in losers)


def test_memory_flip_points_hold(made):
    """With as little memory as that the layout does not fit any more, and another is chosen."""
    flip = next(f for f in made.flip_points if "memory" in f.quantity and f.direction == "below")
    device = made.cluster.device.but(memory_bytes=flip.threshold)
    then = plan(LLAMA, made.cluster.but(device=device), made.job, defend=False)
    assert then.layout.label() == flip.becomes != made.layout.label()


def test_plans_survive_a_file(made, tmp_path):
    from meshwright.specs.plan import load_plan, save_plan

    for name in ("plan.toml", "plan.json"):
        save_plan(made, tmp_path / name)
        assert load_plan(tmp_path / name) == made


def test_nothing_fits_says_so_with_ways_out():
    with pytest.raises(DoesNotFitError) as caught:
        plan(
            LLAMA,
            load_cluster("h100:1x8"),
            Job(seq_len=8192, global_batch=64),
            constraints=Constraints(offload=()),
        )
    text = str(caught.value)
    assert "short of" in text
    assert "devices" in text
    asked = Job(seq_len=8192, global_batch=64, framework="megatron")
    with_host = plan(LLAMA, load_cluster("h100:1x8"), asked, defend=False)
    assert "optimizer" in with_host.layout.offload


def test_an_illegal_layout_is_refused_with_its_rule():
    with pytest.raises(SpecError, match="attention heads must divide"):
        price_layout(LLAMA, load_cluster("h100:6x8"), QUESTION.job, Layout(tp=48))


def test_constraints_nothing_satisfies():
    with pytest.raises(SpecError, match="no layout is legal"):
        plan(LLAMA, QUESTION.cluster, QUESTION.job, constraints=Constraints(tp=7))
