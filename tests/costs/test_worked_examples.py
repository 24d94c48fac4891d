"""The lessons' worked examples W1 to W18: public functions give the numbers."""

import numpy as np
import pytest

from meshwright.costs import closed_forms as forms
from meshwright.costs.alpha_beta import ring_all_reduce
from meshwright.specs.clusters import load_cluster
from meshwright.specs.devices import load_device
from meshwright.specs.job import RECIPES
from meshwright.specs.layout import Layout
from meshwright.specs.models import load_model
from meshwright.specs.quantities import format_bytes

BF16 = RECIPES["bf16"]
GB = 1e9


def states(parameters, zero=0, shards=1, recipe=BF16):
    return forms.model_state_bytes(parameters, recipe, zero=zero, shards=shards)


def test_w1_seventy_billion_weights_are_140_gb():
    held = states(70e9)
    assert held.parameters == 140 * GB > load_device("a100-80g").memory_bytes
    assert held.total == 1120 * GB == 14 * 80 * GB


def test_w2_a_batch_of_64_on_4_devices_is_16_each():
    assert 64 / 4 == 16
    assert forms.effective_batch(dp=4, micro_batch=16) == 64
    assert Layout(dp=4, micro_batch=16).micro_batches(64) == 1


def test_w3_seven_billion_mixed_adam_is_112_gb():
    held = states(7e9)
    assert tuple(part / GB for part in held) == (14, 14, 28, 56)
    assert held.total == 112 * GB
    assert format_bytes(held.total) == "104.3 GiB"


def test_w4_seventy_billion_is_1_12_tb():
    assert states(70e9).total == pytest.approx(1.12e12)


def test_w5_ring_at_25_gb_s():
    ring = ring_all_reduce(2 * GB, 8, 25 * GB)
    assert (ring.steps, ring.sent_bytes) == (14, 3.5 * GB)
    assert ring.time_s == pytest.approx(0.14)


def test_w6_half_the_bandwidth_takes_twice_as_long():
    assert ring_all_reduce(2 * GB, 8, 12.5 * GB).time_s == pytest.approx(0.28)


@pytest.mark.parametrize(
    ("micro_batches", "percent"), [(1, 75.0), (4, 42.857), (16, 15.789)], ids=["w7", "w8", "w9"]
)
def test_w7_w8_w9_bubbles_of_four_stages(micro_batches, percent):
    assert 100 * forms.bubble_fraction(4, micro_batches) == pytest.approx(percent, abs=1e-3)


def test_w10_1f1b_keeps_an_eighth_of_gpipes_activations():
    gpipe = forms.in_flight_micro_batches(4, 32, 0, "gpipe")
    kept = forms.in_flight_micro_batches(4, 32, np.arange(4))
    assert gpipe / kept[0] == 8
    assert kept.tolist() == [4, 3, 2, 1]
    assert gpipe / kept[3] == 32


def test_w11_seven_billion_on_eight_devices():
    table = [states(7e9, zero, 8).total / GB for zero in range(4)]
    assert table == [112, 38.5, 26.25, 14]


def test_w12_thirteen_billion():
    assert states(13e9).total == 208 * GB
    assert states(13e9, 3, 16).total == 13 * GB


def test_w13_64_devices_are_4_by_4_by_4():
    assert forms.devices(dp=4, tp=4, pp=4) == 64 == Layout(dp=4, tp=4, pp=4).world
    assert load_cluster("h100:16x4").gpus == 64


def test_w14_mt_nlg_arithmetic():
    assert forms.devices(tp=8, pp=35, dp=4) == 1120


def test_w15_one_billion_is_16_gb():
    assert states(1e9).total == 16 * GB


def test_w16_112_gb_becomes_a_configuration():
    capacity = load_device("a100-80g").memory_bytes
    assert states(7e9).total > capacity
    fits = [zero for zero in range(4) if states(7e9, zero, 8).total < capacity]
    assert fits == [1, 2, 3]
    assert states(7e9 / 2).total < capacity  # or tensor parallelism of two


def test_w17_the_slowest_stage_sets_the_pace():
    even, uneven = [0.010] * 4, [0.010, 0.020, 0.010, 0.010]
    more = forms.pipeline_time_s(uneven, 101) - forms.pipeline_time_s(uneven, 100)
    assert more == pytest.approx(0.020)
    assert forms.pipeline_time_s(even, 101) - forms.pipeline_time_s(even, 100) == pytest.approx(
        0.010
    )


def test_w18_zero_reductions_at_eight_and_in_the_limit():
    at_eight = [states(7e9).total / states(7e9, zero, 8).total for zero in (1, 2, 3)]
    assert [round(ratio, 2) for ratio in at_eight] == [2.91, 4.27, 8.0]
    many = 10**9
    limits = [states(7e9).total / states(7e9, zero, many).total for zero in (1, 2, 3)]
    assert limits == pytest.approx([4, 8, many], rel=1e-6)


def test_check_questions_of_the_lessons():
    assert 256 / 8 == 32 == 256 / forms.effective_batch(8, 1)
    assert forms.bubble_fraction(4, 8) == pytest.approx(3 / 11)
    model = load_model("70B")
    assert model.heads % 8 == 0
    # (dp, tp, pp) on 256 devices: model-state GB without ZeRO and with ZeRO-1.
    for (dp, tp, pp), plain, sharded in [
        ((16, 8, 2), 70, 20.8), ((8, 8, 4), 35, 12.0), ((4, 8, 8), 17.5, 7.7), ((32, 8, 1), 140, 38.3),
    ]:  # fmt: skip
        held = 70e9 / (tp * pp)
        assert states(held).total / GB == pytest.approx(plain)
        assert states(held, 1, dp).total / GB == pytest.approx(sharded, abs=0.05)


@pytest.mark.parametrize(
    ("size", "layout", "zero", "gigabytes"),
    [
        (1e9, (8, 1, 1), 0, 16), (30e9, (1, 8, 1), 0, 60), (30e9, (2, 4, 1), 0, 120),
        (30e9, (2, 4, 1), 1, 75), (30e9, (8, 1, 1), 3, 60), (200e9, (1, 8, 8), 0, 50),
        (200e9, (2, 8, 4), 0, 100), (200e9, (2, 8, 4), 1, 62.5), (200e9, (64, 1, 1), 3, 50),
        (13e9, (16, 1, 1), 1, 61.75), (13e9, (16, 1, 1), 2, 37.375), (13e9, (16, 1, 1), 3, 13),
        (30e9, (4, 8, 1), 1, 26.25), (30e9, (2, 8, 2), 1, 18.75), (30e9, (8, 4, 1), 1, 41.25),
        (70e9, (8, 8, 1), 1, 48.125), (70e9, (4, 8, 2), 1, 30.625), (70e9, (2, 8, 4), 1, 21.875),
        (70e9, (16, 4, 1), 1, 83.125), (70e9, (64, 1, 1), 3, 17.5),
    ],
)  # fmt: skip
def test_exercises_and_drills(size, layout, zero, gigabytes):
    """E-a to E-d, D13, D14: model states in GB per device."""
    dp, tp, pp = layout
    assert states(size / (tp * pp), zero, dp).total / GB == pytest.approx(gigabytes)


def test_drill_12_a_bubble_of_35_percent():
    assert forms.bubble_fraction(8, 13) == pytest.approx(0.35)
    assert forms.bubble_fraction(8, 13, 2) == pytest.approx(7 / 33)
    assert forms.bubble_fraction(8, 13, 4) == pytest.approx(7 / 59)
    assert forms.bubble_fraction(4, 13) == pytest.approx(3 / 16)


def test_drill_11_a_fixed_batch_on_more_devices():
    small, large = forms.bubble_fraction(8, 32), forms.bubble_fraction(8, 8)
    assert (round(small, 3), round(large, 3)) == (0.179, 0.467)
    assert round((1 - large) / (1 - small) - 1, 2) == -0.35
