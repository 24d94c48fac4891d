"""NCCL's choices, where its published logs and documentation say what it chooses."""

from __future__ import annotations

import pytest

from meshwright.costs.fabric import Fabric, place
from meshwright.costs.nccl import candidates, reason
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError


def best(collective, cluster, size, ranks, **where):
    fabric = Fabric.of(load_cluster(cluster))
    return candidates(collective, fabric, size, place(fabric, ranks, **where))


@pytest.mark.parametrize(
    ("cluster", "size", "algorithm"),
    [
        ("h100:1x8", 8 * 2**30, "nvls"),  # NVIDIA dgxc-benchmarking: default (NVLS)
        ("h100:2x8", 8 * 2**30, "nvls-tree"),
        ("a100-80g:1x8", 2**30, "ring"),  # ml-engineering: Ring
        ("a100-80g:8x8", 2**30, "ring"),
        ("a100-80g:16x8", 8192, "tree"),  # small messages over many nodes climb a tree
    ],
)
def test_all_reduce_choices(cluster, size, algorithm):
    ranks = load_cluster(cluster).gpus
    found = best("all_reduce", cluster, size, ranks)
    assert found[0].algorithm == algorithm
    assert found[0].algorithm in reason(found)


def test_small_messages_take_a_low_latency_protocol_and_large_ones_simple():
    assert best("all_reduce", "a100-80g:1x8", 1024, 8)[0].protocol == "LL"
    assert best("all_reduce", "a100-80g:1x8", 2**32, 8)[0].protocol == "Simple"
    middle = {best("all_reduce", "a100-80g:1x8", 2**p, 8)[0].protocol for p in range(10, 33)}
    assert middle == {"LL", "LL128", "Simple"}


def test_gathers_have_rings_and_pat_only():
    found = best("all_gather", "h100:8x8", 2**26, 64)
    assert {c.algorithm for c in found} == {"ring"}
    sparse = best("all_gather", "h100:8x8", 2**16, 8, stride=8)
    assert {c.algorithm for c in sparse} == {"ring", "pat"}


def test_other_makes_of_links_have_no_constants():
    with pytest.raises(SpecError, match="infinity-fabric"):
        best("all_reduce", "mi300x:1x8", 2**20, 8)
    with pytest.raises(SpecError, match="pairwise"):
        best("all_to_all", "h100:1x8", 2**20, 8)
