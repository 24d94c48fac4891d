"""Collectives that grow with what owns or reads a tensor: ZeRO-1 by whole tensors, inputs of several linears."""

import pytest

from meshwright.costs.step import estimate
from meshwright.specs import Job, Layout, load_cluster, load_model

MODEL = load_model("llama-3.1-8b")


def job(devices: int, **options: object) -> Job:
    return Job(seq_len=2048, global_batch=4 * devices, framework_options=options)


def data_parallel_s(hosts: int, shard: int = 0, **options: object) -> float:
    layout = Layout(dp=8 * hosts, zero=1, shard=shard)
    cluster = load_cluster(f"a100-80g:{hosts}x8")
    return estimate(MODEL, cluster, job(8 * hosts, **options), layout).time_parts["data_parallel"]


def test_owners_of_whole_tensors_send_one_after_another():
    """InternEvo's table: sharded over all, 7B loses 2 of 7 s between 64 and 1,024 devices; over one host nothing."""
    plain = [data_parallel_s(hosts) for hosts in (8, 32, 128)]
    owned = [data_parallel_s(hosts, zero1_owners=True) for hosts in (8, 32, 128)]
    assert owned[2] - owned[0] > 5.0 * (plain[2] - plain[0])
    assert owned[0] < owned[1] < owned[2]
    near = [data_parallel_s(hosts, shard=8, zero1_owners=True) for hosts in (8, 128)]
    assert near[1] - near[0] < 0.1 * (owned[2] - owned[0])


@pytest.mark.parametrize(
    ("split", "option", "more"),
    [
        (False, "input_reductions", 5 / 4),
        (True, "input_reductions", 1.0),
        (False, "input_gathers", 1.0),
    ],
)
def test_linears_that_do_not_share_an_inputs_collective_add_one_each(split, option, more):
    """Two all-reduces forward and two backward; a gate and an up with their own make five of four."""
    cluster, layout = load_cluster("a100-80g:1x8"), Layout(tp=8, sequence_parallel=split)
    usual, apart = (
        estimate(MODEL, cluster, job(1, **options), layout).time_parts["tensor_parallel"]
        for options in ({}, {option: 3.0})
    )
    assert apart == pytest.approx(more * usual, rel=1e-6)


def test_every_gather_under_sequence_parallelism_has_a_scatter_of_its_gradient():
    cluster, layout = load_cluster("a100-80g:1x8"), Layout(tp=8, sequence_parallel=True)
    times = [
        estimate(MODEL, cluster, job(1, input_gathers=n), layout).time_parts["tensor_parallel"]
        for n in (2.0, 3.0, 4.0)
    ]
    assert times[1] > times[0] and times[2] - times[1] == pytest.approx(
        times[1] - times[0], rel=0.2
    )
