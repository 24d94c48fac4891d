"""MindSpeed-RL's experiments: the actor's update, with its model's file beside them."""

import pytest
from folders import lay

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given
from meshwright.specs import load_cluster
from meshwright.specs.errors import SpecError

MODEL = """
small:
  num_layers: 8
  hidden_size: 1024
  num_attention_heads: 16
  ffn_hidden_size: 4096
  swiglu: true
  normalization: RMSNorm
  position_embedding_type: rope
  disable_bias_linear: true
  padded_vocab_size: 32000
"""
EXPERIMENT = """
defaults:
  - model: [small]
megatron_training:
  model: small
  bf16: true
  use_distributed_optimizer: true
  sequence_parallel: true
  global_batch_size: 16
  seq_length: 2048
  stage: ray_grpo
  attention_dropout: 0.0
  hidden_dropout: 0.0
  no_shared_storage: true
  swap_optimizer: true
actor_config: {model: small, micro_batch_size: 2, tensor_model_parallel_size: 2, pipeline_model_parallel_size: 2, num_layers: 10, noop_layers: "0,9"}
rl_config: {use_integrated_worker: true, mini_batch_size: 64, n_samples_per_prompt: 8, max_prompt_length: 1024, actor_resource: {num_npus: 16}}
generate_config: {sampling_config: {max_tokens: 3072}}
"""


def test_the_update_takes_its_own_batch_lengths_and_devices(tmp_path):
    here = lay(tmp_path, {".git/HEAD": "", "model/small.yaml": MODEL, "grpo.yaml": EXPERIMENT})
    found = import_file(here / "grpo.yaml", Given())
    layout, job, model = found.layout, found.job, found.model
    assert (model.layers, model.hidden, model.vocab, model.gated) == (8, 1024, 32000, True)
    assert (layout.tp, layout.pp, layout.dp, layout.micro_batch, layout.zero) == (2, 2, 4, 2, 1)
    assert (job.global_batch, job.seq_len, job.framework) == (64, 4096, "megatron")
    assert (found.task, found.reference, "optimizer" in found.offload) == ("grpo", True, True)


def test_a_command_names_an_experiment_and_says_more(tmp_path):
    here = lay(tmp_path, {
        ".git/HEAD": "", "configs/model/small.yaml": MODEL,
        "configs/ppo.yaml": f"{EXPERIMENT}critic_config: {{model: small}}\n",
        "run.sh": "YAML=${1:-ppo}\npython cli/train_ppo.py --config-name $YAML actor_config.micro_batch_size=4\n",
    })  # fmt: skip
    found = import_file(here / "run.sh", Given())
    assert (found.layout.tp, found.layout.micro_batch, found.job.seq_len) == (2, 4, 4096)
    assert any("critic" in note for note in found.notes)


V4 = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --position-embedding-type deepseek4 --num-layers {layers} --hidden-size 4096 --no-shared-storage "
    "--num-attention-heads 64 --num-experts 256 --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 --enable-mhc --hc-mult 4\n"
)


def test_deepseek_v4_is_its_preset_or_refused():
    given = Given(cluster=load_cluster("h100:1x8"))
    found = import_text(V4.format(layers=43), "run.sh", given)
    assert found.model.name == "deepseek-v4-flash"
    assert not any("residual streams" in note for note in found.notes)
    with pytest.raises(SpecError, match="DeepSeek-V4"):
        import_text(V4.format(layers=40), "run.sh", given)


def test_deepseek_v4_in_primus_words_is_no_latent_attention():
    words = V4.format(layers=8).replace(
        "--position-embedding-type deepseek4", "--compress-ratios 0,4,128"
    )
    with pytest.raises(SpecError, match=r"compress-ratios.*DeepSeek-V4"):
        import_text(words, "run.sh", Given(cluster=load_cluster("h100:1x8")))


EARLY = """
defaults:
  - model: [small]
training: {global_batch_size: 2, seq_length: 512, bf16: true, stage: ray_ppo, variable_seq_lengths: true}
actor_rollout_ref:
  actor_rollout:
    model: small
    micro_batch_size: 1
    ppo_mini_batch_size: 4
    max_prompt_length: 256
    tensor_model_parallel_size: 2
    pipeline_model_parallel_size: 2
    num_gpus_for_train: 8
    num_gpus_for_infer: 4
  ref: {model: small, tensor_model_parallel_size: 2}
critic: {model: small, tensor_model_parallel_size: 2}
resource_pool: {actor_rollout: [12], ref: [2], critic: [4]}
"""


def test_the_experiments_before_are_not_verls(tmp_path):
    here = lay(tmp_path, {".git/HEAD": "", "model/small.yaml": MODEL, "ppo.yaml": EARLY})
    found = import_file(here / "ppo.yaml", Given())
    assert (found.layout.tp, found.layout.pp, found.layout.dp, found.layout.micro_batch) == (2, 2, 2, 1)  # fmt: skip
    assert (found.job.global_batch, found.job.seq_len, found.model.layers) == (8, 512, 8)
    assert (found.task, found.reference) == ("ppo", True)
    notes = "\n".join(map(str, found.notes))
    assert "a critic trains beside" in notes and "not understood" not in notes


def test_its_program_runs_the_configuration_that_it_names(tmp_path):
    program = "import hydra\n@hydra.main(config_path='../configs', config_name='grpo', version_base=None)\ndef main(config):\n    train(config)\nif __name__ == '__main__':\n    main()\n"
    here = lay(tmp_path, {".git/HEAD": "", "configs/model/small.yaml": MODEL, "configs/grpo.yaml": EXPERIMENT, "cli/train_grpo.py": program})  # fmt: skip
    found = import_file(here / "cli/train_grpo.py", Given())
    assert (found.format, found.layout.tp, found.model.hidden) == ("MindSpeed-RL YAML", 2, 1024)
