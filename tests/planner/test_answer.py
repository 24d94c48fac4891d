"""What a plan claims of itself: it is the best of a real stack, it fits by its odds, it flips there."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.costs.columns import from_layouts
from meshwright.exports.targets import export
from meshwright.planner.compared import STACKS
from meshwright.planner.finalists import balanced, dealt
from meshwright.planner.flips import circumstances
from meshwright.planner.legality import Question, why_illegal
from meshwright.planner.neighbours import steps
from meshwright.planner.notes import _above_measured, measured_mfu
from meshwright.planner.odds import WANTED, Odds
from meshwright.planner.plan import GAMBLE, plan
from meshwright.planner.search import reprice, search
from meshwright.planner.space import Constraints
from meshwright.planner.stacks import under
from meshwright.simulator.plan_step import plan_step
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import DoesNotFitError, SpecError
from meshwright.specs.job import Job
from meshwright.specs.jobs import load_job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Experts, Model
from meshwright.specs.models import load_model
from meshwright.specs.plan import Range

SMALL = Model(
    name="small", layers=12, hidden=2048, heads=16, kv_heads=8, head_dim=128, ffn=5632, vocab=32000
)
ROUTED = SMALL.but(
    name="routed", experts=Experts(experts=16, top_k=2, ffn=1408, dense_layers=0), ffn=5632
)
FRAMEWORKS = ("any", "megatron", "torchtitan", "deepspeed", "nanotron", "maxtext", "fsdp")


@pytest.fixture(scope="module")
def made():
    return plan(load_model("llama3-70b"), load_cluster("h100:8x8"), Job(seq_len=8192))


def test_the_default_is_the_best_real_stack(made):
    assert {one.framework for one in made.frameworks} == set(STACKS["nvidia"])
    assert made.job.framework == made.frameworks[0].framework
    assert made.layout == made.frameworks[0].layout
    assert made.frameworks[0].why_not == ""
    assert all(one.why_not for one in made.frameworks[1:])
    worst = [one.pessimistic_s for one in made.frameworks if one.layout]
    assert worst[0] <= min(worst) * 1.01  # the simulator may move the two best by a little
    question = Question(made.model, made.cluster, made.job)
    assert why_illegal(question, made.layout) is None


def test_a_session_prints_a_plan_in_a_line_and_a_notebook_in_a_table(made):
    assert len(repr(made)) < 300
    assert made.layout.label() in repr(made)
    table = made._repr_markdown_()
    assert all(one.framework in table for one in made.frameworks)


def test_each_framework_answers_under_its_own_precision(made):
    assert made.job.precision.gradient_bytes == 4
    assert under(Job(), "deepspeed").precision.gradient_bytes == 2
    named = Job.parse({"precision": {"name": "mine", "gradient_bytes": 1}})
    assert under(named, "megatron").precision == named.precision


def test_any_is_called_an_upper_bound():
    bound = plan(SMALL, load_cluster("h100:1x8"), Job(framework="any"), defend=False)
    assert bound.frameworks == ()
    assert any("upper bound" in note for note in bound.notes)


def test_an_asked_framework_is_not_compared():
    asked = plan(SMALL, load_cluster("h100:1x8"), Job(framework="torchtitan"), defend=False)
    assert asked.job.framework == "torchtitan"
    assert asked.frameworks == ()


@pytest.mark.parametrize("name", STACKS["nvidia"])
def test_every_framework_answers_alone_with_a_precision_of_its_own(name):
    """A job that names no precision is no job that the framework refuses."""
    asked = plan(SMALL, load_cluster("h100:1x8"), Job(framework=name), defend=False)
    assert asked.job.precision == under(Job(), name).precision
    fp4 = Job.parse({"framework": "deepspeed", "precision": {"name": "x", "compute": "fp4"}})
    with pytest.raises(SpecError, match="trains in"):
        plan(SMALL, load_cluster("h100:1x8"), fp4, defend=False)


def test_the_winner_fits_with_the_odds_that_were_asked_for(made):
    assert made.estimate.fit_probability >= WANTED
    surer = plan(
        made.model, made.cluster, Job(seq_len=8192), defend=False,
        constraints=Constraints(fit_probability=0.999, offload=()),  # host memory would make it sure
    )  # fmt: skip
    assert surer.estimate.fit_probability >= 0.999
    assert surer.estimate.pessimistic_s >= made.estimate.pessimistic_s * 0.999
    for gamble in (a for a in made.alternatives if a.axis == GAMBLE):
        assert gamble.estimate.fits
        assert gamble.estimate.fit_probability < WANTED
        assert gamble.estimate.pessimistic_s < made.estimate.pessimistic_s
        assert f"{gamble.estimate.fit_probability:.0%}" in gamble.why_not


def test_a_range_gives_the_odds_of_a_log_normal():
    spread = Range(low=0.8, high=1.25)
    assert spread.probability_below(0.8) == pytest.approx(0.1)
    assert spread.probability_below(1.0) == pytest.approx(0.5)
    assert spread.probability_below(1.25) == pytest.approx(0.9)
    for chance in (0.02, 0.5, 0.97):
        assert spread.probability_below(spread.quantile(chance)) == pytest.approx(chance)


def test_no_shown_alternative_is_faster_and_lighter(made):
    for other in made.alternatives:
        priced = other.estimate
        if priced is None or (priced.fit_probability or 1) < WANTED:
            continue
        assert (
            priced.step_time_s >= made.estimate.step_time_s
            or priced.peak_memory_bytes >= made.estimate.peak_memory_bytes
        ), other.axis


def test_neighbours_change_one_axis_or_say_what_else(made):
    """Every field that differs is the axis itself, dp with it, or named in the words."""
    words = {"virtual_stages": "virtual stages", "micro_batch": "micro-batch", "zero": "ZeRO",
             "shard": "shard degree", "recompute": "recompute", "dp": "dp", "pp": "pp", "cp": "cp",
             "tp": "tp", "sequence_parallel": "sequence parallel"}  # fmt: skip
    for other in made.alternatives:
        if other.axis in (GAMBLE, "another shape"):
            assert other.layout.label() != made.layout.label()
            continue
        for name, word in words.items():
            if getattr(other.layout, name) != getattr(made.layout, name):
                drops_with_tp = name == "sequence_parallel" and 1 in (
                    other.layout.tp,
                    made.layout.tp,
                )
                assert word in other.axis or drops_with_tp, (other.axis, name)


CASES = st.tuples(
    st.sampled_from([SMALL, ROUTED, SMALL.but(layers=30, hidden=4096, heads=32, ffn=14336)]),
    st.sampled_from(["h100:1x8", "a100-80g:2x8", "a100-40g:4x4"]),
    st.sampled_from([2048, 8192]),
    st.sampled_from([32, 96, 256]),
)


@settings(max_examples=5, deadline=None, derandomize=True)
@given(case=CASES, framework=st.sampled_from(FRAMEWORKS))
def test_bounds_never_lose_the_best(case, framework):
    model, cluster, seq, batch = case
    job = Job(seq_len=seq, global_batch=batch, framework=framework)
    question = Question(model, load_cluster(cluster), job)
    try:
        whole = search(question)
    except SpecError:
        with pytest.raises(SpecError):
            search(question, bounded=True)
        return
    bounded = search(question, bounded=True)
    assert bounded.fit_probability == whole.fit_probability
    if whole.ranked.columns.rows:
        assert bounded.ranked.columns.layout(0) == whole.ranked.columns.layout(0)
        assert bounded.ranked.pessimistic_s[0] == whole.ranked.pessimistic_s[0]
    counted = bounded.searched.priced + sum(
        count for reason, count in bounded.searched.pruned.items() if "bound" in reason
    )
    assert counted >= whole.searched.priced, "every layout is priced or counted as bounded away"
    assert bounded.searched.priced <= whole.searched.priced


@settings(max_examples=8, deadline=None, derandomize=True)
@given(case=CASES, framework=st.sampled_from(["megatron", "torchtitan", "nanotron", "fsdp"]))
def test_flip_points_flip(case, framework):
    """Plan again at every one: another layout is chosen, the one that was named (`benchmarks/flips.py`)."""
    model, cluster, seq, batch = case
    job = Job(seq_len=seq, global_batch=batch, framework=framework)
    _flips_hold(model, load_cluster(cluster), job)


@pytest.mark.parametrize(
    ("name", "cluster", "more"),
    [
        ("olmoe-1b-7b", "h100:1x8", {"framework": "megatron", "routing": {"power": 0.5}}),
        ("qwen3-30b-a3b", "gb200:2x4", {"framework": "torchtitan"}),
        ("llama3-8b", "rtx4090:1x4", {"finetune": "qlora"}),
        ("qwen3-30b-a3b", "a100-80g:1x8", {"finetune": "lora"}),
        ("qwen3-4b", "h100:1x8", {"finetune": "full"}),
    ],
)
def test_flip_points_of_mixtures_and_fine_tuning_flip(name, cluster, more):
    job = load_job({"seq_len": 4096, "global_batch": 128, **more})
    assert _flips_hold(load_model(name), load_cluster(cluster), job) >= 1


def _flips_hold(model, place, job):
    """How many flip points a plan has, all of which hold."""
    try:
        first = plan(model, place, job)
    except (DoesNotFitError, SpecError):
        return 0
    for flip in first.flip_points:
        assert flip.becomes != first.layout.label() or flip.framework != first.job.framework
        changed, asked = circumstances(flip, place, job)
        try:
            then = plan(model, changed, asked, defend=False)
        except DoesNotFitError:
            assert flip.becomes == "none"
            continue
        assert then.layout.label() == flip.becomes, flip.sentence
        assert then.job.framework == flip.framework
    return len(first.flip_points)


def test_odds_are_calibrated_where_they_were_measured():
    """The room for 90 % is the 90th percentile of measured over predicted peaks of that kind."""
    question = Question(SMALL, load_cluster("h100:8x8"), Job(framework="nanotron"))
    odds = Odds.of(question)
    assert odds.room(0.9) == pytest.approx(max(odds.spread.high, 1.05))
    assert odds.fits(1.0, odds.spread.high) == pytest.approx(0.9)
    assert math.isclose(odds.fits(2.0, 2.0 * odds.spread.low), 0.1)


def test_ranked_layouts_fit_with_room_and_gambles_without():
    question = Question(SMALL, load_cluster("a100-40g:1x8"), Job(seq_len=8192, framework="any"))
    found = search(question)
    room = Odds.of(question).room(found.fit_probability)
    capacity = question.cluster.device.memory_bytes - question.cluster.reserve_bytes
    assert (found.ranked.peak_bytes * room <= capacity).all()
    assert (found.gambles.peak_bytes * room > capacity).all()
    assert (found.gambles.peak_bytes <= capacity).all()
    again = reprice(question, from_layouts([found.ranked.columns.layout(0)]))
    assert np.array_equal(again.peak_bytes, found.ranked.peak_bytes[:1])


def test_where_nothing_fits_surely_the_surest_is_taken_and_said():
    model, cluster = load_model("llama3-8b"), load_cluster("h100:1x1")
    job = Job(seq_len=2048, global_batch=8, framework="megatron")
    question = Question(model, cluster, under(job, "megatron"))
    lightest = search(question).over_memory.peak_bytes.min()
    device = cluster.device.model_copy(update={"memory_bytes": float(lightest) * 1.1})
    tight = replace(question, cluster=cluster.model_copy(update={"device": device}))
    made = plan(model, tight.cluster, job, defend=False)
    assert made.fits
    assert made.estimate.fit_probability < WANTED
    assert any("nothing fits with 90%" in note for note in made.notes)


def test_a_million_tokens_on_one_host_have_a_priced_way_out():
    with pytest.raises(DoesNotFitError) as caught:
        plan(load_model("llama3.1-8b"), load_cluster("h100:1x8"),
             Job(seq_len=2**20, global_batch=1, framework="megatron-fsdp"), defend=False)  # fmt: skip
    assert "activations in host memory" in str(caught.value)
    assert "loss in chunks" in str(caught.value)


def test_the_stages_with_the_head_are_short_in_interleaved_pipelines_too():
    """A head of 256,000 words is five layers' work: the last rank holds so many fewer, its last chunks one."""
    model = load_model("layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=256000")
    job = load_job({"seq_len": 4096, "global_batch": 256, "framework": "megatron"})
    question = Question(model, load_cluster("h100:4x8"), job)
    even = Layout(dp=8, pp=4, virtual_stages=4, schedule="interleaved", zero=1)
    chosen = balanced(question, [even]).columns.layout(0)
    held = chosen.stage_layers
    assert held is not None
    assert sum(held) == 32
    assert len(held) == 16
    assert sum(held[3::4]) < sum(held[1::4])
    assert why_illegal(question, chosen) is None
    times = [
        plan_step(model, question.cluster, job, layout).run().step_s for layout in (even, chosen)
    ]
    assert times[1] < 0.8 * times[0]
    near = dict(steps(question, chosen))
    assert any(other.stage_layers == held for other in near.values())
    for other in near.values():
        assert len(other.stage_layers or ()) in (0, other.pp * other.virtual_stages)
    assert dealt((3, 5, 2), 2) == (1, 3, 1, 2, 2, 1)
    assert dealt((3, 4, 1), 2) == (1, 2, 1, 2, 2, 0)


@pytest.mark.parametrize(("framework", "fewest"), [("megatron", 0), ("meshwright", 1)])
def test_only_the_ends_of_a_pipeline_may_hold_no_layer(framework, fewest):
    model = load_model("layers=20,hidden=2048,heads=16,kv_heads=8,ffn=8192,vocab=256000")
    job = load_job({"seq_len": 4096, "global_batch": 256, "framework": framework})
    question = Question(model, load_cluster("h100:4x8"), job)
    even = Layout(dp=8, pp=4, virtual_stages=3, schedule="interleaved", zero=1)
    held = balanced(question, [even]).columns.layout(0).stage_layers
    assert held is not None
    assert min(held[1:-1]) >= 1
    assert min(held) >= fewest
    assert held[-1] == fewest


def test_neighbours_of_uneven_chunks_keep_their_number():
    """62 layers on four stages of four chunks: what names its stages may, at fewer layers a chunk, too."""
    model = load_model("layers=62,hidden=2048,heads=16,kv_heads=8,ffn=8192,vocab=256000")
    job = load_job({"seq_len": 4096, "global_batch": 256, "framework": "megatron"})
    question = Question(model, load_cluster("h100:4x8"), job)
    uneven = Layout(dp=4, tp=2, pp=4, virtual_stages=4, schedule="interleaved", zero=1, sequence_parallel=True)  # fmt: skip
    split = balanced(question, [uneven]).columns.layout(0)
    for chosen in (uneven, split):
        near = [other for axis, other in steps(question, chosen) if axis.startswith("tp")]
        assert near
        assert {other.virtual_stages for other in near} == {4}


def test_where_memory_is_asked_for_nobody_is_blamed_for_time():
    """Frameworks ranked by headroom are compared by it, and no note speaks of times that are close."""
    model, cluster = load_model("olmo3-7b"), load_cluster("h100:2x8")
    job = Job(seq_len=8192, global_batch=64)
    made = plan(model, cluster, job, objective="memory", defend=False, top=0)
    first, *others = [one for one in made.frameworks if one.layout is not None]
    for other in others:
        assert other.peak_memory_bytes >= first.peak_memory_bytes
        assert other.why_not.endswith("more memory")
    assert others
    assert "ranked by the memory that is left" in made.notes[0]
    assert not any("too close to call: tp" in note or "survive" in note for note in made.notes)


def test_a_batch_that_shares_badly_is_said():
    made = plan(SMALL, load_cluster("h100:1x7"),
                Job(seq_len=2048, global_batch=512, framework="megatron"), defend=False)  # fmt: skip
    assert any("511 sequences" in note for note in made.notes)
    good = plan(SMALL, load_cluster("h100:1x7"),
                Job(seq_len=2048, global_batch=511, framework="megatron"), defend=False)  # fmt: skip
    assert not any("shares badly" in note for note in good.notes)


def test_a_batch_that_shares_badly_is_held_against_every_framework():
    """Another framework may be the best for the other batch: 512 sequences on 7 devices make a pipeline."""
    made = plan(SMALL, load_cluster("h100:1x7"), Job(seq_len=2048, global_batch=512), defend=False)
    best = plan(SMALL, load_cluster("h100:1x7"), Job(seq_len=2048, global_batch=511), defend=False)
    [note] = [note for note in made.notes if "shares badly" in note]
    saved = 1 - (best.estimate.step_time_s / 511) / (made.estimate.step_time_s / 512)
    assert f"{best.layout.label()} of {best.job.framework} takes {saved:.0%} less" in note


def test_more_than_anyone_measured_is_said():
    made = plan(SMALL, load_cluster("h100:1x8"), Job(framework="megatron"), defend=False)
    known = measured_mfu()["H100 SXM 80GB", "bf16"]
    assert 0.4 < known[0] < 0.9
    boast = made.estimate.model_copy(update={"mfu": known[0] + 0.01})
    question = Question(made.model, made.cluster, made.job)
    assert "expect less" in _above_measured(question, boast)[0]
    assert _above_measured(question, made.estimate.model_copy(update={"mfu": 0.3})) == []
    assert "causal mask" not in _above_measured(question, boast)[0]
    long = replace(question, job=made.job.but(seq_len=2**20))
    assert (
        "attention, by convention twice what a causal mask leaves"
        in _above_measured(long, boast)[0]
    )


def test_where_nothing_fits_what_comes_nearest_has_all_that_helps():
    """A million tokens of 8B under Ulysses on eight devices: DeepSpeed's own tables end at 1.1 million."""
    job = Job(seq_len=1 << 20, global_batch=1, framework="deepspeed")
    nearest = r"ulysses .* full offload\(optimizer,parameters\) with the loss liger under deepspeed"
    with pytest.raises(DoesNotFitError, match=nearest):
        plan(load_model("llama3.1-8b"), load_cluster("h100:1x8"), job, defend=False)


def test_of_frameworks_that_all_fail_the_nearest_is_named():
    job = Job(seq_len=1 << 22, global_batch=1)
    with pytest.raises(DoesNotFitError, match="under maxtext, is short of"):
        plan(load_model("llama3.1-8b"), load_cluster("h100:1x8"), job, defend=False)


@pytest.mark.parametrize(
    "named", [{}, *({"framework": name} for name in ("megatron", "deepspeed", "accelerate"))]
)
def test_devices_without_bf16_are_planned_in_what_they_have(named):
    job = Job(seq_len=1024, global_batch=64, **named)
    made = plan(load_model("gpt2-xl"), load_cluster("v100:1x8"), job, defend=False)
    assert (made.job.precision.compute, made.job.attention_kernel) == ("fp16", "unfused")
    assert export(made, made.job.framework).files
