"""The faults of a thirteenth draw, by kind: what programs say in tables and texts of their own, and who starts them."""

import json
from pathlib import Path

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.names import model_named
from meshwright.imports.reading import Given
from meshwright.specs import load_cluster
from meshwright.specs.errors import SpecError

H8 = Given(cluster=load_cluster("h100:1x8"), guess=True)

TABLE = """
from dataclasses import dataclass, field
from typing import List
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model

@dataclass
class Settings:
    base: str = "Qwen/Qwen2.5-7B-Instruct"
    targets: List[str] = field(default_factory=lambda: ["q_proj", "v_proj", "up_proj"])
    batch_size: int = 2
    cut: int = 1024

def run(config: Settings = Settings(batch_size=3)):
    model = AutoModelForCausalLM.from_pretrained(config.base)
    model = get_peft_model(model, LoraConfig(r=16, target_modules=config.targets))
    arguments = TrainingArguments(per_device_train_batch_size=config.batch_size, bf16=True, max_length=config.cut)
    Trainer(model=model, args=arguments).train()
"""


def test_a_table_of_the_programs_own_is_read_where_the_program_reads_it():
    back = import_text(TABLE, "t.py", H8)
    assert (back.model.name, back.layout.micro_batch, back.job.seq_len) == ("qwen2.5-7b", 3, 1024)
    assert back.job.finetune.targets == ("q", "v", "up")
    assert not any("batch_size" in one or "lora_target" in one for one in back.notes)


MADE = """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Run:
    def __init__(self):
        self.config = self.usual()

    def usual(self):
        return {"layers": 6, "heads": 8, "batch": 5, "rows": 256}

    def train(self, tokenizer):
        shape = GPT2Config(vocab_size=len(tokenizer), n_layer=self.config["layers"], n_head=self.config["heads"], n_embd=512, resid_pdrop=0.0)
        model = GPT2LMHeadModel(shape)
        args = TrainingArguments(per_device_train_batch_size=self.config["batch"], gradient_checkpointing=True, bf16=True, max_length=self.config["rows"], use_cpu=True)
        Trainer(model=model, args=args).train()
"""


def test_a_model_that_a_program_builds_itself_is_that_model():
    back = import_text(MADE, "t.py", H8)
    model = back.model
    assert (model.layers, model.hidden, model.heads, model.vocab) == (6, 512, 8, 50257)
    assert (back.layout.micro_batch, back.job.seq_len, back.job.dropout) == (5, 256, 0.0)
    assert any("computes vocab_size" in one for one in back.notes)
    assert any("use_cpu" in one and "processors" in one for one in back.notes)


def test_a_program_that_another_one_writes_is_read():
    outer = f"import transformers\ntext = '''{MADE}'''\nopen('train.py', 'w').write(text)\n"
    back = import_text(outer, "t.py", H8)
    assert back.layout.micro_batch == 5
    assert any("writes the one that trains" in one for one in back.notes)


@pytest.mark.parametrize(("said", "recompute"), [("", "none"), (" --checkpointing", "full")])
def test_recomputation_is_on_where_the_program_reaches_the_call(tmp_path: Path, said, recompute):
    (tmp_path / "dpo_tune.py").write_text(
        "import argparse\nfrom transformers import Trainer, TrainingArguments, AutoModelForCausalLM\n"
        "parser = argparse.ArgumentParser()\nparser.add_argument('--checkpointing', action='store_true')\n"
        "parser.add_argument('--model')\nargs = parser.parse_args()\n"
        "model = AutoModelForCausalLM.from_pretrained(args.model)\n"
        "if args.checkpointing:\n    model.gradient_checkpointing_enable()\n"
        "Trainer(model=model, args=TrainingArguments(per_device_train_batch_size=1, bf16=True)).train()\n"
    )
    (tmp_path / "run.sh").write_text(
        f"torchrun --nproc_per_node 8 dpo_tune.py --model allenai/tulu-2-7b{said}"
    )
    back = import_file(tmp_path / "run.sh", H8)
    assert (back.layout.recompute, back.model.name) == (recompute, "llama2-7b")
    assert any(one.startswith("not modelled: task: dpo") for one in back.notes)


def test_a_programs_own_parser_fills_what_the_command_leaves_out(tmp_path: Path):
    (tmp_path / "step2_reward_model_finetuning").mkdir()
    (tmp_path / "step2_reward_model_finetuning" / "main.py").write_text(
        "import argparse, deepspeed\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--per_device_train_batch_size', type=int, default=16)\n"
        "parser.add_argument('--max_seq_len', type=int, default=512)\n"
        "parser.add_argument('--data_split', default='2,4,4')\nparser.add_argument('--lora_dim', type=int, default=0)\n"
    )
    words = "deepspeed --num_gpus 2 step2_reward_model_finetuning/main.py --model_name_or_path facebook/opt-1.3b --zero_stage 3 --gradient_accumulation_steps 2"
    (tmp_path / "run.sh").write_text(words)
    back = import_file(tmp_path / "run.sh", Given(guess=True))
    assert (back.layout.micro_batch, back.job.seq_len, back.job.global_batch) == (16, 512, 64)
    assert (back.job.precision.name, back.job.finetune) == ("fp16", None)
    assert any("task: reward" in one for one in back.notes)


def test_a_slice_of_a_device_is_named():
    script = "#!/bin/bash\n#SBATCH --gres=gpu:nvidia_h100_80gb_hbm3_3g.40gb:1\npython sft.py --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 1 --bf16 --max_length 512\n"
    back = import_text(script, "x.sh", Given(guess=True))
    assert any("MIG: 3 of 7 parts of its processors, 40 GB" in one for one in back.notes)


def test_an_offload_of_a_share_is_named():
    table = {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.3, "pin_memory": True}}
    data = {
        "train_micro_batch_size_per_gpu": 4,
        "bf16": {"enabled": True},
        "zero_optimization": table,
    }
    notes = import_text(
        json.dumps(data), "ds.json", Given(model=model_named("llama3-8b"), guess=True)
    ).notes
    assert any("offload_optimizer.ratio: 0.3" in one for one in notes)
    table["offload_optimizer"]["ratio"] = 1
    notes = import_text(
        json.dumps(data), "ds.json", Given(model=model_named("llama3-8b"), guess=True)
    ).notes
    assert not any("ratio" in one for one in notes)


def test_a_launcher_of_what_the_script_is_given_asks_for_it():
    script = 'exec torchrun \\\n  --nnodes="$SLURM_NNODES" \\\n  --nproc_per_node=8 \\\n  "$@"\n'
    with pytest.raises(SpecError) as told:
        import_text(script, "entry.sh", H8)
    assert told.value.field == "--args"


def test_a_notebook_that_a_script_runs_is_what_trains(tmp_path: Path):
    cells = [{"cell_type": "code", "source": TABLE}]
    (tmp_path / "tune.ipynb").write_text(json.dumps({"cells": cells}))
    (tmp_path / "run.sh").write_text(
        'NB=/home/me/tune.ipynb\npapermill "$NB" "$NB.out" --kernel python3\n'
    )
    assert import_file(tmp_path / "run.sh", H8).layout.micro_batch == 3


def test_a_recipe_file_offers_configurations_and_not_their_models():
    text = (
        "from megatron.bridge.models.{home} import {model}\nfrom megatron.bridge.training.config import ConfigContainer, TrainingConfig\n"
        "def model_config(tensor: int = 2) -> {model}:\n    return {model}(tensor_model_parallel_size=tensor)\n"
        "def pretrain_config(tensor: int = 2) -> ConfigContainer:\n"
        "    return ConfigContainer(model=model_config(tensor), train=TrainingConfig(global_batch_size=16, micro_batch_size=1))\n"
    )
    llama = text.format(home="llama", model="Llama3ModelProvider8B")
    assert import_text(llama, "r.py", H8).layout.tp == 2
    with pytest.raises(SpecError, match="state-space"):
        import_text(text.format(home="mamba", model="NemotronNano12Bv2Provider"), "r.py", H8)


@pytest.mark.parametrize(
    ("name", "preset"),
    [("../hf_llama2_models/7B", "llama2-7b"), ("lmsys/vicuna-13b-v1.5", "llama2-13b"), ("HuggingFaceH4/zephyr-7b-beta", "mistral-7b"), ("models/7B", None)],
)  # fmt: skip
def test_names_that_others_gave_to_known_shapes(name, preset):
    found = model_named(name)
    assert (found.name if found else None) == preset
