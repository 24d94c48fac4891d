"""Calibration finds constants that were hidden in the data, and only those."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from meshwright.cli import run
from meshwright.costs import collectives
from meshwright.costs.fabric import Fabric, place
from meshwright.costs.link_fit import MeasuredCollective
from meshwright.evidence.calibrate import Sighting, calibrate, resized
from meshwright.evidence.import_rows import import_row
from meshwright.evidence.nccl_tests import parse_nccl_tests
from meshwright.evidence.predict import predict_runs
from meshwright.evidence.rows import DESCRIBING, published_rows
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError

LOG = """# nThread 1 nGpus 8 minBytes 1048576 maxBytes 1073741824 step: 4(factor)
# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid 1 on host device  0 [0x1b] NVIDIA H100
#  Rank  1 Group  0 Pid 1 on host device  1 [0x43] NVIDIA H100
#       size         count      type   redop    root     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1    38.10   27.52   27.52      0
  1073741824     268435456     float     sum      -1   4100.0  261.89  261.89      0
"""


def test_an_nccl_log_is_read():
    (table,) = parse_nccl_tests(LOG)
    small, large = table.measurements()
    assert (small.collective, small.ranks) == ("all_reduce", 2)
    assert small.time_s == pytest.approx(38.10e-6)
    assert large.size_bytes == 2**30


def test_ranks_follow_from_the_bandwidths_where_none_are_listed():
    text = "all_gather_perf\n 1048576 262144 float none -1 50.0 20.97 18.35 0\n"
    assert parse_nccl_tests(text)[0].ranks == 8


def test_text_without_results_is_a_sentence():
    with pytest.raises(SpecError, match="no result lines"):
        parse_nccl_tests("# all_reduce_perf\n")


def timings(cluster, sizes=(2**22, 2**26, 2**30), ranks=(8, 32)):
    fabric = Fabric.of(cluster)
    out = []
    for n in ranks:
        for size in sizes:
            time = collectives.all_gather(
                fabric, np.array([float(size)]), place(fabric, np.array([n]))
            )
            out.append(MeasuredCollective("all_gather", n, float(size), float(time[0])))
    return out


def slower(cluster, level, factor):
    levels = list(cluster.levels)
    rate = levels[level].bandwidth_bytes_s * factor
    levels[level] = levels[level].but(bandwidth_bytes_s=rate)
    return cluster.but(levels=[one.model_dump() for one in levels])


def test_a_slower_network_is_found_and_compute_is_left_alone():
    preset = load_cluster("h100:4x8")
    result = calibrate(preset, timings(slower(preset, 1, 0.6)))
    found = {c.name: c for c in result.constants}
    network = found["network.gather_fraction"]
    assert network.identified
    assert network.after == pytest.approx(0.6 * network.before, rel=0.05)
    assert not found["network.alltoall_fraction"].identified, "no all-to-all was timed"
    assert not any(name.startswith("device") for name in found)
    assert result.error_after < 0.01 < result.error_before


def test_inner_timings_say_nothing_of_the_network():
    preset = load_cluster("h100:4x8")
    result = calibrate(preset, timings(slower(preset, 0, 0.7), ranks=(8,)))
    found = {c.name: c for c in result.constants}
    network = found["network.gather_fraction"]
    assert not network.identified and network.after == network.before


@pytest.fixture(scope="module")
def own_runs():
    rows = [r for r in published_rows(["mosaic_llm_foundry_2023"]) if r["gpus"] == "8"]
    return rows[:8]


def test_a_slower_chip_is_found_from_runs(own_runs, tmp_path, capsys):
    preset = load_cluster("a100:1x8")
    device = preset.device.but(matmul_efficiency={"sustained_bf16": 0.5})
    truth = preset.but(device=device.model_dump())
    path = tmp_path / "own.csv"
    with open(path, "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow([*DESCRIBING, "measured_iter_time_s"])
        for row in own_runs:
            imported = replace(import_row(row), cluster=resized(truth, 8))
            time = predict_runs([imported])[0].iter_time_s
            writer.writerow([*(row[c] for c in DESCRIBING), f"{time:.6g}"])
    out = tmp_path / "mine.toml"
    assert run(["calibrate", "--cluster", "a100:1x8", "--from", str(path), "-o", str(out)]) == 0
    told = capsys.readouterr().out
    assert "sustained_bf16" in told and "not in these data" in told
    again = load_cluster(str(out))
    assert again.device.matmul_efficiency["sustained_bf16"] == pytest.approx(0.5, rel=0.05)


def test_nothing_to_compare_is_a_sentence():
    with pytest.raises(SpecError, match="no timing"):
        calibrate(load_cluster("h100:1x8"))


def sightings_on(preset, truth, rows, factors):
    """Runs as `truth` would have them, each slower by its factor."""
    found = []
    for row, factor in zip(rows, factors, strict=True):
        own = replace(import_row(row), cluster=resized(truth, 8))
        time = predict_runs([own])[0].iter_time_s
        found.append(Sighting(replace(own, cluster=preset), factor * time, own.id))
    return found


def test_one_odd_run_moves_no_constant_and_a_shared_cause_does(own_runs):
    preset = load_cluster("a100:1x8")
    odd = calibrate(preset, sightings=sightings_on(preset, preset, own_runs[:4], (1, 1, 2.2, 1)))
    assert "do not share one cause" in odd.refused
    assert odd.cluster.device == preset.device
    assert not odd.constants
    device = preset.device.but(matmul_efficiency={"sustained_bf16": 0.5})
    slow = preset.but(device=device.model_dump())
    shared = calibrate(preset, sightings=sightings_on(preset, slow, own_runs[:4], (1, 1, 2.2, 1)))
    assert not shared.refused
    # The odd run among four weighs little: the rate is found as if it were not there.
    found = {constant.name: constant.after for constant in shared.constants}
    assert found["device.sustained_bf16"] == pytest.approx(0.5, rel=0.15)


def test_two_runs_cannot_be_asked(own_runs):
    preset = load_cluster("a100:1x8")
    result = calibrate(preset, sightings=sightings_on(preset, preset, own_runs[:2], (1.2, 1.2)))
    assert not result.refused


def test_a_test_of_one_rank_is_told_from_one_that_does_not_name_its_ranks():
    head = "# nThread 1 nGpus 1 minBytes 8 maxBytes 16777216 step: 2(factor)\nall_reduce_perf\n"
    alone = head + " 16777216 4194304 float sum -1 62.10 270.16 0.00 0 0.30 55924.05 0.00 0\n"
    with pytest.raises(SpecError, match="every process was alone"):
        parse_nccl_tests(alone)
    unnamed = head + " 16777216 4194304 float sum -1 62.10 270.16 900.0 0 0.30 55924.05 900.0 0\n"
    with pytest.raises(SpecError, match="Rank 0"):
        parse_nccl_tests(unnamed)
