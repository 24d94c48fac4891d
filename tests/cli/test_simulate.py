"""The commands simulate, schedules and goodput, as a user runs them."""

from __future__ import annotations

import gzip
import itertools
import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from meshwright.cli import run

BASE = ["simulate", "--schedule", "1f1b", "--pp", "4", "--microbatches", "8"]


def output(capsys, *arguments, code=0):
    assert run(list(arguments)) == code
    return capsys.readouterr().out


def test_json_has_bubble_peak_and_makespan(capsys):
    data = json.loads(output(capsys, *BASE, "--json"))
    assert data["legal"] is True and data["reason"] is None
    assert data["makespan"] == 33.0
    assert data["bubble"]["span"] == pytest.approx(3 / 11)
    assert data["bubble"]["makespan"] == pytest.approx(3 / 11)
    assert sum(data["bubble"]["attribution"].values()) == pytest.approx(3 / 11)
    assert data["peak_in_flight"] == [4, 3, 2, 1]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_timeline_fits_the_width(capsys, width):
    lines = output(capsys, *BASE, "--width", str(width)).splitlines()
    rows = [line for line in lines if re.match(r"rank \d", line)]
    assert len(rows) == 4
    assert all(len(line) <= width for line in rows)
    assert all("72.7%" in row for row in rows)


def test_an_illegal_schedule_says_why(capsys):
    arguments = ["simulate", "--schedule", "dualpipe-v", "--pp", "8", "--microbatches", "13"]
    data = json.loads(output(capsys, *arguments, "--json", code=2))
    assert data["legal"] is False
    assert "16 micro-batches" in data["reason"]
    assert run(arguments) == 2
    assert re.search("error: .*16 micro-batches", capsys.readouterr().err)


def test_files_are_written_and_the_csv_runs_again(capsys, tmp_path):
    files = {n: tmp_path / f"step.{n}" for n in ("trace.json.gz", "svg", "csv", "json")}
    arguments = ["simulate", "-s", "zb-v", "--pp", "4", "-m", "8", "--comm", "0.1", "--trace",
                 str(files["trace.json.gz"]), "--svg", str(files["svg"]), "--csv",
                 str(files["csv"]), "-o", str(files["json"]), "--json"]  # fmt: skip
    first = json.loads(output(capsys, *arguments))
    again = json.loads(
        output(capsys, "simulate", "-s", str(files["csv"]), "--comm", "0.1", "--json")
    )
    assert again["makespan"] == pytest.approx(first["makespan"])
    columns = json.loads(files["json"].read_text())
    assert len(columns["ops"]["start"]) == 4 * 8 * 2 * 3
    assert max(columns["ops"]["end"]) == first["makespan"]
    picture = ElementTree.fromstring(files["svg"].read_text())
    boxes = [e for e in picture.iter("{http://www.w3.org/2000/svg}rect") if len(e)]
    assert len(boxes) == 4 * 8 * 2 * 3
    trace = json.loads(gzip.decompress(files["trace.json.gz"].read_bytes()))["traceEvents"]
    check_trace(trace, slices=192, messages=len(columns["messages"]["start"]))


def check_trace(events, slices, messages):
    """What Perfetto needs: no overlap on a thread, every arrow with both ends, times in order."""
    by_thread = {}
    for event in events:
        if event["ph"] == "X":
            by_thread.setdefault((event["pid"], event["tid"]), []).append(event)
    for thread in by_thread.values():
        thread.sort(key=lambda e: e["ts"])
        for before, after in itertools.pairwise(thread):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
    assert sum(len(t) for (_, tid), t in by_thread.items() if tid == 0) == slices
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert len(starts) == messages and starts.keys() == ends.keys()
    assert all(starts[i]["ts"] <= ends[i]["ts"] for i in starts)
    named = {(e["pid"], e.get("tid")) for e in events if e["ph"] == "M" and "name" in e["args"]}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} <= named
    counters = [e for e in events if e["ph"] == "C"]
    assert max(e["args"]["micro-batches"] for e in counters) == 4


def test_stage_times_from_a_file(capsys, tmp_path):
    path = tmp_path / "times.toml"
    path.write_text("forward = [1, 1, 1, 2]\nbackward = [2, 2, 2, 4]\n")
    data = json.loads(output(capsys, *BASE, "--stage-times", str(path), "--json"))
    # The slow last stage is always busy once it has begun; it starts after three forwards.
    assert data["makespan"] == pytest.approx(3 + 8 * 6 + 3 * 2)
    assert data["bubble"]["attribution"]["imbalance"] > 0.25


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["simulate"], "plan file or --schedule"),
        (["simulate", "-s", "1f1b"], "--pp"),
        (["simulate", "-s", "1f2b", "--pp", "4", "-m", "8"], "did you mean"),
        ([*BASE, "--times", "1,1"], "three numbers"),
        ([*BASE, "--times", "1,-1,1"], "negative"),
        ([*BASE, "--comm", "-1"], "negative"),
        (["simulate", "-s", "1f1b", "--pp", "0", "-m", "8"], "at least 1"),
        (["simulate", "-s", "absent.csv"], "cannot be read"),
        ([*BASE, "-v", "2"], "exactly 1 virtual stages"),
        (["schedules", "--pp", "4", "-m", "8", "-v", "x"], "numbers, as 2,4"),
        (["goodput", "--nodes", "a"], "numbers of nodes"),
        (["goodput", "--mtbf-node", "5 parsecs"], "duration"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(capsys, arguments, message):
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_schedules_lists_each_name_with_numbers_or_a_reason(capsys):
    from meshwright.specs.layout import SCHEDULES

    data = json.loads(output(capsys, "schedules", "--pp", "8", "--microbatches", "13", "--json"))
    rows = {(r["schedule"], r["variant"], r["virtual_stages"]): r for r in data["schedules"]}
    assert {name for name, _, _ in rows} == set(SCHEDULES)
    assert all((r["bubble_makespan"] is None) == (r["reason"] is not None) for r in rows.values())
    # Simulated figures of the 35 %-bubble case: pp 8, 13 micro-batches.
    assert rows["1f1b", "", 1]["bubble_makespan"] == pytest.approx(0.35)
    assert round(rows["zb-v", "", 2]["bubble_makespan"], 3) == 0.082
    assert round(rows["zb-h1", "", 1]["bubble_makespan"], 3) == 0.152
    assert round(rows["interleaved", "", 2]["bubble_makespan"], 3) == 0.212
    assert round(rows["interleaved", "", 4]["bubble_makespan"], 3) == 0.119
    assert max(rows["interleaved", "", 4]["peak_in_flight"]) == 13
    assert "2 pp = 16" in rows["dualpipe-v", "", 2]["reason"]
    table = output(capsys, "schedules", "--pp", "8", "--microbatches", "13")
    assert "35.0%" in table and "Not legal here" in table


def test_goodput_table_and_json(capsys):
    data = json.loads(output(capsys, "goodput", "--nodes", "128,2048", "--json"))
    small, large = data["sizes"]
    assert small["useful"] > large["useful"] > 0.8
    assert large["interval_s"] < small["interval_s"]
    assert "2,048" in output(capsys, "goodput", "--nodes", "128,2048")


def test_a_long_step_shows_its_beginning_and_its_end(capsys):
    arguments = ["simulate", "-s", "1f1b", "--pp", "4", "-m", "500", "--width", "100"]
    lines = output(capsys, *arguments).splitlines()
    rows = [line for line in lines if re.match(r"rank \d", line)]
    assert len(rows) == 4
    assert all("⋯" in row and len(row) <= 100 for row in rows)
    # Rank 3 idles while the pipeline fills and drains; both ends are in view.
    assert re.match(r"rank 3 ·{4,}\S", rows[3])
    assert re.search(r"·{4,} +99\.4%$", rows[3])


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    from meshwright.costs.step import estimate
    from meshwright.specs import load_cluster, load_model
    from meshwright.specs.job import Job
    from meshwright.specs.layout import Layout
    from meshwright.specs.plan import Plan, save_plan

    model, cluster = load_model("llama3-70b"), load_cluster("h100:8x8")
    job = Job(seq_len=4096, global_batch=128)
    layout = Layout(tp=8, pp=4, dp=2, zero=1, sequence_parallel=True)
    priced = estimate(model, cluster, job, layout)
    plan = Plan(model=model, cluster=cluster, job=job, layout=layout, estimate=priced, fits=True)
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    save_plan(plan, path)
    return str(path)


def test_a_plan_is_simulated_in_seconds_and_bytes(capsys, plan_file):
    data = json.loads(output(capsys, "simulate", plan_file, "--balance", "--json"))
    assert data["unit"] == "s"
    assert data["step"] == pytest.approx(data["closed_form_step"], rel=0.05)
    assert len(data["memory"]) == 4
    assert data["memory"][0]["cause"] == "0F3"
    assert sum(data["memory"][0]["parts_bytes"].values()) == data["memory"][0]["peak_bytes"]
    assert data["balanced"]["step"] <= data["step"] * 1.001
    assert sum(data["balanced"]["stage_layers"]) == 80
    text = output(capsys, "simulate", plan_file, "--balance")
    assert "Memory at each rank's peak" in text
    assert "--pipeline-model-parallel-layout 'Et*" in text


def test_goodput_of_a_plan(capsys, plan_file):
    data = json.loads(output(capsys, "goodput", plan_file, "--mtbf-node", "50000h", "--json"))
    own = [row for row in data["sizes"] if row.get("is_plan")]
    assert [row["nodes"] for row in own] == [8]
    assert own[0]["tokens_per_s_useful"] > 0
