"""The objective `cost`: as many devices as are cheapest per token, within a deadline."""

import pytest

from meshwright.costs.step import estimate
from meshwright.planner.economy import SAME_PRICE, offers, parts_of
from meshwright.planner.legality import Question
from meshwright.planner.plan import plan
from meshwright.planner.space import Constraints
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import DoesNotFitError, SpecError
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.models import load_model

MODEL, CLUSTER = load_model("llama3-8b"), load_cluster("h100:8x8")
JOB = Job(seq_len=4096, global_batch=256, token_budget=1e9, framework="any")


@pytest.fixture(scope="module")
def found():
    return offers(Question(MODEL, CLUSTER, JOB), Constraints())


@pytest.fixture(scope="module")
def made():
    return plan(MODEL, CLUSTER, JOB, objective="cost", defend=False, top=20)


def test_parts_are_whole_hosts_or_part_of_one_and_cost_what_that_cluster_costs():
    parts = parts_of(CLUSTER)
    assert [part.gpus for part in parts] == [1, 2, 4, 8, 16, 32, 64]
    assert [part.name for part in parts][2:5] == ["h100:1x4", "h100:1x8", "h100:2x8"]
    for part in parts[1:]:
        layout = Layout(tp=2, sequence_parallel=True, dp=part.gpus // 2, zero=3)
        asked = load_cluster(part.name)
        assert estimate(MODEL, part, JOB, layout) == estimate(MODEL, asked, JOB, layout)


def test_the_cheapest_per_token_is_chosen_and_the_most_devices_of_one_price(found, made):
    prices = {offer.gpus: offer.device_s for offer in found}
    least = min(prices.values())
    assert prices[made.cluster.gpus] <= least * (1 + SAME_PRICE)
    assert all(
        price > least * (1 + SAME_PRICE)
        for gpus, price in prices.items()
        if gpus > made.layout.world
    )
    assert made.layout.world == made.cluster.gpus < CLUSTER.gpus
    assert any("left free" in note for note in made.notes)
    others = {a.axis: a.why_not for a in made.alternatives if a.axis.endswith("devices")}
    assert set(others) == {f"{gpus} devices" for gpus in prices if gpus != made.cluster.gpus}
    assert "dearer per token" in others["64 devices"]


def test_a_deadline_buys_more_devices(found, made):
    days = made.job.token_budget / made.job.tokens * made.estimate.step_time_s / 86400
    faster = plan(MODEL, CLUSTER, JOB, objective="cost", max_days=days * 0.7, defend=False)
    assert faster.cluster.gpus > made.cluster.gpus
    why = next(a.why_not for a in faster.alternatives if a.axis == f"{made.cluster.gpus} devices")
    assert "are more than" in why
    with pytest.raises(DoesNotFitError, match=r"fastest way found.* on 64 devices"):
        plan(MODEL, CLUSTER, JOB, objective="cost", max_days=days / 1000, defend=False)


def test_a_deadline_without_a_budget_or_another_objective_is_refused():
    with pytest.raises(SpecError, match="token budget"):
        plan(MODEL, CLUSTER, JOB.but(token_budget=0.0), objective="cost", max_days=3)
    with pytest.raises(SpecError, match="objective cost"):
        plan(MODEL, CLUSTER, JOB, max_days=3)


def test_nothing_that_fits_is_said_as_without_the_objective():
    with pytest.raises(DoesNotFitError, match="short of"):
        plan(
            load_model("llama3-70b"), load_cluster("h100:1x8"), JOB, objective="cost",
            constraints=Constraints(offload=()),
        )  # fmt: skip
