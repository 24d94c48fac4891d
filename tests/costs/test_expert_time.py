"""Time of mixture-of-experts layers: overlap of their all-to-alls, launches, biases, recomputation."""

import pytest

from meshwright.costs.step import EXPERT_KERNELS, EXPERT_KERNELS_8BIT, estimate
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


def test_overlapped_all_to_alls_that_fit_behind_the_compute_cost_only_their_slowdown(
    mixtral, h100_64
):
    apart = priced(mixtral, h100_64).time_parts
    beside = priced(mixtral, h100_64, expert_overlapped=True).time_parts
    compute = sum(apart[name] for name in ("matmul", "attention", "elementwise"))
    assert apart["expert_parallel"] < compute
    assert beside["expert_parallel"] == pytest.approx(0.126 * apart["expert_parallel"])
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
    assert beside["expert_parallel"] == pytest.approx(out + 0.126 * compute)


@pytest.mark.parametrize(
    ("precision", "each"), [("bf16", EXPERT_KERNELS), ("fp8", EXPERT_KERNELS_8BIT)]
)
def test_each_local_expert_is_launched_by_the_host(mixtral, h100_64, precision, each):
    # So slow a host that it sets the pace: what an expert adds is then exactly its launches.
    slow = {"host_kernel_s": 0.01, "host_micro_batch_s": 0.0, "host_collective_s": 0.0}

    def busy_s(ep):
        parts = priced(mixtral, h100_64, LAYOUT.but(ep=ep), precision, **slow).time_parts
        names = (
            "launch", "matmul", "attention", "elementwise", "expert_parallel",
            "embedding_and_head", "recompute",
        )  # fmt: skip
        return sum(parts[name] for name in names)

    # Forward once and backward twice, in 32 layers and 8 micro-batches; four experts more at ep 2.
    launches = 3 * 32 * 8 * (8 // 2 - 8 // 4) * each
    assert busy_s(2) - busy_s(4) == pytest.approx(0.01 * launches)


def test_biases_inside_experts_cost_passes_unless_fused(mixtral, h100_64):
    biased = with_experts(mixtral, expert_bias=True)
    plain = priced(mixtral, h100_64).time_parts["elementwise"]
    eager = priced(biased, h100_64).time_parts["elementwise"]
    fused = priced(biased, h100_64, expert_bias_fused=True).time_parts["elementwise"]
    assert fused == plain
    assert eager > 2 * plain


def test_recomputed_activations_repeat_the_forward_of_pointwise_kernels(mixtral, h100_64):
    without = priced(mixtral, h100_64).time_parts
    parts = priced(mixtral, h100_64, activations_recomputed=True).time_parts
    assert without["recompute"] == 0
    assert 0 < parts["recompute"] < parts["elementwise"] / 2
    full = LAYOUT.but(recompute="full")
    whole = priced(mixtral, h100_64, full)
    assert priced(mixtral, h100_64, full, activations_recomputed=True).step_time_s == (
        whole.step_time_s
    )


def test_a_dense_model_knows_nothing_of_experts(llama70b):
    cluster = load_cluster("h100:8x8")
    layout = Layout(dp=8, tp=8, micro_batch=1, zero=1, sequence_parallel=True)
    options = {"expert_overlapped": True, "activations_recomputed": True}
    first = priced(llama70b, cluster, layout)
    assert priced(llama70b, cluster, layout, **options).step_time_s == first.step_time_s
