"""A plan says where model, job and device disagree instead of assuming in silence."""

from meshwright.planner.plan import plan
from meshwright.specs import load_cluster, load_job, load_model


def notes(model, cluster, job):
    return " ".join(plan(load_model(model), load_cluster(cluster), load_job(job)).notes)


def test_a_sequence_longer_than_the_position_table():
    job = {"seq_len": 4096, "global_batch": 64}
    assert "a table of 1,024 positions" in notes("gpt2", "h100:8", job)
    assert "positions" not in notes("gpt2", "h100:8", {**job, "seq_len": 1024})
    assert "positions" not in notes("llama3.2-1b", "h100:8", job)


def test_a_precision_that_the_device_lacks():
    job = {"seq_len": 1024, "global_batch": 64}
    assert "has no bf16 matrix units: priced at its fp16 rate" in notes("gpt2", "v100:8", job)
    assert "matrix units" not in notes("gpt2", "v100:8", {**job, "precision": "fp16"})
    assert "priced at its bf16 rate" in notes("gpt2", "a100:8", {**job, "precision": "fp8"})
