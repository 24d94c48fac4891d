"""Megatron commands whose model is the checkpoint's that they are given, and options that only a sieve of the parsers finds."""

import pytest

from meshwright.imports.files import import_text
from meshwright.imports.reading import Given
from meshwright.specs.errors import SpecError

GUESS = Given(guess=True)
SLIME = (
    "#!/bin/bash\npython3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --hf-checkpoint /root/%s %s --tensor-model-parallel-size 2 "
    "--rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 1024 --global-batch-size 256 --micro-batch-size 1\n"
)


@pytest.mark.parametrize("bridge", ["--megatron-to-hf-mode bridge", "--use-bridge"])
def test_a_bridge_takes_the_shape_from_the_checkpoint(bridge: str):
    found = import_text(SLIME % ("Qwen3-8B", bridge), "s.sh", GUESS)
    assert (found.model.name, found.layout.tp) == ("qwen3-8b", 2)
    named = [one for one in found.remarks if one.option == "--model"]
    assert [one.kind for one in named] == ["note"]
    assert not any("bridge" in one.option for one in found.remarks)


def test_a_bridge_from_an_unknown_checkpoint_asks_for_its_model():
    with pytest.raises(SpecError, match="comes from the checkpoint"):
        import_text(SLIME % ("our-own-model", "--use-bridge"), "s.sh", GUESS)


def test_a_missing_file_of_the_models_options_is_guessed_and_said():
    text = SLIME.replace("python3", 'source "scripts/models/qwen3-8B.sh"\npython3')
    found = import_text(text % ("Qwen3-8B", "${MODEL_ARGS[@]}"), "s.sh", GUESS)
    assert found.model.name == "qwen3-8b"
    assert any(one.option == "--model" and one.kind == "guess" for one in found.remarks)


def test_without_either_a_checkpoint_that_nobody_knows_is_asked_for():
    with pytest.raises(SpecError):
        import_text(SLIME % ("our-own-model", ""), "s.sh", GUESS)


def test_nanotrons_experts_may_be_recomputed_alone():
    text = """
model: {model_config: {num_hidden_layers: 2, hidden_size: 64, num_attention_heads: 4, intermediate_size: 128, vocab_size: 100,
        moe_config: {num_experts: 4, top_k: 2, moe_intermediate_size: 64}}, dtype: bfloat16}
parallelism: {dp: 1, pp: 1, tp: 1, moe_layer_recompute: true}
tokens: {micro_batch_size: 1, sequence_length: 128, batch_accumulation_per_replica: 1, train_steps: 1}
optimizer: {zero_stage: 0}
"""
    layout = import_text(text, "n.yaml", GUESS).layout
    assert (layout.recompute, tuple(layout.recompute_modules)) == ("selective", ("moe",))


def test_neox_with_bitsandbytes_has_small_moments():
    text = '{"num_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "seq_length": 128, "use_bnb_optimizer": true, "optimizer": {"type": "Adam"}, "train_micro_batch_size_per_gpu": 1}'
    assert import_text(text, "n.yml", GUESS).job.optimizer.name == "adam8bit"


def test_openrlhf_reads_its_newer_word_for_the_kernel():
    text = "#!/bin/bash\ndeepspeed --module openrlhf.cli.train_sft --pretrain Qwen/Qwen3-0.6B --max_len 512 --train_batch_size 8 --micro_train_batch_size 1 --attn_implementation %s %s\n"
    assert import_text(text % ("eager", ""), "o.sh", GUESS).job.attention_kernel == "unfused"
    found = import_text(text % ("flash_attention_2", "--enable_ema --use_dynamic_batch"), "o.sh", GUESS)  # fmt: skip
    assert found.job.attention_kernel == "flash"
    named = " ".join(one.option for one in found.remarks if one.kind == "unmodelled")
    assert "--enable_ema" in named and "--use_dynamic_batch" in named
