"""Emulated nodes: what crosses the cables is what the closed forms say, and refusals are sentences."""

import os
import shutil
import subprocess

import pytest

from meshwright.costs.step import estimate
from meshwright.engine.model.toy import TOY
from meshwright.engine.proof.lab import (
    LabError,
    Nodes,
    _inside,
    check_lab,
    crossing_bytes,
    members_inside,
    placements,
    run_plan,
)
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES, Job
from meshwright.specs.layout import Layout
from meshwright.specs.plan import Plan

emulated = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"
)


def test_groups_know_whether_they_leave_their_node():
    layout = Layout(tp=2, pp=2, dp=2)
    assert members_inside(layout, "tp", 4) == (2, False)
    assert members_inside(layout, "dp", 4) == (2, False)
    assert members_inside(layout, "pp", 4) == (1, True)
    across = layout.but(rank_order="pp-dp-cp-ep-tp")
    assert members_inside(across, "tp", 4) == (1, True)
    assert members_inside(across, "pp", 4) == (2, False)
    assert members_inside(layout, "control", 4) == (4, True)


def test_only_what_leaves_the_node_crosses():
    layout = Layout(tp=2, dp=2)
    assert crossing_bytes({"tp": 100.0, "dp": 10.0}, layout, per_node=2) == 20.0
    assert crossing_bytes({"tp": 100.0}, layout, per_node=4) == 0.0


@pytest.mark.parametrize("per_node", [1, 2])
def test_every_comparison_uses_all_ranks(per_node):
    for _, layout in placements(2, per_node):
        assert layout.world == 2 * per_node


def test_refusals_name_the_field():
    with pytest.raises(SpecError, match="divisor of the plan's 3 ranks"):
        check_lab(Layout(dp=3), 2)


@emulated
@pytest.mark.dist
def test_a_plan_on_two_nodes_sends_what_is_predicted():
    import torch

    from meshwright.engine.parallel.parallelize import Precision
    from meshwright.engine.proof.traffic import expected_sent_bytes

    job = Job(seq_len=64, global_batch=4, precision=RECIPES["fp32"])
    cluster, layout = load_cluster("cpu:2x1"), Layout(dp=2, micro_batch=2)
    priced = estimate(TOY, cluster, job, layout)
    plan = Plan(model=TOY, cluster=cluster, job=job, layout=layout, estimate=priced, fits=True)
    run = run_plan(plan, nodes=2, link_bit_s=50e6, steps=12, timeout_s=120)
    fp32 = Precision(master=torch.float32, compute=torch.float32, reduce=torch.float32)
    sent = expected_sent_bytes(TOY, layout, 0, global_batch=4, seq_len=64, precision=fp32)
    expected = crossing_bytes(sent, layout, per_node=1)
    # The card also counts packet headers and the connections' set-up, and nothing else.
    assert expected < max(run.sent_bytes) < 1.12 * expected
    assert run.step_time_s > 8 * expected / 50e6


@emulated
def test_everything_made_is_removed_even_after_a_failure():
    network = Nodes(2, 1e6)

    def fails():
        with network:
            _inside(network.names[0], "false")

    with pytest.raises(LabError, match="failed"):
        fails()
    left = subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=True
    ).stdout
    assert not any(name in left for name in network.names)
