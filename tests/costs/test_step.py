"""The step model: parts add up, one row equals the same row among many, and physics has its signs."""

import numpy as np
import pytest

from meshwright.costs.columns import ARRAYS, concatenate, from_layouts
from meshwright.costs.host import wait_s
from meshwright.costs.layer import member_s
from meshwright.costs.memory import PARTS as MEMORY_PARTS
from meshwright.costs.stages import ROLES
from meshwright.costs.step import TIME_PARTS, estimate, price
from meshwright.evidence.constants import constants_set
from meshwright.planner.legality import Question
from meshwright.planner.space import Constraints, Tally, enumerate_layouts
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES, Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model
from meshwright.specs.models import load_model


def space(model, cluster, job):
    return concatenate(
        list(enumerate_layouts(Question(model, cluster, job), Constraints(), Tally()))
    )


def test_parts_add_up_exactly(llama70b, h100_64, job):
    columns = space(llama70b, h100_64, job)
    table = price(llama70b, h100_64, job, columns)
    total = np.zeros(columns.rows)
    for name in TIME_PARTS:
        total = total + table.time_parts[name]
    assert np.array_equal(total, table.step_time_s)
    for role in ROLES:
        total = np.zeros(columns.rows)
        for name in MEMORY_PARTS:
            total = total + table.memory.parts[role][name]
        there = table.memory.total[role] > 0
        assert np.array_equal(total[there], table.memory.total[role][there])
    assert np.isfinite(table.step_time_s).all()
    assert (table.step_time_s > 0).all()


@pytest.mark.parametrize("which", ["llama70b", "mixtral"])
def test_one_layout_has_the_same_bits_alone_and_among_many(which, h100_64, job, request):
    model = request.getfixturevalue(which)
    columns = space(model, h100_64, job)
    rng = np.random.default_rng(0)
    many = price(model, h100_64, job, columns)
    for row in rng.integers(0, columns.rows, 60):
        alone = columns.take(np.array([row]))
        one = price(model, h100_64, job, alone)
        assert one.step_time_s[0] == many.step_time_s[row]
        assert one.memory.peak[0] == many.memory.peak[row]
        for name in TIME_PARTS:
            assert one.time_parts[name][0] == many.time_parts[name][row], name


def test_columns_and_layouts_are_inverse(llama70b, h100_64, job):
    columns = space(llama70b, h100_64, job)
    rows = np.random.default_rng(1).integers(0, columns.rows, 50)
    layouts = [columns.layout(int(row)) for row in rows]
    back = from_layouts(layouts)
    for name in ARRAYS:
        assert np.array_equal(getattr(back, name), getattr(columns, name)[rows]), name


def test_explicit_even_split_equals_the_default(llama70b, h100_64, job):
    even = Layout(tp=8, pp=4, dp=2, zero=1, sequence_parallel=True)
    given = even.but(stage_layers=(20, 20, 20, 20))
    assert estimate(llama70b, h100_64, job, even) == estimate(llama70b, h100_64, job, given)


def test_an_uneven_split_is_slower(llama70b, h100_64, job):
    even = Layout(tp=8, pp=4, dp=2, zero=1, sequence_parallel=True)
    uneven = even.but(stage_layers=(14, 26, 20, 20))
    assert (
        estimate(llama70b, h100_64, job, uneven).step_time_s
        > estimate(llama70b, h100_64, job, even).step_time_s * 1.1
    )


def test_a_slower_network_never_helps(llama70b, job):
    fast = load_cluster("h100:8x8")
    levels = [
        fast.levels[0],
        fast.levels[1].but(bandwidth_bytes_s=fast.levels[1].bandwidth_bytes_s / 8),
    ]
    slow = fast.but(levels=levels)
    for layout in (
        Layout(tp=16, dp=4, sequence_parallel=True, zero=1),
        Layout(tp=8, pp=8, sequence_parallel=True),
        Layout(dp=64, zero=3),
    ):
        assert (
            estimate(llama70b, slow, job, layout).step_time_s
            > estimate(llama70b, fast, job, layout).step_time_s
        )


def test_tensor_parallelism_across_nodes_costs_more_than_inside(llama70b, h100_64, job):
    inside = estimate(llama70b, h100_64, job, Layout(tp=8, pp=8, sequence_parallel=True))
    across = estimate(llama70b, h100_64, job, Layout(tp=16, pp=4, sequence_parallel=True))
    assert across.time_parts["tensor_parallel"] > 2 * inside.time_parts["tensor_parallel"]


def test_recomputation_trades_time_for_memory(llama70b, h100_64, job):
    layout = Layout(tp=8, pp=4, dp=2, zero=1, sequence_parallel=True)
    none = estimate(llama70b, h100_64, job, layout)
    full = estimate(llama70b, h100_64, job, layout.but(recompute="full"))
    assert full.peak_memory_bytes < none.peak_memory_bytes
    assert 1.15 < full.step_time_s / none.step_time_s < 1.45


def test_zero_stages_shard_component_by_component(llama70b, h100_64, job):
    parts = {
        zero: estimate(llama70b, h100_64, job, Layout(tp=8, dp=8, zero=zero)).memory_parts
        for zero in range(4)
    }
    assert parts[1]["optimizer"] == pytest.approx(parts[0]["optimizer"] / 8)
    assert parts[1]["gradients"] == parts[0]["gradients"]
    assert parts[2]["gradients"] == pytest.approx(parts[0]["gradients"] / 8)
    assert parts[2]["parameters"] == parts[0]["parameters"]
    assert parts[3]["parameters"] == pytest.approx(parts[0]["parameters"] / 8)
    assert parts[3]["gathered_parameters"] > 0


def test_recipes_change_each_component(llama70b, h100_64, job):
    layout = Layout(tp=8, pp=8)
    sixteen = estimate(llama70b, h100_64, job, layout).memory_parts
    eighteen = estimate(
        llama70b, h100_64, job.but(precision=RECIPES["bf16-fp32-grads"]), layout
    ).memory_parts
    assert eighteen["gradients"] == 2 * sixteen["gradients"]
    assert eighteen["parameters"] == sixteen["parameters"]


def test_korthikanti_activation_formula(job):
    """sbh(34 + 5as/h) per layer (arXiv 2205.05198 eq. 1): GPT-3 shape, fp16, dropout, unfused."""
    from meshwright.costs.activations import activation_bytes_per_layer
    from meshwright.costs.frameworks import framework
    from meshwright.specs.model import Model

    s, b, h, a = 2048, 4, 6144, 64
    model = Model(
        layers=48, hidden=h, heads=a, kv_heads=a, head_dim=h // a, ffn=4 * h, vocab=51200,
        gated=False, norm="layernorm",
    )  # fmt: skip
    columns = from_layouts([Layout(micro_batch=b)])
    whole, boundary = activation_bytes_per_layer(
        model, Job(seq_len=s), framework("megatron-2021"), columns, moe=False
    )
    paper = s * b * h * (34 + 5 * a * s / h)
    # The scores term equals the paper's 5as²b: 2 + 2 bytes of softmax and dropout, 1 of mask.
    assert float(whole[0]) == pytest.approx(paper, rel=0.002)
    assert float(boundary[0]) == 2 * s * b * h


def test_batch_that_does_not_divide_is_refused(llama70b, h100_64):
    with pytest.raises(SpecError, match=r"multiple of dp · micro_batch"):
        estimate(llama70b, h100_64, Job(global_batch=10), Layout(dp=8, tp=8))


def test_a_pipeline_that_turns_back_has_embedding_and_head_on_its_first_rank(
    llama70b, h100_64, job
):
    straight = Layout(tp=8, pp=4, dp=2, zero=1, sequence_parallel=True)
    turning = straight.but(schedule="zb-v", virtual_stages=2)
    priced = estimate(llama70b, h100_64, job, straight), estimate(llama70b, h100_64, job, turning)
    first, last = ([stages[i].parts for stages in (e.stages for e in priced)] for i in (0, -1))
    assert last[0]["logits"] > 0 == first[0]["logits"]
    assert first[1]["logits"] > 0 == last[1]["logits"]
    total = [
        2 * stages[1].parts["parameters"]
        + stages[0].parts["parameters"]
        + stages[-1].parts["parameters"]
        for stages in (e.stages for e in priced)
    ]
    assert total[0] == pytest.approx(total[1])


@pytest.mark.parametrize(("tp", "spans"), [(8, False), (16, True)])
def test_messages_of_a_tensor_group_queue_at_the_network_cards(llama70b, tp, spans):
    cluster = load_cluster("h100:2x8")
    run = Job(seq_len=8192, global_batch=16)
    layout = Layout(dp=16 // tp, tp=tp, micro_batch=1, sequence_parallel=True)
    first = estimate(llama70b, cluster, run, layout)
    with constants_set({"overlap.tensor_over_hosts.member_s": member_s() + 1e-3}):
        second = estimate(llama70b, cluster, run, layout)
    extra = second.time_parts["tensor_parallel"] - first.time_parts["tensor_parallel"]
    # At least the eight collectives of a layer that nothing hides, a millisecond a member.
    least = 8 * 80 * (16 * tp // 16) * tp * 1e-3
    assert extra >= least * (1 - 1e-9) if spans else extra == 0


def test_an_odd_vocabulary_slows_the_head_unless_it_is_padded(h100_64):
    model = Model(
        name="gpt", layers=12, hidden=2048, heads=16, kv_heads=16, head_dim=128, ffn=8192,
        vocab=50257,
    )  # fmt: skip

    def head_s(vocab, tp=1, **options):
        run = Job(seq_len=1024, global_batch=64, framework_options=options)
        layout = Layout(dp=64 // tp, tp=tp, micro_batch=1)
        return estimate(model.but(vocab=vocab), h100_64, run, layout).time_parts[
            "embedding_and_head"
        ]

    unpadded = {"vocab_multiple": 1, "loss_bytes": 0.0}
    assert head_s(50257, **unpadded) > 1.8 * head_s(50256, **unpadded)
    assert head_s(50257, vocab_multiple=128) == head_s(50304, vocab_multiple=128)
    # Two ranks of 25128 rows each are even again.
    assert head_s(50257, tp=2, **unpadded) == head_s(50256, tp=2, **unpadded)


def test_host_and_device_add_up_only_where_they_are_alike():
    host = np.array([1.0, 2.0, 1.0, 0.0])
    device = np.array([1.0, 1.0, 4.0, 1.0])
    together = wait_s(host, device) + device
    assert together == pytest.approx([2**0.25, 17**0.25, 257**0.25, 1.0])
    assert (together >= np.maximum(host, device)).all()


def test_interleaved_chunks_hide_more_of_the_data_parallel_traffic(llama70b):
    # Few micro-batches on many replicas, so that the traffic is longer than one backward.
    cluster = load_cluster("h100:64x8")
    job = Job(seq_len=4096, global_batch=128)
    plain = Layout(dp=16, tp=8, pp=4, micro_batch=1, zero=1, sequence_parallel=True)
    chunks = plain.but(virtual_stages=5, schedule="interleaved")
    apart, together = (
        estimate(llama70b, cluster, job, layout).time_parts["data_parallel"]
        for layout in (plain, chunks)
    )
    assert together < 0.7 * apart


def test_context_parallel_steps_end_with_passes_over_their_result(llama70b, h100_64):
    # One node: the ring itself hides behind the attention, all but a tenth.
    job = Job(seq_len=32768, global_batch=8)
    parts = {
        cp: estimate(
            llama70b, h100_64, job, Layout(dp=64 // (8 * cp), tp=8, cp=cp, micro_batch=1)
        ).time_parts["context_parallel"]
        for cp in (1, 2)
    }
    outputs = (32768 // 2) * 8 * 128
    passes = 2 * (10 * outputs + 6 * (outputs + (32768 // 2) * 2 * 128))
    least = 80 * 2 * passes / (3.35e12 * 0.88)
    assert parts[1] == 0
    assert parts[2] >= least


def test_reductions_that_need_no_pipeline_hide_only_without_one(llama70b, h100_64):
    """torch's DistributedDataParallel reduces beside backward; without it the sum follows the last one."""
    run = Job(seq_len=8192, global_batch=64, framework="nanotron")
    never = run.but(framework_options={"reduce_overlapped": False})
    for pp in (1, 2):
        layout = Layout(tp=4, pp=pp, dp=16 // pp, micro_batch=1, sequence_parallel=True)
        with_it, without = (
            estimate(llama70b, h100_64, job, layout).time_parts["data_parallel"]
            for job in (run, never)
        )
        assert (with_it < 0.7 * without) if pp == 1 else with_it == without


def test_heads_of_odd_widths_run_off_the_tensor_cores(h100_64):
    """Unfused, 128 heads of 108 take longer than 96 of 144; flash attention pads them alike."""
    wide = dict(name="gpt", layers=8, hidden=13824, kv_heads=96, ffn=55296, vocab=51200)
    even = Model(**wide, heads=96, head_dim=144)
    odd = Model(**{**wide, "kv_heads": 128}, heads=128, head_dim=108)
    layout = Layout(tp=8, dp=8, micro_batch=1)

    def attention_s(model, kernel):
        run = Job(seq_len=2048, global_batch=64, framework_options={"attention_kernel": kernel})
        return estimate(model, h100_64, run, layout).time_parts["attention"]

    assert attention_s(odd, "unfused") > 3 * attention_s(even, "unfused")
    assert attention_s(odd, "flash") < 1.1 * attention_s(even, "flash")


def test_what_runs_on_tf32_units_is_measured_by_their_peak():
    """fp32 products of DeepSpeed's and Megatron's containers run on TF32 units, seven times as fast."""
    job = Job(seq_len=4096, global_batch=1, precision=RECIPES["fp32"], framework="megatron")
    whole = estimate(load_model("qwen3-14b"), load_cluster("h100:1x1"), job, Layout())
    assert 0.3 < whole.mfu < 0.7


@pytest.mark.parametrize("framework", ["megatron", "nemo", "torchtitan"])
def test_gradients_travel_in_the_bytes_that_the_job_asks_for(llama70b, framework):
    cluster = load_cluster("h100:8x8")
    layout = Layout(dp=64, micro_batch=1, zero=2)

    def reduced_s(bytes_: int) -> float:
        precision = RECIPES["bf16"].but(gradient_bytes=4, gradient_reduce_bytes=bytes_)
        job = Job(seq_len=512, global_batch=64, framework=framework, precision=precision)
        return estimate(llama70b, cluster, job, layout).time_parts["data_parallel"]

    assert reduced_s(4) > 1.2 * reduced_s(2)
