"""The scorecard beats its baselines, and its three forms show its figures."""

import json

import pytest

from meshwright.cli import run
from meshwright.evidence.predict import predict
from meshwright.evidence.report import accuracy_page, html_page
from meshwright.evidence.rows import published_rows
from meshwright.evidence.score import scorecard


@pytest.fixture(scope="module")
def scored():
    rows = published_rows()
    return scorecard(rows, predict(rows))


def test_both_baselines_are_beaten(scored):
    total = scored[0][-1]
    assert total.name == "all"
    assert total.time.median < 0.5 * total.baseline_time.median
    assert total.verdicts.accuracy > total.baseline_verdicts.accuracy
    assert total.sweeps.regret_mean < total.baseline_sweeps.regret_mean


def test_at_least_95_percent_are_priced(scored):
    total = scored[0][-1]
    assert total.priced >= 0.95 * total.rows


def test_the_page_and_the_plot_hold_every_group(scored):
    page, plot = accuracy_page(*scored), html_page(*scored)
    for score in scored[0]:
        assert f"| {score.name} |" in page
        assert score.name in plot
    assert plot.count("<circle") > 3000
    assert "http" not in plot.split("</style>")[0].replace("http://www.w3.org", "")


def test_the_command_prints_json(tmp_path, capsys):
    table = tmp_path / "some.csv"
    lines = published_rows(["korthikanti_2022_seqsel"])
    columns = list(lines[0].cells)
    text = ",".join(columns) + "\n"
    for row in lines:
        text += ",".join('"' + row[c].replace('"', '""') + '"' for c in columns) + "\n"
    table.write_text(text)
    assert run(["scorecard", str(table), "--json", "--by", "framework"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["by"] == "framework"
    assert {score["name"] for score in told["scores"]} == {"megatron-2022", "all"}
    assert told["scores"][0]["time"]["rows"] == 9


def test_an_unknown_grouping_is_a_sentence(capsys):
    assert run(["scorecard", "--by", "colour"]) == 2
    assert "one of source, gpu, framework" in capsys.readouterr().err
