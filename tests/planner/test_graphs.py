"""CUDA graphs and capacity factors: priced, refused where they cannot be, written and read."""

import numpy as np
import pytest

from meshwright.costs.rank_memory import MOVING
from meshwright.costs.routing import dropped_share, hottest_rank
from meshwright.costs.step import estimate
from meshwright.exports.megatron import all_flags, words
from meshwright.exports.megatron_bridge import overrides
from meshwright.imports.files import import_file
from meshwright.imports.reading import Given
from meshwright.planner.graphs import asked_capacity, asked_graphs, graph_note, graphs_of
from meshwright.planner.legality import Question, why_illegal
from meshwright.planner.plan import CAPTURED, plan, price_layout
from meshwright.planner.space import Constraints
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.frameworks import framework
from meshwright.specs.job import RECIPES, Job
from meshwright.specs.job_words import job_lacks
from meshwright.specs.layout import Layout
from meshwright.specs.models import load_model
from meshwright.specs.routing import Routing, parse_routing

DENSE, ROUTED = load_model("llama3-8b"), load_model("qwen3-30b-a3b")
HOST = load_cluster("h100:8")


def _job(**more):
    return Job.parse(
        {"seq_len": 8192, "global_batch": 64, "framework": "megatron", **more}
    ).but(precision=RECIPES["bf16-fp32-grads"])  # fmt: skip


def test_graphs_of_layers_hold_an_input_and_an_output_of_each_micro_batch_in_flight():
    layout = Layout(dp=4, pp=2, zero=1)
    before = estimate(DENSE, HOST, _job(), layout)
    after = estimate(DENSE, HOST, asked_graphs(_job(), DENSE, "layers"), layout)
    width = 8192 * 4096 * 2
    # The first of two stages has 16 layers and two micro-batches in flight.
    first = [one.stages[0].parts["buffers"] for one in (before, after)]
    assert first[1] - first[0] == pytest.approx(2 * 16 * 2 * width)
    assert after.step_time_s <= before.step_time_s
    whole = estimate(DENSE, HOST, asked_graphs(_job(), DENSE, "all"), layout)
    assert whole.time_parts["launch"] == 0 <= after.time_parts["launch"]


@pytest.mark.parametrize(
    ("kind", "layout", "runs"),
    [
        ("layers", Layout(dp=8, zero=1), True),
        ("layers", Layout(dp=8, zero=3), False),
        ("layers", Layout(dp=8, zero=1, recompute="full"), False),
        ("all", Layout(dp=8, zero=1, recompute="full"), True),
    ],
)
def test_layers_that_run_again_cannot_be_captured_one_by_one(kind, layout, runs):
    question = Question(DENSE, HOST, asked_graphs(_job(), DENSE, kind))
    assert (why_illegal(question, layout) is None) == runs


@pytest.mark.parametrize(("dropout", "runs"), [(0.0, True), (0.1, False)])
def test_a_captured_ffn_that_drops_numbers_cannot_run_again(dropout, runs):
    job = asked_graphs(_job(), DENSE, "layers").but(dropout=dropout)
    layout = Layout(dp=8, zero=1, recompute="selective", recompute_modules=("mlp",))
    assert (why_illegal(Question(DENSE, HOST, job), layout) is None) == runs


def test_what_cannot_be_captured_or_dropped_is_refused():
    with pytest.raises(SpecError, match="layers is expected with experts"):
        asked_graphs(_job(), ROUTED, "all")
    with pytest.raises(SpecError, match="all, layers, none"):
        asked_graphs(_job(), DENSE, "everything")
    with pytest.raises(SpecError, match="has none"):
        asked_capacity(_job(), DENSE, 1.25)
    with pytest.raises(SpecError, match="1 to 64"):
        asked_capacity(_job(), ROUTED, 0.5)
    captured = asked_capacity(asked_graphs(_job(), ROUTED, "layers"), ROUTED, 2)
    assert job_lacks(captured, framework("megatron")) == []
    lacking = {field for field, _, _ in job_lacks(captured, framework("torchtitan"))}
    assert {"job.framework_options.graphs", "job.routing"} <= lacking


def test_the_hottest_rank_keeps_no_more_than_its_experts_may():
    routing = Routing(name="power:1", power=1, capacity=1.25)
    # 1, 1/2, 1/3, 1/4 add up to 25/12; nobody keeps more than 1.25 quarters of that.
    most = 1.25 * (25 / 12) / 4
    assert dropped_share(routing, 4) == pytest.approx((1 - most) / (25 / 12))
    ep = np.array([4])
    assert hottest_rank(routing, 4, ep)[0] == pytest.approx(1.25)
    assert hottest_rank(routing.but(capacity=0), 4, ep)[0] == pytest.approx(1 / (25 / 48))
    assert dropped_share(Routing(capacity=1.25), 4) == 0


def test_plans_with_graphs_and_capacity_go_out_and_come_back(tmp_path):
    job = asked_capacity(
        asked_graphs(_job(routing=parse_routing("power:0.5")), ROUTED, "layers"), ROUTED, 1.5
    )
    made = price_layout(ROUTED, HOST, job, Layout(dp=8, ep=8, zero=1))
    flags = all_flags(made)
    assert flags["cuda-graph-impl"] == "transformer_engine"
    assert (
        flags["cuda-graph-modules"] == "attn moe_router"
    )  # preparing dropped tokens waits for the host
    assert flags["moe-expert-capacity-factor"] == "1.5"
    assert overrides(made)["model.cuda_graph_modules"] == "[attn,moe_router]"
    assert overrides(made)["model.moe_expert_capacity_factor"] == "1.5"
    dense = price_layout(DENSE, HOST, asked_graphs(_job(), DENSE, "all"), Layout(dp=8, zero=1))
    assert all_flags(dense)["cuda-graph-impl"] == "full_iteration"
    given = Given(cluster=HOST)
    for one, kind, factor in ((made, "layers", 1.5), (dense, "all", 0)):
        file = tmp_path / f"{kind}.sh"
        file.write_text(
            "torchrun --nproc-per-node 8 pretrain_gpt.py " + " ".join(words(all_flags(one)))
        )
        back = import_file(file, given).job
        assert graphs_of(back) == kind
        assert back.routing.capacity == factor


def test_a_plan_that_waits_for_launches_shows_what_graphs_would_gain():
    job, narrow = _job(seq_len=1024, global_batch=8), Constraints(tp=8, micro_batch=1)
    made = plan(DENSE, load_cluster("b200:8"), job, constraints=narrow, defend=False)
    assert graphs_of(made.job) == "none"
    shown = [one for one in made.alternatives if one.axis == CAPTURED]
    assert made.estimate.time_parts["launch"] > 0.3 * made.estimate.step_time_s
    assert len(shown) == 1
    assert shown[0].estimate.step_time_s < 0.8 * made.estimate.step_time_s
    assert shown[0].layout.zero < 2


def test_a_graph_of_everything_holds_the_inputs_of_a_step_and_a_share_of_what_comes_and_goes():
    layout = Layout(dp=4, pp=2, zero=1)
    before = estimate(DENSE, HOST, _job(), layout)
    after = estimate(DENSE, HOST, asked_graphs(_job(), DENSE, "all"), layout)
    for eager, graph in zip(before.stages, after.stages, strict=True):
        moving = sum(eager.parts[name] for name in MOVING)
        # 16 micro-batches of 8,192 tokens: ids, labels and positions of 8 bytes, a mask of 4
        more = 16 * 8192 * 28 + 0.051 * moving
        assert graph.parts["buffers"] - eager.parts["buffers"] == pytest.approx(more)
    wide = [one.peak_memory_range.high / one.peak_memory_bytes for one in (before, after)]
    assert wide[1] > 1.5 > wide[0]
    assert after.fit_probability < before.fit_probability


def test_what_a_graph_of_everything_keeps_is_said():
    for kind, says in (("all", True), ("layers", False), ("none", False)):
        assert bool(graph_note(asked_graphs(_job(), DENSE, kind))) == says
