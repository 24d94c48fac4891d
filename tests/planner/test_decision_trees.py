"""The lessons' decision trees walked with numbers: exercises a-d and the drills."""

import re
from dataclasses import replace

import pytest

from meshwright.planner.decision_trees import walk_trees
from meshwright.planner.legality import Question
from meshwright.specs.clusters import load_cluster
from meshwright.specs.finetune import finetune_recipe
from meshwright.specs.job import RECIPES, Job
from meshwright.specs.model import Model
from meshwright.specs.models import load_model


def llama_like(layers, hidden, ffn, heads):
    return Model(
        layers=layers, hidden=hidden, heads=heads, kv_heads=8, head_dim=hidden // heads, ffn=ffn,
        vocab=32000,
    )  # fmt: skip


ONE_B = llama_like(16, 2048, 8192, 32)
THIRTY_B = llama_like(60, 6656, 17920, 64)


def test_a_model_that_fits_one_device_needs_only_data_parallelism():
    sharded, tensor, verdict = walk_trees(
        Question(ONE_B, load_cluster("a100-80g:1x8"), Job(seq_len=2048, global_batch=256))
    )
    for walk in (sharded, tensor):
        assert walk.steps[0].answer == "yes"
        assert walk.layout.dp == 8
        assert walk.layout.tp == walk.layout.pp == 1
    assert verdict


def test_the_trees_disagree_where_the_lessons_do():
    """X14: what fits one node is FSDP in one tree and tensor parallel in the other."""
    twenty = THIRTY_B.but(layers=2 * THIRTY_B.layers // 3)
    sharded, tensor, verdict = walk_trees(
        Question(twenty, load_cluster("a100-80g:1x8"), Job(seq_len=2048, global_batch=256))
    )
    assert sharded.layout.zero == 3
    assert sharded.layout.tp == 1
    assert tensor.layout.tp == 8
    assert "disagree" in verdict
    faster = min((sharded, tensor), key=lambda w: w.estimate.step_time_s)
    assert faster.layout.label() in verdict


@pytest.mark.parametrize("spec", ["a100-80g:4x8", "h100:8x8"])
def test_trees_end_in_layouts_that_fit(spec):
    walks = walk_trees(Question(THIRTY_B, load_cluster(spec), Job(seq_len=2048, global_batch=512)))
    for walk in walks[:2]:
        assert walk.estimate is None or walk.estimate.fits


def test_the_trees_know_experts_long_sequences_and_frameworks_without_a_pipeline():
    job = Job(seq_len=4096, global_batch=512, framework="maxtext")
    walks = walk_trees(Question(load_model("mixtral-8x7b"), load_cluster("h100:8x8"), job))
    assert all(walk.layout is not None and walk.layout.pp == 1 for walk in walks[:2])
    assert any(walk.layout.ep > 1 for walk in walks[:2])
    long = Job(seq_len=131072, global_batch=64, framework="megatron")
    walks = walk_trees(Question(load_model("llama3-70b"), load_cluster("h100:8x8"), long))
    assert any(step.answer == "yes: cp 4" for step in walks[0].steps)
    assert all(walk.layout is None or walk.layout.cp == 4 for walk in walks[:2])


def test_states_of_adapters_are_those_of_frozen_weights_in_four_bits():
    """A 70B model in NF4 is some 40 GB, not the 800 of training all of it."""
    tune = finetune_recipe("qlora")
    job = Job(framework="trl", precision=RECIPES["pure-bf16"], finetune=tune, global_batch=16)
    asked = Question(load_model("llama3-70b"), load_cluster("rtx4090:1x2"), job)
    said = walk_trees(asked)[0].steps[0].evidence
    gib = float(re.search(r"model states ([\d.]+) GiB", said)[1])
    assert 33 < gib < 48


def test_what_a_framework_shards_as_another_is_walked_as_that():
    asked = Question(
        load_model("llama3-70b"), load_cluster("h100:64x8"),
        Job(seq_len=8192, global_batch=512, framework="megatron"),
    )  # fmt: skip
    small = replace(asked, model=load_model("llama2-13b"), cluster=load_cluster("h100:1x8"))
    walked, _, _ = walk_trees(small)
    assert walked.layout is not None
    assert walked.layout.zero == 3
    assert "under megatron-fsdp" in walked.steps[-1].evidence
