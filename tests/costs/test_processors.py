"""Processors of hosts: Grace issues work more slowly, checked collectives take their group's turn."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

from meshwright import costs
from meshwright.costs.processors import CHECK_MESSAGES, check_s
from meshwright.costs.setting import Setting
from meshwright.costs.step import estimate, price
from meshwright.specs import Job, Layout, load_cluster, load_model

HOST = tomllib.loads((Path(costs.__file__).parent / "data" / "host.toml").read_text())
MODEL, H100 = load_model("llama-3.1-8b"), load_cluster("h100:8x8")
HOST_TIMES = ("host_kernel_s", "host_collective_s", "host_micro_batch_s", "host_step_s")


def job(**options: object) -> Job:
    return Job(seq_len=4096, global_batch=64, framework="megatron", framework_options=options)


def step_s(layout: Layout, **options: object) -> float:
    return estimate(MODEL, H100, job(**options), layout).step_time_s


@pytest.mark.parametrize(
    ("cluster", "slower"), [("gh200:2x4", True), ("gb200:2x4", True), ("h100:1x8", False)]
)
def test_a_grace_host_issues_everything_more_slowly(cluster, slower):
    here = Setting.of(MODEL, load_cluster(cluster), job()).behaviour
    x86 = Setting.of(MODEL, H100, job()).behaviour
    factor = HOST["grace"]["slowness"] if slower else 1.0
    assert factor > 1.0 or not slower
    for name in HOST_TIMES:
        assert getattr(here, name) == pytest.approx(factor * getattr(x86, name))


def test_a_check_takes_four_messages_a_member_and_none_alone():
    message_s = HOST["checks"]["message_s"]
    assert check_s(np.array([1, 2, 8])) == pytest.approx(
        [0.0, 2 * CHECK_MESSAGES * message_s, 8 * CHECK_MESSAGES * message_s]
    )


def test_short_layers_take_the_time_of_their_checks_whatever_they_compute():
    # Ten collectives a layer of tensor parallelism; a host that waits for them sets the pace.
    layout = Layout(tp=8, dp=8, micro_batch=1, zero=1, sequence_parallel=True)
    least = 10 * 32 * 8 * float(check_s(np.array([8]))[0])
    assert step_s(layout) < least < step_s(layout, collectives_checked=True) < 1.5 * least


def test_messages_between_pipeline_stages_are_not_checked():
    alone = Layout(pp=8, dp=8, micro_batch=1, zero=0)
    more = step_s(alone, collectives_checked=True) - step_s(alone)
    # What is left are the all-reduces of gradients, one a bucket or large weight at most.
    most = 2 * 4 * float(check_s(np.array([8]))[0])
    assert 0 < more <= most * (1 + 1e-9)  # a difference of two sums


def test_gradients_sharded_over_more_replicas_take_longer_checks():
    def more(dp):
        layout = Layout(tp=1, dp=dp, micro_batch=1, zero=1)
        cluster = load_cluster(f"h100:{dp // 8}x8")
        with_checks, without = (
            estimate(MODEL, cluster, job(**options), layout).step_time_s
            for options in ({"collectives_checked": True}, {})
        )
        return with_checks - without

    assert more(64) == pytest.approx(8 * more(8), rel=0.1)


def test_a_tpu_has_no_cuda_context_and_no_nccl():
    from meshwright.costs.columns import from_layouts

    cluster = load_cluster("tpu-v5e:8x8")
    table = price(MODEL, cluster, Job(seq_len=2048, global_batch=64, framework="maxtext"),
                  from_layouts([Layout(dp=64, zero=3)]))  # fmt: skip
    parts = table.memory.parts["first"]
    assert parts["communicators"][0] == 0.0
    assert parts["context"][0] < 0.5e9
