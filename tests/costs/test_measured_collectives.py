"""Measured collectives between and beyond the sizes that a machine had time for."""

import numpy as np
import pytest

from meshwright.costs.fabric import Fabric
from meshwright.costs.measured_machine import Machine
from meshwright.specs.clusters import load_cluster
from meshwright.specs.measured import MeasuredCollective

MIB = 2.0**20


def machine(*curves):
    cluster = load_cluster("cpu:1x4")
    plain = [one.model_dump() for one in curves]
    cluster = cluster.but(collectives=plain)
    return Machine(cluster, {}, {}, Fabric.of(cluster))


def curve(sizes, times, members=2, active=4):
    return MeasuredCollective(
        collective="all_reduce", members=members, active=active, sizes_bytes=sizes, times_s=times
    )


def time_of(made, size, members=2.0, active=4.0):
    columns = (np.full(1, float(x)) for x in (size, members, 1, active))
    return float(made.message_s("all_reduce", *columns)[0])


def test_one_small_size_is_latency_and_no_rate():
    # 1 ms for 4 KiB over its size would make a MiB take a quarter of a second.
    made = machine(curve((4096.0,), (1e-3,)))
    rate = made.fabric.levels[0].bandwidth_bytes_s
    wanted = 1e-3 + (MIB - 4096) / rate  # an all-reduce of two sends its size once
    assert time_of(made, MIB) == pytest.approx(wanted, rel=1e-6)


def test_a_curve_of_one_size_goes_on_as_another_of_its_kind():
    steep = curve((4096.0, MIB), (5e-4, 5e-4 + 1e-9 * (MIB - 4096)), members=4)
    made = machine(curve((4096.0,), (1e-3,)), steep)
    assert time_of(made, MIB) == pytest.approx(1e-3 + 1e-9 * (MIB - 4096), rel=1e-6)


def test_a_curve_that_falls_by_noise_does_not_go_on_flat():
    made = machine(curve((4096.0, MIB), (1.1e-3, 1e-3)))
    rate = made.fabric.levels[0].bandwidth_bytes_s
    assert time_of(made, 3 * MIB) == pytest.approx(1e-3 + 2 * MIB / rate, rel=1e-6)


def test_between_measured_sizes_and_beyond_them_a_curve_is_followed():
    made = machine(curve((4096.0, MIB), (1e-3, 3e-3)))
    assert time_of(made, (4096 + MIB) / 2) == pytest.approx(2e-3)
    assert time_of(made, 2 * MIB - 4096) == pytest.approx(5e-3)
