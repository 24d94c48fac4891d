"""Files that scripts reach by their own names, and that programs take where a command names none."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.imports.files import import_file, read_any
from meshwright.imports.reading import Given, Reading
from meshwright.imports.shell.follow import read_script
from meshwright.specs.errors import SpecError

GUESS = Given(guess=True)
_NEMO_RL = """
policy:
  model_name: Qwen/Qwen3-0.6B
  train_global_batch_size: 64
  train_micro_batch_size: 4
  max_total_sequence_length: 512
  precision: bfloat16
  dtensor_cfg: {enabled: true, tensor_parallel_size: 1}
grpo: {num_prompts_per_step: 8}
cluster: {gpus_per_node: 4, num_nodes: 1}
"""


def _words(text: str, folder: Path | None = None, name: str = "run.sh") -> list[str]:
    return read_script(text, name, folder).commands[-1].words


def test_a_sourced_file_sees_the_name_of_what_runs(tmp_path: Path) -> None:
    """`$0` in a file that a script includes is the script; `BASH_SOURCE` counts from the file outwards."""
    (tmp_path / "common.env").write_text(
        'NAME=$(basename $0 .sh)\nHERE=$(basename "${BASH_SOURCE[0]}")\nOUTER=$(basename "${BASH_SOURCE[1]}")\n'
    )
    script = 'source ./common.env\ntorchrun train.py --a $NAME --b $HERE --c $OUTER --d $(basename "${BASH_SOURCE[0]}")\n'
    assert _words(script, tmp_path, "grpo-8b.sh")[2:] == ["--a", "grpo-8b", "--b", "common.env", "--c", "grpo-8b.sh", "--d", "grpo-8b.sh"]  # fmt: skip


@pytest.mark.parametrize("start", ["bash inner.sh", "srun bash inner.sh"])
def test_a_started_script_sees_its_own_name(tmp_path: Path, start: str) -> None:
    (tmp_path / "inner.sh").write_text("torchrun train.py --a $(basename $0 .sh)\n")
    assert _words(f"{start}\n", tmp_path, "outer.sh")[-2:] == ["--a", "inner"]


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("basename a/b/", "b"), ("basename -s .sh a/run.sh", "run"), ("dirname a/b/", "a"), ("basename a/run.sh .py", "run.sh"),
        ("echo a-tq_simple | sed -E 's/-tq_(simple|mooncake)$//'", "a"), ("echo 'a-x(y' | sed 's/x(y$/z/'", "a-z"),
    ],
)  # fmt: skip
def test_what_small_tools_print(command: str, printed: str) -> None:
    assert _words(f"torchrun train.py --a $({command})\n")[-1] == printed


def test_elements_of_arrays_in_sums() -> None:
    """`many[${pool}]` within `((…))` counts, and what comes after it is read."""
    script = (
        "declare -A many\nmany[a]=2\nn=0\nfor pool in a; do\n  for (( i = 0; i < many[${pool}]; i++ )); do\n    n=$((n + 1))\n  done\ndone\n"
        'echo "${x}" > "${D}/${n,,}_url"\ntorchrun train.py --a $n\n'
    )
    assert _words(script)[-2:] == ["--a", "2"]


@pytest.mark.parametrize("spelled", ["if not args.config:", "if args.config is None:"])
def test_the_configuration_that_a_program_takes_by_itself(tmp_path: Path, spelled: str) -> None:
    """A command that names no configuration is read with the file that its program falls back to."""
    program = f'import os\n{spelled}\n    args.config = os.path.join(\n        os.path.dirname(__file__), "configs", "mine.yaml"\n    )\n'
    (tmp_path / "run_grpo.py").write_text(program)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.yaml").write_text(_NEMO_RL)
    (tmp_path / "configs" / "named.yaml").write_text(_NEMO_RL.replace("512", "256"))
    usual, named = (
        read_any(f"uv run run_grpo.py {more} policy.train_micro_batch_size=2\n", "run.sh", GUESS, tmp_path)[0]
        for more in ("", "--config configs/named.yaml")
    )  # fmt: skip
    assert (usual.micro_batch, usual.seq_len, usual.per_host) == (2, 512, 4)
    assert named.seq_len == 256


_SFT = """
data: {train_batch_size: 64, micro_batch_size_per_gpu: 4, train_files: a.parquet, max_length: 2048}
model:
  partial_pretrain: Qwen/Qwen2.5-7B
  fsdp_config: {model_dtype: MODEL, wrap_policy: {min_num_params: 0}}
  enable_gradient_checkpointing: true
  lora_rank: 0
  strategy: fsdp2
optim: {lr: 1e-5, warmup_steps_ratio: 0.1}
ulysses_sequence_parallel_size: 2
trainer: {nnodes: 1, n_gpus_per_node: 8}
"""


def _read(text: str) -> Reading:
    return read_any(text, "sft_trainer.yaml", GUESS, None)[0]


def test_verls_supervised_configuration() -> None:
    """verl's `sft_trainer.yaml` is verl's: its model, its recomputation, no adapters of rank 0."""
    reading = _read(_SFT.replace("MODEL", "fp32"))
    assert (reading.format, reading.model_name, reading.global_batch) == ("verl command", "Qwen/Qwen2.5-7B", 64)  # fmt: skip
    assert (reading.layout["cp"], reading.layout["recompute"]) == (2, "full")
    assert "finetune" not in reading.job
    assert [one.option for one in reading.remarks if one.kind == "unread"] == []
    narrow = _read(_SFT.replace("MODEL", "bfloat16"))
    assert narrow.job["precision"] != reading.job["precision"]


@pytest.mark.parametrize(("older", "newer", "ranks"), [(1, 4, 4), (2, 1, 2), (1, 1, 1)])
def test_verls_two_names_for_shared_sequences(older: int, newer: int, ranks: int) -> None:
    """The older name is 1 in verl's own table, and counts only above that."""
    actor = "actor_rollout_ref.actor."
    reading = read_any(
        f"python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B {actor}ppo_micro_batch_size_per_gpu=2 "
        f"{actor}ulysses_sequence_parallel_size={older} {actor}fsdp_config.ulysses_sequence_parallel_size={newer}\n",
        "run.sh", GUESS, None,
    )[0]  # fmt: skip
    assert reading.layout["cp"] == ranks


@pytest.mark.parametrize(("strategy", "offloads"), [("fsdp2", True), ("fsdp", False), ("", False)])
def test_verls_first_fsdp_takes_no_offload_policy(strategy: str, offloads: bool) -> None:
    actor = "actor_rollout_ref.actor."
    said = f"{actor}strategy={strategy} " if strategy else ""
    reading = read_any(
        f"python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B {actor}ppo_micro_batch_size_per_gpu=2 "
        f"{said}{actor}fsdp_config.offload_policy=True\n",
        "run.sh", GUESS, None,
    )[0]  # fmt: skip
    assert ("optimizer" in reading.offload) is offloads


def test_areal_without_micro_batches(tmp_path: Path) -> None:
    """AReaL's table is known by its actor's engine alone, and no length of 0 is guessed."""
    path = tmp_path / "sft.yaml"
    path.write_text(
        "cluster: {n_nodes: 1, n_gpus_per_node: 2}\ntrain_dataset: {type: sft, batch_size: 16}\n"
        'actor: {backend: "archon:d2", path: Qwen/Qwen3-0.6B, optimizer: {type: adam, lr: 2e-5}}\n'
    )
    found = import_file(path, GUESS)
    assert (found.format, found.layout.dp, found.job.global_batch) == ("AReaL YAML", 2, 16)
    assert not any("at most 0 tokens" in one for one in found.notes)


_AREAL = 'cluster: {n_nodes: 1, n_gpus_per_node: 2}\ntrain_dataset: {batch_size: 16, max_length: 512}\nactor: {backend: "fsdp:d2", path: Qwen/Qwen3-0.6B, mb_spec: {max_tokens_per_mb: 512}}\n'
_ROLL = (
    "num_gpus_per_node: 8\npretrain: Qwen/Qwen2.5-7B\nrollout_batch_size: 16\nprompt_length: 512\nresponse_length: 512\nactor_train:\n"
    "  training_args: {per_device_train_batch_size: 1, gradient_accumulation_steps: 4, learning_rate: 1.0e-6}\n"
    "  strategy_args: {strategy_name: deepspeed_train, strategy_config: {zero_optimization: {stage: 2}}}\n"
    "  device_mapping: list(range(0,4))\nactor_infer: {device_mapping: 'list(range(4,8))'}\n"
)
_APART = _NEMO_RL.replace("num_nodes: 1}", "num_nodes: 3}").replace(
    "grpo:", "  generation: {colocated: {enabled: false, resources: {num_nodes: 1, gpus_per_node: 4}}}\ngrpo:"
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "program", "devices"),
    [(_AREAL, "train.py", 2), (_ROLL, "start_rlvr_pipeline.py", 4), (_APART, "run_grpo.py", 8)],
)
def test_what_a_batch_system_gives_is_not_what_trains(
    tmp_path: Path, text: str, program: str, devices: int
) -> None:
    """Servers of answers take their devices of it, and the configuration says which are left."""
    (tmp_path / "c.yaml").write_text(text)
    script = f"#SBATCH --nodes=6\n#SBATCH --gpus-per-node=8\nNUM_NODES=6\nsrun python3 {program} --config c.yaml\n"
    assert read_any(script, "run.sh", GUESS, tmp_path)[0].world() == devices


@pytest.mark.parametrize("way", ["sequence_packing", "dynamic_batching"])
def test_a_filled_micro_batch_holds_no_more_than_a_replica_has(way: str) -> None:
    text = _NEMO_RL.replace("train_global_batch_size: 64", f"train_global_batch_size: 8\n  {way}: {{enabled: true, train_mb_tokens: 2048}}")  # fmt: skip
    assert read_any(text, "c.yaml", GUESS, None)[0].micro_batch == 2


def test_a_copied_configuration_is_the_one_it_was_copied_from(tmp_path: Path) -> None:
    (tmp_path / "full.yaml").write_text(
        "model_name_or_path: Qwen/Qwen2.5-7B\ngradient_checkpointing: true\nmax_length: 1024\nlearning_rate: 5.0e-7\nloss_type: sigmoid\n"
    )
    script = (
        'new="config_$(echo a/b | cut -d / -f2).yaml"\ncp -f full.yaml "$new"\n'
        'torchrun --nproc_per_node 4 run_sppo.py "$new" --per_device_train_batch_size=1 --optim=adamw_torch\n'
    )
    reading = read_any(script, "run.sh", GUESS, tmp_path)[0]
    assert (reading.seq_len, reading.layout["recompute"], reading.task) == (1024, "full", "dpo")


_TRAINER = "model_name_or_path: Qwen/Qwen2.5-7B\nper_device_train_batch_size: 1\nlearning_rate: 5.0e-7\nmax_length: 1024\n"


@pytest.mark.parametrize(
    ("loss", "task"), [("sigmoid", "dpo"), ("apo_zero", "dpo"), ("nll", ""), ("dft", "")]
)
def test_losses_over_pairs_name_their_task(loss: str, task: str) -> None:
    assert read_any(f"{_TRAINER}loss_type: {loss}\n", "c.yaml", GUESS, None)[0].task == task


def test_switches_that_stand_in_a_table_of_their_own() -> None:
    """`gradient_checkpointing: {enable: true}`, `fsdp_mode: fsdp2`, and prompts with answers as a length."""
    reading = read_any(
        "sequence: {max_prompt_tokens: 1024, max_response_tokens: 2048}\nactor:\n  model: {model_path: Qwen/Qwen3-1.7B}\n"
        "  train:\n    micro_batch_size: 1\n    global_batch_size: 32\n    fsdp_config: {fsdp_mode: fsdp2}\n"
        "    gradient_checkpointing: {enable: true}\n    optimizer: {type: adamw, lr: 1.0e-6}\n",
        "c.yaml", GUESS, None,
    )[0]  # fmt: skip
    assert (reading.layout["zero"], reading.layout["recompute"], reading.seq_len) == (3, "full", 3072)  # fmt: skip


def test_a_bound_that_tensor_ranks_cannot_share_is_padded(tmp_path: Path) -> None:
    script = (
        "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 "
        "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm --vocab-size 128256 "
        "--hf-checkpoint a/b --rollout-batch-size 8 --n-samples-per-prompt 8 --global-batch-size 64 --rollout-max-response-len 100 "
        "--tensor-model-parallel-size 8 --sequence-parallel --micro-batch-size 1\n"
    )
    (tmp_path / "run.sh").write_text(script)
    assert import_file(tmp_path / "run.sh", GUESS).job.seq_len == 104


def test_prompts_and_answers_make_a_length() -> None:
    """GRPO-Zero's words: neither is a length of its own."""
    text = "model: {pretrained_model_path: Qwen/Qwen2.5-3B-Instruct}\ntraining: {max_prompt_len: 256, max_gen_len: 1024, batch_size: 256, micro_batch_size: 2, learning_rate: 1.0e-5}\n"
    assert read_any(text, "c.yaml", GUESS, None)[0].seq_len == 1280


def test_a_service_that_trains_is_no_run_of_ones_own() -> None:
    text = 'model = "Qwen/Qwen3-8B"\nmax_steps = 60\nbatch_size = 64\nrollouts_per_example = 8\nlearning_rate = 1e-5\n[[env]]\nid = "a/b"\n'
    with pytest.raises(SpecError, match="a service trains"):
        read_any(text, "rl.toml", GUESS, None)


def test_torchtunes_workers_that_train() -> None:
    """A recipe whose workers train, generate or score: what trains stands in a table of its own."""
    text = (
        "model: {_component_: torchtune.models.qwen2_5.qwen2_5_3b}\ntokenizer: {_component_: torchtune.models.qwen2_5.qwen2_5_tokenizer, max_seq_len: 1024}\n"
        "orchestration: {num_inference_workers: 4, num_training_workers: 2}\ninference: {batch_size: 1}\ntraining:\n  batch_size: 16\n"
        "  enable_activation_checkpointing: true\n  optimizer: {_component_: torch.optim.AdamW, lr: 1e-5}\n"
    )
    reading = read_any(text, "c.yaml", GUESS, None)[0]
    assert (reading.world(), reading.micro_batch, reading.layout["recompute"]) == (2, 16, "full")
