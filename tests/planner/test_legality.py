"""Every rule removes what it names, and a single layout can say why."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costs.columns import concatenate, from_layouts
from meshwright.costs.stages import ROLES, stage_layers
from meshwright.planner.legality import Question, legal, why_illegal
from meshwright.planner.space import Constraints, Tally, divisors, enumerate_layouts
from meshwright.specs.clusters import load_cluster
from meshwright.specs.frameworks import framework
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Experts, Model

LLAMA = Model(
    name="llama3-70b", layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128, ffn=28672,
    vocab=128256,
)  # fmt: skip
H100 = load_cluster("h100:8x8")
QUESTION = Question(LLAMA, H100, Job(seq_len=8192, global_batch=512))


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (Layout(tp=8, pp=4, dp=4), "pp 4 · cp 1 = 128, and the cluster has 64"),
        (Layout(tp=64).but(tp=32, dp=2), None),
        (Layout(tp=1, pp=64, virtual_stages=2, schedule="interleaved"), "at least one layer"),
        (Layout(dp=64, micro_batch=16), "global batch must divide"),
        (Layout(tp=1, dp=64, sequence_parallel=True), "sequence parallelism needs"),
        (
            Layout(tp=4, pp=16, schedule="zb-v", virtual_stages=2, micro_batch=32),
            "2 · pp micro-batches",
        ),
        (Layout(pp=2, dp=32, zero=3, schedule="zb-h1"), "weight gradients are lost"),
        (Layout(cp=64), None),
        (Layout(tp=8, pp=2, dp=4, stage_layers=(40, 39)), "add up to 79 layers"),
        (Layout(dp=64, zero=3, recompute="full", recompute_layers=999), "holds 80 layers"),
    ],
)
def test_each_rule_has_its_sentence(layout, words):
    sentence = why_illegal(QUESTION, layout)
    if words is None:
        assert sentence is None
    else:
        assert words in sentence


def searched_tensor_degrees(question):
    constraints = Constraints(pp=1, zero=1, micro_batch=1, recompute="none")
    tables = enumerate_layouts(question, constraints, Tally())
    return {int(tp) for table in tables for tp in table.tp}


def test_widths_that_no_layer_has_forbid_nothing_and_those_of_experts_do():
    """Where every FFN is of experts, the dense width is of no layer; shared experts are cut by tp, others by etp."""
    experts = Experts(experts=64, top_k=8, ffn=3072, shared_ffn=1536)
    model = LLAMA.but(ffn=1, experts=experts)
    question = Question(model, H100, QUESTION.job.but(framework="megatron"))
    layout = Layout(tp=4, dp=16, ep=8, zero=1, sequence_parallel=True)
    assert why_illegal(question, layout) is None
    assert 4 in searched_tensor_degrees(question)
    uneven = model.but(experts=experts.but(shared_ffn=1538))
    cut = Question(uneven, H100, question.job)
    assert "shared experts" in why_illegal(cut, layout)
    assert searched_tensor_degrees(cut) == {1, 2}
    odd = model.but(experts=experts.but(ffn=2730))
    inside = layout.but(etp=4)
    assert "width of an expert" in why_illegal(Question(odd, H100, question.job), inside)
    dense = model.but(experts=experts.but(dense_layers=1))
    assert "width of FFNs" in why_illegal(Question(dense, H100, question.job), layout)


def test_uneven_chunks_need_a_framework_that_names_their_layers():
    layout = Layout(tp=4, pp=16, virtual_stages=3, schedule="interleaved")
    assert why_illegal(QUESTION, layout) is None
    itself = Question(LLAMA, H100, QUESTION.job.but(framework="megatron-2021"))
    assert not framework("megatron-2021").stage_layers
    assert "interleaving needs layers" in why_illegal(itself, layout)


@pytest.mark.parametrize(
    ("today", "then", "layout", "words"),
    [
        ("torchtitan", "torchtitan-2024", Layout(dp=64, zero=2), "ZeRO stage"),
        ("torchtitan", "torchtitan-2024",
         Layout(tp=8, pp=8, virtual_stages=2, schedule="zb-v"), "schedule"),
        ("megatron-deepspeed", "megatron-deepspeed-2021",
         Layout(tp=8, pp=8, zero=1, sequence_parallel=True), "sequence parallel"),
        ("megatron", "megatron-deepspeed",
         Layout(tp=8, pp=8, zero=1, recompute="full", recompute_layers=3), "recomput"),
        ("trl", "xtuner", Layout(dp=32, cp=2, cp_method="ring", zero=3), "context"),
    ],
)  # fmt: skip
def test_a_release_lacks_what_came_later(today, then, layout, words):
    """And frameworks of one family differ: DeepSpeed's pipeline recomputes whole intervals of layers."""
    model = LLAMA.but(kv_heads=64)
    job = Job(seq_len=8192, global_batch=512)
    asked = {name: Question(model, H100, job.but(framework=name)) for name in (today, then)}
    assert why_illegal(asked[today], layout) is None
    assert words in why_illegal(asked[then], layout)


def test_what_only_shards_needs_something_to_share():
    """Megatron-FSDP with one replica is Megatron-LM: it was offered beside it as another framework's plan."""
    job = Job(seq_len=8192, global_batch=64)
    alone, shared = Layout(tp=8), Layout(tp=4, dp=2, zero=3)
    fsdp = Question(LLAMA, load_cluster("h100:1x8"), job.but(framework="megatron-fsdp"))
    assert "of which there is one" in why_illegal(fsdp, alone)
    assert why_illegal(fsdp, shared) is None
    for name in ("megatron", "torchtitan", "maxtext"):
        plain = Question(LLAMA, load_cluster("h100:1x8"), job.but(framework=name))
        assert "of which there is one" not in (why_illegal(plain, alone) or "")


def test_a_stage_may_hold_the_embedding_or_the_loss_alone():
    """Llama 3.1 405B: 126 layers in 128 chunks, one fewer on the first and the last."""
    model = LLAMA.but(layers=126)
    chunks = (0, *(1,) * 126, 0)
    layout = Layout(
        tp=1, pp=16, dp=4, virtual_stages=8, schedule="interleaved", stage_layers=chunks, zero=1
    )
    question = Question(model, H100, Job(global_batch=512, framework="megatron"))
    assert why_illegal(question, layout) is None
    held = stage_layers(model, from_layouts([layout]))
    assert [float(held.total(role)[0]) for role in ROLES] == [7.0, 8.0, 7.0]
    assert "at least one layer" in why_illegal(question, layout.but(stage_layers=None))


def test_kv_heads_may_be_replicated_but_not_cut():
    model = LLAMA.but(heads=96, kv_heads=6, hidden=12288, ffn=24576)
    cluster = load_cluster("h100:6x8")
    question = Question(model, cluster, Job(seq_len=4096, global_batch=96))
    assert why_illegal(question, Layout(tp=4, dp=12)) is not None
    assert why_illegal(question, Layout(tp=12, dp=4)) is None


@pytest.mark.parametrize(
    ("framework", "layout", "words"),
    [
        ("megatron", Layout(pp=4, dp=16, zero=3), "ZeRO stage"),
        ("megatron", Layout(dp=64, zero=3), "--framework megatron-fsdp"),
        ("megatron", Layout(tp=8, pp=8, dp=1, zero=2), "--framework megatron-fsdp"),
        ("fsdp", Layout(pp=8, dp=8, zero=3), "pipeline parallelism"),
        ("fsdp", Layout(tp=8, dp=8, zero=0), "ZeRO stage"),
        ("llama-factory", Layout(tp=8, dp=8, zero=3), "tensor parallelism"),
        ("torchtitan", Layout(tp=8, cp=2, dp=4, zero=0), "ZeRO stage"),
        ("accelerate", Layout(cp=4, dp=16, zero=3, shard=2), "ZeRO groups"),
        ("torchtitan", Layout(tp=8, pp=4, dp=2, rank_order="tp-cp-ep-pp-dp"), "orders ranks"),
        ("deepspeed", Layout(dp=64, zero=3, recompute="selective"), "recompute"),
        ("nanotron", Layout(tp=8, pp=4, dp=2, virtual_stages=2, schedule="interleaved"), "virtual"),
        ("deepspeed", Layout(pp=4, dp=16, zero=2), "ZeRO stage"),
        ("megatron", Layout(tp=8, pp=4, dp=2, virtual_stages=2, schedule="zb-v"), "schedule"),
    ],
)
def test_frameworks_limit_what_they_cannot_run(framework, layout, words):
    question = Question(LLAMA, H100, QUESTION.job.but(framework=framework))
    assert words in why_illegal(question, layout)


def test_experts_divide_the_ranks():
    model = LLAMA.but(experts=Experts(experts=8, top_k=2, ffn=14336))
    question = Question(model, H100, QUESTION.job)
    assert "experts must divide" in why_illegal(question, Layout(tp=8, dp=8, ep=16))
    assert why_illegal(question, Layout(tp=8, dp=8, ep=8)) is None


def test_everything_enumerated_is_legal_and_uses_all_devices():
    tally = Tally()
    columns = concatenate(list(enumerate_layouts(QUESTION, Constraints(), tally)))
    alive, removed = legal(QUESTION, columns)
    assert alive.all()
    assert not removed
    assert (columns.dp * columns.tp * columns.pp * columns.cp == 64).all()
    packed = np.stack([getattr(columns, n) for n in ("dp", "tp", "pp", "cp", "virtual_stages", "zero",
        "shard", "micro_batch", "recompute", "sequence_parallel", "schedule", "rank_order")])  # fmt: skip
    assert np.unique(packed, axis=1).shape[1] == columns.rows, "no layout twice"


@given(st.integers(1, 5000))
def test_divisors_are_all_and_only_divisors(number):
    found = divisors(number)
    assert found == [d for d in range(1, number + 1) if number % d == 0]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb-v", "dualpipe-v"])
def test_what_is_legal_for_the_engine_its_schedules_take(schedule):
    orders = pytest.importorskip("meshwright.engine.parallel.orders")
    job = Job(seq_len=128, global_batch=60, framework="meshwright")
    toy = LLAMA.model_copy(update={"layers": 16})
    chunks = 2 if schedule in ("interleaved", "zb-v", "dualpipe-v") else 1
    seen = 0
    for pp in (2, 4):
        question = Question(toy, load_cluster(f"h100:1x{pp}"), job)
        for micro_batch in divisors(60):
            layout = Layout(
                pp=pp, schedule=schedule, virtual_stages=chunks, micro_batch=micro_batch
            )
            if why_illegal(question, layout) is None:
                orders.check_order(layout, 60 // micro_batch)
                seen += 1
    assert seen
