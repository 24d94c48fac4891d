"""Files that scripts reach by their own names, and that programs take where a command names none."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.imports.files import import_file, read_any
from meshwright.imports.reading import Given, Reading
from meshwright.imports.shell.follow import read_script

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
