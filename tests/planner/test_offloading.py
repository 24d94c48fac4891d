"""Host memory as a searched choice: only where it helps, only where the framework has it."""

import pytest

from meshwright.planner.legality import Question, why_illegal
from meshwright.planner.solve import solve
from meshwright.planner.space import Constraints
from meshwright.specs.clusters import load_cluster
from meshwright.specs.job import RECIPES, Job
from meshwright.specs.layout import Layout
from meshwright.specs.models import load_model


def question(model, cluster, framework, **job):
    fields = {"precision": RECIPES["bf16-fp32-grads"], "global_batch": 256, **job}
    return Question(load_model(model), load_cluster(cluster), Job(framework=framework, **fields))


def test_what_fits_on_no_device_fits_with_the_host():
    asked = question("llama3.1-405b", "h100:8x8", "megatron")
    without = solve(asked, Constraints(offload=()))
    assert without.choice is None
    found = solve(asked, Constraints())
    assert found.choice is not None
    assert found.layout.offload
    assert why_illegal(asked, found.layout) is None


def test_nothing_travels_where_there_is_room():
    found = solve(question("llama3.1-8b", "h100:1x8", "megatron"), Constraints())
    assert found.layout.offload == ()


def test_a_framework_without_offload_is_not_asked_for_it():
    layout = Layout(dp=8, zero=1, offload=("optimizer",))
    sentence = why_illegal(question("llama3.1-8b", "h100:1x8", "nanotron"), layout)
    assert sentence is not None
    assert "host memory" in sentence
    asked = question("llama3.1-70b", "a100-40g:1x8", "nanotron")
    assert solve(asked, Constraints()).choice is None


@pytest.mark.parametrize("framework", ["torchtitan", "nanotron", "maxtext"])
def test_modules_are_recomputed_by_name_only_where_a_framework_has_names(framework):
    layout = Layout(dp=8, recompute="selective", recompute_modules=("mlp",), zero=3)
    assert why_illegal(question("llama3.1-8b", "h100:1x8", framework), layout) is not None
    megatron = layout.but(zero=1)
    assert why_illegal(question("llama3.1-8b", "h100:1x8", "megatron"), megatron) is None
