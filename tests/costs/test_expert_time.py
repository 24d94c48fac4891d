"""Time of mixture-of-experts layers: overlap of their all-to-alls, launches, biases, recomputation."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

from meshwright import costs
from meshwright.costs.columns import from_layouts
from meshwright.costs.expert_launches import (
    COUNTED,
    EXPERT_KERNELS,
    EXPERT_KERNELS_8BIT,
    NODE_BACKWARD,
    NODE_FORWARD,
    OF_SHAPES,
    OVERLAP_NODES,
    expert_launches,
)
from meshwright.costs.experts import dispatch_s, distinct_share, reachable, routing_map_s
from meshwright.costs.layer_setting import LayerKeys, LayerModel
from meshwright.costs.setting import Setting
from meshwright.costs.step import estimate
from meshwright.specs.clusters import load_cluster
from meshwright.specs.job import RECIPES, Job
from meshwright.specs.layout import Layout

LAYOUT = Layout(dp=64, tp=1, ep=8, micro_batch=1, zero=1)


def priced(model, cluster, layout=LAYOUT, precision="bf16", **options):
    job = Job(
        seq_len=4096, global_batch=512, precision=RECIPES[precision], framework_options=options
    )
    return estimate(model, cluster, job, layout)


def with_experts(model, **changes):
    return model.but(experts=model.experts.but(**changes).model_dump())


SLOWDOWN = tomllib.loads((Path(costs.__file__).parent / "data" / "overlap.toml").read_text())[
    "slowdown"
]["per_hidden_second"]


def test_overlapped_all_to_alls_that_fit_behind_the_compute_cost_only_their_slowdown(
    mixtral, h100_64
):
    apart = priced(mixtral, h100_64).time_parts
    beside = priced(mixtral, h100_64, expert_overlapped=True).time_parts
    compute = sum(apart[name] for name in ("matmul", "attention", "elementwise"))
    assert apart["expert_parallel"] < compute
    assert beside["expert_parallel"] == pytest.approx(SLOWDOWN * apart["expert_parallel"])
    assert beside["matmul"] == apart["matmul"]


def test_overlapped_all_to_alls_longer_than_the_compute_stick_out(mixtral, h100_64):
    slow = with_experts(mixtral, experts=64, top_k=32, ffn=64)
    layout = LAYOUT.but(ep=64)
    apart = priced(slow, h100_64, layout).time_parts
    beside = priced(slow, h100_64, layout, expert_overlapped=True).time_parts
    compute = sum(apart[name] for name in ("matmul", "attention", "elementwise"))
    # The head and the loss are in parts of their own, so these three are the layers' alone.
    out = apart["expert_parallel"] - compute
    assert out > 0
    assert beside["expert_parallel"] == pytest.approx(out + SLOWDOWN * compute)


PIPED = {"dp": 16, "pp": 4, "schedule": "interleaved"}


@pytest.mark.parametrize(
    ("changes", "hides"),
    [
        ({"recompute": "selective", "recompute_modules": ["layernorm", "moe_act"]}, True),
        ({"recompute": "selective", "recompute_modules": ["layernorm", "moe"]}, False),
        ({"recompute": "full"}, False),
        ({**PIPED, "virtual_stages": 2}, True),
        ({**PIPED, "schedule": "1f1b"}, False),
    ],
)
def test_all_to_alls_hide_only_where_megatron_overlaps_them(mixtral, h100_64, changes, hides):
    layout = LAYOUT.but(**changes)
    apart = priced(mixtral, h100_64, layout).time_parts["expert_parallel"]
    beside = priced(mixtral, h100_64, layout, expert_overlapped=True).time_parts["expert_parallel"]
    assert (beside < apart / 2) if hides else (beside == apart)


@pytest.mark.parametrize(
    ("precision", "each"), [("bf16", EXPERT_KERNELS), ("fp8", EXPERT_KERNELS_8BIT)]
)
def test_each_local_expert_is_launched_by_the_host(mixtral, h100_64, precision, each):
    # So slow a host that it sets the pace: what an expert adds is then exactly its launches.
    times = ("host_micro_batch_s", "host_collective_s", "host_mixture_s")
    slow = {"host_kernel_s": 0.1, **dict.fromkeys(times, 0.0)}

    def busy_s(ep):
        parts = priced(mixtral, h100_64, LAYOUT.but(ep=ep), precision, **slow).time_parts
        names = (
            "launch", "matmul", "attention", "elementwise", "expert_parallel",
            "embedding_and_head", "recompute",
        )  # fmt: skip
        return sum(parts[name] for name in names)

    # Forward once and backward twice, in 32 layers and 8 micro-batches; four experts more at ep 2.
    launches = 3 * 32 * 8 * (8 // 2 - 8 // 4) * each
    assert busy_s(2) - busy_s(4) == pytest.approx(0.1 * launches)


def test_what_the_host_issues_after_its_wait_hides_behind_the_mixture_alone(mixtral, h100_64):
    def launch_s(micro_batch: int, **options: object) -> float:
        layout = LAYOUT.but(micro_batch=micro_batch, ep=2)
        return priced(mixtral, h100_64, layout, **options).time_parts["launch"]

    long = {"host_mixture_s": 0.01, "host_micro_batch_s": 0.0}
    # What waits behind dispatch and experts would have hidden behind the whole layer.
    assert launch_s(1, **long) > launch_s(1, **long, experts_padded=True) > 0.0
    # Long kernels hide all of it.
    assert launch_s(4) < 0.01 * priced(mixtral, h100_64, LAYOUT.but(micro_batch=4)).step_time_s


@pytest.mark.parametrize(
    ("options", "before", "after"),
    [
        ({}, COUNTED, True),
        ({"graphs": "layers"}, 0.0, True),
        ({"experts_padded": True}, 1.0 - COUNTED * OF_SHAPES, False),
        ({"expert_overlapped": True}, 1.0, False),
        ({"graphs": "all"}, 0.0, False),
    ],
)
def test_only_what_counts_decide_waits_for_them(mixtral, h100_64, options, before, after):
    job = Job(
        seq_len=4096, global_batch=64, framework="megatron",
        framework_options={"host_mixture_s": 1.0, "host_kernel_s": 0.0, **options},
    )  # fmt: skip
    found = expert_launches(Setting.of(mixtral, h100_64, job), from_layouts([LAYOUT]))
    assert found.before == pytest.approx(before)
    assert (found.after > 0.0) == after


@pytest.mark.parametrize(
    ("changes", "pieces"),
    [({}, OVERLAP_NODES), ({"recompute": "full"}, 0), ({"pp": 2, "dp": 32}, 0)],
)
def test_the_host_cuts_layers_in_pieces_where_traffic_hides(mixtral, h100_64, changes, pieces):
    """Two micro-batches at once are issued piece by piece; where nothing hides the layer is issued whole."""

    def launches(**options: object):
        job = Job(
            seq_len=4096, global_batch=64, framework="megatron",
            framework_options={"host_mixture_s": 0.0, "host_kernel_s": 1e-5, **options},
        )  # fmt: skip
        return expert_launches(
            Setting.of(mixtral, h100_64, job), from_layouts([LAYOUT.but(**changes)])
        )

    apart, beside = launches(), launches(expert_overlapped=True)
    issued = beside.before + beside.after - apart.before - apart.after
    assert issued == pytest.approx(pieces * NODE_FORWARD * 1e-5)
    assert beside.backward - apart.backward == pytest.approx(pieces * NODE_BACKWARD * 1e-5)


def test_ranks_that_share_experts_gather_each_others_tokens_and_sum_the_outputs(mixtral, h100_64):
    layout = Layout(tp=2, dp=32, ep=4, micro_batch=1, zero=1, sequence_parallel=True)
    alone = priced(mixtral, h100_64, layout).time_parts["expert_parallel"]
    shared = priced(mixtral, h100_64, layout.but(etp=2)).time_parts["expert_parallel"]
    # Two choices a token in 16 bits, gathered and scattered each way, half of them from the other rank.
    micro_batches, tokens = 2, 4096
    crossing = 4 * 32 * micro_batches * (tokens * 2 * mixtral.hidden * 2.0) / 2
    assert shared - alone > crossing / 450e9


def test_biases_inside_experts_cost_passes_unless_fused(mixtral, h100_64):
    biased = with_experts(mixtral, expert_bias=True)
    plain = priced(mixtral, h100_64).time_parts["elementwise"]
    eager = priced(biased, h100_64).time_parts["elementwise"]
    fused = priced(biased, h100_64, expert_bias_fused=True).time_parts["elementwise"]
    assert fused == plain
    assert eager > 2 * plain


def test_recomputed_activations_repeat_the_forward_of_pointwise_kernels(mixtral, h100_64):
    without = priced(mixtral, h100_64)
    named = LAYOUT.but(recompute="selective", recompute_modules=["layernorm", "moe_act"])
    again = priced(mixtral, h100_64, named)
    assert without.time_parts["recompute"] == 0
    assert 0 < again.time_parts["recompute"] < again.time_parts["elementwise"] / 2
    assert again.memory_parts["activations"] < without.memory_parts["activations"]


def test_a_dense_model_knows_nothing_of_experts(llama70b):
    cluster = load_cluster("h100:8x8")
    layout = Layout(dp=8, tp=8, micro_batch=1, zero=1, sequence_parallel=True)
    options = {"expert_overlapped": True}
    first = priced(llama70b, cluster, layout)
    assert priced(llama70b, cluster, layout, **options).step_time_s == first.step_time_s


@pytest.mark.parametrize(("places", "choices"), [(4, 8), (8, 8), (32, 8), (2, 2), (64, 6), (1, 4)])
def test_distinct_places_are_those_of_random_choices(places, choices):
    draws = np.random.default_rng(7).integers(places, size=(20000, choices))
    distinct = np.mean([len(set(draw)) for draw in draws.tolist()])
    share = float(distinct_share(np.array([float(places)]), choices)[0])
    assert share * choices == pytest.approx(distinct, rel=0.02)


@pytest.mark.parametrize("places", [2, 4, 8, 32])
def test_a_router_that_chooses_groups_first_reaches_the_places_that_hold_them(places, mixtral):
    """DeepSeek-V3 chooses 4 of 8 groups of experts: places that hold none of these get nothing."""
    grouped = mixtral.but(numerics={"router_groups": 8, "router_group_top_k": 4})
    draws = np.random.default_rng(7).permuted(np.tile(np.arange(8), (20000, 1)), axis=1)[:, :4]
    if places >= 8:
        found = places / 2
    else:
        found = np.mean([len({int(group) * places // 8 for group in one}) for one in draws])
    assert reachable(grouped, np.array([float(places)]))[0] == pytest.approx(found, rel=0.02)
    assert reachable(mixtral, np.array([float(places)]))[0] == places


def test_tokens_dispatched_in_eight_bits_travel_in_three_quarters_of_the_bytes(mixtral, h100_64):
    over_hosts = LAYOUT.but(ep=32)
    wide = priced(mixtral, h100_64, over_hosts).time_parts["expert_parallel"]
    narrow = priced(mixtral, h100_64, over_hosts, expert_dispatch_bytes=1.0)
    assert narrow.time_parts["expert_parallel"] == pytest.approx(0.75 * wide, rel=0.02)


def test_deduplicated_dispatch_sends_less_between_hosts(mixtral, h100_64):
    many = with_experts(mixtral, top_k=8, experts=64, ffn=2048)
    over_hosts = LAYOUT.but(ep=32)
    plain = priced(many, h100_64, over_hosts).time_parts["expert_parallel"]
    once = priced(many, h100_64, over_hosts, expert_dispatch="deduplicated")
    # Of eight copies on four hosts 3.6 are distinct.
    assert once.time_parts["expert_parallel"] == pytest.approx(plain * 3.6 / 8, rel=0.1)


def test_recomputing_whole_layers_leaves_nothing_to_hide_dispatch_behind(mixtral, h100_64):
    def dispatch(recompute: str, **options: object) -> float:
        layout = LAYOUT.but(recompute=recompute)
        return priced(mixtral, h100_64, layout, **options).time_parts["expert_parallel"]

    assert dispatch("none", expert_overlapped=True) < 0.5 * dispatch("none")
    assert dispatch("full", expert_overlapped=True) == dispatch("full")


def test_graphs_leave_the_host_only_what_they_do_not_hold(mixtral, h100_64):
    slow = {"host_kernel_s": 5e-4}
    launch = [
        priced(mixtral, h100_64, graphs=graphs, **slow).time_parts["launch"]
        for graphs in ("none", "layers", "all")
    ]
    assert launch[0] > 2 * launch[1] > launch[2] == 0.0


def test_dispatch_in_a_rack_moves_what_hybrid_kernels_were_measured_at(mixtral):
    # DeepEP's hybrid-ep branch: 4,096 tokens of 7,168 in bf16 to 8 of 256 experts, 36 GB200, kernels alone: 632 and
    # 597 GB/s of what each token sends once to each rank that it visits.
    many = with_experts(mixtral.but(hidden=7168), top_k=8, experts=288, ffn=2048)
    rack = load_cluster("gb200:9x4")
    keys = {"dp": 36, "tp": 1, "ep": 36, "micro_batch": 1}
    job = Job(seq_len=4096, global_batch=36, framework_options={"expert_dispatch": "deduplicated"})
    setting = Setting.of(many, rack, job)
    whole = LayerModel(many, job, setting.kernels, setting.fabric, setting.behaviour)
    one = np.array([1])
    rows = LayerKeys(one, one, 36 * one, one, one, 0 * one, one, one, one, 0 * one)
    taken = float(dispatch_s(whole, rows, 4096 * one)[0])
    visited = 36 * (1 - (1 - 1 / 36) ** 8)
    sent = 4096 * 7168 * 2 * visited * 35 / 36
    assert taken == pytest.approx(sent / 632e9 + sent / 597e9, rel=0.1)
    # and a byte for each of 288 experts of every rank's tokens is gathered before
    gathered = float(routing_map_s(whole, rows, 4096 * one)[0])
    assert 36 * 4096 * 288 / 900e9 < gathered < 36 * 4096 * 288 / 400e9
    assert estimate(many, rack, job, Layout(zero=1, **keys)).step_time_s > 0


def test_only_dispatch_in_racks_gathers_where_tokens_go(mixtral, h100_64):
    job = Job(seq_len=4096, global_batch=64, framework_options={"expert_dispatch": "deduplicated"})
    setting = Setting.of(mixtral, h100_64, job)
    whole = LayerModel(mixtral, job, setting.kernels, setting.fabric, setting.behaviour)
    one = np.array([1])
    rows = LayerKeys(one, one, 8 * one, one, one, 0 * one, one, one, one, 0 * one)
    assert float(routing_map_s(whole, rows, 4096 * one)[0]) == 0.0


def test_layers_that_stay_in_16_bits_multiply_at_their_rate(mixtral):
    rack = load_cluster("gb200:16x4")
    four, none, all_of_it = (
        priced(mixtral, rack, precision=precision, layers_16bit=layers).time_parts["matmul"]
        for precision, layers in (("fp8", 8), ("fp8", 0), ("bf16", 0))
    )
    # a quarter of 32 layers; the rest of a job in bf16, such as gradients' bytes, is not in its products
    assert four == pytest.approx(0.75 * none + 0.25 * all_of_it, rel=1e-6)
