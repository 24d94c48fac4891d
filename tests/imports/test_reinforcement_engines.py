"""What frameworks of reinforcement learning say of their training half in ways found by comparing with their own classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.imports.files import import_text, read_any
from meshwright.imports.reading import Given, Reading
from meshwright.specs.errors import SpecError

_VERL = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B algorithm.adv_estimator=grpo "
_WORDS = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 actor_rollout_ref.model.enable_gradient_checkpointing=True "


def _read(text: str, name: str = "run.sh", folder: Path | None = None) -> Reading:
    return read_any(text, name, Given(guess=True), folder)[0]


def _said(reading: Reading, option: str) -> str:
    return " ".join(one.text for one in reading.remarks if option in one.option)


def test_the_probe_for_ascend_finds_none() -> None:
    """A script that asks whether PyTorch has Ascend's plugin is read as on GPUs, whose branch it takes there."""
    script = (
        "DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}\n"
        'case "$DEVICE" in gpu) mini=128 ;; npu) NPUS_PER_NODE=16; mini=64 ;; esac\n'
        f"{_VERL}{_WORDS} actor_rollout_ref.actor.ppo_mini_batch_size=$mini\n"
    )
    reading = _read(script)
    assert (reading.global_batch, reading.likely) == (128, "h100")
    assert "import torch_npu" in _said(reading, "")


@pytest.mark.parametrize("flag", ["--config-name mine", "--config-name=mine", "-cn mine"])
def test_hydra_flags_in_two_words(tmp_path: Path, flag: str) -> None:
    """The configuration that a command names, in its word or in the next, with what its `defaults` name."""
    where = tmp_path / "verl" / "trainer" / "config"
    where.mkdir(parents=True)
    (where / "ppo_trainer.yaml").write_text("trainer: {nnodes: 1, n_gpus_per_node: 8}\ndata: {max_prompt_length: 512}\n")  # fmt: skip
    (where / "mine.yaml").write_text("defaults: [ppo_trainer, _self_]\ntrainer: {n_gpus_per_node: 4}\ndata: {max_prompt_length: 2048, max_response_length: 6144}\n")  # fmt: skip
    reading = _read(_VERL.replace("main_ppo", f"main_ppo {flag}") + _WORDS, folder=tmp_path)
    assert (reading.world(), reading.seq_len) == (4, 8192)


def test_configuration_of_a_recipe_by_its_program(tmp_path: Path) -> None:
    """A recipe's own program names its configuration, which begins with verl's in another folder."""
    (tmp_path / "verl" / "trainer" / "config").mkdir(parents=True)
    (tmp_path / "verl" / "trainer" / "config" / "ppo_trainer.yaml").write_text("trainer: {n_gpus_per_node: 2}\nactor_rollout_ref: {rollout: {n: 3}}\n")  # fmt: skip
    recipe = tmp_path / "recipe" / "mine"
    (recipe / "config").mkdir(parents=True)
    (recipe / "config" / "base.yaml").write_text("hydra: {searchpath: ['file://verl/trainer/config']}\ndefaults: [ppo_trainer, _self_]\nactor_rollout_ref: {actor: {ppo_mini_batch_size: 16}}\n")  # fmt: skip
    (recipe / "main_mine.py").write_text('import hydra\n\n\n@hydra.main(config_path="config", config_name="base")\ndef main(config):\n    pass\n')  # fmt: skip
    reading = _read(_VERL.replace("verl.trainer.main_ppo", "recipe.mine.main_mine") + _WORDS, folder=tmp_path)  # fmt: skip
    assert (reading.world(), reading.global_batch) == (2, 48)


def test_a_micro_batch_is_no_more_than_a_replicas_share() -> None:
    reading = _read(f"{_VERL}{_WORDS.replace('gpu=2', 'gpu=8')} actor_rollout_ref.actor.ppo_mini_batch_size=32")  # fmt: skip
    assert reading.micro_batch == 4
    assert "fewer than the 8" in _said(reading, "--micro-batch")


@pytest.mark.parametrize(
    ("words", "option", "said"),
    [
        ("algorithm.adv_estimator=gae", "algorithm.adv_estimator", "a critic"),
        ("critic.model.path=a/b algorithm.adv_estimator=grpo", "critic", ""),
        ("actor_rollout_ref.rollout.free_cache_engine=False actor_rollout_ref.rollout.gpu_memory_utilization=0.6", "free_cache", "60%"),
        ("actor_rollout_ref.rollout.free_cache_engine=False actor_rollout_ref.hybrid_engine=False", "free_cache", ""),
        ("actor_rollout_ref.actor.strategy=veomni actor_rollout_ref.actor.veomni.mixed_precision=False", "mixed_precision", "width"),
        ("actor_rollout_ref.actor.strategy=torchtitan actor_rollout_ref.actor.torchtitan.full_determinism=True", "full_determinism", "slower"),
    ],
)  # fmt: skip
def test_what_stands_beside_the_policy(words: str, option: str, said: str) -> None:
    found = _said(_read(f"{_VERL}{_WORDS}{words}"), option)
    assert said in found if said else not found


@pytest.mark.parametrize(
    ("words", "held"),
    [
        ("actor_rollout_ref.actor.use_kl_loss=True", True),
        ("actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.model.lora_rank=8", False),
        ("actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.strategy=megatron actor_rollout_ref.ref.megatron.param_offload=True", False),
    ],
)  # fmt: skip
def test_whether_the_reference_is_held(words: str, held: bool) -> None:
    assert _read(f"{_VERL}{_WORDS}{words}").reference is held


@pytest.mark.parametrize(
    ("words", "layout"),
    [
        ("engine=veomni engine.ulysses_parallel_size=4 engine.expert_parallel_size=2", {"zero": 3, "cp": 4, "ep": 2}),
        ("engine=torchtitan engine.tensor_parallel_size=2 engine.context_parallel_size=2", {"zero": 3, "tp": 2, "cp": 2}),
        ("engine=megatron engine.tensor_model_parallel_size=4", {"zero": 1, "tp": 4}),
    ],
)  # fmt: skip
def test_engines_of_supervised_runs(words: str, layout: dict[str, int]) -> None:
    text = f"torchrun --nproc-per-node 8 -m verl.trainer.sft_trainer model.path=Qwen/Qwen3-8B data.train_batch_size=64 model.mtp.enable=True {words}"
    reading = _read(text)
    assert {name: reading.layout[name] for name in layout} == layout
    assert "multi-token" in _said(reading, "model.mtp")


@pytest.mark.parametrize(
    "text",
    [
        "python3 -m recipe.mine.data_process --local_dir x\npython3 -m verl.trainer.main_eval data.path=x\n",
        "deepspeed --module openrlhf.cli.train_ppo_ray --pretrain a/b --train_batch_size 8 --train_vlm\n",
        "python3 -m openrlhf.cli.train_ppo_ray --pretrain a/b --train_batch_size 8 --training_mode eval_only\n",
        "uv run -m skyrl.train.entrypoints.serve trainer.policy.model.path=Qwen/Qwen3-8B\n",
    ],
)
def test_what_trains_nothing_that_is_planned(text: str) -> None:
    with pytest.raises(SpecError, match="train"):
        _read(text)


def test_slime_on_fsdp() -> None:
    words = (
        "python3 train.py --actor-num-gpus-per-node 4 --train-backend fsdp --hf-checkpoint /root/Qwen3-4B --gradient-checkpointing "
        "--rollout-batch-size 8 --n-samples-per-prompt 4 --rollout-max-response-len 4096 --use-dynamic-batch-size "
        "--max-tokens-per-gpu 8192 --context-parallel-size 2 --fsdp-cpu-offload --advantage-estimator grpo\n"
    )
    found = import_text(words, "run.sh", Given(guess=True))
    assert found.model.name == "qwen3-4b"
    assert (found.layout.zero, found.layout.cp, found.layout.micro_batch, found.job.global_batch) == (3, 2, 4, 32)  # fmt: skip
    assert found.offload == {"optimizer", "parameters"}


def test_skyrl_started_by_another_program() -> None:
    text = "python3 -m examples.mine model.path=Qwen/Qwen3-4B batch_size=16 micro_train_batch_size_per_gpu=2 placement.num_gpus_per_node=2 strategy=fsdp\n"
    reading = _read(text)
    assert (reading.format, reading.global_batch, reading.world()) == ("SkyRL command", 16, 2)


def test_an_engine_of_areal_with_its_degrees_in_the_allocation() -> None:
    text = (
        "allocation_mode: sglang.d4p1t1+d2t2\ngconfig: {n_samples: 2, max_new_tokens: 1024}\ntrain_dataset: {batch_size: 8, max_length: 1024}\n"
        "actor: {path: Qwen/Qwen3-4B, backend: fsdp, mb_spec: {max_tokens_per_mb: 4096}, optimizer: {type: adam, lr: 1.0e-6}}\n"
    )
    reading = _read(text, "run.yaml")
    assert (reading.dp, reading.layout["tp"], reading.layout["zero"]) == (2, 2, 3)


_BASE = (
    "grpo: {num_prompts_per_step: 8}\ncluster: {num_nodes: 1, gpus_per_node: 8}\n"
    "policy: {model_name: Qwen/Qwen3-8B, train_global_batch_size: 64, train_micro_batch_size: 1, max_total_sequence_length: 4096, "
    "megatron_cfg: {enabled: true, pipeline_model_parallel_size: 2, activation_checkpointing: true, recompute_granularity: selective, "
    "num_layers_in_first_pipeline_stage: 16, mtp_num_layers: 0, cuda_graph_impl: none, cuda_graph_modules: [attn]}}\n"
)


def test_nemo_rl_stages_and_what_is_recomputed() -> None:
    reading = _read(_BASE, "run.yaml")
    assert reading.layout["recompute"] == "selective"
    assert reading.layout["stage_layers"] == (16, 20)
    assert not _said(reading, "mtp_num_layers") + _said(reading, "cuda_graph")


def test_nemo_rl_recipe_with_nothing_of_its_policy(tmp_path: Path) -> None:
    """What generation takes of the one host, a value model and the task are said."""
    (tmp_path / "base.yaml").write_text(_BASE)
    more = "policy: {generation: {colocated: {enabled: false, resources: {gpus_per_node: 2}}}}\nvalue: {model_name: a/b}\n"
    (tmp_path / "mid.yaml").write_text(f"defaults: base.yaml\n{more}")
    reading = _read("defaults: ./mid.yaml\ncluster: {gpus_per_node: 4}\ndpo: {max_num_steps: 3}\n", "run.yaml", tmp_path)  # fmt: skip
    assert (reading.world(), reading.task) == (2, "dpo")
    assert "value model" in _said(reading, "value")
    left = _read("defaults: gone.yaml\npolicy: {train_global_batch_size: 8}\ncluster: {num_nodes: 1}\n", "run.yaml", tmp_path)  # fmt: skip
    assert "gone.yaml is not here" in _said(left, "defaults")


_TUNIX = (
    "model_config: {model_id: Qwen/Qwen3-1.7B, mesh: {shape: '(4,2)', axis_names: \"('fsdp','tp')\"}}\n"
    "actor_model_config: {lora_config: {rank: 16, alpha: 16.0}}\nbatch_size: 8\nrl_training_config: {mini_batch_size: 4}\n"
    "grpo_config: {num_generations: 4}\nrollout_config: {max_prompt_length: 256, total_generation_steps: 768}\n"
)


def test_tunix_by_its_tables(tmp_path: Path) -> None:
    """The mesh's axes, prompts times answers, and the words of a command over the file that overrides the base."""
    found = import_text(_TUNIX, "run.yaml", Given(guess=True))
    assert (found.layout.tp, found.layout.dp, found.layout.zero) == (2, 4, 3)
    assert (found.job.global_batch, found.layout.micro_batch, found.job.seq_len) == (16, 4, 1024)
    (tmp_path / "mine.yaml").write_text(_TUNIX)
    (tmp_path / "base.yaml").write_text("model_config: {model_id: a/b-70b}\nbatch_size: 16\n")
    text = "python3 -m tunix.cli.grpo_main base.yaml override_config_file=mine.yaml grpo_config.num_generations=8\n"
    reading = _read(text, folder=tmp_path)
    assert (reading.model_name, reading.global_batch, reading.task) == ("Qwen/Qwen3-1.7B", 32, "grpo")  # fmt: skip


def test_roll_by_the_script_that_starts_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("actor_train: {model_args: {model_name_or_path: Qwen/Qwen3-4B}, device_mapping: 'list(range(0,4))', "
        "strategy_args: {strategy_name: megatron_train, strategy_config: {tensor_model_parallel_size: 2}}}\nsequence_length: 2048\n")  # fmt: skip
    reading = _read("python examples/start_mine_pipeline.py --config_path here --config_name mine\n", folder=tmp_path)  # fmt: skip
    assert (reading.devices, reading.layout["tp"]) == (4, 2)


def test_deepspeed_chat_beside_its_program(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("import argparse\nfrom transformers import Trainer\n\np = argparse.ArgumentParser()\np.add_argument('--actor_zero_stage')\n")  # fmt: skip
    words = "deepspeed main.py --actor_model_name_or_path facebook/opt-1.3b --num_padding_at_beginning 1 --actor_zero_stage 2 --per_device_training_batch_size 4 --max_prompt_seq_len 256 --max_answer_seq_len 256\n"
    reading = _read(words, folder=tmp_path)
    assert (reading.layout["zero"], reading.micro_batch, reading.seq_len) == (2, 4, 512)


def test_the_task_of_nemo_aligner() -> None:
    text = "trainer: {num_nodes: 1, devices: 8, precision: bf16, dpo: {max_epochs: 1}}\nmodel: {micro_batch_size: 1, global_batch_size: 64, megatron_amp_O2: true, mcore_gpt: true, num_layers: 32, hidden_size: 4096, num_attention_heads: 32, encoder_seq_length: 4096, optim: {name: distributed_fused_adam}}\n"
    reading = _read(text, "run.yaml")
    assert reading.task == "dpo"
    assert not _said(reading, "trainer.dpo")


def test_model_options_that_a_program_prints() -> None:
    """The checkpoint's name stands for what a word that is nothing but a variable would describe."""
    text = (
        'LINE="$(python3 tools/describe.py qwen3-8B)"\nread -ra MODEL_ARGS <<< "${LINE}"\n'
        "python3 train.py --actor-num-gpus-per-node 8 ${MODEL_ARGS[@]} --hf-checkpoint /root/Qwen3-8B --tensor-model-parallel-size 2 "
        "--rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 4096 --micro-batch-size 1\n"
    )
    assert import_text(text, "run.sh", Given(guess=True)).model.name == "qwen3-8b"


def test_fewer_prompts_than_a_mini_batch_train_as_they_are() -> None:
    reading = _read(f"{_VERL}{_WORDS}data.train_batch_size=16 actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_mini_batch_size=256")  # fmt: skip
    assert reading.global_batch == 64
    assert "16 prompts" in _said(reading, "ppo_mini_batch_size")


def test_a_run_that_only_scores() -> None:
    with pytest.raises(SpecError, match="does not train"):
        _read(f"{_VERL}{_WORDS}trainer.val_only=True")


@pytest.mark.parametrize(
    ("words", "devices"),
    [
        (f"{_VERL}{_WORDS}trainer.n_gpus_per_node=2", 2),
        (f"{_VERL}{_WORDS}", 4),
        ("python -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen3-4B --train_batch_size 8 --actor_num_nodes 1 --actor_num_gpus_per_node 2", 2),
    ],
)  # fmt: skip
def test_what_a_program_counts_itself_stands_over_the_batch_system(
    words: str, devices: int
) -> None:
    assert _read(f"#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=4\n{words}\n").world() == devices  # fmt: skip


def test_skypilot_says_its_size_by_the_first_of_several_machines() -> None:
    text = (
        "resources: {any_of: [{accelerators: 'B200:4', cloud: x}, {accelerators: 'H200:4'}]}\nnum_nodes: 1\n"
        "run: python -m mine.entrypoint trainer.policy.model.path=Qwen/Qwen3-4B trainer.placement.policy_num_gpus_per_node=$SKYPILOT_NUM_GPUS_PER_NODE\n"
    )
    assert _read(text, "run.yaml").world() == 4


def test_roll_with_the_parts_that_its_defaults_put_beside_it(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "two.yaml").write_text("two: {zero_optimization: {stage: 2, offload_optimizer: {device: cpu}}}\n")  # fmt: skip
    (tmp_path / "mine").mkdir()
    text = (
        "defaults: ['../config/two@_here_']\nsequence_length: 1024\nactor_train: {model_args: {model_name_or_path: Qwen/Qwen3-4B, lora_rank: 8, lora_target: q_proj}, "
        "device_mapping: '[0,1,2]', strategy_args: {strategy_name: deepspeed_train, strategy_config: '${two}'}}\n"
    )
    reading = _read(text, "run.yaml", tmp_path / "mine")
    assert (reading.layout["zero"], reading.offload, reading.devices) == (2, {"optimizer"}, 3)
    assert "finetune" in reading.job


def test_nobody_says_no_by_saying_nothing() -> None:
    """A switch that a script leaves to its arguments is not guessed to be off where off is what it asks for first."""
    script = f'if [ "$7" = "False" ] || [ "$7" = "false" ]; then ONLY="trainer.val_only=True"; else ONLY=""; fi\n{_VERL}{_WORDS}$ONLY\n'
    assert _read(script).per_host == 8


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("nvidia/OpenMath-Nemotron-1.5B", "qwen2.5-1.5b"),
        ("agentica-org/DeepScaleR-1.5B-Preview", "qwen2.5-1.5b"),
        ("/models/Qwen3-30B", "qwen3-30b-a3b"),
        ("google/medgemma-27b-text-it", "gemma3-27b"),
    ],
)
def test_names_of_what_people_train_further(name: str, preset: str) -> None:
    found = import_text(_VERL.replace("Qwen/Qwen2.5-7B", name) + _WORDS, "run.sh", Given(guess=True))  # fmt: skip
    assert found.model.name == preset
    assert not [one for one in found.remarks if one.option == "--model"]


@pytest.mark.parametrize("name", ["google/medgemma-4b-it", "google/medgemma-27b-it"])
def test_models_that_see(name: str) -> None:
    with pytest.raises(SpecError, match="vision-language"):
        import_text(_VERL.replace("Qwen/Qwen2.5-7B", name) + _WORDS, "run.sh", Given(guess=True))


def test_an_agents_turns_are_samples_of_their_own() -> None:
    words = "data.train_batch_size=16 actor_rollout_ref.actor.ppo_mini_batch_size=256"
    assert _read(f"{_VERL}{_WORDS}{words} env.rollout.n=8").global_batch == 256


def test_a_last_micro_batch_of_what_is_left() -> None:
    words = f"{_WORDS.replace('gpu=2', 'gpu=4')} trainer.n_gpus_per_node=2 actor_rollout_ref.rollout.n=5 actor_rollout_ref.actor.ppo_mini_batch_size=4"
    found = import_text(_VERL + words, "run.sh", Given(guess=True))
    assert (found.job.global_batch, found.layout.micro_batch) == (20, 2)


@pytest.mark.parametrize(
    ("words", "said"), [("dtype: fp16", "fp16"), ("freeze_module_prefix: vision_model", "")]
)
def test_what_roll_says_of_the_weights(words: str, said: str) -> None:
    text = f"sequence_length: 1024\nactor_train: {{model_args: {{model_name_or_path: Qwen/Qwen3-4B, {words}}}, device_mapping: '[0]', strategy_args: {{strategy_name: fsdp2_train}}}}\n"
    if said:
        assert said in _said(_read(text, "run.yaml"), "dtype")
        return
    with pytest.raises(SpecError, match="vision-language"):
        _read(text, "run.yaml")
