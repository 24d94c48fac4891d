"""What tensor-parallel collectives hide behind: the products they are pipelined with, inside a host."""

import pytest

from meshwright.costs.step import estimate
from meshwright.specs import Job, Layout, load_cluster, load_model

JOB = Job(seq_len=4096, global_batch=16, framework="megatron")


def exposed(tp: int, *, overlapped: bool, model: str = "llama-3.1-70b") -> float:
    job = JOB.but(framework_options={"tensor_overlapped": overlapped})
    layout = Layout(dp=32 // tp, tp=tp, micro_batch=1, zero=1, sequence_parallel=True)
    priced = estimate(load_model(model), load_cluster("h100:4x8"), job, layout)
    return priced.time_parts["tensor_parallel"]


def test_what_hides_is_at_most_three_quarters():
    assert exposed(8, overlapped=True) >= 0.25 * exposed(8, overlapped=False)
    assert exposed(8, overlapped=True) < 0.6 * exposed(8, overlapped=False)


@pytest.mark.parametrize("tp", [16, 32])
def test_user_buffers_do_not_reach_other_hosts(tp):
    assert exposed(tp, overlapped=True) == exposed(tp, overlapped=False)


def test_a_group_over_hosts_is_slower_than_one_inside_a_host():
    model, cluster = load_model("llama-3.1-70b"), load_cluster("h100:4x8")
    job = JOB.but(framework_options={"tensor_overlapped": True})
    inside = Layout(dp=2, tp=8, pp=2, micro_batch=1, zero=1, sequence_parallel=True)
    across = Layout(dp=2, tp=16, micro_batch=1, zero=1, sequence_parallel=True)
    times = [estimate(model, cluster, job, layout).step_time_s for layout in (inside, across)]
    assert times[0] < times[1]
