"""Kernels by shape and device: what the measured tables give, and what must not depend on chance."""

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

from meshwright.costs.columns import from_layouts
from meshwright.costs.kernel_tables import CHIPS, measured, measured_chip
from meshwright.costs.kernels import (
    expert_times_s,
    flash_attention_time_s,
    gemm_time_s,
    generation,
    generations,
    kernels_for,
    linear_times_s,
)
from meshwright.costs.step import price
from meshwright.specs import Job, Layout, load_cluster, load_model, presets
from meshwright.specs.devices import device_names, load_device
from meshwright.specs.job import RECIPES

KERNELS = Path(__file__).parents[3] / "shared" / "kernels"


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.fixture(scope="module")
def h100():
    return kernels_for(load_cluster("h100:1x8").device, "bf16")


def test_every_generation_names_a_measured_device_of_like_build():
    assert {str(table["like"]) for table in generations().values()} <= set(measured())
    assert set(CHIPS.values()) <= set(measured())


def test_no_nvidia_preset_is_of_an_unknown_generation():
    nvidia = [
        name for name in device_names() if presets.table("devices")[name]["vendor"] == "nvidia"
    ]
    unknown = [name for name in nvidia if generation(load_device(name)) == "other"]
    assert len(nvidia) > 20 and not unknown
    assert generation(load_device("a6000")) == generation(load_device("a40")) == "ampere"
    assert generation(load_device("rtx-pro-6000")) == "ada"  # sm_120 multiplies as sm_89 does


def test_measured_rates_lie_below_the_data_sheets():
    for device, table in measured().items():
        for kind, values in table["products"].items():
            # A data sheet's peak counts boost clocks that some devices exceed in 8 bits.
            assert 0.25 < values["rate"] < 1.0, (device, kind)
        for kind, values in table.get("experts", {}).items():
            assert 0.5 < values["over_dense"] <= 1.0, (device, kind)


def test_a_device_without_a_table_takes_its_presets_measured_rate():
    one, other = (load_cluster(f"{name}:1x8").device for name in ("mi300x", "mi325x"))
    assert measured_chip(one) is None
    shares = [
        kernels_for(d, "bf16").gemm_sustained / d.matmul_efficiency["bf16"] for d in (one, other)
    ]
    assert shares[0] == pytest.approx(shares[1])
    assert kernels_for(one, "bf16").gemm_sustained < kernels_for(other, "bf16").gemm_sustained


def test_longer_products_run_at_higher_rates(h100):
    inner = ints(256, 1024, 4096, 16384)
    times = gemm_time_s(h100, ints(8192), ints(4096), inner)
    rates = 2.0 * 8192 * 4096 * inner / times
    assert (np.diff(rates) > 0).all()
    assert rates[-1] < h100.peak_flops * h100.gemm_sustained


def test_the_number_of_tokens_may_be_odd_but_a_width_should_not(h100):
    even, odd = (
        linear_times_s(h100, ints(n), ints(4096), ints(4096), frozen=False) for n in (4096, 4097)
    )
    assert odd[0][0] == pytest.approx(even[0][0], rel=0.05)
    assert odd[1][0] == pytest.approx(even[1][0], rel=0.05)
    wide, ragged = (
        linear_times_s(h100, ints(4096), ints(n), ints(4096), frozen=False) for n in (50258, 50257)
    )
    assert ragged[0][0] > 1.5 * wide[0][0]


def test_experts_cost_alike_whatever_the_average_of_their_tokens(h100):
    each = np.linspace(250.0, 262.0, 49)
    forward, backward = expert_times_s(h100, ints(16), each, ints(3072), ints(4096), frozen=False)
    for times in (forward, backward):
        assert (np.abs(np.diff(times)) / times[:-1] < 0.01).all()


@pytest.mark.parametrize("lengths", [(4080, 4096, 4112)])
def test_an_expert_model_has_no_step_between_near_sequence_lengths(lengths):
    cluster, model = load_cluster("h100:4x8"), load_model("mixtral-8x7b")
    layout = Layout(dp=32, ep=8, micro_batch=1, zero=1)
    per_token = []
    for seq_len in lengths:
        job = Job(seq_len=seq_len, global_batch=256, framework="megatron")
        step = price(model, cluster, job, from_layouts([layout])).step_time_s[0]
        per_token.append(step / seq_len)
    assert max(per_token) < 1.03 * min(per_token)


def test_frozen_weights_spare_their_gradient_and_eight_bits_cast_each_operand_once():
    device = load_cluster("h100:1x8").device
    eight = kernels_for(device, "fp8")
    shape = (ints(8192), ints(4096), ints(4096))
    trained, frozen = (linear_times_s(eight, *shape, frozen=f) for f in (False, True))
    assert trained[0] == frozen[0] and trained[1] > 1.5 * frozen[1]
    plain = gemm_time_s(eight, *shape)
    cast = eight.fp8_quantize * 8192 * 4096 / eight.bandwidth_bytes_s
    assert trained[0][0] == pytest.approx(plain[0] + cast)


def test_weights_are_cast_once_a_step_and_frozen_ones_never():
    cluster, model = load_cluster("h100:1x8"), load_model("llama-3.1-8b")
    layout = from_layouts([Layout(dp=8, micro_batch=1, zero=1)])

    def optimizer_s(**job: object) -> float:
        base = {"seq_len": 4096, "framework": "megatron", **job}
        return float(price(model, cluster, Job(**base), layout).time_parts["optimizer"][0])

    fp8 = {"precision": RECIPES["fp8"]}
    once, often = (optimizer_s(global_batch=n, **fp8) for n in (8, 64))
    assert once == often > optimizer_s(global_batch=8)
    assert optimizer_s(global_batch=8, lora_rank=16, **fp8) < 0.1 * once


def test_the_head_stays_in_16_bits_where_layers_have_fewer():
    """Megatron-Core's output layer is not Transformer Engine's; torchtitan's and MaxText's is not converted."""
    cluster, model = load_cluster("b200:1x8"), load_model("llama-3.1-8b")
    layout = from_layouts([Layout(dp=8, micro_batch=1, zero=1)])

    def parts(recipe: str, compute: str) -> dict[str, np.ndarray]:
        precision = RECIPES[recipe].but(compute=compute)
        job = Job(seq_len=8192, global_batch=8, framework="megatron", precision=precision)
        return price(model, cluster, job, layout).time_parts

    wide = parts("bf16", "bf16")
    for narrow in (parts("fp8", "fp8"), parts("fp8", "fp4")):
        assert narrow["embedding_and_head"] == wide["embedding_and_head"]
        assert narrow["matmul"] < 0.8 * wide["matmul"]


@pytest.mark.parametrize(
    ("system", "device"), [("h100_sxm", "h100"), ("gb300", "gb300"), ("a100_sxm", "a100-80g")]
)
def test_products_follow_the_measured_kernels(system, device):
    """The shipped constants against the kernels themselves, alone: median error at most 8 %."""
    file = KERNELS / "gemm.csv.gz"
    if not file.is_file():
        pytest.skip("the measured kernels are not beside this checkout")
    table = measured()[device]["products"]["bf16"]
    hardware = load_cluster(f"{device}:1x1").device
    kernels = kernels_for(hardware.but(matmul_efficiency={"sustained_bf16": table["rate"]}), "bf16")
    with gzip.open(file, "rt") as handle:
        rows = [
            (int(r["m"]), int(r["n"]), int(r["k"]), float(r["latency_ms"]) / 1e3)
            for r in csv.DictReader(handle)
            if r["system"] == system and r["gemm_dtype"] == "bfloat16" and int(r["m"]) >= 2048
            and int(r["n"]) >= 1024 and int(r["k"]) >= 1024
        ]  # fmt: skip
    m, n, k, measured_s = (np.array(column) for column in zip(*rows, strict=True))
    predicted = gemm_time_s(kernels, m, n, k)
    assert np.median(np.abs(predicted / measured_s - 1.0)) < 0.08


def test_flash_attentions_backward_loses_more_on_short_sequences_than_its_forward(h100):
    # FlashAttention-3 on H100, 4 sequences of 48 heads of 128, causal (meta-pytorch/tritonbench pull
    # request 1267): microseconds forward and backward.
    measured = {2048: (368.35, 1631.26), 4096: (1236.90, 4643.46), 8192: (4817.44, 15308.16)}

    def time_s(length: int, backward: bool) -> float:
        return float(
            flash_attention_time_s(
                h100, sequences=ints(4), query_len=ints(length),
                pairs_per_query=np.array([length / 2]), heads=ints(48), qk_dim=128, v_dim=128,
                generation=3, backward=backward,
            )[0]
        )  # fmt: skip

    ours = {length: time_s(length, True) / time_s(length, False) for length in measured}
    theirs = {length: backward / forward for length, (forward, backward) in measured.items()}
    for length in measured:
        assert ours[length] == pytest.approx(theirs[length], rel=0.15)
    assert ours[2048] / ours[8192] == pytest.approx(theirs[2048] / theirs[8192], rel=0.1)


def test_consumer_cards_keep_their_halved_tensor_cores_busy():
    # A 4090's sheet says 165 TFLOP/s with fp32 accumulation; flash attention alone reaches 169.
    card = kernels_for(load_cluster("rtx4090:1x1").device, "bf16")
    workstation = kernels_for(load_cluster("rtx6000-ada:1x1").device, "bf16")
    assert card.gemm_sustained > 0.75 > workstation.gemm_sustained
    assert card.flash_forward[1] > 0.9


@pytest.mark.parametrize(
    ("generation", "tflops"),
    # Dao-AILab/flash-attention issue 1310, forward over 2,048 keys, two sequences, width 128
    [(2, 83.7), (3, 129.1)],
)
def test_a_chip_held_to_a_quarter_of_its_rate_is_kept_busy(generation, tflops):
    cut, whole = (kernels_for(load_device(name), "bf16") for name in ("h20", "h100"))
    assert cut.gemm_sustained > 0.8 > whole.gemm_sustained
    seconds = flash_attention_time_s(
        cut, sequences=np.array([2]), query_len=np.array([2048]), pairs_per_query=np.array([2048.0]),
        heads=np.array([32]), qk_dim=128, v_dim=128, generation=generation, backward=False,
    )[0]  # fmt: skip
    assert 4.0 * 2 * 32 * 128 * 2048**2 / seconds == pytest.approx(tflops * 1e12, rel=0.15)
