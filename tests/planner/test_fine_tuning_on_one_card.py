"""What a person with one card asks first gets a plan by default."""

import re

import pytest

from meshwright.cli import run


@pytest.mark.parametrize(
    ("model", "cluster", "method"),
    [("llama3-8b", "rtx4090:1x1", "qlora"), ("qwen3-32b", "h100:1x1", "qlora")],
)
def test_adapters_on_one_card_are_planned_by_default(model, cluster, method, capsys):
    words = ["plan", model, "--cluster", cluster, "--finetune", method, "--seq", "2048", "--brief"]
    assert run(words) == 0, capsys.readouterr().err
    assert re.search(r"fits with (?:9\d|100)%", capsys.readouterr().out)
