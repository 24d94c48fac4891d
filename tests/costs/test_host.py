"""What the host issues: adapters and quantised weights are kernels of their own."""

import numpy as np
import pytest

from meshwright.costs.adapters import unpack_times
from meshwright.costs.columns import from_layouts
from meshwright.costs.host import (
    ADAPTER_KERNELS,
    UNPACK_KERNELS,
    adapter_kernels,
    collectives_s,
    tensor_collectives,
)
from meshwright.costs.setting import Setting
from meshwright.costs.stages import stage_layers
from meshwright.costs.step import estimate
from meshwright.specs import Job, Layout, load_cluster, load_model
from meshwright.specs.finetune import Finetune

MODEL, CLUSTER = load_model("llama-3.1-8b"), load_cluster("a100-80g:1x1")


def job(**tune: object) -> Job:
    finetune = Finetune(**tune) if tune else None  # type: ignore[arg-type]
    return Job(seq_len=256, global_batch=8, framework="megatron", finetune=finetune)


@pytest.mark.parametrize(
    ("tune", "kernels"),
    [
        ({}, 0),
        ({"method": "lora", "rank": 8, "targets": ("q", "v")}, 2 * ADAPTER_KERNELS),
        (
            {"method": "lora", "rank": 8, "targets": ("q", "v"), "storage": "nf4"},
            2 * ADAPTER_KERNELS + 7 * UNPACK_KERNELS,
        ),
    ],
)
def test_kernels_of_adapters_are_counted(tune, kernels):
    setting = Setting.of(MODEL, CLUSTER, job(**tune))
    assert adapter_kernels(setting, moe=False) == kernels


def test_short_steps_wait_for_the_launches_of_adapters():
    layout = Layout(micro_batch=1)
    two, seven = (
        estimate(MODEL, CLUSTER, job(method="lora", rank=8, targets=targets), layout)
        for targets in (("q", "v"), ("q", "k", "v", "o", "gate", "up", "down"))
    )
    assert seven.time_parts["launch"] > 1.5 * two.time_parts["launch"]


@pytest.mark.parametrize(("storage", "moved"), [("nf4", 2 * 2.5625), ("int4", 16.5), ("int8", 0.0)])
def test_quantised_matrices_are_written_out_for_every_product(storage, moved):
    tune = Finetune(method="qlora", rank=8, targets=("q",), storage=storage)
    setting = Setting.of(MODEL, CLUSTER, job(**tune.model_dump(exclude_unset=True)))
    there, back = unpack_times(MODEL, setting.job, setting.kernels, np.array([1, 2]), False)
    elements = 2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096
    expected = moved * elements / setting.kernels.bandwidth_bytes_s
    assert (there + back)[0] == pytest.approx(expected)
    assert (there + back)[1] == pytest.approx(expected / 2)


def test_weights_in_16_bits_are_not_written_out():
    setting = Setting.of(MODEL, CLUSTER, job(method="lora", rank=8, targets=("q", "v")))
    there, back = unpack_times(MODEL, setting.job, setting.kernels, np.array([1]), False)
    assert there[0] == back[0] == 0.0


def test_modules_gathered_one_by_one_take_the_host_longest_where_tokens_are_few():
    """DeepSpeed's ZeRO-3: matrices, norms and adapters' factors, twice forward and once backward."""
    cluster, layout = load_cluster("a100-80g:1x2"), Layout(dp=2, zero=3, recompute="full")
    work = Job(seq_len=128, global_batch=2, framework="deepspeed")
    each = 1e-3

    def step_s(gathers: str, **tune: object) -> float:
        options = {"zero3_gathers": gathers, "host_gather_s": each}
        finetune = Finetune(**tune) if tune else None  # type: ignore[arg-type]
        changed = work.but(framework_options=options, finetune=finetune)
        return estimate(MODEL, cluster, changed, layout).step_time_s

    modules = 7 + 2
    slower = step_s("modules") - step_s("layers")
    assert 0.5 < slower / (3 * MODEL.layers * modules * each) <= 1.0
    alone, one = load_cluster("a100-80g:1x1"), layout.but(dp=1)
    hooks = work.but(
        global_batch=1, framework_options={"zero3_gathers": "modules", "host_gather_s": each}
    )
    no_hooks = hooks.but(framework_options={"zero3_gathers": "layers", "host_gather_s": each})
    on_one = [estimate(MODEL, alone, job, one).step_time_s for job in (hooks, no_hooks)]
    assert 0.5 < (on_one[0] - on_one[1]) / (3 * MODEL.layers * modules * each) <= 1.0
    tune = {"method": "lora", "rank": 8, "targets": ("q", "v")}
    with_adapters = step_s("modules", **tune) - step_s("layers", **tune)
    assert with_adapters > slower
    whole = layout.but(zero=2)
    options = {"zero3_gathers": "modules", "host_gather_s": each}
    job_2 = work.but(framework_options=options)
    same = work.but(framework_options={**options, "zero3_gathers": "layers"})
    assert (
        estimate(MODEL, cluster, job_2, whole).step_time_s
        == estimate(MODEL, cluster, same, whole).step_time_s
    )


def test_sequence_parallelism_splits_and_repeats_a_layers_collectives():
    """Two all-reduces each way; in halves, four and six, of which two gather inputs once more."""
    layouts = [Layout(tp=1), Layout(tp=2), Layout(tp=2, sequence_parallel=True)]
    columns = from_layouts(layouts)
    setting = Setting.of(MODEL, load_cluster("a100-80g:1x2"), job())
    forward, backward = tensor_collectives(setting.behaviour, columns)
    assert forward.tolist() == [0, 2, 4] and backward.tolist() == [0, 2, 6]
    apart = setting.behaviour.but(input_reductions=3.0, input_gathers=3.0)
    forward, backward = tensor_collectives(apart, columns)
    assert forward.tolist() == [0, 2, 5] and backward.tolist() == [0, 3, 8]
    there, back = collectives_s(setting, columns, stage_layers(MODEL, columns), "first")
    one = MODEL.layers * setting.behaviour.host_collective_s
    assert there / one == pytest.approx([0, 2, 4]) and back / one == pytest.approx([0, 2, 6])
