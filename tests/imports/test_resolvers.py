"""Resolvers in configurations: expressions, comparisons and choices."""

import pytest

from meshwright.imports.interpolate import resolved
from meshwright.imports.shell.words import unset


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${oc.eval:${.heads}/${kv}}", 8),
        ("${if:${gt:${oc.select:hosts,1},1},mcore,fused}", "fused"),
        ("${if:${eq:${kv},8},1,2}", 1),
        ("${neq:${kv},8}", False),
    ],
)
def test_what_they_come_to(text, value):
    assert resolved({"kv": 8, "model": {"heads": 64, "it": text}})["model"]["it"] == value


@pytest.mark.parametrize(
    "text",
    ["${oc.eval:open(1)}", "${oc.eval:1 in 2}", "${gt:a,1}", "${if:${gt:${oc.env:HOSTS},1},1,2}"],
)
def test_what_cannot_be_said_is_left_open(text):
    assert unset(resolved({"it": text})["it"])
