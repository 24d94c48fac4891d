"""Collectives against measurements: the shipped tables, and a table that no constant saw.

`data/nccl_tests_h100_2x8.txt` holds figures of a public nccl-tests run on two 8-GPU H100 hosts
with 200 Gb/s a GPU (repository lessizzmore/create-a3mega-ztan-fork), host names changed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meshwright.cli import run
from meshwright.costs.fabric import Fabric
from meshwright.costs.link_fit import fit_links, predicted_times, with_constants
from meshwright.evidence.collective_rows import predicted_s, read_collective_rows, relative_errors
from meshwright.evidence.nccl_tests import parse_nccl_tests
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError

DATA = Path(__file__).parent / "data" / "nccl_tests_h100_2x8.txt"


def test_published_tables_above_a_mebibyte():
    rows = [row for row in read_collective_rows() if row.size_bytes > 2**20]
    errors = np.abs(relative_errors(rows))
    assert len(rows) >= 280
    assert np.median(errors) <= 0.04
    assert np.quantile(errors, 0.75) <= 0.10


def test_asymptotic_bandwidth_of_every_stated_fabric_is_within_a_fifth():
    rows = [r for r in read_collective_rows() if r.size_bytes >= 2**30 and r.network_stated]
    for row in rows:
        # Twice-measured exceptions: an untuned all-to-all, and a row its source calls an outlier.
        if row.collective == "all_to_all" or (row.ranks == 128 and row.size_bytes == 2**30):
            continue
        assert abs(predicted_s(row) / row.time_s - 1) < 0.25, row.table


def test_real_output_is_read_with_its_ranks_hosts_and_device():
    (table,) = parse_nccl_tests(DATA.read_text())
    assert (table.collective, table.ranks, table.hosts) == ("all_reduce", 16, 2)
    assert table.device == "NVIDIA H100 80GB HBM3"
    assert len(table.rows) == 18
    assert table.rows[-1].size_bytes == 2**33
    assert table.rows[-1].time_s == pytest.approx(47535e-6)
    for row in table.rows[4:]:
        busbw = row.size_bytes / row.time_s * 2 * 15 / 16
        assert row.busbw_bytes_s == pytest.approx(busbw, rel=0.01)


def test_calibration_on_a_cluster_that_no_constant_saw():
    (table,) = parse_nccl_tests(DATA.read_text())
    measured = table.measurements()
    cluster = load_cluster("h100:2x8")
    slow = cluster.levels[1].but(bandwidth_bytes_s=25e9, latency_s=15e-6)
    fabric = Fabric.of(cluster.but(levels=[cluster.levels[0].plain(), slow.plain()]))
    fit = fit_links(fabric, measured[::2])
    assert fit.error_after < fit.error_before
    assert {"network.reduce_fraction", "network.hop_latencies"} <= set(fit.constants)
    on = with_constants(fabric, fit.constants)
    rest = fit_links(on, measured[1::2])
    assert rest.error_before < 0.10, "sizes that the fit did not see"


def test_a_calibrated_cluster_carries_its_constants(tmp_path):
    path = tmp_path / "mine.toml"
    arguments = ["calibrate", "--cluster", "h100:2x8", "--from", str(DATA), "-o", str(path)]
    assert run(arguments) == 0
    mine = load_cluster(path)
    assert "network.fill_latencies" in mine.link_constants
    rows = parse_nccl_tests(DATA.read_text())[0].measurements()
    shipped = Fabric.of(load_cluster("h100:2x8"))
    errors = [
        np.median(
            [abs(t / r.time_s - 1) for t, r in zip(predicted_times(f, rows), rows, strict=True)]
        )
        for f in (shipped, Fabric.of(mine))
    ]
    assert errors[1] < 0.3 * errors[0]
    assert run([*arguments[:2], "h100:1x8", *arguments[3:]]) == 2


def test_two_runs_in_one_text_and_new_headers():
    text = DATA.read_text()
    second = text.replace("all_reduce_perf", "all_gather_perf")
    newer = "# Collective test starting: all_reduce_perf\n" + text.split("\n", 1)[1]
    found = parse_nccl_tests(newer + second)
    assert [t.collective for t in found] == ["all_reduce", "all_gather"]
    assert [len(t.rows) for t in found] == [18, 18]
    # Without a program name only the bus factor of an all-reduce speaks.
    anonymous = parse_nccl_tests(text.split("\n", 1)[1])
    assert anonymous[0].collective == "all_reduce"


def test_text_that_is_not_nccl_tests_output_is_refused():
    with pytest.raises(SpecError, match="no result lines"):
        parse_nccl_tests("hello")
    rows = "\n".join(line for line in DATA.read_text().splitlines() if "Rank" not in line)
    assert parse_nccl_tests(rows)[0].ranks == 16, "from the bus factor, where no rank is listed"
    broadcast = rows.replace("all_reduce_perf", "broadcast_perf")
    with pytest.raises(SpecError, match="Rank"):
        parse_nccl_tests(broadcast)


def test_rows_of_old_versions_have_no_root_column():
    old = "all_reduce_perf\n  1073741824 268435456 float sum 4100.0 261.89 458.31 1e-06\n"
    (table,) = parse_nccl_tests(old)
    assert (table.ranks, table.rows[0].time_s) == (8, pytest.approx(4.1e-3))


def test_a_run_on_one_device_of_each_host_is_placed_one_a_host():
    lines = DATA.read_text().splitlines()
    two = [line for line in lines if "Rank" not in line or "Rank  0" in line or "Rank  8" in line]
    (table,) = parse_nccl_tests("\n".join(two).replace("Rank  8", "Rank  1"))
    assert (table.ranks, table.hosts) == (2, 2)
    assert {m.stride for m in table.measurements(8)} == {8}
    (whole,) = parse_nccl_tests(DATA.read_text())
    assert {m.stride for m in whole.measurements(8)} == {1}


ROW = "268435456 67108864 float sum -1 1291.8 207.79 389.61"
GATHER = "16777216 1048576 bfloat16 {} 285.26 58.81 51.46 0 285.22 58.82 51.47 0"


@pytest.mark.parametrize(
    ("text", "ranks", "time_s"),
    [
        (f"[1,0]<stdout>:   {ROW}  0 1285.9 208.76 391.42 0", 16, 1291.8e-6),  # mpirun --tag-output
        (f"0: {ROW} 0", 16, 1291.8e-6),  # srun --label
        (f"    {ROW}", 16, 1291.8e-6),  # a page that left out the rest of the columns
        ("1073741824 2.68e+8 float sum -1 59530.2 18.04 33.82 0", 16, 59530.2e-6),
        ("# all_gather_perf\n" + GATHER.format("-1"), 8, 285.26e-6),  # redop left out
        ("# all_gather_perf\n" + GATHER.format("none -1"), 8, 285.26e-6),
        ("# all_gather_perf\n" + GATHER.format(""), 8, 285.26e-6),  # root, too
        ("1073741824 268435456 float sum -1 7000.0 153.39 304.38 0", 128, 7e-3),  # 127.9 as printed
    ],
)  # fmt: skip
def test_tables_are_read_as_people_paste_them(text, ranks, time_s):
    (table,) = parse_nccl_tests("# time algbw busbw\n" + text)
    assert (table.ranks, table.rows[0].time_s) == (ranks, pytest.approx(time_s))


def test_a_table_that_names_no_collective_may_be_named_by_its_file():
    halves = "1048576 262144 float sum -1 583.4 1.80 1.80 0 579.6 1.81 1.81 0\n"
    with pytest.raises(SpecError, match="a file name with one of all_reduce"):
        parse_nccl_tests(halves, where="mpi.txt")
    (table,) = parse_nccl_tests(halves, where="runs/all-reduce-2.txt")
    assert (table.collective, table.ranks) == ("all_reduce", 2)
    scattered = "1048576 262144 float sum -1 583.4 1.80 0.90 0\n"
    assert parse_nccl_tests(scattered)[0].collective == "reduce_scatter"


def test_a_row_whose_numbers_contradict_each_other_is_refused():
    with pytest.raises(SpecError, match="size / time"):
        parse_nccl_tests("all_reduce_perf\n 1073741824 268435456 float sum -1 4100.0 99.0 458.31 0")
