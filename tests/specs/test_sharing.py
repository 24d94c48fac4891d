"""Cards that several processes share: an equal part each, stated in the cluster file."""

from __future__ import annotations

import pytest
import tomli_w

from meshwright.costs.step import estimate
from meshwright.planner.plan import price_layout
from meshwright.specs.clusters import load_cluster
from meshwright.specs.devices import load_device
from meshwright.specs.errors import SpecError
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.models import load_model

MODEL = load_model("gpt2")
JOB = Job(global_batch=8, seq_len=1024)


def shared(**how):
    return load_cluster(
        {"device": {"base": "h100", "shared": how}, "nodes": 1, "gpus_per_node": 2}
    )  # fmt: skip


def test_a_part_has_its_share_of_everything():
    whole, part = load_cluster("h100:1x2"), shared(processes=4)
    card, mine = whole.device, part.device
    assert mine.peak_flops["bf16"] == pytest.approx(card.peak_flops["bf16"] / 4)
    assert mine.memory_bytes == pytest.approx(card.memory_bytes / 4)
    assert mine.memory_bandwidth_bytes_s == pytest.approx(card.memory_bandwidth_bytes_s / 4)
    assert mine.price_per_hour == pytest.approx(card.price_per_hour / 4)
    assert part.levels[0].bandwidth_bytes_s == pytest.approx(whole.levels[0].bandwidth_bytes_s / 4)
    assert (mine.card_processes, mine.card_sharing, mine.sms) == (4, "time-slicing", card.sms)
    # At once each has its part of the multiprocessors; in turns a kernel has all of them.
    assert shared(processes=4, how="mps").device.sms == card.sms // 4


def test_a_step_takes_as_much_longer_as_is_stated():
    layout = Layout(micro_batch=8)
    times = [
        estimate(MODEL, cluster, JOB, layout).step_time_s
        for cluster in (load_cluster("h100:1x2"), shared(processes=2), shared(processes=2, slowdown=1.3))
    ]  # fmt: skip
    assert times[0] < times[2] < times[1] <= 2.0 * times[0]
    assert times[1] > 1.5 * times[0]
    memory = [
        estimate(MODEL, c, JOB, layout) for c in (load_cluster("h100:1x2"), shared(processes=2))
    ]
    assert memory[1].capacity_bytes == pytest.approx(memory[0].capacity_bytes / 2, rel=0.01)


def test_a_plan_says_so_and_its_file_does_not_share_again(tmp_path):
    cluster = shared(processes=4, how="mig")
    plan = price_layout(MODEL, cluster, JOB, Layout(dp=2, micro_batch=4))
    assert any("4 processes share (mig)" in note and "NCCL refuses" in note for note in plan.notes)
    assert not any("processes share" in note for note in price_layout(
        MODEL, load_cluster("h100:1x2"), JOB, Layout(dp=2, micro_batch=4)).notes)  # fmt: skip
    file = tmp_path / "again.toml"
    file.write_text(tomli_w.dumps(cluster.plain()))
    assert load_cluster(str(file)).device == cluster.device
    assert load_cluster(str(file)).levels == cluster.levels


@pytest.mark.parametrize(
    ("how", "field"),
    [
        ({"processes": 1}, "processes"), ({"processes": 2.0}, "processes"), ({}, "processes"),
        ({"processes": 2, "how": "luck"}, "how"), ({"processes": 2, "slowdown": 0.5}, "slowdown"),
        ({"processes": 2, "slowdown": float("nan")}, "slowdown"), ({"cards": 2}, "cards"),
    ],
)  # fmt: skip
def test_what_no_card_can_be_is_refused(how, field):
    with pytest.raises(SpecError, match=field):
        load_device({"base": "h100", "shared": how})


def test_a_part_is_not_shared_again():
    part = load_device({"base": "h100", "shared": {"processes": 2}})
    with pytest.raises(SpecError, match="already"):
        load_device({"base": part.plain(), "shared": {"processes": 2}})
    with pytest.raises(SpecError, match="a table such as"):
        load_device({"base": "h100", "shared": 4})
