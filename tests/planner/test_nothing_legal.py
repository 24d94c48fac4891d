"""Where no layout is legal, the choices that leave none are named, with the rule that they break."""

import pytest

from meshwright.planner.constraints import Constraints
from meshwright.planner.legality import Question, why_illegal
from meshwright.planner.nothing_legal import any_legal
from meshwright.planner.plan import plan
from meshwright.planner.search import search
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.finetune import Finetune
from meshwright.specs.frameworks import AXIS_TITLES, framework, framework_names
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.models import load_model

CLUSTER = load_cluster("h100:2x8")
DENSE, EXPERTS = load_model("llama3-8b"), load_model("mixtral-8x7b")
LACKING = [
    (name, axis)
    for name in framework_names()
    for axis in ("tp", "pp", "cp", "ep")
    if name not in ("any", "meshwright") and not framework(name).has(axis)
]


def question(name="any", model=DENSE):
    return Question(model, CLUSTER, Job(seq_len=4096, global_batch=64, framework=name))


@pytest.mark.parametrize(("name", "axis"), LACKING)
def test_an_axis_that_a_framework_lacks_is_named(name, axis):
    asked = question(name, EXPERTS if axis == "ep" else DENSE)
    assert any_legal(asked, Constraints())
    with pytest.raises(SpecError) as caught:
        search(asked, Constraints(**{axis: 2}), bounded=True)
    assert caught.value.field == axis and caught.value.value == 2
    told = str(caught.value)
    assert framework(name).title in told and AXIS_TITLES[axis] in told


@pytest.mark.parametrize(
    ("fixed", "field", "says"),
    [
        ({"tp": 3}, "tp", "does not divide 16 devices"),
        ({"tp": 16, "pp": 16}, "tp, pp", "does not divide 16 devices"),
        ({"tp": 2, "pp": 2, "cp": 1, "dp": 2}, "tp, pp, dp, cp", "= 8, and there are 16 devices"),
        ({"micro_batch": 7}, "micro_batch", "batch must divide"),
        ({"pp": 2, "zero": 3, "schedule": "zb-v"}, "pp, zero, schedule", "weight gradients are lost"),
        ({"pp": 2, "cp": 2, "micro_batch": 7}, "micro_batch", "batch must divide"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("bounded", [True, False])
def test_the_choices_to_blame_are_named_and_no_others(fixed, field, says, bounded):
    with pytest.raises(SpecError) as caught:
        search(question(), Constraints(**fixed), bounded=bounded)
    assert caught.value.field == field
    assert says in str(caught.value)


def test_what_no_framework_could_do_is_said_once():
    with pytest.raises(
        SpecError, match="tp = 3: no layout is legal with this: tp = 3 does not"
    ) as caught:
        plan(DENSE, CLUSTER, Job(seq_len=4096, global_batch=64), constraints=Constraints(tp=3))
    assert "framework" not in str(caught.value)


def test_adapters_that_a_framework_has_not_are_refused_as_such():
    job = Job(seq_len=4096, global_batch=64, framework="megatron", finetune=Finetune(method="lora"))
    with pytest.raises(SpecError, match=r"job\.finetune.*without adapters"):
        plan(DENSE, CLUSTER, job)


def test_a_batch_that_leaves_nothing_is_named_with_one_that_does_not():
    """Windows and caps of scores cannot be split over sequences: 128 devices are all data parallel."""
    job = Job(seq_len=4096, global_batch=1000, framework="trl", finetune=Finetune(method="lora"))
    with pytest.raises(SpecError) as raised:
        plan(load_model("gemma2-9b"), load_cluster("b200:16x8"), job, defend=False)
    assert raised.value.field == "global_batch" and "1024, say" in raised.value.remedy
    plan(
        load_model("gemma2-9b"), load_cluster("b200:16x8"), job.but(global_batch=1024), defend=False
    )


def test_fine_tuning_is_planned_for_its_own_stack_where_none_is_named():
    job = Job(seq_len=2048, global_batch=32, finetune=Finetune(method="lora"))
    made = plan(load_model("llama3-8b"), load_cluster("h100:1x8"), job, defend=False)
    assert made.job.framework == "trl"


def test_the_stages_that_do_run_are_named():
    """`estimate` without --zero under a framework that always shards: which stage it would take is said."""
    question = Question(load_model("deepseek-v3"), load_cluster("h800:256x8"),
                        Job(seq_len=4096, global_batch=15360, framework="hai-llm"))  # fmt: skip
    said = why_illegal(question, Layout(pp=16, ep=64, dp=128)) or ""
    assert said.endswith("not ZeRO-0, but ZeRO-1 with these degrees")
