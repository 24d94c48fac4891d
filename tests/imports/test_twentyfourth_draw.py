"""What a twenty-fourth draw of public files showed, by kind."""

from pathlib import Path

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given
from meshwright.specs.errors import SpecError

GUESS = Given(guess=True)
VERL = (
    "python3 -m verl.trainer.main_ppo data.max_prompt_length=256 data.max_response_length=256 trainer.nnodes=${NNODES:-2} trainer.n_gpus_per_node=4 "
    "actor_rollout_ref.model.path=${MODEL:-Qwen/Qwen3-0.6B} actor_rollout_ref.actor.ppo_mini_batch_size=64 "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 ${MORE:-}\n"
)


def test_what_sbatch_hands_on_reaches_the_job(tmp_path: Path):
    (tmp_path / "job.slurm").write_text("#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n" + VERL)  # fmt: skip
    submit = tmp_path / "submit.sh"
    submit.write_text(
        'COMMON="actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.rollout.n=4"\n'
        'sbatch --nodes=2 --export=ALL,MODEL=Qwen/Qwen3-4B,MORE="$COMMON" job.slurm\n'
    )
    found = import_file(submit, GUESS)
    assert found.model.name == "qwen3-4b"
    assert (found.job.global_batch, found.layout.world) == (128, 8)


def test_a_step_that_only_a_dry_run_takes_is_not_guessed():
    text = '#!/bin/bash\nMORE=""\nif [ "${DRY}" = "1" ]; then\n MORE="data.max_response_length=1"\nfi\n' + VERL  # fmt: skip
    assert import_text(text, "r.sh", GUESS).job.seq_len == 512


def test_a_switch_with_both_words_is_asked_for():
    text = """#!/bin/bash
if [ $FL = true ]; then
    MORE="actor_rollout_ref.model.enable_gradient_checkpointing=True"
elif [ $FL = false ]; then
    MORE="actor_rollout_ref.model.enable_gradient_checkpointing=False"
fi
"""
    assert import_text(text + VERL, "r.sh", GUESS).layout.recompute == "full"


def test_a_configuration_with_an_image_encoder_is_refused():
    text = """
model: {model_config: {text_config: {hidden_size: 64}, vision_config: {hidden_size: 32}}, dtype: bfloat16}
parallelism: {dp: 1, pp: 1, tp: 1}
tokens: {micro_batch_size: 1, sequence_length: 128, batch_accumulation_per_replica: 1, train_steps: 1}
"""
    with pytest.raises(SpecError, match="vision-language"):
        import_text(text, "n.yaml", GUESS)


def test_processes_that_a_recipe_names_are_its_devices():
    text = "model_name_or_path: Qwen/Qwen2.5-1.5B\nnum_processes: 7\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 4\nmax_length: 512\nbf16: true\nlearning_rate: 1.0e-5\n"
    found = import_text(text, "r.yaml", GUESS)
    assert (found.layout.world, found.job.global_batch) == (7, 56)


@pytest.mark.parametrize(
    ("table", "zero"), [("dtensor_cfg", 3), ("dtensor_v2_cfg", 3), ("megatron_cfg", 1)]
)
def test_each_engine_of_nemo_rl_says_the_layout(table: str, zero: int):
    degree = "tensor_model_parallel_size" if table == "megatron_cfg" else "tensor_parallel_size"
    optimizer = "{name: dion.MuonReference}" if table != "megatron_cfg" else "{name: torch.optim.AdamW}"  # fmt: skip
    text = f"""
grpo: {{num_prompts_per_step: 4}}
policy:
  model_name: Qwen/Qwen3-0.6B
  train_global_batch_size: 16
  train_micro_batch_size: 2
  max_total_sequence_length: 512
  precision: bfloat16
  optimizer: {optimizer}
  {table}: {{enabled: true, {degree}: 4, activation_checkpointing: true}}
cluster: {{gpus_per_node: 8, num_nodes: 1}}
"""
    found = import_text(text, "g.yaml", GUESS)
    assert (found.layout.tp, found.layout.zero, found.layout.recompute) == (4, zero, "full")
    assert found.job.optimizer.name == ("adamw" if table == "megatron_cfg" else "muon")


def test_swifts_experts_are_not_split_by_themselves():
    text = "#!/bin/bash\nNPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-30B-A3B --tensor_model_parallel_size 2 --expert_model_parallel_size 2 --micro_batch_size 1 --global_batch_size 16 --max_length 512\nswift export --mcore_model x --to_hf true\n"
    found = import_text(text, "m.sh", GUESS)
    assert (found.layout.tp, found.layout.etp) == (2, 1)
    assert not any(one.option == "runs" for one in found.remarks)
