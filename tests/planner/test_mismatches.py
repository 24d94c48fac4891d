"""A plan says where model, job and device disagree instead of assuming in silence."""

from meshwright.planner.plan import plan, price_layout
from meshwright.specs import load_cluster, load_job, load_model
from meshwright.specs.huggingface import model_from_config
from meshwright.specs.layout import Layout


def notes(model, cluster, job):
    return " ".join(plan(load_model(model), load_cluster(cluster), load_job(job)).notes)


def test_a_sequence_longer_than_the_position_table():
    job = {"seq_len": 4096, "global_batch": 64}
    assert "a table of 1,024 positions" in notes("gpt2", "h100:8", job)
    assert "positions" not in notes("gpt2", "h100:8", {**job, "seq_len": 1024})
    assert "positions" not in notes("llama3.2-1b", "h100:8", job)


def test_a_precision_that_the_device_lacks():
    job = {"seq_len": 1024, "global_batch": 64}
    asked = {**job, "precision": "bf16"}
    assert "has no bf16 matrix units: priced at its fp16 rate" in notes("gpt2", "v100:8", asked)
    assert "matrix units" not in notes("gpt2", "v100:8", job)  # which is then planned in fp16
    assert "priced at its bf16 rate" in notes("gpt2", "a100:8", {**job, "precision": "fp8"})


def test_a_priced_layout_says_the_same_without_a_search():
    job = load_job({"seq_len": 4096, "global_batch": 64, "precision": "fp8"})
    priced = price_layout(load_model("gpt2"), load_cluster("a100:8"), job, Layout(dp=8))
    said = " ".join(priced.notes)
    assert "priced at its bf16 rate" in said and "a table of 1,024 positions" in said


def test_keys_of_a_config_that_nobody_reads_are_said_beside_the_figures():
    config = {
        "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
        "intermediate_size": 512, "vocab_size": 1024,
    }  # fmt: skip

    def said(**more):
        model = model_from_config(config | more, "mine", "mine.json")
        job = load_job({"seq_len": 512, "global_batch": 8})
        return " ".join(price_layout(model, load_cluster("h100:8"), job, Layout(dp=8)).notes)

    assert "not read, and may matter: moe_every" in said(moe_every=3)
    assert "not read" not in said()
