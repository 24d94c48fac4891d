"""Programs of one's own around a trainer: what they set is read, nothing of them is run."""

import json

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.own.program_settings import program_settings
from meshwright.imports.reading import Given
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError

UNSLOTH = """
import argparse, os
from unsloth import FastLanguageModel
from trl import SFTConfig, SFTTrainer
!pip install unsloth

def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--model", default="unsloth/Qwen3-8B-unsloth-bnb-4bit")
    p.add_argument("--max-seq-len", type=int, default=4096)
    p.add_argument("--batch-size", "-b", type=int, default=4)
    p.add_argument("--no-4bit", action="store_true")
    return p.parse_args()

ACCUMULATION = int(os.environ.get("ACCUMULATION", "8"))

def main():
    args = parse()
    model, tokenizer = FastLanguageModel.from_pretrained(
        model_name=args.model, max_seq_length=args.max_seq_len, load_in_4bit=not args.no_4bit,
    )
    model = FastLanguageModel.get_peft_model(model, r=32, lora_alpha=64)
    trainer = SFTTrainer(model=model, args=SFTConfig(
        per_device_train_batch_size=args.batch_size, gradient_accumulation_steps=ACCUMULATION,
        optim="adamw_8bit",
    ))
    trainer.train()

if False:
    model, tokenizer = FastLanguageModel.from_pretrained("lora_model", max_seq_length=64)
"""

TRAINER = """
from dataclasses import dataclass, field
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments, GenerationConfig

@dataclass
class Settings:
    name: str = "meta-llama/Meta-Llama-3-8B"
    rows: int = field(default=2)

settings, extra = Settings(), {"gradient_accumulation_steps": 2 * 4}
model = AutoModelForCausalLM.from_pretrained(settings.name, torch_dtype=torch.bfloat16)
words = GenerationConfig(max_length=99)
big = torch.cuda.device_count() > 4
training = TrainingArguments(
    output_dir="out", per_device_train_batch_size=settings.rows, bf16=True, gradient_checkpointing=True,
    max_length=2048 if big else 1024, **extra,
)
Trainer(model=model, args=training).train()
"""


LOOP = """
import argparse
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, AutoTokenizer

def train(name, length, rows: int = 3, quantize=False):
    if quantize:
        model = AutoModelForCausalLM.from_pretrained(name, load_in_4bit=True)
    model = AutoModelForCausalLM.from_pretrained(name)
    tokenizer = AutoTokenizer.from_pretrained(name)
    accelerator = Accelerator(gradient_accumulation_steps=4, mixed_precision="bf16")
    rows = DataLoader(data.map(lambda x: tokenizer(x, max_length=length)), batch_size=rows)

parser = argparse.ArgumentParser()
parser.add_argument("--name", default="meta-llama/Meta-Llama-3-8B")
parser.add_argument("--quantize", action="store_true")
args = parser.parse_args()
train(args.name, length=512, quantize=args.quantize)
"""


def read(text, cluster="h100:1x1"):
    return import_text(text, "train.py", Given(cluster=load_cluster(cluster), guess=True))


def test_unsloth_s_own_defaults_and_those_of_a_command_line():
    found = read(UNSLOTH)
    tune = found.job.finetune
    assert (found.model.name, found.job.seq_len) == ("qwen3-8b", 4096)
    assert (found.layout.micro_batch, found.job.global_batch) == (4, 32)
    assert (tune.method, tune.rank, tune.alpha) == ("qlora", 32, 64)
    assert (found.layout.recompute, found.layout.offload) == ("full", ("activations",))
    assert found.job.loss == "liger"
    off = UNSLOTH.replace("lora_alpha=64", "use_gradient_checkpointing=False")
    assert read(off).layout.recompute == "none"
    whole = UNSLOTH.replace("load_in_4bit=not args.no_4bit", "full_finetuning=True")
    assert read(whole).job.finetune is None


def test_a_trainer_s_settings_wherever_the_program_keeps_them():
    found = read(TRAINER)
    assert (found.model.name, found.layout.recompute) == ("llama3-8b", "full")
    assert (found.layout.micro_batch, found.job.global_batch, found.job.seq_len) == (2, 16, 2048)
    assert any(one.option == "max_length" and "larger" in one.text for one in found.remarks)


def test_a_loop_of_one_s_own_is_followed_into_its_functions():
    found = read(LOOP)
    assert (found.model.name, found.job.finetune) == ("llama3-8b", None)
    assert (found.layout.micro_batch, found.job.global_batch, found.job.seq_len) == (3, 12, 512)
    assert found.layout.recompute == "none"
    asked = LOOP.replace('default="meta-llama/Meta-Llama-3-8B"', "required=True")
    asked = asked.replace("batch_size=rows", "rows").replace("rows: int = 3, ", "")
    with pytest.raises(SpecError, match="from its command line"):
        read(asked)


@pytest.mark.parametrize(
    ("trainer", "task"), [("DPOTrainer", "dpo"), ("ORPOTrainer", "orpo"), ("GRPOTrainer", "grpo")]
)
def test_the_trainer_says_what_is_trained_on(trainer, task):
    assert read(UNSLOTH.replace("SFTTrainer", trainer)).task == task


def test_import_reads_the_same_programs():
    run = import_text(UNSLOTH, "train.py", Given(cluster=load_cluster("rtx4090:1x1")))
    assert run.model.name == "qwen3-8b" and (run.layout.dp, run.layout.micro_batch) == (1, 4)
    assert (run.layout.recompute, run.layout.offload) == ("full", ("activations",))
    assert (run.job.seq_len, run.job.global_batch, run.job.finetune.rank) == (4096, 32, 32)
    run = import_text(TRAINER, "train.py", Given(cluster=load_cluster("h100:1x8")))
    assert run.model.name == "llama3-8b" and run.job.global_batch == 8 * 2 * 8


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1024 * 4", 4096), ("2 ** 9", 512), ("1 << 12", 4096), ("len(x)", None), ("None or 7", 7), ("-3", -3),
        ("1 // 0", None), ("10 ** 9 * 10 ** 9", None), ("{'a': 5}['a']", 5), ("T.get('b', 6)", 6),
        ("int('12')", 12), ("int('x')", None), ("f'{N}-b'", "8-b"),
    ],
)  # fmt: skip
def test_what_a_program_says_of_a_value(expression, value):
    text = f"N = 8\nT = {{'a': 1}}\nTrainingArguments(max_length={expression})"
    assert program_settings(text, "x.py").get("max_length") == value


def test_a_notebook_is_its_code_cells(tmp_path):
    parts = [{"cell_type": "code", "source": part} for part in UNSLOTH.split("\n\n")]
    cells = [
        {"cell_type": "markdown", "source": ["r = 99"]},
        {"cell_type": "code", "source": "%%bash\necho FastLanguageModel("},
        {"cell_type": "code", "source": ["%%capture\n", "x = 1"], "outputs": [{"data": 1e400}]},
        {"cell_type": "code", "source": "!pip install \\\n  unsloth\nthis is unfinished ("},
        *parts,
    ]
    path = tmp_path / "train.ipynb"
    path.write_text(json.dumps({"cells": cells, "nbformat": 4}))
    given = Given(cluster=load_cluster("h100:1x1"), guess=True)
    assert import_file(path, given) == read(UNSLOTH)
    plain = UNSLOTH.replace("from unsloth import FastLanguageModel", "")
    plain = plain.replace("FastLanguageModel", "AutoModelForCausalLM")
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": plain}], "nbformat": 4}))
    alone = import_file(path, Given(guess=True))
    assert alone.cluster.gpus == 1 and "a notebook trains" in " ".join(alone.notes)
    path.write_text("{}")
    with pytest.raises(SpecError, match="a list of cells"):
        import_file(path, given)


def test_what_is_no_python_is_said():
    with pytest.raises(SpecError, match="not Python"):
        program_settings("def (", "x.py")
