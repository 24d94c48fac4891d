"""A measured machine's own runs move its paces: what is hidden in them is found again."""

from __future__ import annotations

import pytest

from meshwright.costs.step import estimate
from meshwright.evidence.calibrate import Sighting, calibrate
from meshwright.evidence.import_rows import Run
from meshwright.evidence.measured_knobs import measured_knobs
from meshwright.specs.cluster import Cluster
from meshwright.specs.clusters import load_cluster
from meshwright.specs.job import RECIPES, Job
from meshwright.specs.layout import Layout
from meshwright.specs.measured import MeasuredCollective, MeasuredDevice, ModuleTimes, SharedCores
from meshwright.specs.model import Model

MODEL = Model(
    name="tiny", layers=2, hidden=64, heads=2, kv_heads=2, head_dim=32, ffn=128, vocab=256
)
JOB = Job(seq_len=64, global_batch=8, precision=RECIPES["fp32"], framework="meshwright")
MODULES = (
    "linear", "rmsnorm", "layernorm", "add", "silu_product", "gelu", "rotate", "attention",
    "attention_grouped", "attention_masked", "embedding", "loss",
)  # fmt: skip


@pytest.fixture(scope="module")
def machine() -> Cluster:
    """A machine as `measure` writes it, with round numbers."""
    one = ModuleTimes(
        forward={"call": 1e-5, "product": 2e-11}, backward={"call": 3e-5, "product": 4e-11}
    )
    device = MeasuredDevice(
        modules={"fp32": dict.fromkeys(MODULES, one)},
        engine_s={"step": 1e-3, "micro_batch": 2e-4}, process_bytes=3e8,
    )  # fmt: skip
    curve = MeasuredCollective(
        collective="all_reduce",
        members=2,
        active=2,
        sizes_bytes=(4096.0, 1e6),
        times_s=(2e-4, 1e-3),
    )
    base = load_cluster("cpu:1x2")
    return base.but(
        device=base.device.but(measured=device.model_dump()).model_dump(),
        collectives=[curve.model_dump()],
        shared_cores=SharedCores(cores=1, ranks=(1, 2), slowdown=(1.0, 2.0)).model_dump(),
    )


LAYOUTS = (
    Layout(dp=2, micro_batch=1), Layout(dp=2, micro_batch=4), Layout(micro_batch=1),
    Layout(micro_batch=8),
)  # fmt: skip


def seen_on(truth: Cluster, cluster: Cluster) -> list[Sighting]:
    return [
        Sighting(
            Run("own", MODEL, cluster, JOB, layout, "allocated", "heaviest", ()),
            estimate(MODEL, truth if layout.world == 2 else truth.but(
                gpus_per_node=1, levels=[truth.levels[0].but(domain=1).model_dump()]
            ), JOB, layout).step_time_s,
            "own",
        )
        for layout in LAYOUTS
    ]  # fmt: skip


def test_each_pace_is_read_back_as_it_was_written(machine: Cluster) -> None:
    knobs = {knob.name: knob for knob in measured_knobs(machine)}
    assert set(knobs) == {
        "device.measured.modules.fp32", "device.measured.engine_s", "collectives",
        "shared_cores.slowdown",
    }  # fmt: skip
    for knob in knobs.values():
        before = knob.read(machine)
        assert knob.read(knob.write(machine, 1.3 * before)) == pytest.approx(1.3 * before)
    slower = knobs["shared_cores.slowdown"].write(machine, 1.5).shared_cores
    assert slower is not None and slower.slowdown == (1.0, 2.5)
    assert not measured_knobs(load_cluster("h100:1x8"))


def test_a_slower_processor_is_found_from_the_machine_s_own_runs(machine: Cluster) -> None:
    (pace,) = [k for k in measured_knobs(machine) if k.name.endswith("fp32")]
    truth = pace.write(machine, 1.25 * pace.read(machine))
    found = calibrate(machine, sightings=seen_on(truth, machine))
    assert not found.refused
    assert found.error_after < 0.03 < found.error_before
    moved = {one.name: one.after / one.before for one in found.constants if one.identified}
    assert moved["device.measured.modules.fp32"] == pytest.approx(1.25, rel=0.07)


def test_runs_that_no_constant_moves_are_said_to_be_such() -> None:
    cluster = load_cluster("h100:1x1")  # a tiny model's step is what the host takes to issue it
    run = Run("own", MODEL, cluster, JOB, Layout(micro_batch=8), "allocated", "heaviest", ())
    found = calibrate(cluster, sightings=[Sighting(run, 1.0, "own")])
    assert "no constant of this cluster moves" in found.refused and not found.constants
    assert found.cluster.device == cluster.device
