"""What a launcher says around a program of one's own, and models that folders are named after."""

from pathlib import Path

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.names import guess_model
from meshwright.imports.reading import Given

GUESS = Given(guess=True)
WORDS = "--model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 4 --max_length 2048 --bf16 True --zero_stage 2"


@pytest.mark.parametrize("port", ["29500", "$WORKER_PORT"])
def test_a_module_that_a_launcher_starts_is_the_program(port: str):
    text = (
        f"#!/bin/bash\ndeepspeed --num_gpus 4 --master_port {port} --module own.finetune {WORDS}\n"
    )
    found = import_text(text, "sft.sh", GUESS)
    assert (found.model.name, found.cluster.name, found.layout.zero) == ("qwen3-4b", "h100:1x4", 2)


def test_the_launchers_configuration_counts_around_a_program_of_ones_own(tmp_path: Path):
    (tmp_path / "conf.yaml").write_text("distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 4\nfsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}\n")  # fmt: skip
    (tmp_path / "run.sh").write_text(
        "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 accelerate launch --config_file conf.yaml train/sft.py "
        "--model_name Qwen/Qwen3-4B --learning_rate 1e-4 --max_length 4096 --train_batch_size 2 --accumulation_steps 8\n"
    )
    found = import_file(tmp_path / "run.sh", GUESS)
    assert (found.layout.world, found.layout.zero, found.job.global_batch) == (4, 2, 64)
    assert found.job.precision.name == "bf16"
    said = [one.option for one in found.remarks if one.kind == "guess"]
    assert not {"sharding", "precision"} & set(said)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("outputs/med/Meta-Llama-3.1-8B/1e-5-length8192", "llama3.1-8b"),
        ("ckpt/Qwen3-4B/sft/final", "qwen3-4b"),
        ("outputs/sft/final", ""),
        ("org/own-model", ""),
    ],
)
def test_a_run_lies_in_a_folder_that_is_named_after_its_model(name: str, model: str):
    found = guess_model(name)
    assert (found.name if found is not None else "") == model


def test_unsloth_adapts_all_linear_layers_where_none_are_said():
    text = 'from unsloth import FastModel\nfrom trl import SFTConfig, SFTTrainer\nmodel, t = FastModel.from_pretrained("Qwen/Qwen3-4B")\nmodel = FastModel.get_peft_model(model, r=8)\nSFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=2))\n'
    tuned = import_text(text, "a.py", GUESS).job.finetune
    assert tuned is not None and (tuned.rank, len(tuned.targets)) == (8, 7)
