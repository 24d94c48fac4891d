"""Pricing of collectives: exact parts, one bit pattern alone and in a column, physics."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.costs.collectives import COSTS, bus_factor, ceil_log2, collective_cost
from meshwright.costs.fabric import Fabric, place
from meshwright.specs.cluster import Cluster, Device, LinkLevel
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError


def cluster(
    name="H100", link=450e9, kind="nvswitch", nodes=64, domain=8, network=50e9, latency=5e-6,
    nics=8, spine=None,
):  # fmt: skip
    device = Device(
        name=name, peak_flops={"bf16": 1e15}, memory_bytes=80e9, memory_bandwidth_bytes_s=3e12
    )
    levels = [LinkLevel(name="s", domain=domain, bandwidth_bytes_s=link, latency_s=1e-6, kind=kind)]
    if nodes > 1:
        leaf = domain * nodes if spine is None else domain * 8
        levels.append(LinkLevel(name="rail", domain=leaf, bandwidth_bytes_s=network,
                                latency_s=latency, nics_per_node=nics))  # fmt: skip
    if spine is not None:
        levels.append(LinkLevel(name="spine", domain=domain * nodes, bandwidth_bytes_s=network,
                                latency_s=2 * latency, oversubscription=spine))  # fmt: skip
    return Cluster(device=device, nodes=nodes, gpus_per_node=domain, levels=tuple(levels))


FABRICS = {
    "h100": Fabric.of(cluster()),
    "h100-spine": Fabric.of(cluster(spine=2.0)),
    "a100": Fabric.of(cluster("A100", 300e9, network=25e9)),
    "nvl72": Fabric.of(cluster("GB200", 900e9, domain=72, nodes=4)),
    "v100": Fabric.of(cluster("V100", 150e9, "nvlink", nodes=1)),
    "mi300x": Fabric.of(cluster("MI300X", 448e9, "mesh")),
    "torus": Fabric.of(cluster("TPU v5p", 540e9, "torus", nodes=1, domain=512)),
    "pcie": Fabric.of(cluster("L4", 31e9, "pcie")),
}


def seconds(fabric, collective, size, ranks, **where):
    return float(collective_cost(collective, fabric, size, place(fabric, ranks, **where)).total_s)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(FABRICS)), st.sampled_from(sorted(COSTS)), st.integers(0, 2**31))
def test_a_layout_alone_has_the_bits_it_has_in_a_column(name, collective, seed):
    fabric, random = FABRICS[name], np.random.default_rng(seed)
    rows = 257
    ranks = random.integers(1, 129, rows)
    stride = random.choice([1, 2, 3, 4, 8, 16, 24], rows)
    size = np.floor(10 ** random.uniform(0, 10.5, rows))
    column = collective_cost(collective, fabric, size, place(fabric, ranks, stride=stride))
    for i in (0, 1, 63, 128, 255, 256):
        group = place(fabric, int(ranks[i]), stride=int(stride[i]))
        alone = collective_cost(collective, fabric, float(size[i]), group)
        for part in ("total_s", "latency_s", "intra_s", "inter_s", "sent_bytes"):
            assert float(getattr(alone, part)) == getattr(column, part)[i], part


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(FABRICS)),
    st.sampled_from(sorted(COSTS)),
    st.integers(1, 64),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.floats(1, 1e10),
)
def test_parts_are_finite_add_up_and_grow_with_size(name, collective, ranks, stride, size):
    fabric = FABRICS[name]
    group = place(fabric, ranks, stride=stride)
    small = collective_cost(collective, fabric, size, group)
    large = collective_cost(collective, fabric, 2 * size, group)
    for cost in (small, large):
        parts = [float(cost.latency_s), float(cost.intra_s), float(cost.inter_s)]
        assert all(np.isfinite(p) and p >= 0 for p in parts)
        assert float(cost.total_s) == parts[0] + (parts[1] + parts[2])
    if ranks == 1:
        assert float(large.total_s) == 0
    else:
        assert float(small.total_s) <= float(large.total_s)
        assert float(small.total_s) > 0


@given(st.integers(1, 2**30))
def test_ceil_log2_is_that_of_integers(k):
    assert ceil_log2(k) == (k - 1).bit_length()


def test_tensor_parallelism_across_nodes_costs_what_the_network_gives():
    fabric = FABRICS["h100"]
    size = 64 * 2**20
    inside = seconds(fabric, "all_reduce", size, 8)
    across = seconds(fabric, "all_reduce", size, 16, local=8)
    one_a_node = seconds(fabric, "all_reduce", size, 2, stride=8)
    assert 1.2 < across / inside < 4
    assert one_a_node > 2.5 * inside, "one card a group is far slower than NVLink"
    # A group's bandwidth across nodes grows with the members that bring their cards.
    large = 2**32
    times = [seconds(fabric, "all_gather", large, 4 * m, local=m) for m in (1, 2, 4)]
    assert times[0] / times[1] == pytest.approx(2, rel=0.2)
    assert times[1] / times[2] == pytest.approx(2, rel=0.2)


def test_local_and_stride_name_the_same_placement():
    for fabric in (FABRICS["h100"], FABRICS["h100-spine"], FABRICS["nvl72"]):
        domain = fabric.levels[0].domain
        for stride in (1, 2, 4):
            by_stride = place(fabric, 16 * domain // 8, stride=stride)
            by_local = place(
                fabric, 16 * domain // 8, local=min(domain // stride, 16 * domain // 8)
            )
            assert [float(m) for m in by_stride.members] == [float(m) for m in by_local.members]


def test_oversubscription_binds_only_groups_that_cross_the_spine():
    flat, thin = FABRICS["h100"], FABRICS["h100-spine"]
    size = 2**30
    inside = {"ranks": 8, "stride": 8}  # eight nodes of one leaf
    across = {"ranks": 2, "stride": 64}  # two leaves
    assert seconds(flat, "all_gather", size, **inside) == seconds(
        thin, "all_gather", size, **inside
    )
    slower = seconds(thin, "all_gather", size, **across) / seconds(
        flat, "all_gather", size, **across
    )
    assert slower == pytest.approx(2.0, rel=0.1)


def test_cards_shared_by_two_devices_serve_one_group_alone_twice_as_fast():
    fabric = Fabric.of(cluster("A100", 300e9, network=6.25e9, nics=4))
    together = seconds(fabric, "all_gather", 2**30, 4, stride=8)
    alone = seconds(fabric, "all_gather", 2**30, 4, stride=8, sharing=1)
    assert together / alone == pytest.approx(2.0, rel=0.05)


def test_point_to_point_links_add_up_with_the_group():
    fabric = FABRICS["mi300x"]
    bandwidth = [
        float(bus_factor("all_reduce", n)) * 2**33 / seconds(fabric, "all_reduce", 2**33, n)
        for n in (2, 4, 8)
    ]
    assert bandwidth[1] / bandwidth[0] == pytest.approx(3, rel=0.05)
    assert bandwidth[2] / bandwidth[0] == pytest.approx(7, rel=0.05)


def test_unknown_collective_is_refused_with_the_nearest_name():
    with pytest.raises(SpecError, match="all_reduce"):
        collective_cost("all-reduse", FABRICS["h100"], 1.0, place(FABRICS["h100"], 8))


def test_links_between_domains_of_a_host_are_not_network_cards():
    fabric = Fabric.of(load_cluster("frontier:2"))
    assert [level.kind for level in fabric.levels] == ["mesh", "mesh", "network"]
    small = [seconds(fabric, "all_gather", 1024, 2, stride=s) for s in (1, 2, 8)]
    assert small[0] < small[1] < small[2]
    assert small[1] - small[0] < 5e-6 < small[2] - small[0]


@pytest.mark.parametrize(
    ("name", "constants"),
    [("h100", "nvlink4"), ("h200", "nvlink4"), ("a100-80g", "nvlink3"), ("b200", "nvlink5"),
     ("gb200", "nvlink5"), ("v100-32g", "nvlink2"), ("mi300x", "infinity-fabric"),
     ("tpu-v5p", "ici-torus"), ("l40s", "pcie")],
)  # fmt: skip
def test_presets_find_the_constants_of_their_links(name, constants):
    assert Fabric.of(load_cluster(name)).link.name == constants


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(sorted(FABRICS)), st.sampled_from(sorted(COSTS)), st.integers(2, 256),
    st.sampled_from([1, 2, 4, 8]), st.floats(1e3, 1e11),
)  # fmt: skip
def test_no_collective_beats_the_links_it_crosses(name, collective, ranks, stride, size):
    fabric = FABRICS[name]
    ranks = min(ranks, fabric.levels[-1].domain // stride)
    group = place(fabric, ranks, stride=stride)
    cost = collective_cost(collective, fabric, size, group)
    inner = fabric.levels[0].bandwidth_bytes_s
    crossing = float(group.domains[0]) > 1
    # A device sends at most at its fastest link's rate, and a whole domain at its cards' rate.
    if not crossing and fabric.levels[0].kind != "torus":
        assert float(cost.total_s) >= float(cost.sent_bytes) / inner
    if crossing and collective in ("all_gather", "reduce_scatter"):
        members = float(group.members[0])
        leaving = size * (1 - members / ranks)
        assert float(cost.total_s) >= leaving / (members * fabric.levels[1].bandwidth_bytes_s)


def test_a_torus_is_crossed_axis_by_axis():
    pod = FABRICS["torus"]
    small = seconds(pod, "all_gather", 1024, 512)
    assert small < 30e-6, "three axes of eight: 21 hops, not 511"


def test_a_broadcast_waits_for_its_own_chunks_at_every_hop():
    """Of an all-gather each member starts with a share; a broadcast's whole message starts at one."""
    fabric, size = FABRICS["a100"], 64e6
    gathers = [seconds(fabric, "all_gather", size, ranks) for ranks in (64, 512)]
    casts = [seconds(fabric, "broadcast", size, ranks) for ranks in (64, 512)]
    assert casts[0] > gathers[0]
    assert casts[1] - casts[0] > 1.5 * (gathers[1] - gathers[0])
