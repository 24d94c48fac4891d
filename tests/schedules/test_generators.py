"""Every schedule is proven over many shapes, and refused shapes say why."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.schedules import FAMILIES, Kind, Shape, build, refusal, validate
from meshwright.schedules.ops import from_lists, loop_placement
from meshwright.specs.errors import SpecError
from meshwright.specs.layout import SCHEDULES

shapes = st.builds(
    Shape,
    pp=st.integers(1, 7),
    micro_batches=st.integers(1, 18),
    virtual_stages=st.integers(0, 4),
    group=st.integers(0, 9),
    slices=st.integers(0, 3),
)


@pytest.mark.parametrize("name", sorted(FAMILIES))
@settings(max_examples=60, deadline=None)
@given(shape=shapes)
def test_every_schedule_is_refused_with_a_reason_or_proven(name, shape):
    reason = refusal(name, shape)
    if reason is None:
        validate(build(name, **vars(shape)))
    else:
        assert len(reason) > 10
        with pytest.raises(SpecError, match="schedule"):
            build(name, **vars(shape))


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_plain_shape_is_legal_for_every_schedule(name):
    schedule = build(name, pp=4, micro_batches=8)
    validate(schedule)
    assert schedule.name == name
    assert schedule.pp == 4


def test_the_registry_holds_exactly_the_names_of_the_layout():
    assert tuple(FAMILIES) == SCHEDULES


@settings(max_examples=60, deadline=None)
@given(
    pp=st.integers(1, 6),
    m=st.integers(1, 12),
    limit=st.floats(1, 12),
    times=st.tuples(*[st.floats(0.1, 3)] * 3),
    kept=st.sampled_from([0.4, 1.0]),
)
def test_zb_auto_stays_within_its_memory_limit(pp, m, limit, times, kept):
    schedule = build(
        "zb-auto", pp=pp, micro_batches=m, memory_limit=limit, times=times, comm=0.05,
        kept_for_weights=kept,
    )  # fmt: skip
    validate(schedule)
    for rank in range(pp):
        held = 0.0
        for op in schedule.ops(rank):
            held += {Kind.F: 1.0, Kind.I: kept - 1.0, Kind.W: -kept, Kind.B: -1.0}[op.kind]
            assert held <= limit + 1e-6


def test_1f1b_order_of_a_middle_rank():
    words = [str(op) for op in build("1f1b", pp=4, micro_batches=5).ops(2)]
    assert words == ["2F0", "2F1", "2B0", "2F2", "2B1", "2F3", "2B2", "2F4", "2B3", "2B4"]


def test_interleaved_refuses_a_short_last_group_with_the_numbers():
    reason = refusal("interleaved", Shape(pp=8, micro_batches=13, virtual_stages=2, group=8))
    assert reason is not None
    assert "5 micro-batches" in reason and "pp = 8" in reason


def two_ranks(rank0: str, rank1: str, micro_batches: int = 2):
    def parse(text):
        return [(Kind[w[1]], int(w[0]), int(w[2:])) for w in text.split()]

    return from_lists(
        "hand-made",
        [parse(rank0), parse(rank1)],
        micro_batches=micro_batches,
        stage_rank=loop_placement(2, 1),
    )


@pytest.mark.parametrize(
    ("rank0", "rank1", "message"),
    [
        ("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1", None),
        ("0F0 0F1 0I0 0W0 0B1", "1F0 1B0 1F1 1I1 1W1", None),
        ("0F0 0F1 0B0 0B1", "1F0 1B0 1F1", "1B1.*never runs"),
        ("0F0 0F1 0B0 0B1", "1F1 1B1 1F1 1B1", "1F1.*runs 2 times"),
        ("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1I1", "1I1.*other half is missing"),
        ("0F0 0F1 0B0 0B1", "1F0 1B0 1B1 1F1", "1B1.*forward comes later"),
        ("0F0 0F1 0B0 0W1 0I1", "1F0 1B0 1F1 1B1", "0W1.*I comes later"),
        ("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1", "deadlocks: rank 0 at 0B0 waits for 1B0"),
        ("0F0 1F1 0B0 0B1", "1F0 1B0 0F1 1B1", "stage 1 is on rank 1"),
        ("0F0 0F2 0B0 0B2", "1F0 1B0 1F1 1B1", "only 2 micro-batches"),
    ],
)
def test_the_validator_names_what_is_wrong(rank0, rank1, message):
    schedule = two_ranks(rank0, rank1)
    if message is None:
        validate(schedule)
    else:
        with pytest.raises(SpecError, match=message):
            validate(schedule)
