"""What layers that predict further tokens cost: layers, joins and passes of the head on the rank that has it."""

from itertools import pairwise

import numpy as np
import pytest

from meshwright.costs.columns import from_layouts
from meshwright.costs.ends import head_times_s, join_times_s
from meshwright.costs.setting import Setting
from meshwright.costs.stages import stage_layers, with_further
from meshwright.costs.step import estimate, price
from meshwright.specs.clusters import load_cluster
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.models import load_model

JOB = Job(seq_len=4096, global_batch=64, framework="megatron")
MODEL = load_model("deepseek-v3").but(layers=8)
CLUSTER = load_cluster("h100:8x8")


def parts(depths: int, layout: Layout) -> dict[str, float]:
    return estimate(MODEL.but(predict_layers=depths), CLUSTER, JOB, layout).time_parts


def test_each_further_token_takes_a_layer_a_join_and_a_pass_of_the_head():
    layout = Layout(dp=64, ep=64)
    columns = from_layouts([layout])
    setting = Setting.of(MODEL, CLUSTER, JOB)
    once = [parts(depths, layout) for depths in (0, 1, 2)]
    head = sum(float(one[0]) for one in head_times_s(setting, columns))
    join = sum(float(one[0]) for one in join_times_s(setting, columns))
    for before, after in pairwise(once):
        more = after["embedding_and_head"] - before["embedding_and_head"]
        assert more == pytest.approx(head + join)
        assert after["attention"] - before["attention"] == pytest.approx(
            once[0]["attention"] / MODEL.layers
        )


def test_they_stand_where_the_head_is_and_are_in_memory_once():
    layout = Layout(dp=16, pp=4, ep=16)
    columns = from_layouts([layout])
    further = MODEL.but(predict_layers=2)
    held = with_further(further, columns, stage_layers(further, columns))
    assert [float(held.total(role)[0]) for role in ("first", "middle", "last")] == [2, 2, 4]
    plain = price(MODEL, CLUSTER, JOB, columns).memory.states["last"]
    more = price(further, CLUSTER, JOB, columns).memory.states["last"]
    # two layers' experts on sixteen ranks each
    experts = MODEL.experts
    assert experts is not None
    each = experts.experts // 16 * 3 * MODEL.hidden * experts.ffn
    added = more.expert_parameters - plain.expert_parameters
    assert float(added[0]) == pytest.approx(2 * each, rel=0.01)


def test_a_model_of_listed_blocks_predicts_by_a_mixing_block_and_one_with_experts():
    model = load_model("nemotron-3-super-120b-a12b").but(predict_layers=2)
    columns = from_layouts([Layout(dp=64, ep=64)])
    held, plain = (
        with_further(one, columns, stage_layers(one, columns))
        for one in (model, model.but(predict_layers=0))
    )
    assert np.array_equal(held.dense["first"] - plain.dense["first"], [2.0])
    assert np.array_equal(held.moe["first"] - plain.moe["first"], [2.0])
