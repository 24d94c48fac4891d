"""Near the device's memory the verdict says that it is too close to call."""

import pytest

from meshwright.planner.plan import price_layout
from meshwright.specs.clusters import load_cluster
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.models import load_model

MODEL, CLUSTER = load_model("llama3-8b"), load_cluster("h100:1x8")
JOB = Job(seq_len=4096, global_batch=64)
LAYOUT = Layout(tp=2, dp=4, zero=1, sequence_parallel=True)


def priced(capacity_bytes):
    reserve = CLUSTER.device.memory_bytes - capacity_bytes
    return price_layout(MODEL, CLUSTER.but(reserve_bytes=max(reserve, 0.0)), JOB, LAYOUT)


@pytest.fixture(scope="module")
def peak():
    return price_layout(MODEL, CLUSTER, JOB, LAYOUT).estimate


@pytest.mark.parametrize(
    ("end", "share", "close"),
    [("low", 0.99, False), ("low", 1.01, True), ("high", 0.99, True), ("high", 1.01, False)],
)
def test_too_close_is_said_exactly_inside_the_range(peak, end, share, close):
    plan = priced(getattr(peak.peak_memory_range, end) * share)
    assert plan.estimate.memory_too_close is close
    assert plan.fits is (plan.estimate.capacity_bytes >= peak.peak_memory_bytes)
    assert any("too close to call" in note for note in plan.notes) is close


def test_the_range_holds_the_peak_and_names_what_it_rests_on(peak):
    held = peak.peak_memory_range
    assert held.low < peak.peak_memory_bytes < held.high
    assert "published memory peaks" in held.basis
