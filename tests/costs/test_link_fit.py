"""Fitting recovers what it is given, and says what it cannot know."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.costs.collectives import collective_cost
from meshwright.costs.fabric import Fabric, constant_names, place, with_constants
from meshwright.costs.link_fit import MeasuredCollective, fit_links
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError

SIZES = [2.0**p for p in range(13, 34, 2)]


def fabric(cluster="h100:2x8"):
    return Fabric.of(load_cluster(cluster))


def measured(truth, shapes, noise=0.0, collective="all_reduce"):
    random = np.random.default_rng(7)
    return [
        MeasuredCollective(
            collective, n, size,
            float(collective_cost(collective, truth, size, place(truth, n, stride=s)).total_s)
            * float(np.exp(noise * random.normal())), s,
        )
        for n, s in shapes for size in SIZES
    ]  # fmt: skip


def test_constants_of_another_cluster_are_recovered_from_noisy_times():
    shipped = fabric("a100-80g:1x8")
    changed = {"link.ring_fraction": 0.6, "link.base_s": 60e-6, "link.step_s": 6e-6}
    truth = with_constants(shipped, changed)
    fit = fit_links(shipped, measured(truth, [(2, 1), (4, 1), (8, 1)], noise=0.03))
    assert fit.error_before > 0.2
    assert fit.error_after < 0.04
    assert fit.constants["link.ring_fraction"] == pytest.approx(0.6, rel=0.08)
    assert fit.constants["link.base_s"] == pytest.approx(60e-6, rel=0.3)
    assert "network.reduce_fraction" in fit.not_identified, "nothing crossed the network"


def test_one_host_says_nothing_of_the_network_and_two_hosts_do():
    shipped = fabric()
    truth = with_constants(shipped, {"network.reduce_fraction": 0.5, "network.hop_latencies": 9.0})
    inside = fit_links(shipped, measured(truth, [(8, 1)]))
    assert not any(name.startswith("network.") for name in inside.constants)
    across = fit_links(shipped, measured(truth, [(2, 8), (16, 1)]))
    assert across.constants["network.reduce_fraction"] == pytest.approx(0.5, rel=0.05)
    assert across.error_after < 0.03 < across.error_before


def test_one_odd_row_does_not_move_a_constant():
    shipped = fabric("a100-80g:1x8")
    rows = measured(shipped, [(2, 1), (8, 1)])
    odd = rows[5]
    rows[5] = MeasuredCollective(odd.collective, odd.ranks, odd.size_bytes, odd.time_s * 20)
    fit = fit_links(shipped, rows)
    for name, value in fit.constants.items():
        assert value == pytest.approx(fit.before[name], rel=0.1), name


def test_bad_constants_and_empty_measurements_are_refused():
    with pytest.raises(SpecError, match="known"):
        with_constants(fabric(), {"link.warp": 1.0})
    with pytest.raises(SpecError, match="more than 0"):
        with_constants(fabric(), {"link.base_s": -1.0})
    with pytest.raises(SpecError, match="positive"):
        fit_links(fabric(), [])
    assert "link.nvls_fraction" not in constant_names(fabric("a100-80g:1x8"))


def test_a_clusters_own_constants_replace_the_shipped_ones():
    cluster = load_cluster("h100:2x8")
    fitted = cluster.but(link_constants={"network.reduce_fraction": 0.5})
    assert Fabric.of(fitted).network.reduce_fraction == 0.5
    assert Fabric.of(fitted).link == Fabric.of(cluster).link
    with pytest.raises(SpecError, match="known"):
        Fabric.of(cluster.but(link_constants={"network.nonsense": 1.0}))
