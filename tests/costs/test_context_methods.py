"""Context parallelism by method: each has its price, its limits, and its place in the search."""

import pytest

from meshwright.costs.frameworks import framework
from meshwright.costs.step import estimate
from meshwright.costs.tables import table
from meshwright.planner.legality import Question, why_illegal
from meshwright.planner.solve import solve
from meshwright.planner.space import Constraints
from meshwright.planner.stacks import under
from meshwright.specs.clusters import load_cluster
from meshwright.specs.job import Job
from meshwright.specs.layout import CONTEXT_METHODS, Layout
from meshwright.specs.models import load_model

MODEL, NODE, NODES = load_model("llama3.1-8b"), load_cluster("h100:1x8"), load_cluster("h100:8x8")


def exchange(method, cluster=NODE, cp=8, seq_len=131072, **layout):
    dp = cluster.gpus // cp
    job = Job(seq_len=seq_len, global_batch=dp, framework="megatron")
    one = Layout(dp=dp, cp=cp, cp_method=method, zero=1, recompute="full", **layout)
    return estimate(MODEL, cluster, job, one).time_parts["context_parallel"]


def test_every_method_has_a_price_of_its_own():
    prices = [exchange(method) for method in ("all-gather", "ring", "ulysses")]
    assert all(price > 0 for price in prices)
    assert len(set(prices)) == 3


def test_without_context_parallelism_none_costs_anything():
    assert {exchange(method, cp=1) for method in CONTEXT_METHODS} == {0.0}


def test_hierarchical_inside_one_domain_is_ulysses():
    assert exchange("hierarchical") == pytest.approx(exchange("ulysses"))


def test_over_hosts_a_group_inside_each_beats_an_exchange_among_all():
    wide = {"cluster": NODES, "cp": 64, "seq_len": 1_048_576}
    assert exchange("hierarchical", **wide) < exchange("ulysses", **wide)


def test_a_framework_that_attends_block_by_block_pays_for_the_keys_of_others():
    def parts(cp, **options):
        job = Job(seq_len=131072, global_batch=8, framework="torchtitan", framework_options=options)
        one = Layout(dp=8 // cp, cp=cp, cp_method="all-gather", zero=3, recompute="none")
        return estimate(MODEL, NODE, job, one).time_parts

    share = table("overlap")["context_in_turn"]["slowdown"]
    for cp in (2, 8):
        turn, at_once = parts(cp), parts(cp, context_in_turn=False)
        more = turn["context_parallel"] - at_once["context_parallel"]
        assert more == pytest.approx(share * (cp - 1) / cp * at_once["attention"])
    assert parts(1) == parts(1, context_in_turn=False)
    assert not framework("megatron").context_in_turn and framework("huggingface").context_in_turn


def test_a_rings_messages_hide_behind_long_attention_and_not_behind_short():
    short, long = (exchange("ring", NODES, 16, tokens) / tokens for tokens in (16384, 524288))
    assert long < short
    # A gather hides behind nothing: twice the tokens, about twice the time.
    assert exchange("all-gather", seq_len=262144) == pytest.approx(
        2 * exchange("all-gather"), rel=0.1
    )


def test_ulysses_needs_heads():
    job = Job(seq_len=65536, global_batch=8, framework="megatron")
    question = Question(MODEL, NODES, job)
    layout = Layout(dp=4, cp=16, cp_method="ulysses", zero=1)
    assert "heads" in (why_illegal(question, layout) or "")
    assert why_illegal(question, layout.but(dp=8, cp=8)) is None
    replicating = Question(MODEL, NODES, job.but(framework="verl"))
    assert why_illegal(replicating, layout.but(zero=2)) is None
    assert why_illegal(replicating, layout.but(cp_method="hierarchical", zero=2)) is not None


@pytest.mark.parametrize(
    ("framework", "methods"),
    [("megatron", CONTEXT_METHODS), ("torchtitan", ("all-gather",)), ("verl", ("ulysses",))],
)
def test_the_search_takes_a_method_that_the_framework_has(framework, methods):
    job = Job(seq_len=131072, global_batch=8, framework=framework)
    found = solve(Question(MODEL, NODE, job), Constraints(cp=8))
    assert found.layout.cp_method in methods


@pytest.mark.parametrize(
    ("method", "more"), [("ring", 2 - 1 / 8), ("all-gather", 2 - 1 / 8), ("ulysses", 1)]
)
def test_consecutive_pieces_leave_the_last_rank_with_nearly_twice_the_attention(method, more):
    job = Job(seq_len=131072, global_batch=1, framework="megatron")
    layout = Layout(cp=8, cp_method=method, zero=1, recompute="full")
    even, uneven = (
        estimate(MODEL, NODE, job.but(framework_options={"context_balanced": said}), layout)
        for said in (True, False)
    )
    assert uneven.time_parts["attention"] == pytest.approx(
        more * even.time_parts["attention"], rel=0.03
    )


@pytest.mark.parametrize(
    ("framework", "method"),
    [
        ("fsdp", "all-gather"),
        ("deepspeed", "ulysses"),
        ("accelerate", "all-gather"),
        ("trl", "ulysses"),
    ],
)
def test_long_sequences_are_split_under_frameworks_around_transformers(framework, method):
    job = Job.parse({"seq_len": 131072, "global_batch": 8, "framework": framework})
    question = Question(MODEL, NODE, under(job, framework))
    found = solve(question, Constraints(cp=4)).layout
    assert (found.cp, found.cp_method) == (4, method)
    assert why_illegal(question, found) is None


def test_sequences_are_split_under_deepspeed_without_tensors_and_stages():
    job = Job.parse({"seq_len": 8192, "global_batch": 8, "framework": "deepspeed"})
    question = Question(MODEL, NODE, under(job, "deepspeed"))
    layout = Layout(cp=4, tp=2, cp_method="ulysses", zero=1)
    assert "beside tensor" in why_illegal(question, layout)
