"""Mistakes found in teaching material (X1 to X26), each as a test of the right arithmetic.

Not here because they are not arithmetic: X14 (two decision trees disagree: planner), X21 and X30
(generated code, drawings: engine and lessons), X27 (missing prose) and X29 (credits).
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costs import closed_forms as forms
from meshwright.costs import parameters, pipeline, states
from meshwright.costs.alpha_beta import ring_all_reduce
from meshwright.costs.columns import from_layouts
from meshwright.specs.clusters import load_cluster
from meshwright.specs.devices import load_device
from meshwright.specs.errors import SpecError
from meshwright.specs.job import OPTIMIZERS, RECIPES, Job
from meshwright.specs.layout import Layout
from meshwright.specs.models import load_model
from meshwright.specs.quantities import format_bytes, parse_bandwidth, parse_bytes

GB = 1e9


def totals(recipe, shards=8):
    return [
        forms.model_state_bytes(7e9, RECIPES[recipe], zero=z, shards=shards).total / GB
        for z in range(4)
    ]


def test_x1_sixteen_bytes_have_two_decompositions():
    assert totals("fp32") == [112, 63, 38.5, 14]
    assert totals("bf16") == [112, 38.5, 26.25, 14]
    assert totals("bf16-fp32-grads") == [126, 52.5, 28, 15.75]
    assert Job(precision=RECIPES["fp32"]).state_bytes == Job().state_bytes == 16
    assert Job(precision=RECIPES["bf16-fp32-grads"]).state_bytes == 18


@given(
    p=st.floats(1e3, 1e13), zero=st.integers(0, 3), dp=st.integers(1, 4096),
    recipe=st.sampled_from(sorted(RECIPES)), optimizer=st.sampled_from(sorted(OPTIMIZERS)),
)  # fmt: skip
def test_x1_the_planners_memory_model_agrees_with_the_closed_form(p, zero, dp, recipe, optimizer):
    job = Job(precision=RECIPES[recipe], optimizer=OPTIMIZERS[optimizer])
    columns = from_layouts([Layout(dp=dp, zero=zero)])
    held = states.state_bytes(job, columns, np.array([p]), np.array([0.0]))
    closed = forms.model_state_bytes(p, job.precision, job.optimizer, zero, dp)
    assert held.parameters[0] == pytest.approx(closed.parameters)
    assert held.gradients[0] == pytest.approx(closed.gradients)
    assert held.optimizer[0] == pytest.approx(closed.master + closed.moments)


@given(p=st.integers(2, 64), m=st.integers(1, 256))
def test_x2_1f1b_has_the_bubble_of_gpipe(p, m):
    layouts = [Layout(pp=p, schedule=name) for name in ("gpipe", "1f1b")]
    columns = from_layouts(layouts)
    one, two = np.full(2, 1.0), np.full(2, 2.0)
    times = pipeline.StageTimes(one, two, one, two, one, two, np.full(2, 0.5))
    idle = pipeline.bubble_s(columns, np.full(2, m), times)
    assert idle[0] == idle[1]
    # … and it is the closed form's share of the step: m micro-batches of three units each.
    assert idle[0] / (3 * m + idle[0]) == pytest.approx(forms.bubble_fraction(p, m))


@given(p=st.integers(1, 64), m=st.integers(1, 256), data=st.data())
def test_x3_in_flight_depends_on_the_stage_and_on_m(p, m, data):
    s = data.draw(st.integers(0, p - 1))
    held = int(forms.in_flight_micro_batches(p, m, s))
    assert held == min(p - s, m) <= min(p, m)
    columns = from_layouts([Layout(pp=p, schedule="1f1b")])
    assert pipeline.in_flight(columns, np.array([m]), np.array([s]))[0] == held
    assert forms.in_flight_micro_batches(p, m, s, "gpipe") == m


def test_x4_nvlink_totals_count_both_directions():
    nvlink = load_cluster("h100:1x8").levels[0].bandwidth_bytes_s
    assert nvlink == 450 * GB == 900 * GB / 2 == 18 * 25 * GB
    assert load_cluster("a100:1x8").levels[0].bandwidth_bytes_s == 600 * GB / 2
    assert ring_all_reduce(2 * GB, 8, nvlink).time_s == pytest.approx(7.8e-3, abs=5e-5)


def test_x5_12_5_gb_s_is_100_gigabit_not_pcie():
    assert parse_bandwidth("100Gb/s") == 12.5 * GB
    assert load_cluster("l4:1x8").levels[0].bandwidth_bytes_s == 31 * GB


def test_x6_infiniband_is_sold_in_bits():
    assert parse_bandwidth("400Gb/s") == 50 * GB != parse_bandwidth("400GB/s")
    network = load_cluster("h100:2x8").levels[1]
    assert network.bandwidth_bytes_s * 8 == 400 * GB  # 400 GB/s only as a node of eight cards
    assert network.nics_per_node == 8


def test_x7_latency_grows_with_ranks():
    fast, slow = (ring_all_reduce(1e6, n, 50 * GB, 5e-6) for n in (8, 1024))
    assert slow.time_s > 50 * fast.time_s
    free = [ring_all_reduce(1e12, n, 50 * GB, 5e-6).time_s for n in (8, 1024)]
    assert free[1] / free[0] == pytest.approx((1023 / 1024) / (7 / 8), rel=2e-3)


def test_x8_the_gap_grows_7_58_times_a_year():
    assert forms.growth_gap(10, 2.5) == pytest.approx(7.58, abs=5e-3)


def test_x9_a_replica_of_mt_nlg_is_280_devices():
    replica = forms.devices(dp=1, tp=8, pp=35)
    assert replica == 280
    assert [gpus // replica for gpus in (2240, 2800, 3360)] == [8, 10, 12]
    model = load_model("mt-nlg-530b")
    assert model.layers % 35 == 0 and model.heads % 8 == 0


def test_x10_sixteen_thousand_devices_fail_every_three_hours():
    documented_s = 54 * 86400 / 419
    cluster = load_cluster("h100:2048x8")
    ours = forms.interruption_interval_s(16_384, 8, cluster.mtbf_node_s)
    assert ours == pytest.approx(documented_s, rel=0.02)
    assert ours / 3600 == pytest.approx(3.1, abs=0.05)


def test_x11_three_times_and_four_times_hold_near_eight_only():
    full = totals("bf16", 1)[0]
    assert [round(full / t, 1) for t in totals("bf16", 8)[1:]] == [2.9, 4.3, 8.0]
    assert [round(full / t, 1) for t in totals("bf16", 2)[1:]] == [1.6, 1.8, 2.0]
    assert [round(full / t, 1) for t in totals("bf16", 1024)[1:3]] == [4.0, 7.9]


def test_x12_the_effective_batch_uses_dp_not_all_devices():
    layout = Layout(dp=2, tp=8, pp=4, micro_batch=3)
    assert layout.world == 64
    assert forms.effective_batch(layout.dp, layout.micro_batch, 5) == 30
    assert layout.micro_batches(30) == 5


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(0, 2**31))
def test_x13_unequal_shards_need_a_weighted_mean(sizes, seed):
    rng = np.random.default_rng(seed)
    gradients = [rng.normal(size=(n, 3)) for n in sizes]  # per token
    full = np.concatenate(gradients).mean(axis=0)
    means = np.stack([g.mean(axis=0) for g in gradients])
    assert np.allclose(forms.mean_gradient(means, np.array(sizes)), full)
    if len(set(sizes)) == 1:
        assert np.allclose(means.mean(axis=0), full)
        assert np.allclose(means.sum(axis=0), len(sizes) * full)  # a sum is not a mean


def test_x13_a_plain_mean_of_unequal_shards_is_wrong():
    means, tokens = np.array([[1.0], [5.0]]), np.array([3, 1])
    assert forms.mean_gradient(means, tokens) == 2.0 != means.mean()
    with pytest.raises(SpecError):
        forms.mean_gradient(means, np.array([0, 0]))


def test_x15_on_40_gb_devices_thirty_billion_fits_no_way():
    small = load_device("a100-40g").memory_bytes
    for zero in range(4):
        held = forms.model_state_bytes(30e9, RECIPES["bf16"], zero=zero, shards=8).total
        assert held > small
    assert forms.model_state_bytes(30e9 / 8, RECIPES["bf16"]).total > small
    assert Layout(tp=8).dp == 1  # nothing is left to "combine with DP" on eight devices


def test_x16_eight_by_eight_leaves_no_data_parallelism():
    assert forms.devices(dp=1, tp=8, pp=8) == 64
    held = forms.model_state_bytes(200e9 / 32, RECIPES["bf16"], zero=np.array([0, 1]), shards=2)
    assert (held.total / GB).tolist() == [100, 62.5]


def test_x17_smaller_micro_batches_send_the_same_bytes_in_more_messages():
    large = forms.pipeline_traffic_bytes(2048, 4, 8, 8192)
    small = forms.pipeline_traffic_bytes(2048, 1, 32, 8192)
    assert large[0] == small[0] and (large[1], small[1]) == (8, 32)


def test_x18_a_tied_head_is_a_second_copy_on_the_last_stage():
    tied = load_model("gpt3-175b")
    assert parameters.count_parameters(tied).head == 0
    assert int(parameters.head_parameters(tied)) == tied.vocab * tied.hidden


def test_x19_zero_1_and_2_send_what_data_parallelism_sends():
    ratios = [forms.data_parallel_traffic_ratio(zero) for zero in range(4)]
    assert ratios == [1, 1, 1, 1.5]
    assert forms.zero_traffic_bytes(7e9, 0, 8) == ring_all_reduce(14e9, 8, 1.0).sent_bytes


def test_x20_zero_3_also_holds_gathered_layers():
    model = load_model("llama3-70b")
    counts = parameters.count_parameters(model)
    layer = float(counts.dense_layer.total)
    assert forms.gathered_bytes(layer, 2) == pytest.approx(2 * 2 * 855_654_400)
    assert forms.gathered_bytes(counts.total, 2, prefetched=0) == 2 * counts.total  # one unit: all


def test_x22_tensor_parallelism_is_bounded_by_the_nvlink_domain():
    assert load_cluster("gb200:18x4").fast_domain == 72
    assert load_cluster("h100:8x8").fast_domain == 8


def test_x23_gb_and_gib_are_never_mixed():
    assert parse_bytes("80GB") == 80e9 != parse_bytes("80GiB") == 80 * 2**30
    assert round(parse_bytes("80GiB") / GB, 1) == 85.9
    assert format_bytes(112e9) == "104.3 GiB"
    with pytest.raises(SpecError):
        parse_bytes("80Gb")


def test_x24_one_bubble_two_denominators():
    assert forms.bubble_fraction(4, 4) == pytest.approx(3 / 7)
    assert forms.bubble_overhead(4, 4) == 0.75
    share = forms.bubble_fraction(np.arange(1, 50), 7, 3)
    overhead = forms.bubble_overhead(np.arange(1, 50), 7, 3)
    assert np.allclose(share, overhead / (1 + overhead))


def test_x25_tensor_parallelism_replicates_norms():
    layer = parameters.layer_parameters(load_model("llama3-70b"), False, tp=np.array([1, 8]))
    assert layer.norms[0] == layer.norms[1] == 2 * 8192
    assert layer.total[1] > layer.total[0] / 8


def test_x26_the_master_copy_is_a_choice_of_recipe():
    assert RECIPES["bf16"].master_bytes == 4
    assert RECIPES["pure-bf16"].master_bytes == 0
    held = forms.model_state_bytes(7e9, RECIPES["pure-bf16"])
    assert held.master == 0 and held.total / GB == 84


def test_x28_hosts_have_the_size_they_have():
    assert load_cluster("gb200").gpus_per_node == 4
    assert load_cluster("trainium2").gpus_per_node == 16
    assert load_cluster("h100:16x4").levels[0].domain == 4


@given(st.integers(1, 2000))
def test_f11_checkpointing_keeps_about_two_root_l_layers(layers):
    plan = forms.sqrt_checkpointing(layers)
    every = [np.ceil(layers / k) + k for k in range(1, layers + 1)]
    assert plan.layers_kept <= min(every) + 1
    assert plan.layers_kept <= 2 * np.sqrt(layers) + 1
    assert plan.extra_compute == pytest.approx(1 / 3)


def test_f8_all_reduces_of_tensor_parallelism():
    assert forms.tensor_parallel_all_reduces(80) == (160, 160)


@pytest.mark.parametrize(
    "call",
    [
        lambda: forms.model_state_bytes(1, RECIPES["bf16"], zero=4),
        lambda: forms.model_state_bytes(1, RECIPES["bf16"], shards=0),
        lambda: forms.bubble_fraction(0, 4),
        lambda: forms.bubble_overhead(4, 0),
        lambda: forms.in_flight_micro_batches(4, 4, 4),
        lambda: forms.in_flight_micro_batches(4, 4, 0, "zb-h1"),
        lambda: forms.sqrt_checkpointing(0),
        lambda: forms.interruption_interval_s(0, 8, 1.0),
    ],
)
def test_impossible_arguments_are_refused(call):
    with pytest.raises(SpecError):
        call()
