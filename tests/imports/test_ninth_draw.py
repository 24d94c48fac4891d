"""Faults that a ninth draw of public configurations showed, each by its kind."""

import json
from pathlib import Path

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given
from meshwright.specs import load_cluster, load_model
from meshwright.specs.errors import SpecError

H8 = Given(model=load_model("llama3-8b"), cluster=load_cluster("h100:1x8"), guess=True)

OWN = """
import argparse, torch
from torch.nn.parallel import DistributedDataParallel as DDP
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
p = argparse.ArgumentParser()
p.add_argument("--model-path", required=True)
p.add_argument("--max-seq-length", type=int, default=1024)
p.add_argument("--per-device-train-batch-size", type=int, default=1)
p.add_argument("--gradient-accumulation-steps", type=int, default=8)
args = p.parse_args()
model = AutoModelForCausalLM.from_pretrained(args.model_path, torch_dtype=torch.bfloat16)
model.gradient_checkpointing_enable()
{end}
"""
TRAINER = """
train_args = TrainingArguments("out", per_device_train_batch_size=args.per_device_train_batch_size,
    gradient_accumulation_steps=args.gradient_accumulation_steps, bf16=torch.cuda.is_available() and torch.cuda.is_bf16_supported())
Trainer(model=model, args=train_args).train()
"""


@pytest.mark.parametrize("end", [TRAINER, "model = DDP(model)\n"], ids=["trainer", "loop"])
def test_a_program_with_a_parser_of_its_own_says_what_its_words_do_not(tmp_path: Path, end: str):
    (tmp_path / "train.py").write_text(OWN.format(end=end))
    (tmp_path / "run.sh").write_text("torchrun --nproc_per_node 8 train.py --model-path meta-llama/Llama-3.1-8B --max-seq-length 4096 --per-device-train-batch-size 2\n")  # fmt: skip
    back = import_file(tmp_path / "run.sh", Given(guess=True))
    layout, job = back.layout, back.job
    assert (back.model.name, layout.micro_batch, job.seq_len, job.global_batch) == ("llama3.1-8b", 2, 4096, 128)  # fmt: skip
    assert (layout.recompute, job.precision.name, layout.zero) == ("full", "pure-bf16", 0)


def test_a_length_for_a_data_set_of_its_own_and_a_devices_answers():
    back = import_text(OWN.format(end=TRAINER).replace("required=True", 'default="Qwen/Qwen3-4B"'), "t.py", H8)  # fmt: skip
    assert back.job.seq_len == 1024
    assert any(one.option == "torch.cuda" for one in back.remarks)


def test_a_class_of_trainers_is_no_run():
    text = "from transformers import Trainer\nclass MyTrainer(Trainer):\n    def __init__(self, args=None):\n        args = args or SFTConfig('x')\n"
    with pytest.raises(SpecError, match=r"m\.py.*what calls it"):
        import_text(text, "m.py", H8)


def test_what_a_run_wrote_of_its_arguments_and_adapters():
    data = {
        "adapter_config": {"peft_type": "ADALORA", "r": 8, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"], "beta1": 0.85},
        "run_args": {"base_model": "meta-llama/Llama-2-7b-hf", "per_device_train_batch_size": 1, "gradient_accumulation_steps": 32,
                     "global_train_batch_size": 256, "max_seq_len": 2048, "bf16": True},
    }  # fmt: skip
    back = import_text(json.dumps(data), "meta.json", Given(guess=True))
    assert (back.model.name, back.layout.dp, back.job.global_batch, back.job.seq_len) == ("llama2-7b", 8, 256, 2048)  # fmt: skip
    assert back.job.finetune is not None
    assert (back.job.finetune.rank, set(back.job.finetune.targets)) == (8, {"q", "v"})
    assert any("AdaLoRA" in one.text for one in back.remarks)


def test_copies_of_verls_trainers_and_its_parts():
    words = "data.train_files=a model.partial_pretrain=Qwen/Qwen3-4B data.max_length=5000 data.train_batch_size=128 data.micro_batch_size_per_gpu=1 trainer.nnodes=1"
    back = import_text(f"torchrun --nproc_per_node=4 -m mine.trainer.fsdp_sft_trainer {words}", "x.sh", Given(guess=True))  # fmt: skip
    assert (back.model.name, back.cluster.gpus, back.job.seq_len) == ("qwen3-4b", 4, 5000)
    with pytest.raises(SpecError, match="no trainer"):
        import_text("evaluator: {nnodes: 1}\nactor_rollout_ref: {model: {path: x}, actor: {ppo_mini_batch_size: 256}}\ndata: {max_prompt_length: 8}\n", "evaluation.yaml", H8)  # fmt: skip


def test_megatrons_pictures_are_refused():
    words = "--num-layers 2 --hidden-size 128 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 --model-provider llava_vlm"
    with pytest.raises(SpecError, match="vision-language"):
        import_text(f"torchrun examples/mimo/train.py {words}", "x.sh", H8)


NEWER = """
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
type Rows[T] = list[T]

def first[T: (int, str)](rows: list[T]) -> T:
    return rows[0]

class Box[T]:
    size = 1

names = {"run": "a", 'q': "b"}
print(f"run {names["run"]} {{kept}} {f"{names['q']}"}")
path = f'{"/".join(["a", "b"])}'
config = SFTConfig(output_dir=f"{names["run"]}", per_device_train_batch_size=3, max_length=2048, bf16=True)
SFTTrainer(model=AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-4B"), args=config).train()
"""


def test_python_that_only_a_newer_interpreter_parses():
    back = import_text(NEWER, "new.py", H8)
    assert (back.layout.micro_batch, back.job.seq_len) == (3, 2048)
    with pytest.raises(SpecError, match="not valid Python"):
        import_text("def (:\n  import x", "bad.py", H8)


OLMO = """
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.train.train_module import *
def build_config(overrides):
    model = TransformerConfig.llama3_8B(vocab_size=128256{model})
    train = TransformerTrainModuleConfig(rank_microbatch_size=4096, max_sequence_length=4096, optim=AdamWConfig(lr=1e-4),
        cp_config=TransformerContextParallelConfig.{cp}(degree=2), dp_config=TransformerDataParallelConfig(name=DataParallelType.fsdp){more})
    return ExperimentConfig(model=model, data_loader=NumpyDataLoaderConfig(global_batch_size=64 * 4096), train_module=train)
"""


def test_what_an_olmo_script_sets_beside_its_degrees_is_named():
    plain = import_text(OLMO.format(model="", cp="zig_zag", more=""), "s.py", H8)
    assert plain.layout.cp_method == "ring"
    assert not [one for one in plain.remarks if one.kind in ("unmodelled", "unread")]
    more = ", z_loss_multiplier=1e-5, compile_model=True"
    back = import_text(OLMO.format(model=", tie_word_embeddings=True", cp="ulysses", more=more), "s.py", H8)  # fmt: skip
    assert back.layout.cp_method == "ulysses"
    named = " ".join(one.option for one in back.remarks if one.kind == "unmodelled")
    assert all(word in named for word in ("z_loss_multiplier", "compile_model", "tie_word_embeddings"))  # fmt: skip


def test_weights_of_16_bits_and_other_optimizers_of_an_olmo_script():
    half = import_text(OLMO.format(model=", dtype=DType.bfloat16, qk_norm=False", cp="zig_zag", more=""), "s.py", H8)  # fmt: skip
    assert half.job.precision.name == "pure-bf16" and half.job.optimizer.state_bytes == 4
    assert any("qk_norm" in one for one in half.notes)
    text = OLMO.format(model="", cp="zig_zag", more="")
    muon = import_text(text.replace("AdamWConfig", "NorMuonConfig"), "s.py", H8)
    assert muon.job.optimizer.name == "muon"
    dion = import_text(text.replace("AdamWConfig", "DionConfig"), "s.py", H8)
    assert dion.job.optimizer.name == "adamw" and any("Dion" in one for one in dion.notes)
