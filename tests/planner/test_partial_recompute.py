"""Recomputing only what memory asks for: fits, is faster, is the least, tapers towards the end."""

import pytest

from meshwright.costs.columns import from_layouts
from meshwright.costs.step import estimate
from meshwright.planner import partial_recompute
from meshwright.planner.legality import Question
from meshwright.planner.odds import Odds
from meshwright.planner.partial_recompute import partly_recomputed
from meshwright.planner.plan import plan
from meshwright.planner.search import reprice, search
from meshwright.planner.space import Constraints
from meshwright.specs.clusters import load_cluster
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.models import load_model

MODEL, CLUSTER = load_model("llama3-8b"), load_cluster("rtx4090-pc")
JOB = Job(seq_len=4096, global_batch=256)
QUESTION = Question(MODEL, CLUSTER, JOB)


@pytest.fixture(scope="module")
def result():
    return search(QUESTION)


@pytest.mark.parametrize("framework", ["any", "megatron"])
def test_they_fit_beat_the_search_and_one_layer_less_does_not_fit(framework):
    question = Question(MODEL, CLUSTER, JOB.but(framework=framework, seq_len=1536))
    # Modules recomputed by name may be faster than some whole layers: not asked for here.
    found = search(question, Constraints(recompute="full"))
    layouts = partly_recomputed(question, Constraints(), found)
    assert layouts
    priced = reprice(question, from_layouts(layouts))
    assert priced.fits.all()
    assert (priced.pessimistic_s < found.ranked.pessimistic_s[0]).all()
    assert (priced.pessimistic_s[:-1] <= priced.pessimistic_s[1:] * 1.02).all()
    for layout in layouts:
        if layout.recompute_layers > layout.virtual_stages:
            less = layout.but(recompute_layers=layout.recompute_layers - layout.virtual_stages)
            assert not reprice(question, from_layouts([less])).fits[0]
        elif framework == "megatron":
            assert layout.stage_recompute_layers is None


def test_later_stages_recompute_no_more_than_the_first():
    question = Question(MODEL, CLUSTER, JOB.but(framework="meshwright"))
    found, room = search(question, Constraints(fit_probability=0.75)), Odds.of(question).room(0.75)
    layouts = partly_recomputed(question, Constraints(), found, room)
    splits = [s for layout in layouts if (s := layout.stage_recompute_layers)]
    assert splits
    for split in splits:
        assert list(split) == sorted(split, reverse=True)
        assert split[0] > split[-1]


def test_the_plan_uses_it_and_defends_it(result):
    made = plan(
        MODEL, CLUSTER, JOB.but(framework="fsdp", seq_len=3840), constraints=Constraints(offload=())
    )
    assert made.layout.recompute == "full"
    assert 0 < made.layout.recompute_layers < MODEL.layers
    assert f"full({made.layout.recompute_layers})" in made.layout.label()
    steps = {a.axis: a.why_not for a in made.alternatives if a.axis.startswith("recomputed layers")}
    assert len(steps) == 2, [a.axis for a in made.alternatives]
    less, more = steps.values()
    assert "out of memory" in less or "fits with" in less
    assert "slower" in more


@pytest.mark.parametrize(
    ("constraints", "framework"),
    [({"recompute": "full"}, "any"), ({"no_recompute": True}, "any"), ({}, "deepspeed")],
)
def test_nothing_is_added_where_recomputation_is_fixed_or_all_or_nothing(constraints, framework):
    question = Question(MODEL, CLUSTER, JOB.but(framework=framework))
    given = Constraints(**constraints)
    assert partly_recomputed(question, given, search(question, given)) == []


def test_hardware_utilisation_counts_only_the_layers_that_recompute():
    def extra(**change):
        layout = Layout(tp=4, pp=2, sequence_parallel=True, recompute="full", **change)
        priced = estimate(MODEL, CLUSTER, JOB, layout)
        return priced.hfu / priced.mfu - 1

    assert extra(recompute_layers=4) == pytest.approx(extra() * 4 / 16)
    assert extra(stage_recompute_layers=(4, 0)) == pytest.approx(extra() * 4 / 32)


def test_of_a_deep_model_s_counts_few_are_priced_and_the_fewest_is_found(monkeypatch):
    """Against pricing every count, which is what the rounds spare."""
    model = load_model("layers=400,hidden=1024,heads=16,ffn=2816,vocab=32000")
    job = Job(seq_len=4096, global_batch=64, framework="megatron")
    question = Question(model, load_cluster("h100:1x8"), job)
    found = search(question, Constraints(recompute="full", offload=()))
    rows = []

    def counted(asked, columns, room=None):
        rows.append(columns.rows)
        return reprice(asked, columns, room)

    monkeypatch.setattr(partial_recompute, "reprice", counted)
    layouts = partly_recomputed(question, Constraints(offload=()), found)
    assert layouts
    seeds = min(len(found.ranked.columns.dp), partial_recompute.SEEDS)
    assert sum(rows) < 60 * seeds
    for layout in layouts:
        every = [
            layout.but(recompute_layers=count)
            for count in range(layout.virtual_stages, 400 // layout.pp, layout.virtual_stages)
        ]
        priced = reprice(question, from_layouts(every))
        assert every[int(priced.fits.argmax())] == layout
