"""A chip that JAX shows as two devices: meshes and batches a device count devices, plans count chips."""

import pytest
import yaml

from meshwright.exports.targets import export
from meshwright.imports.files import import_file
from meshwright.imports.reading import Given
from meshwright.planner.constraints import Constraints
from meshwright.planner.plan import plan
from meshwright.specs.clusters import load_cluster
from meshwright.specs.job import Job
from meshwright.specs.models import load_model

JOB = Job(seq_len=4096, global_batch=64, framework="maxtext")


@pytest.mark.parametrize("zero", [1, 3])
@pytest.mark.parametrize(("slice_", "devices"), [("tpu-v7-pod:4x4", 32), ("tpu-v5p-pod:4x4", 16)])
def test_a_mesh_has_the_devices_that_jax_shows(tmp_path, zero, slice_, devices):
    fixed = Constraints(zero=zero, tp=1, cp=1, micro_batch=2)
    made = plan(load_model("llama3-8b"), load_cluster(slice_), JOB, constraints=fixed, defend=False)
    bundle = export(made, "maxtext")
    bundle.write(tmp_path)
    data = yaml.safe_load((tmp_path / "maxtext.yml").read_text())
    sizes = [size for name, size in data.items() if name.startswith("ici_")]
    filled = devices if zero == 3 else 1  # the axis of -1 takes what is left
    product = filled
    for size in sizes:
        product *= size if size > 0 else 1
    assert product == devices
    sequences = data["per_device_batch_size"] * devices * data["gradient_accumulation_steps"]
    assert sequences == JOB.global_batch
    assert any("JAX shows 2 devices" in note for note in bundle.notes) == (devices == 32)
    for given in (Given(), Given(cluster=made.cluster)):
        back = import_file(tmp_path / "maxtext.yml", given)
        assert back.layout == made.layout
        assert (back.job.global_batch, back.cluster.gpus) == (JOB.global_batch, 16)
