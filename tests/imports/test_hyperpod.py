"""Recipes of SageMaker HyperPod: what they run on stands around the tables of another tool."""

from folders import GUESS

from meshwright.imports.files import import_file, import_text

AROUND = "display_name: x\ninstance_types: [ml.p5en.48xlarge, ml.p4de.24xlarge]\nrun: {{name: x}}\ntrainer: {{num_nodes: 2{more}}}\ntraining_config: {inner}\n"
TUNES = "{model_config: {model_name_or_path: Qwen/Qwen3-0.6B, peft_config: null}, training_args: {trainer_type: dpo, train_batch_size: 32, micro_train_batch_size: 1, learning_rate: 0.1, max_len: 2048, gradient_checkpointing: true, ring_attn_size: 1, strategy: {fsdp_config: {sharding_strategy: FULL_SHARD, auto_wrap_policy: TRANSFORMER_BASED_WRAP, use_orig_params: true}}}}"
SFT = "{data: {train_batch_size: 64, micro_batch_size_per_gpu: 2, max_length: 4096, use_dynamic_bsz: false}, engine: {strategy: fsdp2, model_dtype: bf16}, model: {path: Qwen/Qwen3-0.6B}, optim: {lr: 0.1}, trainer: {nnodes: 1, n_gpus_per_node: 8}}"
GRPO = "{actor_rollout_ref: {model: {path: Qwen/Qwen3-0.6B}, actor: {strategy: fsdp, ppo_mini_batch_size: 64, ppo_micro_batch_size_per_gpu: 4, freeze_vision_tower: false}}, data: {train_batch_size: 64, max_prompt_length: 512, max_response_length: 512}, trainer: {nnodes: 1, n_gpus_per_node: 8}}"


def recipe(inner: str, more: str = ""):
    return import_text(AROUND.format(inner=inner, more=more), "recipe.yaml", GUESS)


def test_its_own_fine_tuning_counts_the_batch_of_all_devices():
    found = recipe(TUNES)
    assert (found.layout.world, found.layout.micro_batch, found.job.global_batch) == (16, 1, 32)
    assert (found.layout.zero, found.task) == (3, "dpo")
    assert (found.cluster.device.preset, found.cluster.nodes) == ("h200", 2)
    assert [one for one in found.remarks if one.kind == "unread"] == []


def test_devices_of_a_host_that_it_says():
    assert recipe(TUNES, ", devices: 4").layout.world == 8


def test_verl_s_tables_are_read_as_verl_s():
    found = recipe(SFT)
    assert (found.format, found.job.framework) == ("HyperPod recipe of verl", "verl")
    assert (found.layout.micro_batch, found.job.global_batch, found.layout.world) == (2, 64, 16)
    assert found.layout.recompute == "full"
    assert recipe(GRPO).layout.micro_batch == 4


def test_a_launcher_s_script_reads_the_recipe_that_it_names(tmp_path):
    place = tmp_path / "recipes_collection" / "recipes" / "own"
    place.mkdir(parents=True)
    (place / "small.yaml").write_text(AROUND.format(inner=GRPO, more=""))
    script = tmp_path / "run.sh"
    script.write_text(
        "python3 main.py recipes=own/small recipes.training_config.actor_rollout_ref.model.path=$WHERE "
        "recipes.trainer.num_nodes=1 base_results_dir=/tmp/x\n"
    )
    found = import_file(script, GUESS)
    assert (found.cluster.nodes, found.format) == (1, "HyperPod recipe of verl, named by a script")
