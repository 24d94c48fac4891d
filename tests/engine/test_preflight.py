"""What a run needs of this machine, counted before a process starts."""

import pytest

from meshwright.engine.ranks import preflight
from meshwright.engine.ranks.preflight import check_states, least_state_bytes
from meshwright.specs.errors import SpecError
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.models import load_model

JOB = Job(seq_len=128, global_batch=8)


def test_states_of_all_ranks_are_the_models_own_under_zero3_and_a_copy_each_without() -> None:
    whole = JOB.state_bytes * 1000
    assert least_state_bytes(1000, JOB, Layout(dp=4, zero=3), 4) == whole
    assert least_state_bytes(1000, JOB, Layout(dp=4), 4) == 4 * whole
    assert whole < least_state_bytes(1000, JOB, Layout(dp=4, zero=1), 4) < 4 * whole


def test_a_plan_for_a_cluster_is_refused_where_its_states_do_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preflight, "_available_bytes", lambda: 24e9)
    told = {"field": "plan", "way_out": "race it elsewhere"}
    small, large = load_model("bloom-560m"), load_model("llama3-8b")
    check_states(559_000_000, small, JOB, Layout(dp=2, zero=3), **told)
    with pytest.raises(SpecError, match=r"on 128 ranks at the very least, and this machine has"):
        check_states(8_030_000_000, large, JOB, Layout(dp=4, tp=8, pp=4, zero=1), **told)
