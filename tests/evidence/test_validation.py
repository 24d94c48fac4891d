"""The stored left-out figures: they do not get worse, and they are those of this model."""

import json
import math
from pathlib import Path

import pytest

from meshwright.cli import run
from meshwright.evidence.constants import constants_set, fitted_constants
from meshwright.evidence.predict import predict
from meshwright.evidence.rows import published_rows
from meshwright.evidence.score import Errors, pair
from meshwright.evidence.validation import MODES, figure_of, stored

LIMITS = json.loads((Path(__file__).parent / "data" / "left_out_limits.json").read_text())
CHEAP = [
    "korthikanti_2022_seqsel",
    "vtrain_multinode",
    "simumax_b200",
    "modded_nanogpt",
    "fms_fsdp",
]


@pytest.mark.parametrize(
    "limit", LIMITS, ids=lambda limit: f"{limit['mode']} {limit['group']} {limit['figure']}"
)
def test_left_out_figures_do_not_get_worse(limit):
    value = figure_of(stored(), limit["mode"], limit["group"], limit["figure"])
    if "at_most" in limit:
        assert value <= limit["at_most"]
    else:
        assert value >= limit["at_least"]


@pytest.mark.parametrize("source", CHEAP)
def test_stored_figures_are_this_models(source):
    """Predicted again with the source's stored constants: an old result would show."""
    rows = published_rows([source])
    known = stored()
    with constants_set(known.constants.get(source, {})):
        for mode, as_user in (("left out", False), ("as a user", True)):
            scored = pair(rows, predict(rows, as_user=as_user))
            now = Errors.of(one.time_error for one in scored)
            then = known.scores[mode][source]["time"]
            assert now.rows == then["rows"]
            assert now.median == pytest.approx(then["median"], abs=1.5)


def test_left_out_constants_are_declared_ones_inside_their_bounds():
    declared = {one.name: one for one in fitted_constants()}
    for source, values in stored().constants.items():
        for name, value in values.items():
            one = declared[name]
            assert one.low * 0.999 <= value <= one.high * 1.001, (source, name)


def test_every_source_is_scored_in_every_way():
    result = stored()
    assert set(result.scores) == set(MODES)
    for mode in MODES:
        groups = result.scores[mode]
        assert {"all", "mixture of experts", "fine-tuning"} <= groups.keys()
        assert not math.isnan(figure_of(result, mode, "all", "time.median"))
    # What was left out is not better known than what was fitted.
    assert figure_of(result, "left out", "all", "time.median") >= 0.9 * figure_of(
        result, "fitted", "all", "time.median"
    )


def test_the_command_shows_the_stored_result(capsys):
    assert run(["scorecard", "--leave-out", "source", "--stored", "--json", "--as-user"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["mode"] == "as a user" and told["scores"]["all"]["rows"] > 5000
    assert run(["scorecard", "--leave-out", "source", "--stored"]) == 0
    assert "vtrain_multinode" in capsys.readouterr().out


def test_only_sources_can_be_left_out(capsys):
    assert run(["scorecard", "--leave-out", "colour", "--stored"]) == 2
    assert "`source`" in capsys.readouterr().err
