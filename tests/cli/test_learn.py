"""`learn` and `cards` as a person or a script calls them."""

import json

import pytest

from meshwright.cli import run


def test_the_path(capsys):
    assert run(["learn"]) == 0
    assert "15 steps, 110 minutes" in capsys.readouterr().out


@pytest.mark.parametrize("step", [str(n) for n in range(1, 16)])
def test_every_step_reads(capsys, step):
    assert run(["learn", "--step", step]) == 0
    text = capsys.readouterr().out
    assert "meshwright learn" in text and "{{" not in text


def test_an_answer_is_judged(capsys):
    assert run(["learn", "--step", "7", "--answer", "27.3%"]) == 0
    assert run(["learn", "--step", "7", "--answer", "75%", "--json"]) == 1
    out = capsys.readouterr().out
    verdict = json.loads(out[out.index("{") :])
    assert verdict["correct"] is False and "single micro-batch" in verdict["misconception"]


def test_bad_input_is_a_sentence(capsys):
    for arguments in (["--step", "16"], ["--question", "Q99"], ["--step", "7", "--answer", "x"]):
        assert run(["learn", *arguments]) == 2
        assert capsys.readouterr().err.startswith("error: ")


def test_json_of_a_step(capsys):
    assert run(["learn", "--step", "9", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["number"] == 9 and "112 GB" in json.dumps(data)


def test_a_drill_is_told_and_graded(tmp_path, capsys):
    assert run(["learn", "--drill", "D11"]) == 0
    told = capsys.readouterr().out
    assert "--open layout" in told and "--set tp=8" in told
    right = next(line for line in told.splitlines() if "fewer micro-batches" in line).split()[1]
    file = tmp_path / "defence.md"
    words = ["--open", "layout", "--finding", right, "--set", "pp=4", "-o", str(file)]
    assert run(["learn", "--drill", "D11", *words]) == 0
    out = capsys.readouterr().out
    assert "of 100" in out and "micro-batches per pipeline" in out
    assert file.read_text().startswith("# Forty per cent slower")
    assert run(["learn", "--drill", "D11", "--set", "tp=3"]) == 2
    assert run(["learn", "--drill", "D11", "--finding", "9"]) == 2
    assert run(["learn", "--drill", "D11", "--open", "nothing"]) == 2


def test_cards_are_written(tmp_path, capsys):
    pdf, tsv = tmp_path / "cards.pdf", tmp_path / "cards.tsv"
    assert run(["cards", "--print", str(pdf), "--anki", str(tsv)]) == 0
    assert pdf.read_bytes().startswith(b"%PDF") and tsv.read_text().count("\t") > 30
    assert run(["cards", "--group", "pipelines"]) == 2
    assert "pipeline" in capsys.readouterr().err
    assert run(["cards", "--print", str(tmp_path / "none" / "cards.pdf")]) == 2
