"""The lessons' worked examples, and where the closed forms must agree with each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costs import alpha_beta as ab
from meshwright.specs.quantities import parse_bandwidth


def test_worked_example_eight_ranks_two_gigabytes_at_25_gigabytes_a_second():
    form = ab.ring_all_reduce(2e9, 8, 25e9)
    assert form.steps == 14
    assert form.sent_bytes == pytest.approx(3.5e9)
    assert form.time_s == pytest.approx(0.14)


def test_worked_example_at_half_the_bandwidth_takes_twice_as_long():
    assert ab.ring_all_reduce(2e9, 8, 12.5e9).time_s == pytest.approx(0.28)


def test_one_h100_direction_is_450_gigabytes_a_second_not_25():
    # 25 GB/s is one NVLink lane; 900 GB/s counts 18 lanes in both directions.
    assert ab.ring_all_reduce(2e9, 8, 18 * 25e9).time_s == pytest.approx(7.78e-3, rel=1e-2)


def test_bits_and_bytes_of_the_lessons_links():
    assert parse_bandwidth("100Gb/s") == 12.5e9, "12.5 GB/s is 100 Gb/s Ethernet, not PCIe"
    assert [parse_bandwidth(f"{g}Gb/s") for g in (200, 400)] == [25e9, 50e9]
    # 200-400 GB/s is a whole node of eight such cards.
    assert 8 * parse_bandwidth("400Gb/s") == 400e9


def test_the_ring_is_nearly_independent_of_n_only_in_bandwidth():
    free = ab.ring_all_reduce(1e9, np.array([8, 1024]), 50e9).time_s
    assert free[1] / free[0] < 1.15
    slow = ab.ring_all_reduce(1e6, np.array([8, 1024]), 50e9, latency_s=5e-6).time_s
    assert slow[1] / slow[0] > 60, "2(N-1) latencies dominate a small bucket on a thousand ranks"


@given(st.integers(2, 4096), st.floats(1, 1e12), st.floats(1e8, 1e12), st.floats(0, 1e-3))
def test_ring_all_reduce_is_a_reduce_scatter_and_an_all_gather(n, size, bandwidth, latency):
    whole = ab.ring_all_reduce(size, n, bandwidth, latency)
    half = ab.ring_all_gather(size, n, bandwidth, latency)
    assert whole.time_s == pytest.approx(2 * half.time_s)
    assert whole.sent_bytes < 2 * size, "never twice the tensor, whatever N"
    assert whole.time_s <= ab.gather_to_one_all_reduce(size, n, bandwidth, latency).time_s * (
        1 + 1e-12
    )


@given(st.integers(0, 12), st.floats(1, 1e12))
def test_powers_of_two_halving_doubling_sends_what_the_ring_sends_in_fewer_steps(power, size):
    n = 2**power
    ring, halving = ab.ring_all_reduce(size, n, 1e9), ab.halving_doubling_all_reduce(size, n, 1e9)
    assert halving.sent_bytes == pytest.approx(ring.sent_bytes)
    assert halving.steps == 2 * power


@pytest.mark.parametrize("n", [3, 5, 6, 7, 9, 15])
def test_halving_doubling_pays_for_ranks_beyond_the_power_of_two(n):
    power = 2 ** (n.bit_length() - 1)
    odd, even = (ab.halving_doubling_all_reduce(1e9, k, 1e9) for k in (n, power))
    assert odd.steps == even.steps + 2
    assert odd.time_s == pytest.approx(even.time_s + 2.0)


def test_hierarchy_puts_a_card_per_rank_to_work():
    # Two nodes of eight: X/8 crosses through each of eight cards.
    form = ab.hierarchical_all_reduce(8e9, 8, 2, 450e9, 50e9)
    assert form.time_s == pytest.approx(2 * 7e9 / 450e9 + 1e9 / 50e9)
    flat = ab.ring_all_reduce(8e9, 16, 50e9)
    assert form.time_s < flat.time_s / 4


def test_a_torus_of_one_dimension_is_a_ring_and_dimensions_cut_latency():
    assert ab.torus_all_reduce(1e9, [16], 1e11, 1e-6) == pytest.approx(
        ab.ring_all_reduce(1e9, 16, 1e11, 1e-6)
    )
    assert ab.torus_all_reduce(1e9, [4, 4], 1e11, 1e-6).steps == 12
    assert ab.torus_all_reduce(1e9, [4, 4], 1e11).sent_bytes == pytest.approx(2 * 15 / 16 * 1e9)


def test_pipelining_chunks_hides_all_but_one_stage():
    assert ab.pipelined(16, 4, 1.0) == 19
    assert ab.pipelined(1, 4, 1.0) == 4


def test_tree_needs_logarithmically_many_steps():
    steps = ab.tree_all_reduce(1.0, np.array([1, 2, 3, 8, 9, 1024]), 1e9).steps
    assert steps.tolist() == [0, 2, 4, 6, 8, 20]
