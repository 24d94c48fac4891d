"""Ranges hold the estimate and what they say of left-out sources; citations are real runs."""

import tomllib

import pytest

from meshwright.costs.confidence import Facets, facets_of, residuals, residuals_from, time_range
from meshwright.costs.step import estimate
from meshwright.evidence import nearest
from meshwright.evidence.confidence import (
    Residual,
    _coverage,
    _judged,
    _promise_kept,
    _table,
    confidence_toml,
    read_coverage,
)
from meshwright.evidence.nearest import nearest_runs
from meshwright.evidence.predict import predict
from meshwright.evidence.rows import published_rows
from meshwright.evidence.score import pair
from meshwright.specs.clusters import load_cluster
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.models import load_model


def made(source, ratios, kind="dense", device="hopper"):
    return [Residual(source, Facets(device, "megatron", "one host", kind), r) for r in ratios]


def test_sources_weigh_alike_not_rows():
    few = [*made("a", [0.8]), *made("b", [1.0]), *made("c", [1.2])]
    many = [*made("a", [0.8] * 500), *few[1:]]
    ends = [_table(known)["range"][-1] for known in (few, many)]
    assert ends[0]["low"] == pytest.approx(ends[1]["low"], abs=0.03)
    assert ends[0]["high"] == pytest.approx(ends[1]["high"], abs=0.03)


def test_a_source_is_judged_by_the_ranges_of_the_others():
    known = [one for name in "abcde" for one in made(name, [0.9, 1.0, 1.1])]
    alone = [*known, *made("far", [3.0] * 4)]
    assert _coverage(_judged(alone, True), (1.0, 1.0)) < 5.01 / 6
    assert _coverage(_judged(known, True), (1.0, 1.2)) == 1.0


def test_a_promise_is_kept_by_the_sources_that_the_others_speak_for():
    known = [one for name in "abcde" for one in made(name, [0.8, 0.9, 1.0, 1.1, 1.2] * 10)]
    sources, rows = _promise_kept(known, 0.9)
    assert 0.8 <= sources == rows <= 1.0
    assert _promise_kept(known, 0.5)[0] < sources
    # Fifty rows far above all others' range: none is within it, and it counts as one source of six.
    far = [*known, *made("far", [3.0] * 50)]
    assert _promise_kept(far, 0.9)[0] <= 5 / 6
    assert _promise_kept(far, 0.9)[1] <= 250 / 300


def test_the_written_table_reads_back():
    rows = published_rows(["korthikanti_2022_seqsel", "simumax_b200", "vtrain_multinode"])
    table = tomllib.loads(confidence_toml(pair(rows, predict(rows)), {}))
    assert {"time", "memory"} <= table.keys()
    for one in table["time"]["range"]:
        assert 0 < one["low"] <= one["high"] and one["sources"] >= 1
    assert table["time"]["sources"]["device: ampere"] == 2


def test_the_shipped_table_speaks_for_every_run():
    for quantity in ("time", "memory"):
        known = residuals(quantity)
        assert ("any", "any") in known.ranges and known.widening >= 1.0
        low, high, _ = known.ends(Facets("never-seen", "never-seen", "one host", "dense"))
        assert low < 1.0 < high


@pytest.fixture(scope="module")
def plan():
    return (
        load_model("llama-3.1-70b"),
        load_cluster("h100:32x8"),
        Job(seq_len=8192, global_batch=256),
        Layout(tp=4, pp=4, dp=16, zero=1),
    )


def test_every_estimate_carries_ranges_that_hold_it(plan):
    model, cluster, job, layout = plan
    priced = estimate(model, cluster, job, layout)
    assert priced.step_time_range.low < priced.step_time_s < priced.step_time_range.high
    held = priced.peak_memory_range
    assert held.low < priced.peak_memory_bytes < held.high
    assert (
        "published" in priced.step_time_range.basis and "left out" in priced.step_time_range.basis
    )
    wide = time_range(model, cluster, job, layout.world, 2 * priced.step_time_s)
    assert wide.high == pytest.approx(2 * priced.step_time_range.high)


def test_what_nobody_measured_is_wider_and_said(plan):
    model, cluster, job, layout = plan
    known = residuals("time")
    usual = facets_of(model, cluster, job.but(framework="megatron"), layout.world)
    odd = Facets("volta", "litgpt", usual.scale, "mixture of experts")
    ends, far = known.ends(usual), known.ends(odd)
    assert far[1] / far[0] > ends[1] / ends[0]
    assert known.lacking(odd) and ("none measured" in far[2] or "hardly any" in far[2])


def test_the_nearest_runs_are_of_the_same_size_and_device(plan):
    found = nearest_runs(*plan, count=3)
    assert len(found) == 3
    assert "70B" in found[0].model and "H100" in found[0].device
    assert [n.distance for n in found] == sorted(n.distance for n in found)
    ids = {row.id for row in published_rows()}
    assert all(n.id in ids and n.measured_s > 0 and n.source in n.sentence() for n in found)


def test_the_nearest_runs_are_those_of_a_search_of_all_rows(plan):
    _, cluster, _, layout = plan
    device = nearest.generation(cluster.device)
    for index in range(0, len(nearest._trusted_rows()), 40):
        run = nearest._published(index)
        if run is None:
            continue
        least = nearest._at_least(nearest._trusted_rows()[index], device, layout)
        assert least <= nearest._distance(run[0], run[2], 7e10, device, *plan[1:]) + 1e-9


def test_rows_as_people_have_them_have_ranges_of_their_own():
    known = [one for name in "abcde" for one in made(name, [0.9, 1.0, 1.1])]
    read = [one for name in "vwxyz" for one in made(name, [0.5, 0.8, 1.0, 1.5, 2.0])]
    rows = published_rows(["korthikanti_2022_seqsel", "simumax_b200"])
    table = tomllib.loads(confidence_toml(pair(rows, predict(rows)), {"time": read}))
    assert "read" in table["time"] and "read" not in table["memory"]
    facets = known[0].facets
    told = residuals_from({**_table(known), "read": _table(read)})
    low, high, basis = told.ends(facets, as_read=True)
    assert low < 0.6 < 1.8 < high and "25 published" in basis
    assert told.ends(facets)[0] > 0.8
    plain = residuals_from(_table(known))
    assert plain.ends(facets, as_read=True) == plain.ends(facets)
    assert 0.6 <= read_coverage(read) <= 1.0


def test_the_shipped_ranges_of_read_rows_are_wider_and_rest_on_more_sources():
    for quantity in ("time", "memory"):
        known = residuals(quantity)
        assert known.read is not None
        whole = [told.ranges["any", "any"] for told in (known.read, known)]
        read, plan = (one["high"] / one["low"] for one in whole)
        assert read > 0.98 * plan
        sources = [told.ranges["any", "any"]["sources"] for told in (known, known.read)]
        assert sources[1] >= sources[0] + 15
