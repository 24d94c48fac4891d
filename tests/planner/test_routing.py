"""Routing as an input: the hottest rank sets time and memory, and with them the choice."""

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costs.routing import hottest_rank
from meshwright.costs.step import estimate
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.models import load_model
from meshwright.specs.routing import Routing, check_experts, counted_routing, hottest, parse_routing

COUNTS = (
    Path(__file__).parents[3] / "shared" / "traces" / "diagnose" / "moe_routing"
    / "token_counts.csv.gz"
)  # fmt: skip
MIXTRAL, H100 = load_model("mixtral-8x7b"), load_cluster("h100:1x8")
LAYOUT = Layout(dp=8, ep=8, zero=1, micro_batch=1, recompute="full")


def priced(routing):
    job = Job(seq_len=4096, global_batch=64, framework="megatron", routing=routing)
    return estimate(MIXTRAL, H100, job, LAYOUT)


def test_real_counts_give_their_published_ratios(tmp_path):
    """Means over 24 layers and 30 iterations of a Mixtral trained without rebalancing: 1.729."""
    if not COUNTS.exists():
        pytest.skip("the routing traces are not beside the checkout")
    with gzip.open(COUNTS, "rt", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    names = {name.lower(): name for name in rows[0]}
    wanted = [
        row
        for row in rows
        if row[names["method"]] == "FSDP" and "e16k4" in row[names["model_name"]]
    ]
    file = tmp_path / "counts.csv"
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(wanted)
    routing = parse_routing(str(file))
    per_rank = routing.counted[0]
    assert per_rank.mean == pytest.approx(1.729, abs=5e-4)
    assert per_rank.peak == pytest.approx(2.516, abs=0.02)
    balanced, skewed = priced(Routing()), priced(routing)
    assert skewed.step_time_s > balanced.step_time_s * 1.1
    assert skewed.time_parts["expert_parallel"] > balanced.time_parts["expert_parallel"]


def test_skew_costs_time_memory_and_odds():
    odds = [priced(parse_routing(text)) for text in ("balanced", "power:0.3", "power:1")]
    assert odds[0].step_time_s < odds[1].step_time_s < odds[2].step_time_s
    assert odds[0].peak_memory_bytes < odds[2].peak_memory_bytes
    assert odds[0].fit_probability >= odds[2].fit_probability


@given(st.floats(0.05, 2), st.sampled_from([8, 64, 256]))
def test_fewer_experts_a_rank_are_never_more_even(power, experts):
    ep = np.array([d for d in (1, 2, 4, 8, 16, 32, 64) if experts % d == 0])
    hot = hottest_rank(Routing(name="p", power=power), experts, ep)
    assert hot[0] == 1.0
    assert (np.diff(hot) > 0).all()
    peak = hottest_rank(Routing(name="p", power=power), experts, ep, at_peak=True)
    assert (peak >= hot * 0.999).all()


def test_the_hottest_group_is_over_the_mean():
    assert hottest([1, 1, 1, 1], 4) == 1.0
    assert hottest([4, 0, 0, 0], 4) == 4.0
    assert hottest([4, 0, 0, 0], 2) == 2.0


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.json", "[3, 1, 2, 2]"), ("b.json", "[[3, 1, 2, 2]]"), ("c.csv", "3\n1\n2\n2\n"),
     ("d.csv", "layer,expert_0,expert_1,expert_2,expert_3\n0,3,1,2,2\n")],
)  # fmt: skip
def test_files_of_counts_in_every_shape(tmp_path, name, text):
    file = tmp_path / name
    file.write_text(text)
    routing = parse_routing(str(file))
    assert {hot.groups: hot.mean for hot in routing.counted} == {2: 1.0, 4: 1.5}
    job = Job(routing=routing)
    assert Job.parse(json.loads(json.dumps(job.plain()))) == job


@pytest.mark.parametrize("text", ["power:much", "power:-1", "nowhere.csv"])
def test_what_is_no_routing_is_refused(text):
    with pytest.raises(SpecError):
        parse_routing(text)


def test_counts_without_tokens_are_refused():
    with pytest.raises(SpecError, match="at least 0"):
        counted_routing([[0, 0]], "zeros")
    with pytest.raises(SpecError, match="as many counts"):
        counted_routing([[1, 2], [1, 2, 3]], "ragged")


def test_a_line_for_each_expert_is_a_histogram(tmp_path):
    lines = [f"{layer},{expert},{10 * (expert == layer) + 1}" for layer in (0, 1) for expert in range(4)]  # fmt: skip
    (tmp_path / "long.csv").write_text("\n".join(["layer,expert,tokens", *lines]))
    wide = "e0,e1,e2,e3\n11,1,1,1\n1,11,1,1\n"
    (tmp_path / "wide.csv").write_text(wide)
    long, short = (parse_routing(str(tmp_path / name)) for name in ("long.csv", "wide.csv"))
    assert long.counted == short.counted and max(one.groups for one in long.counted) == 4


@pytest.mark.parametrize(
    ("experts", "says"), [(None, "model with experts"), (8, "8 experts are expected")]
)
def test_counts_of_other_experts_are_refused(experts, says, tmp_path):
    (tmp_path / "four.json").write_text("[4, 3, 2, 1]")
    routing = parse_routing(str(tmp_path / "four.json"))
    check_experts(routing, 4, "a model", "--routing")
    with pytest.raises(SpecError, match=says):
        check_experts(routing, experts, "a model", "--routing")
