"""Numbers of a model that its sizes do not say stay with it, whatever framework's words they stand in."""

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given

MEGATRON = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 8 --bf16 --vocab-size 32000 --position-embedding-type rope {}\n"
NANOTRON = "general: {{run: x}}\nparallelism: {{dp: 8, pp: 1, tp: 1}}\nmodel:\n  dtype: bfloat16\n  model_config: {{hidden_size: 512, intermediate_size: 2048, num_hidden_layers: 4, num_attention_heads: 8, vocab_size: 32000, {}}}\ntokens: {{sequence_length: 2048, micro_batch_size: 1, batch_accumulation_per_replica: 1}}\noptimizer: {{zero_stage: 0, optimizer_factory: {{name: adamW}}}}\n"
FOUNDRY = "max_seq_len: 2048\nmodel: {{name: mpt_causal_lm, d_model: 512, n_heads: 8, n_layers: 4, vocab_size: 32000, {}}}\noptimizer: {{name: decoupled_adamw, lr: 1.0e-4}}\nglobal_train_batch_size: 8\ndevice_train_microbatch_size: 1\nprecision: amp_bf16\nmax_duration: 100ba\ntrain_loader: {{name: text}}\n{}"


def numbers(text: str, name: str):
    return import_text(text, name, Given(guess=True)).model.numerics


@pytest.mark.parametrize(
    ("text", "name", "told"),
    [
        (MEGATRON.format("--rotary-base 500000 --norm-epsilon 1e-6 --init-method-std 0.01"), "run.sh", {"rope_theta": 5e5, "norm_epsilon": 1e-6, "init_std": 0.01}),
        (MEGATRON.format("--squared-relu --rotary-percent 0.5"), "run.sh", {"activation": "relu2", "rotary_share": 0.5}),
        (NANOTRON.format("rope_theta: 130000.0, hidden_act: gelu"), "run.yaml", {"rope_theta": 1.3e5, "activation": "gelu"}),
        (FOUNDRY.format("attn_config: {rope: true, rope_theta: 250000}", ""), "run.yaml", {"rope_theta": 2.5e5}),
    ],
)  # fmt: skip
def test_numbers_beside_sizes(text, name, told):
    found = numbers(text, name)
    assert {key: getattr(found, key) for key in told} == told


def test_how_positions_are_stretched_and_what_says_nothing():
    found = numbers(MEGATRON.format("--use-rope-scaling --rope-scaling-factor 16"), "run.sh")
    assert (found.rope_scaling.kind, found.rope_scaling.factor) == ("llama3", 16)
    stretched = numbers(NANOTRON.format("rope_scaling: {type: linear, factor: 4.0}"), "run.yaml")
    assert (stretched.rope_scaling.kind, stretched.rope_scaling.factor) == ("linear", 4)
    assert numbers(MEGATRON.format(""), "run.sh") is None


@pytest.mark.parametrize(
    ("model", "also", "named"),
    [
        ("attn_config: {prefix_lm: true}", "", "prefix_lm"),
        ("ffn_config: {ffn_type: te_ln_mlp}", "", "ffn_type"),
        ("attn_config: {alibi: true}", "callbacks: {layer_freezing: {layer_names: [a]}}\n", "layer_freezing"),
    ],
)  # fmt: skip
def test_what_changes_a_run_of_composer_is_named(model, also, named):
    found = import_text(FOUNDRY.format(model, also), "run.yaml", Given(guess=True))
    assert any(named in one for one in found.notes)


def test_what_maxtext_adds_to_a_model_that_it_names():
    text = "base_config: base.yml\nmodel_name: llama3.1-8b\nper_device_batch_size: 1\nmax_target_length: 2048\nici_fsdp_parallelism: 8\nuse_qk_norm: true\nnum_experts: 8\nattention_type: local_sliding\n"
    said = "\n".join(import_text(text, "run.yml", Given(guess=True)).notes)
    assert all(one in said for one in ("use_qk_norm", "num_experts", "attention_type"))


def test_a_model_that_maxtext_names_stands_over_a_base_at_hand(tmp_path):
    (tmp_path / "base.yml").write_text("base_emb_dim: 2048\nbase_num_decoder_layers: 16\nper_device_batch_size: 12\nmax_target_length: 2048\nremat_policy: full\n")  # fmt: skip
    path = tmp_path / "run.yml"
    path.write_text("base_config: base.yml\nmodel_name: mixtral-8x7b\nbase_num_decoder_layers: 5\nper_device_batch_size: 8\nmax_target_length: 4096\n")  # fmt: skip
    model = import_file(path, Given(guess=True)).model
    assert (model.layers, model.hidden, model.kv_heads) == (5, 4096, 8)
