"""What a twenty-third draw of public files showed, by kind."""

import pytest

from meshwright.imports.files import import_text
from meshwright.imports.reading import Given
from meshwright.specs import load_model
from meshwright.specs.errors import SpecError

GUESS = Given(guess=True)
LLAMA = Given(guess=True, model=load_model("llama3-8b"))


def test_an_older_llama_of_neox_is_gated():
    text = '{"num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "seq_length": 1024, "mlp_type": "llama", "norm": "rmsnorm", "activation": "silu", "pipe_parallel_size": 1, "train_micro_batch_size_per_gpu": 1, "pos_emb": "rotary"}'
    model = import_text(text, "n.yml", GUESS).model
    assert (model.gated, model.ffn) == (True, 5632)  # 8/3 of the width, up to 256


def test_a_switch_that_nobody_sets_is_off():
    text = """#!/bin/bash
OFFLOAD=$2
if [ "$OFFLOAD" == true ]; then
    OFFLOAD="--offload"
else
    OFFLOAD=""
fi
cmd="deepspeed main.py --model_name_or_path Qwen/Qwen3-0.6B --per_device_train_batch_size 4 --max_seq_len 512 --zero_stage 2 --deepspeed $OFFLOAD"
$cmd
"""
    assert not import_text(text, "r.sh", GUESS).offload
    assert import_text(text, "r.sh", Given(guess=True, arguments=("x", "true"))).offload


def _saved(train: str) -> str:
    return f"""
_target_: megatron.bridge.training.config.ConfigContainer
model:
  _target_: megatron.bridge.models.qwen.qwen_provider.Qwen3ModelProvider
  num_layers: 4
  hidden_size: 512
  num_attention_heads: 8
  num_query_groups: 2
  ffn_hidden_size: 1536
  kv_channels: 64
  gated_linear_unit: true
  normalization: RMSNorm
  seq_length: 2048
  vocab_size: 1000
  tensor_model_parallel_size: 2
  sequence_parallel: true
  bf16: true
  is_hybrid_model: false
  mamba_state_dim: 128
  fp8: null
  fp8_margin: 0
  recompute_granularity: null
{train}
"""


def test_a_container_that_bridge_saved_is_read():
    found = import_text(_saved("train: {global_batch_size: 64, micro_batch_size: 2}\n"), "run_config.yaml", GUESS)  # fmt: skip
    assert (found.model.layers, found.model.ffn, found.model.gated) == (4, 1536, True)
    assert (found.layout.tp, found.layout.micro_batch, found.job.global_batch) == (2, 2, 64)
    assert (found.job.seq_len, found.layout.recompute) == (2048, "none")
    assert not any(one.kind == "unread" for one in found.remarks)


def test_a_container_of_a_model_alone_is_no_run():
    with pytest.raises(SpecError, match="with a model alone"):
        import_text(_saved("train: null\n"), "run_config.yaml", GUESS)


def test_unsloths_word_for_recomputing_offloads_its_inputs():
    text = """
model: {base_model: Qwen/Qwen3-0.6B, max_seq_length: 4096, load_in_4bit: true}
lora: {r: 16, use_gradient_checkpointing: unsloth}
training: {per_device_train_batch_size: 1, gradient_accumulation_steps: 4, learning_rate: 3.0e-5, num_train_epochs: 2, bf16: true}
"""
    found = import_text(text, "u.yaml", GUESS)
    assert found.layout.recompute == "full" and "activations" in found.offload


def test_defaults_beside_a_table_from_a_file_are_not_the_run():
    text = """
import yaml
from trl import SFTConfig, SFTTrainer
with open("c.yaml") as f:
    config = yaml.safe_load(f)
args = SFTConfig(per_device_train_batch_size=config["training"].get("per_device_train_batch_size", 1), bf16=config["training"].get("bf16", True))
trainer = SFTTrainer(model=load(config["model"]["base_model"]), args=args)
trainer.train()
"""
    with pytest.raises(SpecError, match="from its configuration"):
        import_text(text, "t.py", LLAMA)


MOE = "model: {n_layers: 4, d_model: 512, n_heads: 8, intermediate_dim: 1536, vocab_size: 1000, name: own, n_routed_experts: 16%s}\nlr: 1.0e-4\nbatch_size: 2\nseq_len: 1024\n"


def test_experts_of_a_program_of_its_own_are_no_dense_model():
    with pytest.raises(SpecError, match="mixture of 16 experts"):
        import_text(MOE % "", "m.yaml", GUESS)
    found = import_text(MOE % ", num_experts_per_tok: 2, expert_intermediate_dim: 256", "m.yaml", GUESS)  # fmt: skip
    assert found.model.experts is not None
    assert (found.model.experts.experts, found.model.experts.top_k, found.model.experts.ffn) == (16, 2, 256)  # fmt: skip
