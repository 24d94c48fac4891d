"""How tokens reach their experts is chosen where a framework and its devices have a choice."""

import pytest

from meshwright.costs.step import estimate
from meshwright.exports.megatron import dispatch_flags
from meshwright.planner.constraints import Constraints
from meshwright.planner.dispatchers import (
    OPTION,
    WORTH,
    WRITTEN,
    asked_dispatcher,
    backend,
    deduplicates,
    ways_to_dispatch,
)
from meshwright.planner.legality import Question
from meshwright.planner.plan import plan
from meshwright.planner.solve import solve
from meshwright.planner.stacks import solve_ways, under
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.job import Job
from meshwright.specs.models import load_model

ROUTED = load_model("gpt-oss-120b")
FIXED = {"framework_options": {OPTION: "all-to-all"}}
OVER_HOSTS = Constraints(ep=32)
"""Experts over four hosts of eight: between hosts, copies that are not sent are time."""


def _question(cluster: str = "h100:4x8", framework: str = "megatron", **more) -> Question:
    job = Job.parse({"seq_len": 8192, "global_batch": 512, "framework": framework, **more})
    return Question(ROUTED, load_cluster(cluster), under(job, framework))


@pytest.mark.parametrize(
    ("cluster", "framework", "more", "ways"),
    [
        ("h100:4x8", "megatron", {}, 2), ("gb200:8x4", "megatron-fsdp", {}, 2),
        ("h20:2x8", "nemo", {}, 2), ("a100-80g:4x8", "megatron", {}, 1),
        ("mi300x:4x8", "megatron", {}, 1), ("h100:4x8", "torchtitan", {}, 1),
        ("h100:4x8", "deepspeed", {}, 1), ("h100:4x8", "megatron", FIXED, 1),
    ],
)  # fmt: skip
def test_another_dispatcher_where_there_is_one(cluster, framework, more, ways):
    found = ways_to_dispatch(_question(cluster, framework, **more))
    assert [deduplicates(one.job) for one in found] == [False, True][:ways]


def test_dense_models_have_none():
    question = _question()
    dense = Question(ROUTED.but(experts=None), question.cluster, question.job)
    assert ways_to_dispatch(dense) == [dense]


@pytest.mark.parametrize(
    ("cluster", "fixed"), [("h100:8x8", OVER_HOSTS), ("gb200:16x4", Constraints())]
)
def test_the_other_dispatcher_is_chosen_only_where_it_gains(cluster, fixed):
    question = _question(cluster)
    usual, other = (solve(way, fixed) for way in ways_to_dispatch(question))
    chosen = solve_ways(question, fixed)
    gains = other.choice.score < usual.choice.score * (1 - WORTH)
    assert deduplicates(chosen.question.job) == gains
    assert chosen.choice.score == (other if gains else usual).choice.score
    if cluster == "h100:8x8":
        assert gains, "between hosts, copies that are not sent are time"


def test_a_plan_says_its_dispatcher_and_exports_it():
    cluster = load_cluster("h100:8x8")
    job = Job(seq_len=8192, global_batch=512, framework="megatron")
    made = plan(ROUTED, cluster, job, constraints=OVER_HOSTS)
    assert deduplicates(made.job)
    assert len([note for note in made.notes if "DeepEP" in note]) == 1
    assert dispatch_flags(made) == {
        "moe-token-dispatcher-type": "flex",
        "moe-flex-dispatcher-backend": "deepep",
    }
    again = estimate(made.model, made.cluster, made.job, made.layout)
    assert again.step_time_s == made.estimate.step_time_s
    fixed = Job.parse({"seq_len": 8192, "global_batch": 512, "framework": "megatron", **FIXED})
    plain = plan(ROUTED, cluster, fixed, constraints=OVER_HOSTS, defend=False)
    assert not deduplicates(plain.job)
    assert plain.estimate.pessimistic_s * (1 - WORTH) > made.estimate.pessimistic_s
    assert not any("DeepEP" in note for note in plain.notes)
    assert dispatch_flags(plain) == {}


def test_the_default_plan_compares_each_framework_once():
    made = plan(ROUTED, load_cluster("h100:8x8"), Job(seq_len=8192, global_batch=512), defend=False)
    names = [one.framework for one in made.frameworks]
    assert len(names) == len(set(names))


def test_the_library_goes_by_the_domain():
    assert backend(load_cluster("h100:4x8")) == "deepep"
    assert backend(load_cluster("gb200:18x4")) == "hybridep"


@pytest.mark.parametrize(
    ("cluster", "name", "kept"),
    [("h100:4x8", "deepep", "deduplicated"), ("h100:4x8", "alltoall", "all-to-all"),
     ("gb200:8x4", "hybridep", "deduplicated"), ("mi300x:4x8", "alltoall", "all-to-all")],
)  # fmt: skip
def test_a_dispatcher_that_is_asked_for_is_the_only_one(cluster, name, kept):
    where = load_cluster(cluster)
    job = asked_dispatcher(Job(framework="megatron"), ROUTED, where, name)
    assert job.framework_options[OPTION] == kept
    assert len(ways_to_dispatch(Question(ROUTED, where, job))) == 1


@pytest.mark.parametrize(
    ("model", "cluster", "name", "said"),
    [("gpt-oss-120b", "h100:4x8", "flex", "alltoall"), ("llama3-8b", "h100:4x8", "deepep", "has none"),
     ("gpt-oss-120b", "a100:4x8", "deepep", "alltoall is expected"),
     ("gpt-oss-120b", "h100:4x8", "hybridep", "deepep is expected")],
)  # fmt: skip
def test_a_dispatcher_that_cannot_run_is_refused(model, cluster, name, said):
    with pytest.raises(SpecError, match=said):
        asked_dispatcher(Job(), load_model(model), load_cluster(cluster), name)


def test_frameworks_whose_files_cannot_say_it_leave_the_search():
    where = load_cluster("h100:4x8")
    job = asked_dispatcher(Job(seq_len=4096, global_batch=512), ROUTED, where, "deepep")
    made = plan(ROUTED, where, job, defend=False, top=0)
    assert made.job.framework in WRITTEN
    assert dispatch_flags(made)["moe-token-dispatcher-type"] == "flex"
    with pytest.raises(SpecError, match="all-to-all"):
        plan(ROUTED, where, job.but(framework="deepspeed"), defend=False, top=0)
