"""Groups of options reach Typer as the options themselves, and JSON output is always finite."""

from __future__ import annotations

import inspect
import json
import math

import pytest

from meshwright.cli import options
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
