"""What the host issues: adapters and quantised weights are kernels of their own."""

import pytest

from meshwright.costs.host import ADAPTER_KERNELS, UNPACK_KERNELS, adapter_kernels
from meshwright.costs.setting import Setting
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
