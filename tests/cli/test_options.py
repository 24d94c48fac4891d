"""Groups of options reach Typer as the options themselves, and JSON output is always finite."""

from __future__ import annotations

import inspect
import json
import math

import pytest

from meshwright.cli import options, run
from meshwright.cli.output import finite, print_json


def test_a_group_becomes_its_options_where_it_stood_and_arrives_as_one_object() -> None:
    seen = []

    def command(
        *, first: int = 1, layout: options.RunLayoutOptions, as_json: options.AsJson = False
    ) -> None:
        seen.append((first, layout, as_json))

    expanded = options.expand(command)
    names = list(inspect.signature(expanded).parameters)
    assert names[:3] == ["first", "tp", "pp"]
    assert names[-2:] == ["sequence_parallel", "as_json"]
    given = dict.fromkeys(names[1:-1])
    expanded(first=2, as_json=True, **{**given, "tp": 4, "zero": 0})
    assert seen == [(2, options.RunLayoutOptions(tp=4, zero=0), True)]
    assert options.chosen(seen[0][1]) == {"tp": 4, "zero": 0}


def test_json_output_is_finite_and_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"layout": "tp 8 · pp 4"})
    text = capsys.readouterr().out
    assert text.isascii()
    assert json.loads(text) == {"layout": "tp 8 · pp 4"}
    with pytest.raises(ValueError, match="JSON"):
        print_json({"loss": math.nan})
    diverged = {"loss": [1.0, math.inf], "memory": (math.nan, 2), "name": "toy"}
    assert finite(diverged) == {"loss": [1.0, None], "memory": [None, 2], "name": "toy"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "toy"], "such as h100:8x8"),
        (["plan", "toy", "-c", "h100:1x8", "--seq", "8k", "--global-batch", "4M"], "4M-tokens says tokens"),
        (["memory", "7"], "7B, or 7M"),
        (["collective", "all-reduce", "--size", "2", "--ranks", "8", "--bandwidth", "25GB/s"], "2GB or 64MiB"),
        (["collective", "all-reduce", "--size", "2GB", "--ranks", "8", "--bandwidth", "25"], "25GB/s or 400Gb/s"),
        (["calibrate", "--cluster", "h100:8x8"], "--from: a log"),
        (["trace", "no-folder-here"], "no such folder"),
        (["flight", "no-folder-here"], "no such folder"),
        (["plan", "--model", "toy"], "given without one: meshwright plan MODEL"),
        (["plan", "toy", "--gbs", "4"], "(Possible options: --global-batch)"),
        (["plan", "toy", "-n", "4"], "meshwright plan --help lists them"),
    ],
)  # fmt: skip
def test_what_was_forgotten_is_asked_for_by_an_example(arguments, says, capsys):
    assert run(arguments) == 2
    assert says in capsys.readouterr().err


def test_a_page_of_text_is_no_script(tmp_path, capsys):
    (tmp_path / "README.md").write_text("It isn't hard:\n\n    torchrun train.py --tp 2\n")
    assert run(["import", str(tmp_path / "README.md")]) == 2
    assert "is a page of text" in capsys.readouterr().err
