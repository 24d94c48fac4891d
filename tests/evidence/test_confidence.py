"""Ranges hold what they say on runs they were not made from; citations are real runs."""

import tomllib

import pytest

from meshwright.costs.confidence import kinds, time_range
from meshwright.costs.step import estimate
from meshwright.evidence.confidence import confidence_toml, coverage
from meshwright.evidence.nearest import nearest_runs
from meshwright.evidence.predict import predict
from meshwright.evidence.rows import published_rows
from meshwright.evidence.score import pair
from meshwright.specs.clusters import load_cluster
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.models import load_model


@pytest.fixture(scope="module")
def scored():
    rows = published_rows()[::2]
    return pair(rows, predict(rows))


def test_ranges_from_one_half_hold_about_80_percent_of_the_other(scored):
    assert 0.72 <= coverage(scored[::2], scored[1::2]) <= 0.88
    assert 0.72 <= coverage(scored[1::2], scored[::2]) <= 0.88


def test_the_written_table_reads_back(scored):
    table = tomllib.loads(confidence_toml(scored))
    assert {"time", "memory"} <= table.keys()
    for kind in (*table["time"], *table["memory"]):
        assert 0 < kind["low"] <= kind["high"] and kind["rows"] >= 20


def test_the_shipped_table_speaks_for_every_run():
    assert ("any", "any", "any") in kinds("time") and ("any", "any", "any") in kinds("memory")


@pytest.fixture(scope="module")
def plan():
    return (
        load_model("llama-3.1-70b"), load_cluster("h100:32x8"), Job(seq_len=8192, global_batch=256),
        Layout(tp=4, pp=4, dp=16, zero=1),
    )  # fmt: skip


def test_every_estimate_carries_its_ranges_and_their_basis(plan):
    model, cluster, job, layout = plan
    priced = estimate(model, cluster, job, layout)
    assert priced.step_time_range.low < priced.step_time_range.high
    assert priced.peak_memory_range.low < priced.peak_memory_range.high
    assert "published" in priced.step_time_range.basis
    wide = time_range(cluster, job, layout.world, 2 * priced.step_time_s)
    assert wide.high == pytest.approx(2 * priced.step_time_range.high)


def test_the_nearest_runs_are_of_the_same_size_and_device(plan):
    found = nearest_runs(*plan, count=3)
    assert len(found) == 3
    assert "70B" in found[0].model and "H100" in found[0].device
    assert [n.distance for n in found] == sorted(n.distance for n in found)
    ids = {row.id for row in published_rows()}
    assert all(n.id in ids and n.measured_s > 0 and n.source in n.sentence() for n in found)
