"""Primus's own command: its configuration with the command's words over it, through the scripts around it."""

from pathlib import Path

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given
from meshwright.specs import SpecError

CONFIG = """
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: llama3_8B.yaml
    overrides: {micro_batch_size: 2, global_batch_size: 128, seq_length: 8192, tensor_model_parallel_size: 2, recompute_granularity: full, fp8: hybrid}
"""
WORDS = "train pretrain --config configs/small.yaml --micro_batch_size 4 --tensor_model_parallel_size=1 --fp8 None"


def folder_with(tmp_path: Path, script: str) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "small.yaml").write_text(CONFIG)
    path = tmp_path / "run.sh"
    path.write_text(f"#!/bin/bash\n{script}\n")
    return path


@pytest.mark.parametrize(
    "script",
    [
        f"torchrun --nproc_per_node 8 --nnodes 2 primus/cli/main.py {WORDS}",
        f"NNODES=2\nGPUS_PER_NODE=8\nbash runner/primus-cli direct -- {WORDS}",
    ],
)
def test_words_of_the_command_count_over_its_configuration(tmp_path, script):
    found = import_file(folder_with(tmp_path, script), Given(guess=True))
    layout, job = found.layout, found.job
    assert (layout.tp, layout.micro_batch, layout.dp, layout.recompute) == (1, 4, 16, "full")
    assert (job.global_batch, job.seq_len, job.precision.compute) == (128, 8192, "bf16")
    assert found.model.layers == 32


def test_a_configuration_that_is_not_here_is_named(tmp_path):
    path = folder_with(tmp_path, "torchrun primus/cli/main.py train pretrain --config none.yaml --lr 1")  # fmt: skip
    with pytest.raises(SpecError, match=r"none\.yaml.*not here"):
        import_file(path, Given(guess=True))


def test_torchtitan_s_tables_under_primus_are_torchtitan_s(tmp_path):
    path = tmp_path / "titan.yaml"
    path.write_text(
        "modules:\n  pre_trainer:\n    framework: torchtitan\n    overrides:\n      model: {name: llama3, flavor: 8B}\n"
        "      training: {local_batch_size: 2, global_batch_size: 32, seq_len: 4096}\n"
        "      parallelism: {tensor_parallel_degree: 2}\n      activation_checkpoint: {mode: full}\n"
    )
    found = import_file(path, Given(guess=True))
    assert (found.layout.tp, found.layout.micro_batch, found.layout.recompute) == (2, 2, "full")
    assert (found.job.global_batch, found.job.seq_len, found.model.layers) == (32, 4096, 32)


def test_tables_beside_the_modules_are_the_recipe_s():
    """A recipe's adapters and what it changes of the model, as the file sets them outside of its modules."""
    text = (
        "modules:\n  post_trainer:\n    framework: megatron_bridge\n    config: sft_trainer.yaml\n    model: qwen3_8b.yaml\n"
        "    overrides: {micro_batch_size: 1, global_batch_size: 32, seq_length: 2048, peft: lora, hf_path: Qwen/Qwen3-8B}\n"
        "peft: {dim: 4, alpha: 8, target_modules: [linear_qkv]}\nmodel: {moe_router_force_load_balancing: true}\n"
    )
    found = import_text(text, "lora.yaml", Given(guess=True))
    assert found.job.finetune is not None and found.job.finetune.rank == 4
    assert any("force-load-balancing" in one.option for one in found.remarks)
