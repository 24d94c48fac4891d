"""The collective command: the lesson's example, NCCL's choice, files, and refusals."""

from __future__ import annotations

import json

import pytest

from meshwright.cli import run

LESSON = ["collective", "all-reduce", "--size", "2GB", "--ranks", "8", "--bandwidth", "25GB/s"]


def test_the_lessons_example_takes_0_14_s_in_14_steps(capsys):
    assert run([*LESSON, "--steps"]) == 0
    out = capsys.readouterr().out
    assert "0.14 s" in out and "3.5 GB" in out
    assert "c7>1 +" in out and "c0>1 =" in out
    assert (
        sum(line.strip().startswith(f"{n} ") for n in range(1, 20) for line in out.split("\n"))
        == 14
    )


def test_json_has_the_same_numbers_and_every_message(capsys):
    assert run([*LESSON, "--steps", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["time_s"] == pytest.approx(0.14)
    assert report["steps_in_sequence"] == 14
    assert report["busbw_bytes_s"] == pytest.approx(25e9)
    messages = report["steps"]["messages"]
    assert len(messages["src"]) == 14 * 8
    assert max(messages["t_end_s"]) == pytest.approx(0.14)
    assert sum(messages["bytes"]) == pytest.approx(8 * 3.5e9)


def test_on_a_cluster_it_says_what_nccl_would_choose_and_why(capsys):
    assert run(["collective", "all-reduce", "--size", "1GiB", "--cluster", "h100:4x8"]) == 0
    out = capsys.readouterr().out
    assert "nvls-tree/Simple beats ring/Simple" in out
    assert "between domains" in out


def test_trace_and_columns_are_written(tmp_path, capsys):
    trace, columns = tmp_path / "c.json", tmp_path / "steps.json"
    arguments = ["collective", "all-to-all", "--size", "64MiB", "--cluster", "h100:2x4"]
    extra = ["--algorithm", "hierarchical", "--trace", str(trace), "-o", str(columns), "--json"]
    assert run([*arguments, *extra]) == 0
    report = json.loads(capsys.readouterr().out)
    found = json.loads(columns.read_text())
    assert found["time_s"] == report["simulated"]["time_s"]
    events = json.loads(trace.read_text())["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == 2 * len(found["messages"]["src"])
    ends: dict[tuple[int, int], float] = {}
    for event in sorted(slices, key=lambda e: e["ts"]):
        track = (event["pid"], event["tid"])
        assert event["ts"] >= ends.get(track, 0.0) * (1 - 1e-9), "slices of a track overlap"
        ends[track] = event["ts"] + event["dur"]
    spans = {}
    for event in slices:
        spans.setdefault((event["pid"], event["tid"]), []).append(event)
    for arrow in (e for e in events if e["ph"] in "sf"):
        on = spans[arrow["pid"], arrow["tid"]]
        assert any(e["ts"] <= arrow["ts"] < e["ts"] + e["dur"] for e in on), "an arrow to nowhere"
    assert all(e["pid"] > 0 and e.get("tid", 1) > 0 for e in events)
    assert {e["id"] for e in events if e["ph"] == "s"} == {
        e["id"] for e in events if e["ph"] == "f"
    }


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (["--size", "0"], "64MiB"),
        (["--ranks", "1"], "two ranks"),
        (["--cluster", "h100:1x8"], "either --bandwidth or --cluster"),
        (["--algorithm", "hierarchical"], "divisor"),
        (["--dims", "4xq"], "4x4x2"),
        (["--algorithm", "rnig"], "ring"),
        (["--bandwidth", "0GB/s"], "25GB/s"),
        (["--ranks", "100000"], "too many"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(change, match, capsys):
    assert run([*LESSON, *change]) == 2
    error = capsys.readouterr().err
    assert match in error and len(error.strip().splitlines()) == 1


def test_all_groups_at_once_share_the_cards_of_their_hosts(capsys):
    arguments = ["collective", "all-reduce", "--size", "64MiB", "--stride", "8", "--everyone"]
    times = {}
    for cluster in ("aws-p4de:4", "h100:4x8"):
        assert run([*arguments, "--cluster", cluster, "--algorithm", "ring", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["simulated"]
        assert found["groups_at_once"] == 8
        times[cluster] = found["time_at_once_s"] / found["time_s"]
    assert times["aws-p4de:4"] == pytest.approx(2, rel=0.1), "four cards serve eight devices"
    assert times["h100:4x8"] == pytest.approx(1), "eight cards serve eight devices"


def test_a_sweep_predicts_what_nccl_tests_would_print(capsys):
    arguments = ["collective", "all-reduce", "--cluster", "h100:1x8", "--sweep"]
    assert run([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = report["rows"]
    assert [row["size_bytes"] for row in rows] == [2.0**p for p in range(13, 34)]
    bus = [row["busbw_bytes_s"] for row in rows]
    assert bus == sorted(bus) and 460e9 < bus[-1] < 490e9, "8 GiB measured: 480 GB/s"
    assert rows[-1]["nccl_choice"] == "nvls/Simple"
    assert run(arguments) == 0
    assert "8.00 GiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--sweep"], "--cluster"),
        (["--sweep", "--cluster", "h100:1x1"], "two ranks"),
        (["--cluster", "h100:1x8"], "64MiB"),
        (["--sweep", "--cluster", "h100:1x8", "--ranks", "16"], "8 devices"),
    ],
)
def test_a_sweep_without_what_it_needs_is_one_sentence(arguments, match, capsys):
    assert run(["collective", "all-reduce", *arguments]) == 2
    assert match in capsys.readouterr().err
