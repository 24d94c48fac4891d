"""Host memory: what leaves the device, and what its travel costs."""

import pytest

from meshwright.costs.offload import HOST_UPDATE_S, host_link_bytes_s
from meshwright.costs.step import estimate
from meshwright.specs.clusters import load_cluster
from meshwright.specs.job import RECIPES, Job
from meshwright.specs.layout import Layout
from meshwright.specs.models import load_model

LAYOUT = Layout(dp=8, zero=3, micro_batch=1, recompute="full")


def priced(offload=(), cluster="h100:1x8", layout=LAYOUT, seq_len=4096, **job):
    job = Job(seq_len=seq_len, global_batch=64, precision=RECIPES["bf16-fp32-grads"], **job)
    return estimate(
        load_model("llama3.1-8b"), load_cluster(cluster), job, layout.but(offload=offload)
    )


def test_parts_still_add_up():
    for offload in (
        (),
        ("activations",),
        ("optimizer",),
        ("activations", "optimizer", "parameters"),
    ):
        one = priced(offload)
        assert sum(one.memory_parts.values()) == pytest.approx(one.peak_memory_bytes)
        assert sum(one.time_parts.values()) == pytest.approx(one.step_time_s)
        assert (one.time_parts["offload"] > 0) == ("optimizer" in offload)


def test_activations_hide_behind_compute_where_the_link_is_fast_enough():
    # An 8B layer's input is 4096 · 4096 · 2 bytes: a millisecond of PCIe 5 beside many of compute.
    assert priced(("activations",)).time_parts["offload"] == 0.0
    kept = LAYOUT.but(recompute="none")
    slow = load_cluster("h100:1x8")
    slow = slow.model_copy(update={"device": slow.device.but(host_link_bytes_s=1e9)})
    job = Job(global_batch=64, precision=RECIPES["bf16-fp32-grads"])
    one = estimate(load_model("llama3.1-8b"), slow, job, kept.but(offload=("activations",)))
    assert one.time_parts["offload"] > one.step_time_s / 4


def test_two_layers_of_one_micro_batch_stay():
    whole, less = priced().memory_parts, priced(("activations",)).memory_parts
    assert less["activations"] == pytest.approx(whole["activations"] * 2 / 32, rel=1e-6)


def test_the_host_updates_what_it_holds():
    model = load_model("llama3.1-8b")
    gone = priced(("optimizer",))
    assert gone.memory_parts["optimizer"] == 0.0
    assert gone.time_parts["optimizer"] == 0.0
    # All eight devices' shares are the whole model, which one host updates.
    least = (
        model.parameters.total * HOST_UPDATE_S
        if hasattr(model, "parameters")
        else 8.03e9 * HOST_UPDATE_S
    )
    assert gone.time_parts["offload"] > least


def test_the_link_is_the_devices_own_then_the_clusters():
    assert host_link_bytes_s(load_cluster("h100:1x8")) == pytest.approx(0.8 * 63e9)
    assert host_link_bytes_s(load_cluster("gh200:1x4")) == pytest.approx(0.8 * 450e9)
    assert host_link_bytes_s(load_cluster("v100:1x8")) < host_link_bytes_s(load_cluster("a100:1x8"))
