"""torch's CSV format: round trip, torch reads ours, and its broken 1F1B listing is refused."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.schedules import FAMILIES, build, read_torch_csv, write_torch_csv
from meshwright.specs.errors import SpecError

ONE_CHAIN = sorted(set(FAMILIES) - {"dualpipe", "chimera", "seq-1f1b"})


@pytest.mark.parametrize("messages", [False, True])
@pytest.mark.parametrize("name", ONE_CHAIN)
def test_round_trip(name, messages):
    schedule = build(name, pp=4, micro_batches=8)
    back = read_torch_csv(write_torch_csv(schedule, messages=messages))
    assert back.order() == schedule.order()
    assert back.stage_rank.tolist() == schedule.stage_rank.tolist()
    assert messages or back.overlapped.tolist() == schedule.overlapped.tolist()


@pytest.mark.parametrize("name", ["dualpipe", "chimera", "seq-1f1b"])
def test_what_torch_cannot_express_is_refused(name):
    with pytest.raises(SpecError, match="torch's schedule format has no"):
        write_torch_csv(build(name, pp=4, micro_batches=8))


@pytest.mark.parametrize("name", ["interleaved", "zb-h1", "v-half", "dualpipe-v", "zb-auto"])
def test_torch_parses_and_lowers_our_file(name):
    torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    schedule = build(name, pp=4, micro_batches=8)
    parsed = {}
    for rank, row in enumerate(csv.reader(io.StringIO(write_torch_csv(schedule)))):
        parsed[rank] = [torch_schedules._Action.from_str(cell) for cell in row]
    stage_rank = schedule.stage_rank.tolist()
    torch_schedules._validate_schedule(parsed, schedule.pp, schedule.stages, 8)
    lowered = torch_schedules._add_send_recv(parsed, lambda s: stage_rank[s], schedule.stages)
    sends = sum("SEND" in str(action) for row in lowered.values() for action in row)
    assert sends == write_torch_csv(schedule, messages=True).count("SEND")


def test_torchs_own_1f1b_listing_is_refused_with_the_operation():
    visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
    listing = visualizer.get_schedule_ops("1F1B", 4, 8)
    text = "\n".join(",".join("" if a is None else str(a) for a in row) for row in listing)
    with pytest.raises(
        SpecError, match=r"stage 3.*forwards micro-batches 1…8, but stage 0 forwards 0…7"
    ):
        read_torch_csv(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no actions"),
        ("0F0,0X0", "row 0, column 1"),
        ("0F0,0F,0B0", "names its stage and micro-batch"),
        ("0F0,0B0\n0F1,0B1", "stage 0.*ranks 0 and 1"),
        ("0F0,0B0\n2F0,2B0", "stage 1.*no rank"),
        ("0F0,0B0,0F99999999999,0B1", "names its stage"),
    ],
)
def test_bad_files_are_one_sentence(text, message):
    with pytest.raises(SpecError, match=message):
        read_torch_csv(text)


@given(st.text(alphabet="0123456789FBIWSENDRCV_();,\n ", max_size=120))
def test_any_text_is_read_or_refused(text):
    try:
        schedule = read_torch_csv(text)
    except SpecError:
        return
    assert len(schedule)
