"""Layers that do not train spare their backward, as autograd does; the time of everything else stays."""

from __future__ import annotations

import pytest

from meshwright.costs.partial_training import model_flops_per_token, trained_shares
from meshwright.costs.step import estimate
from meshwright.specs import load_cluster, load_model
from meshwright.specs.finetune import finetune_recipe
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout

MODEL, CARD = load_model("llama3.1-8b"), load_cluster("h100:1x1")
ALL = finetune_recipe("full")


def job(**changes):
    tune = ALL.but(**changes)
    return Job(seq_len=2048, global_batch=8, framework="llama-factory", finetune=tune)


def step(recompute="none", **changes):
    return estimate(MODEL, CARD, job(**changes), Layout(micro_batch=4, recompute=recompute))


def test_frozen_layers_below_the_first_that_trains_have_no_backward():
    """Half of the layers with the embedding: a third of the layers' products are left out."""
    whole, half = step(), step(frozen_layers=16, freeze=("embedding",))
    products, fewer = whole.time_parts["matmul"], half.time_parts["matmul"]
    assert 0.62 < fewer / products < 0.70
    assert half.time_parts["embedding_and_head"] == whole.time_parts["embedding_and_head"]
    assert half.mfu < whole.mfu * 1.05  # what is spared counts as no work done


def test_layers_above_a_weight_that_trains_pass_its_gradient_on():
    """The embedding trains: the frozen layers make the gradient of their inputs, half of a backward."""
    gone, passed = step(frozen_layers=16, freeze=("embedding",)), step(frozen_layers=16)
    whole = step()
    assert gone.step_time_s < passed.step_time_s < whole.step_time_s
    assert passed.time_parts["attention"] == whole.time_parts["attention"]
    assert gone.time_parts["attention"] < whole.time_parts["attention"]


def test_layers_in_turn_have_half_of_the_others_below_them():
    assert trained_shares(MODEL, job(in_turn=1)) == (1 / 32, 0.5 * 31 / 32)
    assert trained_shares(MODEL, job()) == (1.0, 0.0)
    assert trained_shares(MODEL, Job(finetune=finetune_recipe("lora"))) == (1.0, 0.0)
    whole, turns = step("full"), step("full", in_turn=1)
    assert turns.time_parts["recompute"] == pytest.approx(whole.time_parts["recompute"] / 32)
    assert turns.hfu < whole.hfu


@pytest.mark.parametrize("changes", [{}, {"frozen_layers": 16}, {"in_turn": 2}])
def test_model_flops_are_those_that_the_gradients_ask_for(changes):
    found = model_flops_per_token(MODEL, job(**changes))
    trained, passed = trained_shares(MODEL, job(**changes))
    whole = model_flops_per_token(MODEL, job())
    assert found <= whole
    assert found == pytest.approx(whole * (1 + 2 * trained + passed) / 3, rel=0.08)
