"""What a twenty-first draw of public files showed, by kind."""

from pathlib import Path

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given
from meshwright.specs import load_cluster
from meshwright.specs.errors import SpecError

GUESS = Given(guess=True)

LOOP = """
import torch, torch.distributed as dist
from transformers import AutoModelForCausalLM
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from fastcore.script import call_parse
def fsdp_main(rank, args):
    model = FSDP(AutoModelForCausalLM.from_pretrained(args["model_name"]))
    loss = model().loss
    loss.backward()
@call_parse()
def main(world_size: int = -1, model_name: str = "x", batch_size: int = 1, lora_rank: int = 64, context_length: int = 256,
         gradient_accumulation_steps: int = 1, train_type: str = "qlora", precision: str = "bf16"):
    mp.spawn(fsdp_main, nprocs=world_size)
"""
START = "python train.py --world_size 2 --model_name meta-llama/Llama-2-7b-hf --batch_size 8 --gradient_accumulation_steps 4 --context_length 512 --precision bf16 --use_gradient_checkpointing true"


def _here(folder: Path, program: str, words: str, name: str = "train.py") -> Path:
    (folder / name).write_text(program)
    (folder / "run.sh").write_text(words + "\n")
    return folder / "run.sh"


@pytest.mark.parametrize(
    ("kind", "method", "rank"), [("full", "", 0), ("lora", "lora", 64), ("custom_qlora", "qlora", 64)]
)  # fmt: skip
def test_a_loop_at_hand_is_read_by_its_commands_own_words(
    tmp_path: Path, kind: str, method: str, rank: int
):
    found = import_file(_here(tmp_path, LOOP, f"{START} --train_type {kind} --odd_part 3"), GUESS)
    assert found.model.name == "llama2-7b"
    assert (found.layout.micro_batch, found.job.global_batch, found.job.seq_len) == (8, 64, 512)
    assert (found.layout.zero, found.layout.recompute, found.layout.world) == (3, "full", 2)
    tuned = found.job.finetune
    assert (tuned.method if tuned else "", tuned.rank if tuned else 0) == (method, rank)
    assert any(one.option == "--odd_part" for one in found.remarks if one.kind == "unread")


def test_defaults_of_a_dataclass_behind_a_command_line_count(tmp_path: Path):
    program = """
from dataclasses import dataclass
from jsonargparse import CLI
import torch
@dataclass
class Settings:
    model_name: str = "Qwen/Qwen3-0.6B"
    max_length: int = 2048
    micro_batch_size: int = 2
    batch_size: int = 32
with torch.autocast("cuda"):
    loss.backward()
cfg = CLI(Settings)
"""
    found = import_file(_here(tmp_path, program, "python train.py --micro_batch_size 4 --muon.use_muon true --odd.loops 4"), GUESS)  # fmt: skip
    assert (found.layout.micro_batch, found.job.global_batch, found.job.seq_len) == (4, 32, 2048)
    assert (found.job.precision.name, found.job.optimizer.name) == ("bf16", "muon")
    assert any(one.option == "--odd.loops" for one in found.remarks)


def test_what_a_trainers_program_does_not_pass_on_is_named(tmp_path: Path):
    program = """
import argparse
from trl import SFTTrainer, SFTConfig
parser = argparse.ArgumentParser()
parser.add_argument("--model", default="Qwen/Qwen3-0.6B")
parser.add_argument("--bs", type=int, default=1)
parser.add_argument("--strange", type=int, default=1)
args = parser.parse_args()
size = args.bs
SFTTrainer(model=args.model, args=SFTConfig(per_device_train_batch_size=size, bf16=True, max_length=512)).train()
"""
    found = import_file(_here(tmp_path, program, "python train.py --bs 6 --strange 4"), GUESS)
    assert found.layout.micro_batch == 6
    named = {one.option for one in found.remarks if one.kind == "unread"}
    assert "strange" in named and "bs" not in named


def test_a_branch_that_a_default_rules_out_makes_nothing():
    text = """
from dataclasses import dataclass
import torch
from transformers import BitsAndBytesConfig
from trl import GRPOConfig, GRPOTrainer
@dataclass
class Config:
    model: str = "Qwen/Qwen2.5-1.5B-Instruct"
    load_in_4bit: bool = False
cfg = Config()
args = GRPOConfig(per_device_train_batch_size=2, bf16=True, max_completion_length=256, model_init_kwargs={
    "torch_dtype": torch.bfloat16, "attn_implementation": "eager",
    **({"quantization_config": BitsAndBytesConfig(load_in_4bit=True)} if cfg.load_in_4bit else {}),
})
trainer = GRPOTrainer(model=cfg.model, args=args, peft_config=LoraConfig(r=16))
trainer.train()
"""
    found = import_text(text, "t.py", GUESS)
    assert found.job.finetune is not None and found.job.finetune.method == "lora"
    assert found.job.attention_kernel == "unfused"


def test_a_command_that_another_program_starts_on_its_hosts_is_read(tmp_path: Path):
    models = tmp_path / "MaxText" / "configs" / "models"
    models.mkdir(parents=True)
    (models / "llama-tiny.yml").write_text("base_emb_dim: 256\nbase_num_query_heads: 4\nbase_num_kv_heads: 2\nbase_num_decoder_layers: 3\nbase_mlp_dim: 512\nhead_dim: 64\nvocab_size: 1000\n")  # fmt: skip
    (models.parent / "base.yml").write_text("remat_policy: minimal\nper_device_batch_size: 12.0\nbase_emb_dim: 2048\n")  # fmt: skip
    script = tmp_path / "run.sh"
    script.write_text("""export SEQ=4096
python -u multihost_runner.py --TPU_PREFIX=x --COMMAND="
    export A=1
    python3.10 -u -m MaxText.train MaxText/configs/base.yml model_name=llama-tiny \\
        max_target_length=${SEQ} per_device_batch_size=2
    echo done
"
""")
    found = import_file(script, GUESS)
    assert (found.model.layers, found.model.hidden, found.model.vocab) == (3, 256, 1000)
    assert (found.job.seq_len, found.layout.micro_batch) == (4096, 2)
    assert found.layout.recompute == "selective"  # as the base at hand says


STAGES = """
model: {name_or_path: Qwen/Qwen2.5-3B-Instruct, max_length: 2048, gradient_checkpointing: true}
lora: {enabled: true, rank: 16}
negatives: {strategy: mixed}
sft: {learning_rate: 0.0002, per_device_train_batch_size: 1, gradient_accumulation_steps: 16}
dpo: {learning_rate: 0.000005, per_device_train_batch_size: 2, gradient_accumulation_steps: 4}
runtime: {mixed_precision: bf16, expected_device_name: RTX 4090}
"""


def test_a_table_of_several_trainings_asks_which():
    with pytest.raises(SpecError, match="one of sft, dpo"):
        import_text(STAGES, "s.yaml", GUESS)
    found = import_text(
        STAGES, "s.yaml", Given(guess=True, config="dpo", cluster=load_cluster("h100:1x1"))
    )
    assert (found.layout.micro_batch, found.job.global_batch) == (2, 8)
    assert any(one.option == "task" and "dpo" in one.text for one in found.remarks)
    assert import_text(STAGES, "s.yaml", Given(guess=True, config="sft")).cluster.name.startswith("4090")  # fmt: skip


@pytest.mark.parametrize("queue", ["gpuA100x4", "a100-80gb", "short_a100"])
def test_a_queues_name_offers_its_device(queue: str):
    text = f"#SBATCH --partition={queue}\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=4\nsrun python pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 8 --bf16 --vocab-size 1000\n"
    assert import_text("#!/bin/bash\n" + text, "r.sh", GUESS).cluster.name.startswith("a100")


def test_a_student_of_neox_is_the_model_and_its_teacher_is_named():
    text = """
{ "pipe-parallel-size": 1, "model-parallel-size": 1, "do_distillation": true,
  "student_model_args": {"num_layers": 12, "hidden_size": 768, "num_attention_heads": 8, "seq_length": 2048},
  "teacher_model_args": {"num_layers": 24, "hidden_size": 1024, "num_attention_heads": 8},
  "train_micro_batch_size_per_gpu": 2, "fp16": {"enabled": true} }
"""
    found = import_text(text, "n.yml", GUESS)
    assert (found.model.layers, found.model.hidden, found.job.seq_len) == (12, 768, 2048)
    assert any(one.option == "teacher_model_args" for one in found.remarks)
