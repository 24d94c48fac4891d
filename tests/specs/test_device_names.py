"""Device names as people and tools write them, and what is said of devices without measurements."""

import pytest

from meshwright.planner.compared import STACKS
from meshwright.planner.plan import price_layout
from meshwright.specs import load_cluster, load_model
from meshwright.specs.devices import device_names, load_device, unmeasured
from meshwright.specs.errors import SpecError
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout


@pytest.mark.parametrize(
    ("written", "preset"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100-SXM4-80GB", "a100-80g"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40g"), ("NVIDIA A100 80GB PCIe", "a100-pcie-80g"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"), ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA GH200 480GB", "gh200"), ("GH200", "gh200"), ("NVIDIA H200", "h200"),
        ("Tesla V100-SXM2-32GB", "v100-32g"), ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000-ada"), ("H100 NVL", "h100-nvl"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"),
        ("AMD Instinct MI300X", "mi300x"), ("AMD Instinct MI355X OAM", "mi355x"),
        ("MI300A", "mi300a"), ("Ironwood", "tpu-v7"), ("Trainium 2", "trainium2"), ("trn3", "trainium3"),
        ("gaudi 2", "gaudi2"), ("Gaudi3", "gaudi3"), ("Ascend 910B", "ascend-910b"), ("910C", "ascend-910c"),
        ("L40", "l40"), ("NVIDIA H800", "h800"), ("H20", "h20"), ("RTX 5090", "rtx5090"),
        ("NVIDIA GeForce RTX 3060", "rtx3060"), ("RTX 4080", "rtx4080"), ("RTX 5080", "rtx5080"),
        ("NVIDIA GeForce RTX 4060", "rtx4060"), ("RTX 4060 Ti", "rtx4060ti"), ("RTX 4070 Ti SUPER", "rtx4070ti-super"),
        ("NVIDIA GeForce RTX 3080", "rtx3080"), ("RTX 5070 Ti", "rtx5070ti"), ("DGX Spark", "gb10"), ("GB10", "gb10"),
    ],
)  # fmt: skip
def test_the_usual_spellings_resolve(written, preset):
    assert load_device(written).preset == preset


@pytest.mark.parametrize("name", device_names())
def test_every_number_names_its_source(name):
    device = load_device(name)
    assert device.peak("bf16") > 0
    assert {"memory", "memory_bandwidth", "peak_tflops"} <= set(device.sources) or name == "cpu"
    assert load_cluster(f"{name}:2").gpus == 2


@pytest.mark.parametrize("name", ["H100000", "GTX", "nvidia", ""])
def test_unknown_names_are_refused(name):
    with pytest.raises(SpecError):
        load_device(name)


def test_a_plan_says_where_its_device_was_never_measured():
    model, job = load_model("llama3-8b"), Job(global_batch=8)
    layout = Layout(dp=8, zero=3, recompute="full")
    said = price_layout(model, load_cluster("mi350x:1x8"), job, layout)
    assert any("no measurement of matrix products on MI350X" in note for note in said.notes)
    assert unmeasured(load_device("h100")) is None
    measured = price_layout(model, load_cluster("h100:1x8"), job, layout)
    assert not any("no measurement" in note for note in measured.notes)


def test_every_device_has_frameworks_that_run_on_it():
    """A vendor that no preset has would leave its devices to an upper bound that nothing runs."""
    vendors = {load_device(name).vendor for name in device_names()}
    assert vendors == set(STACKS)
    assert load_device("ascend-910b").vendor == "huawei"


def test_an_apu_has_no_other_memory_to_move_things_to():
    assert load_cluster("mi300a:2x4").host_memory_bytes < 1e9
