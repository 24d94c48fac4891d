"""What a twenty-second draw of public files showed, by kind: verl's engines, and files that are named by halves."""

from pathlib import Path

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given, Imported
from meshwright.specs import load_cluster
from meshwright.specs.errors import SpecError

GUESS = Given(guess=True)
BASE = (
    "python3 -m verl.trainer.main_ppo data.max_prompt_length=1024 data.max_response_length=1024 trainer.nnodes=1 trainer.n_gpus_per_node=8 "
    "actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 "
)
ACTOR = "actor_rollout_ref.actor."
TRANSFORMER = f"{ACTOR}megatron.override_transformer_config."


def _verl(*words: str) -> Imported:
    return import_text("#!/bin/bash\n" + BASE + " ".join(words) + "\n", "run.sh", GUESS)


def test_verls_megatron_reads_stages_recomputation_and_narrow_moments():
    found = _verl(
        f"{ACTOR}strategy=megatron", f"{ACTOR}megatron.tensor_model_parallel_size=2", f"{ACTOR}megatron.pipeline_model_parallel_size=4",
        f"+{TRANSFORMER}num_layers_in_first_pipeline_stage=8", f"+{TRANSFORMER}num_layers_in_last_pipeline_stage=8",
        f"+{TRANSFORMER}recompute_granularity=selective", f"+{TRANSFORMER}recompute_modules=['mlp']",
        f"+{ACTOR}optim.override_optimizer_config.use_precision_aware_optimizer=True", f"+{ACTOR}optim.override_optimizer_config.exp_avg_dtype=bf16",
        f"+{ACTOR}optim.override_optimizer_config.exp_avg_sq_dtype=bf16",
    )  # fmt: skip
    assert found.layout.stage_layers == (8, 10, 10, 8)
    assert (found.layout.recompute, tuple(found.layout.recompute_modules)) == ("selective", ("mlp",))  # fmt: skip
    assert found.job.optimizer.state_bytes == 4


@pytest.mark.parametrize(
    ("words", "recompute"),
    [
        ((), "none"),
        (("actor_rollout_ref.model.enable_gradient_checkpointing=True",), "full"),
        (("actor_rollout_ref.model.enable_gradient_checkpointing=True", f"{TRANSFORMER}recompute_granularity=null"), "none"),
    ],
)  # fmt: skip
def test_megatrons_own_field_counts_over_the_models_switch(words: tuple[str, ...], recompute: str):
    found = _verl(f"{ACTOR}strategy=megatron", f"{ACTOR}megatron.tensor_model_parallel_size=2", *words)  # fmt: skip
    assert found.layout.recompute == recompute


def test_verls_fsdp_reads_what_its_model_and_optimizer_say():
    found = _verl(
        f"{ACTOR}fsdp_config.model_dtype=bf16", f"{ACTOR}fsdp_config.reshard_after_forward=False",
        "actor_rollout_ref.model.enable_activation_offload=True", "actor_rollout_ref.model.use_fused_kernels=True",
        f"{ACTOR}optim.optimizer=AdamW8bit", "actor_rollout_ref.rollout.free_cache_engine=False",
    )  # fmt: skip
    assert (found.layout.zero, found.layout.recompute) == (2, "full")
    assert (found.job.precision.name, found.job.optimizer.name, found.job.loss) == ("pure-bf16", "adam8bit", "liger")  # fmt: skip
    assert "activations" in found.offload
    assert any("free_cache_engine" in one.option for one in found.remarks)
    assert any("enable_gradient_checkpointing" in one.option for one in found.remarks if one.kind == "guess")  # fmt: skip


def test_verls_other_engines_lay_the_model_out():
    found = _verl("model_engine=veomni", f"{ACTOR}veomni.ulysses_parallel_size=4")
    assert (found.layout.cp, found.layout.cp_method, found.layout.zero) == (4, "ulysses", 3)
    found = _verl("model_engine=torchtitan", f"{ACTOR}torchtitan.tensor_parallel_size=2", f"{ACTOR}torchtitan.activation_checkpoint=full",
                  f"{ACTOR}torchtitan.data_parallel_shard_size=4")  # fmt: skip
    assert (found.layout.tp, found.layout.zero, found.layout.recompute) == (2, 3, "full")


def test_a_teacher_that_answers_elsewhere_is_named():
    found = _verl("distillation.enabled=True", "distillation.n_gpus_per_node=4", "distillation.teacher_models.teacher_model.model_path=Qwen/Qwen3-32B")  # fmt: skip
    assert any(one.option == "distillation" and "Qwen3-32B" in one.text for one in found.remarks)


def test_adapters_of_verls_megatron_are_adapters():
    found = _verl(f"{ACTOR}strategy=megatron", f"{ACTOR}megatron.tensor_model_parallel_size=2", "actor_rollout_ref.model.lora.rank=32")  # fmt: skip
    assert found.job.finetune is not None and found.job.finetune.rank == 32


def test_a_group_that_names_another_by_its_own_value_is_followed(tmp_path: Path):
    config = tmp_path / "verl" / "trainer" / "config"
    for folder in ("actor", "model_engine", "model"):
        (config / folder).mkdir(parents=True)
    (config / "ppo_trainer.yaml").write_text(
        "defaults:\n  - model_engine: dp\n  - actor@actor_rollout_ref.actor: ${model_engine}_actor\n"
        "  - model@actor_rollout_ref.model: hf_model\n  - _self_\n"
    )
    (config / "ppo_megatron.yaml").write_text("defaults:\n  - ppo_trainer\n  - override model_engine: megatron\n  - _self_\n")  # fmt: skip
    (config / "model_engine" / "dp.yaml").write_text("# @package _global_\nmodel_engine: dp\n")
    (config / "model_engine" / "megatron.yaml").write_text("# @package _global_\nmodel_engine: megatron\n")  # fmt: skip
    (config / "actor" / "dp_actor.yaml").write_text("strategy: fsdp\nfsdp_config: {model_dtype: bf16}\n")  # fmt: skip
    (config / "actor" / "megatron_actor.yaml").write_text(
        "strategy: megatron\nmegatron: {tensor_model_parallel_size: 1, override_transformer_config: {recompute_granularity: null}}\n"
    )
    (config / "model" / "hf_model.yaml").write_text("enable_gradient_checkpointing: true\n")
    script = tmp_path / "run.sh"
    for named, framework in (("", "verl"), ("--config-name=ppo_megatron ", "megatron"), ("model_engine=megatron ", "megatron")):  # fmt: skip
        script.write_text(BASE.replace("main_ppo ", f"main_ppo {named}") + "\n")
        found = import_file(script, GUESS)
        assert found.job.framework == framework
        assert found.layout.recompute == ("none" if framework == "megatron" else "full")


def test_deepys_files_are_one_configuration(tmp_path: Path):
    configs = tmp_path / "configs"
    configs.mkdir()
    (configs / "small.yml").write_text('{"num-layers": 6, "hidden-size": 768, "num-attention-heads": 12, "seq-length": 1024, "pipe-parallel-size": 1, "model-parallel-size": 1}')  # fmt: skip
    (configs / "setup.yml").write_text('{"train_micro_batch_size_per_gpu": 16, "fp16": {"enabled": true}}')  # fmt: skip
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/bash\n#SBATCH --gres=gpu:RTXA6000:2\n#SBATCH --ntasks=1\npython ./deepy.py train.py -d configs small setup.yml\n")  # fmt: skip
    found = import_file(script, GUESS)
    assert (found.model.layers, found.layout.micro_batch, found.layout.world) == (6, 16, 2)
    assert found.cluster.name.startswith("rtxa6000")


def test_trainings_below_one_table_ask_too():
    text = """
model: {name: Qwen/Qwen3-8B}
training:
  sft: {learning_rate: 1.0e-5, per_device_train_batch_size: 16, max_steps: 12}
  grpo: {learning_rate: 1.0e-5, per_device_train_batch_size: 8, max_completion_length: 256}
"""
    with pytest.raises(SpecError, match="one of sft, grpo"):
        import_text(text, "t.yaml", GUESS)
    found = import_text(text, "t.yaml", Given(guess=True, config="grpo", cluster=load_cluster("h100:1x1")))  # fmt: skip
    assert found.layout.micro_batch == 8


def test_scales_of_four_bit_weights_are_quantised_only_where_said():
    text = "model: meta-llama/Llama-3.1-8B\nlora_rank: 64\nlr: 1.0e-5\nmicro_batch_size_per_gpu: 1\nsequence_len: 2048\nquantization: {load_in_4bit: true, bnb_4bit_use_double_quant: false}\n"
    found = import_text(text, "q.yaml", GUESS)
    assert found.job.finetune is not None and not found.job.finetune.double_quantization


def test_a_step_of_open_instructs_grpo_trains_on_all_its_answers():
    text = "model_name_or_path: allenai/OLMo-3-1025-7B\nper_device_train_batch_size: 1\nnum_unique_prompts_rollout: 8\nnum_samples_per_prompt_rollout: 4\nnum_learners_per_node: [2]\ndeepspeed_stage: 3\npack_length: 4096\nwith_tracking: true\ndataset_mixer_list: [a, '1.0']\n"
    found = import_text(text, "g.yaml", GUESS)
    assert (found.job.global_batch, found.layout.world, found.layout.zero) == (32, 2, 3)


def test_a_script_for_npus_is_offered_one_of_them():
    found = import_text("#!/bin/bash\nexport ASCEND_RT_VISIBLE_DEVICES=0,1\n" + BASE + "\n", "run.sh", GUESS)  # fmt: skip
    assert found.cluster.name.startswith("ascend-910b")
    assert any("ascend-910b" in one.text for one in found.remarks if one.kind == "guess")
