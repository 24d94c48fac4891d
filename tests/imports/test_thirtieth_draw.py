"""What a draw of fine-tuning files of popular repositories showed, by kind."""

from pathlib import Path

import pytest
from folders import GUESS, put

from meshwright.imports.files import import_text
from meshwright.imports.reading import Given, Imported
from meshwright.specs import load_cluster, load_model

MODEL = Given(guess=True, model=load_model("qwen3-4b"))
WORDS = "--model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2 --bf16 True --model_max_length 2048"


def notes(found: Imported) -> str:
    return "\n".join(found.notes)


COUNTS = """#!/bin/bash
GPUS=$({count})
NODES=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | wc -l)
STEPS=$((256 / ($GPUS * $NODES) / 2))
torchrun --nproc_per_node $GPUS --nnodes $NODES train.py {words} --gradient_accumulation_steps $STEPS
"""


@pytest.mark.parametrize(
    "count",
    [
        "nvidia-smi -L | wc -l",
        'python -c "import torch; print(torch.cuda.device_count())"',
        "nvidia-smi --query-gpu=name --format=csv,noheader | wc -l",
    ],
)
def test_a_batch_divided_by_a_count_of_the_machines_devices_stays_whole(count: str):
    text = COUNTS.format(count=count, words=WORDS)
    guessed = import_text(text, "a.sh", GUESS)
    assert (guessed.cluster.gpus, guessed.job.global_batch) == (8, 256)
    assert "the machine counts it; 8 is taken" in notes(guessed)
    told = import_text(text, "a.sh", Given(cluster=load_cluster("rtx4090:2x2")))
    assert (told.layout.world, told.job.global_batch) == (4, 256)


def test_a_bare_no_is_no_precision():
    text = "distributed_type: DEEPSPEED\nmixed_precision: no\nnum_processes: 4\ndeepspeed_config: {zero_stage: 3}\n"
    assert import_text(text, "a.yaml", MODEL).job.precision.name == "fp32"


def test_fsdp_words_without_a_strategy_shard_as_their_environment_says():
    run = f"torchrun --nproc_per_node 4 train.py {WORDS} --fsdp auto_wrap"
    assert import_text(f"#!/bin/bash\n{run}\n", "a.sh", GUESS).layout.zero == 3
    told = import_text(f"#!/bin/bash\nexport FSDP_SHARDING_STRATEGY=2\n{run}\n", "a.sh", GUESS)
    assert told.layout.zero == 2


PROGRAM = """
import argparse
import modal
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
MAX_LENGTH = 384

def cut(example):
    return example[:MAX_LENGTH]

def train(name, steps=4):
    model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.half)
    Trainer(model, args=TrainingArguments("out", per_device_train_batch_size=3, gradient_accumulation_steps=steps))

def main():
    train.remote(name=f"/{VOLUME}/Qwen/Qwen3-4B", steps=2)
"""


def test_a_function_that_is_started_elsewhere_is_told_what_its_call_says():
    found = import_text(PROGRAM, "a.py", GUESS)
    assert (found.model.name, found.layout.micro_batch, found.job.seq_len) == ("qwen3-4b", 3, 384)
    assert found.job.global_batch == 3 * 2 * found.layout.dp
    assert found.job.precision.name == "pure-bf16"


def test_a_model_that_a_function_elsewhere_loads_is_the_parsers():
    text = (
        "import argparse\nfrom helpers import load\nfrom trl import SFTConfig, SFTTrainer\n"
        "def main(args):\n    model = load(args.model)\n"
        "    SFTTrainer(model=model, args=SFTConfig(max_length=1024, bf16=True, per_device_train_batch_size=2))\n"
        'parser = argparse.ArgumentParser()\nparser.add_argument("--model", default="Qwen/Qwen3-1.7B")\n'
    )
    assert import_text(text, "a.py", GUESS).model.name == "qwen3-1.7b"


TUNES = """
from dataclasses import dataclass
from transformers import AutoModelForCausalLM, HfArgumentParser, TrainingArguments
from trl import SFTConfig

@dataclass
class Ours:
    model_name: str = "Qwen/Qwen3-4B"

ours, args = HfArgumentParser((Ours, TrainingArguments)).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained(ours.model_name, torch_dtype="bfloat16")
{again}
settings = SFTConfig(max_length=768, **args.to_dict())
"""


@pytest.mark.parametrize(
    ("again", "recompute"),
    [
        ("model.gradient_checkpointing_enable()", "full"),
        ("if args.gradient_checkpointing: model.gradient_checkpointing_enable()", "none"),
        ("if hasattr(model, 'f'): model.gradient_checkpointing_enable()", "full"),
    ],
)
def test_what_a_program_does_whatever_it_is_told_counts(tmp_path: Path, again: str, recompute: str):
    found = put(
        tmp_path,
        "torchrun --nproc_per_node 2 tune.py --per_device_train_batch_size 2 --bf16",
        tune__py=TUNES.format(again=again),
    )
    assert (found.model.name, found.job.seq_len, found.layout.recompute) == ("qwen3-4b", 768, recompute)  # fmt: skip
    assert found.job.precision.name == "pure-bf16"


def test_attention_that_is_not_flash_attention_2_is_fused_today():
    found = import_text("model_name_or_path: Qwen/Qwen3-4B\nper_device_train_batch_size: 1\nuse_flash_attention_2: false\nbf16: true\nmax_seq_length: 512\n", "a.yaml", GUESS)  # fmt: skip
    assert found.job.attention_kernel == "flash"
    assert "older ones keep all scores" in notes(found)


ARCTIC = """
type: sft
micro_batch_size: 1
gradient_accumulation_steps: 2
sequence_parallel_size: 8
activation_checkpoint_cpu_offload: true
deepspeed: {zero_optimization: {stage: 3, offload_optimizer: {device: cpu}}}
optimizer: {type: cpu_adam, learning_rate: 0.00001}
model: {type: liger, name_or_path: Qwen/Qwen3-8B}
data: {sources: [a], max_length: 65536}
"""


def test_arctic_training_splits_sequences_and_offloads():
    found = import_text(ARCTIC, "a.yml", Given(cluster=load_cluster("h100:2x8")))
    assert found.format == "ArcticTraining YAML"
    assert (found.layout.cp, found.layout.cp_method, found.layout.zero) == (8, "ulysses", 3)
    assert (found.job.seq_len, found.job.global_batch, found.job.loss) == (65536, 4, "liger")
    assert (found.layout.recompute, found.offload) == ("full", {"activations", "optimizer"})
    plain = import_text(ARCTIC.replace("deepspeed: {zero", "deepspeed: {} #"), "a.yml", GUESS)
    assert (plain.layout.zero, plain.offload) == (2, {"activations"})


EASY = """
data: {max_prompt_length: 1024, max_response_length: 2048, rollout_batch_size: 512}
worker:
  actor:
    global_batch_size: 64
    micro_batch_size_per_device_for_update: 2
    model: {model_path: Qwen/Qwen2.5-7B-Instruct, lora: {rank: 0, alpha: 64}}
    fsdp: {enable_full_shard: false, enable_cpu_offload: true}
  rollout: {n: 4, tensor_parallel_size: 2}
trainer: {nnodes: 1, n_gpus_per_node: 8}
"""


def test_easyr1_is_read_under_its_own_names(tmp_path: Path):
    found = put(
        tmp_path,
        "python3 -m verl.trainer.main config=conf/easy.yaml worker.actor.model.model_path=Qwen/Qwen3-4B "
        "worker.actor.model.lora.rank=32 trainer.n_gpus_per_node=4",
        conf___easy__yaml=EASY,
    )
    assert (found.format, found.model.name, found.cluster.gpus) == ("EasyR1 configuration", "qwen3-4b", 4)  # fmt: skip
    assert (found.layout.zero, found.layout.micro_batch, found.layout.recompute) == (2, 2, "full")
    assert (found.job.seq_len, found.job.global_batch) == (3072, 64 * 4)
    assert found.job.finetune is not None and found.job.finetune.rank == 32
    assert found.offload == {"optimizer", "parameters"}
    assert "not understood" not in notes(found)


def test_tables_of_ones_own_name_deepspeed_and_leave_the_model():
    text = "train_cfgs: {ds_cfgs: ds_z3_config.json, per_device_train_batch_size: 2, learning_rate: 1.0e-6, gradient_checkpointing: true, bf16: true}\nmodel_cfgs: {model_name_or_path: null, model_max_length: 2048}\n"
    found = import_text(text, "a.yaml", MODEL)  # fmt: skip
    assert (found.layout.zero, found.layout.micro_batch, found.job.framework) == (3, 2, "deepspeed")
    inside = "deepspeed: {zero_optimization: {stage: 2}}\nmodel: {name: Qwen/Qwen3-4B}\ntrain: {batch_size: 2, learning_rate: 1.0e-5}\n"
    assert import_text(inside, "a.yaml", GUESS).layout.zero == 2


def test_a_list_of_commands_is_one_script():
    text = f"type: task\nenv: [MODEL=Qwen/Qwen3-4B, TOKEN]\ncommands:\n  - pip install trl\n  - torchrun --nproc_per_node 8 sft.py {WORDS.replace('Qwen/Qwen2.5-7B', '$MODEL')}\nresources: {{gpu: 'MI300X:8'}}\n"
    found = import_text(text, "a.dstack.yml", GUESS)
    assert (found.model.name, found.cluster.name) == ("qwen3-4b", "mi300x:1x8")


@pytest.mark.parametrize(
    ("line", "device"),
    [
        ("export NEURON_CC_FLAGS=--model-type", "trainium1"),
        ("export ASCEND_TOOLKIT_HOME=/usr", "ascend-910b"),
        ("python gaudi_spawn.py --world_size 8", "gaudi2"),
        ("export HIP_VISIBLE_DEVICES=0,1,2,3,4,5,6,7", "mi300x"),
        ("export RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES=1", "h100"),
        ("# export NEURON_CC_FLAGS=1", "h100"),
    ],
)
def test_the_device_that_is_offered_is_of_the_maker_whose_software_runs(line: str, device: str):
    text = f"#!/bin/bash\n{line}\ntorchrun --nproc_per_node 8 train.py {WORDS}\n"
    assert import_text(text, "a.sh", GUESS).cluster.name.startswith(device)
