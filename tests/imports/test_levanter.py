"""Levanter's YAML is read as its trainer takes it."""

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given, Imported
from meshwright.specs import load_cluster
from meshwright.specs.errors import SpecError

TEXT = """
data:
  tokenizer: "NousResearch/Llama-2-7b-hf"
model:
  type: llama
  seq_len: 4096
  hidden_dim: 3200
  intermediate_dim: 8640
  num_layers: 26
  num_heads: 32
  num_kv_heads: 8
{model}
trainer:
  mp: {mp}
  train_batch_size: 1024
  num_train_steps: 1000
{trainer}
optimizer:
  learning_rate: 3e-4
"""


def read(trainer: str = "", model: str = "", mp: str = "p=f32,c=bfloat16", **given) -> Imported:
    text = TEXT.format(model=model, trainer=trainer, mp=mp)
    return import_text(text, "run.yaml", Given(guess=True, **given))


def test_a_batch_is_of_all_devices_and_parameters_are_sharded():
    found = read("  per_device_parallelism: 4")
    assert found.format == "Levanter YAML"
    model = found.model
    assert (model.layers, model.hidden, model.ffn) == (26, 3200, 8640)
    assert (model.heads, model.kv_heads, model.vocab) == (32, 8, 32_000)
    assert (found.job.global_batch, found.job.seq_len, found.layout.micro_batch) == (1024, 4096, 4)
    assert (found.layout.zero, found.layout.recompute) == (3, "full")
    assert found.cluster.device.vendor == "google"
    assert (found.job.precision.parameter_bytes, found.job.precision.compute) == (4, "bf16")


def test_without_a_share_for_each_device_the_whole_batch_goes_at_once():
    found = read(cluster=load_cluster("tpu-v5p:4x4"))
    assert found.layout.micro_batch == 1024 // 16


@pytest.mark.parametrize(
    ("trainer", "model", "zero", "tp", "recompute"),
    [
        ("  fsdp_axis: null", "", 0, 1, "full"),
        ("  model_axis_size: 2\n  tensor_parallel_axes: [mlp, heads]", "", 3, 2, "full"),
        ("  per_device_parallelism: -1", "  gradient_checkpointing: false", 3, 1, "none"),
    ],
)
def test_axes_and_recomputation(trainer: str, model: str, zero: int, tp: int, recompute: str):
    layout = read(trainer, model).layout
    assert (layout.zero, layout.tp, layout.recompute) == (zero, tp, recompute)


@pytest.mark.parametrize(
    ("mp", "name"),
    [("f32", "fp32"), ("p=bfloat16,c=bfloat16", "pure-bf16"), ("compute=bfloat16,params=float32", "bf16-fp32-grads")],
)  # fmt: skip
def test_a_policy_says_weights_and_products(mp: str, name: str):
    assert read("  per_device_parallelism: 4", mp=mp).job.precision.name == name


def test_gpt2_has_its_own_defaults():
    text = "model:\n  type: gpt2\n  hidden_dim: 1024\n  num_heads: 16\n  num_layers: 24\n  seq_len: 1024\ntrainer:\n  mp: p=f32,c=bfloat16\n  train_batch_size: 256\n  per_device_parallelism: 4\noptimizer: {}\n"
    found = import_text(text, "run.yaml", Given(guess=True))
    assert (found.model.ffn, found.model.gated, found.model.vocab) == (4096, False, 50_257)
    assert (found.model.tied_embeddings, found.job.seq_len) == (True, 1024)


def test_a_family_that_is_no_decoder_is_one_sentence():
    with pytest.raises(SpecError, match="sums of senses"):
        import_text(TEXT.format(model="", trainer="  per_device_parallelism: 4", mp="f32").replace("type: llama", "type: backpack"), "run.yaml", Given(guess=True))  # fmt: skip


def test_a_batch_of_minus_one_is_what_all_devices_hold():
    text = "model: {type: llama, hidden_dim: 512, intermediate_dim: 1024, num_layers: 4, num_heads: 8, num_kv_heads: 8, seq_len: 1024}\ntrainer: {mp: 'p=f32,c=bf16', train_batch_size: -1, per_device_parallelism: 4, num_train_steps: 10}\noptimizer: {learning_rate: 0.1}\n"
    found = import_text(text, "c.yaml", Given(guess=True))
    assert (found.layout.micro_batch, found.job.global_batch) == (4, 4 * found.layout.dp)
    with pytest.raises(SpecError, match="per_device_parallelism"):
        import_text(text.replace("per_device_parallelism: 4, ", ""), "c.yaml", Given(guess=True))


def test_the_data_of_another_file_says_the_tokenizer(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "web.yaml").write_text("tokenizer: meta-llama/Meta-Llama-3-8B\n")
    table = "\ndata: !include data/web.yaml\n" + TEXT.partition('hf"\n')[2]
    path = tmp_path / "run.yaml"
    path.write_text(table.format(model="", trainer="", mp="p=f32,c=bfloat16"))
    assert import_file(path, Given(guess=True)).model.vocab == 128_256


@pytest.mark.parametrize(
    ("family", "kind"), [("gpt2_hyena", "mixes tokens without attention"), ("whisper", "a model of speech")]
)  # fmt: skip
def test_families_of_levanters_own_that_are_no_decoders_are_refused_at_once(family, kind):
    text = f"model:\n  type: {family}\n  hidden_dim: 32\ntrainer:\n  mp: f32\n  train_batch_size: 32\n  num_train_steps: 10\noptimizer:\n  learning_rate: 1e-3\n"
    with pytest.raises(SpecError, match=kind):
        import_text(text, "run.yaml", Given(guess=True))


def test_a_mixtral_is_by_its_own_defaults():
    text = "model:\n  type: mixtral\ntrainer:\n  mp: p=f32,c=bfloat16\n  train_batch_size: 256\n"
    found = import_text(text, "run.yaml", Given(guess=True))
    model = found.model
    assert model.experts is not None
    assert (model.kv_heads, model.experts.experts, model.experts.ffn, found.job.seq_len) == (8, 8, 14336, 8192)  # fmt: skip


def test_a_policy_alone_makes_a_trainer_levanters_with_its_usual_batch():
    text = "model:\n  type: gpt2\n  hidden_dim: 1600\n  num_heads: 25\n  num_layers: 48\n  seq_len: 1024\ntrainer:\n  mp: p=f32,c=bfloat16\noptimizer:\n  learning_rate: 1E-4\n"
    found = import_text(text, "run.yaml", Given(guess=True))
    assert (found.format, found.job.global_batch) == ("Levanter YAML", 512)


@pytest.mark.parametrize("mark", ["peft_save_path: out", "merged_hf_save_path: out"])
def test_what_saves_adapters_trains_them_by_the_programs_defaults(mark):
    text = f"initialize_from_hf: NousResearch/Llama-2-7b-hf\n{mark}\ntrainer:\n  mp: p=f32,c=bfloat16\n  train_batch_size: -1\n  per_device_parallelism: 4\noptimizer:\n  learning_rate: 3e-4\n"
    found = import_text(text, "run.yaml", Given(guess=True))
    assert found.job.finetune is not None
    assert found.job.finetune.label() == "lora rank 8 on all linear"
    assert any("rank 8" in one.text for one in found.remarks if one.kind == "guess")
