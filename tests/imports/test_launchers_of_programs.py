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


def _program(lines: str, arguments: str) -> str:
    return (
        "import json, click\nfrom transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
        f'{lines}model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-4B")\n'
        f"args = TrainingArguments(per_device_train_batch_size=2, {arguments})\nTrainer(model=model, args=args).train()\n"
    )


def test_deepspeeds_table_in_a_program_counts(tmp_path: Path):
    table = '{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "optimizer": {"type": "Strange"}}'
    found = import_text(_program(f"ds = {table}\n", "bf16=True, deepspeed=ds"), "a.py", GUESS)
    assert (found.layout.zero, found.layout.offload) == (3, ("optimizer",))
    assert any("Strange" in one.text for one in found.remarks if one.kind == "unmodelled")
    path = tmp_path / "a.py"
    path.write_text(
        _program('with open("own_stage.json") as f:\n    ds = json.load(f)\n', "deepspeed=ds")
    )
    away = import_file(path, GUESS)
    assert away.layout.zero == 2  # what a name without a stage is taken for
    assert any(one.option == "deepspeed" for one in away.remarks if one.kind == "guess")
    (tmp_path / "own_stage.json").write_text(table)
    assert import_file(path, GUESS).layout.zero == 3


def test_the_defaults_of_a_click_command_count():
    lines = '@click.command()\n@click.option("--steps", default=8)\n@click.option("--again/--no-again", default=True)\ndef main(steps, again): ...\n'
    text = _program(lines, "gradient_accumulation_steps=steps, gradient_checkpointing=again")
    found = import_text(text, "a.py", GUESS)
    assert (found.job.global_batch, found.layout.recompute) == (128, "full")


def test_what_a_host_compares_with_itself_is_the_same():
    text = (
        'HERE=$(python ip.py)\nif [ "$RANK" == "0" ]; then\n  FIRST=$HERE\nelse\n  FIRST=$(python ip.py first)\nfi\n'
        f'if [ "$FIRST" = "$HERE" ]; then\n  torchrun --nproc_per_node 4 own.py {WORDS}\nelse\n  echo waiting\nfi\n'
    )
    assert import_text(text, "run.sh", GUESS).cluster.name == "h100:1x4"


def test_parts_of_a_devices_batch_and_a_length_of_all():
    words = WORDS.replace("--max_length 2048", "--total_max_len 3072 --max_seq_length 512")
    found = import_text(
        f"torchrun --nproc_per_node 2 own.py {words} --micro_train_batch_size 2\n", "run.sh", GUESS
    )
    assert (found.layout.micro_batch, found.job.global_batch, found.job.seq_len) == (2, 8, 3072)


@pytest.mark.parametrize(
    ("arguments", "layout"),
    [
        ("fsdp='full_shard', fsdp_config={'activation_checkpointing': True}", (3, "full", ())),
        ("fsdp=True, fsdp_config={'reshard_after_forward': False}", (2, "none", ())),
        ("fsdp=True, fsdp_config={'cpu_offload': True}", (3, "none", ("optimizer", "parameters"))),
    ],
)  # fmt: skip
def test_fsdps_table_in_a_program_counts(arguments: str, layout: tuple[int, str, tuple[str, ...]]):
    found = import_text(_program("", f"bf16=True, {arguments}"), "a.py", GUESS).layout
    assert (found.zero, found.recompute, found.offload) == layout


def test_an_offload_that_the_trainer_does_not_hear_is_named():
    found = import_text(_program("", "fsdp=True, fsdp_config={'offload_params': True}"), "a.py", GUESS)  # fmt: skip
    assert not found.layout.offload
    assert any("does not hear" in one.text for one in found.remarks if one.kind == "unmodelled")


def test_the_optimizer_that_a_trainer_is_handed_counts_and_what_is_computed_is_named():
    text = _program("", "bf16=True, deepspeed=make()").replace(
        "args=args", "args=args, optimizers=(bnb.optim.AdamW8bit(p), None)"
    )
    found = import_text(text, "a.py", GUESS)
    assert found.job.optimizer.name == "adam8bit"
    assert any("deepspeed from make()" in one.text for one in found.remarks if one.kind == "guess")
    named = import_text(text.replace("bnb.optim.AdamW8bit(p)", "own(p)"), "a.py", GUESS)
    assert any(one.option == "optim" for one in named.remarks if one.kind == "unmodelled")


def test_accelerates_own_parallelism_counts_in_a_program():
    lines = "import accelerate\nc = accelerate.ParallelismConfig(tp_size=2, cp_size=2, dp_shard_size=2)\n"
    found = import_text(_program(lines, "bf16=True, parallelism_config=c"), "a.py", GUESS).layout
    assert (found.tp, found.cp, found.zero) == (2, 2, 3)


@pytest.mark.parametrize(
    ("words", "layout"),
    [
        ("--accelerate_config zero3 --num_processes 4", (4, 3)),
        ("--accelerate_config=fsdp2", (8, 3)),
        ("--accelerate_config single_gpu", (1, 0)),
        ("--num-machines 2 --num-processes 16", (16, 0)),
    ],
)
def test_trls_command_starts_accelerate(words: str, layout: tuple[int, int]):
    text = f"#!/bin/bash\ntrl sft {words} {WORDS.replace(' --zero_stage 2', '')}\n"
    found = import_text(text, "run.sh", GUESS)
    assert (found.layout.world, found.layout.zero, found.job.global_batch) == (
        *layout,
        layout[0] * 4,
    )
    assert not [one for one in found.remarks if one.kind == "unread"]


@pytest.mark.filterwarnings("error")
def test_posix_classes_in_a_test_are_what_they_are_to_the_shell():
    text = (
        "N=4\nif [[ $N =~ ^[[:digit:]]+$ ]]; then\n  C=$N\nelse\n  C=2\nfi\n"
        f"torchrun --nproc_per_node $C own.py {WORDS}\n"
    )
    assert import_text(text, "run.sh", GUESS).cluster.name == "h100:1x4"
