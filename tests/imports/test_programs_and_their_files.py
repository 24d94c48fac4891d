"""What oracles and a draw of other pretraining stacks showed, by kind: programs with the files that they take their values from."""

from pathlib import Path

import pytest
import yaml
from folders import GUESS, lay

from meshwright.imports.files import import_file, import_text
from meshwright.specs.errors import SpecError

TRAINER = """
from transformers import Trainer, TrainingArguments, AutoModelForCausalLM
{imports}
model = AutoModelForCausalLM.from_pretrained(BASE)
args = TrainingArguments(output_dir="o", per_device_train_batch_size={micro}, gradient_accumulation_steps={steps}, bf16=True)
Trainer(model=model, args=args).train()
"""


@pytest.mark.parametrize(
    ("imports", "micro", "steps"),
    [
        ("from src.settings import BASE, MICRO, STEPS", "MICRO", "STEPS"),
        ("from settings import *", "MICRO", "STEPS"),
        ("import settings as own\nfrom settings import BASE", "own.MICRO", "own.STEPS"),
        ("from settings import BASE, MICRO as EACH, STEPS", "EACH", "STEPS"),
    ],
)
def test_constants_come_from_the_files_that_a_program_imports(
    tmp_path: Path, imports: str, micro: str, steps: str
):
    here = lay(tmp_path, {
        "src/settings.py": 'BASE = "gpt2"\nMICRO = 6\nSTEPS = 12\n',
        "src/train.py": TRAINER.format(imports=imports, micro=micro, steps=steps),
    })  # fmt: skip
    found = import_file(here / "src" / "train.py", GUESS)
    assert (found.model.name, found.layout.micro_batch, found.job.global_batch) == (
        "gpt2",
        6,
        6 * 12 * found.layout.dp,
    )


LOOP = """
import os, torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
n_layer, n_embd, n_head, vocab_size, block_size = 6, 384, 6, 32000, 512
micro_batch_size = 4
grad_accum_steps = 32
world_size = int(os.environ["WORLD_SIZE"])
{share}
class GPT(nn.Module):
    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
model = DDP(GPT())
optimizer = torch.optim.AdamW(model.parameters())
for step in range(100):
    loss = model(x)
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("share", "whole"),
    [
        ("local_steps = grad_accum_steps // world_size", 128),
        ("grad_accum_steps //= world_size", 128),
        ("local_steps = grad_accum_steps // dist.get_world_size()", 128),
        ("", 8 * 128),
    ],
)
def test_micro_batches_that_ranks_share_are_those_of_all_ranks(share: str, whole: int):
    assert import_text(LOOP.format(share=share), "train.py", GUESS).job.global_batch == whole


FABRIC = """
import lightning as L, torch
from lightning.fabric.strategies import FSDPStrategy, XLAStrategy
from small.model import GPT, Config
model_name = "wee_LLaMA_200M"
count = 4
global_batch_size = 96
micro_batch_size = 6
batch_size = global_batch_size // count

def setup(devices: int = count, tpu: bool = False, precision=None):
    if devices > 1:
        if tpu:
            devices = "auto"
            strategy = XLAStrategy()
        else:
            strategy = FSDPStrategy(auto_wrap_policy={1}, sharding_strategy="SHARD_GRAD_OP")
    fabric = L.Fabric(devices=devices, strategy=strategy, precision=precision or "bf16-mixed")
    main(fabric)

def main(fabric):
    if isinstance(fabric.strategy, XLAStrategy):
        import torch_xla.core.xla_model as xm
    config = Config.from_name(model_name)
    model = GPT(config)
    loader = torch.utils.data.DataLoader(data, batch_size=batch_size)
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in loader:
        loss = model(batch)
        fabric.backward(loss)
        optimizer.step()

if __name__ == "__main__":
    from jsonargparse import CLI
    CLI(setup)
"""
SIZES = """
configs = [dict(org="o", name="wee_LLaMA_200M", block_size=1024, vocab_size=32000, n_layer=12, n_head=16, n_embd=1024, n_query_groups=4,
    intermediate_size=2816, _norm_class="FusedRMSNorm", _mlp_class="LLaMAMLP"),
  dict(org="o", name="other", block_size=2048, n_layer=30, n_head=16, n_embd=2048)]
class Config:
    pass
"""
CODE = """
import torch.nn as nn
from small.config import Config
class GptNeoxMLP(nn.Module): ...
class LLaMAMLP(nn.Module):
    def forward(self, x): return self.proj(nn.functional.silu(self.a(x)) * self.b(x))
class GPT(nn.Module):
    def __init__(self, config): self.lm_head = nn.Linear(1, 1)
    def forward(self, x): return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True), self.rope(x)
"""


@pytest.mark.parametrize("launched", [False, True])
def test_a_fabric_loop_with_its_table_of_models(tmp_path: Path, launched: bool):
    here = lay(tmp_path, {
        "pretrain/small.py": FABRIC, "small/model.py": CODE, "small/config.py": SIZES,
        "run.sh": "lightning run model --accelerator=cuda --devices=4 pretrain/small.py --devices 4\n",
    })  # fmt: skip
    found = import_file(here / ("run.sh" if launched else "pretrain/small.py"), GUESS)
    model = found.model
    assert (model.layers, model.hidden, model.kv_heads, model.ffn, model.gated, model.norm) == (
        12,
        1024,
        4,
        2816,
        True,
        "rmsnorm",
    )
    assert (
        found.layout.dp,
        found.layout.zero,
        found.layout.micro_batch,
        found.job.global_batch,
    ) == (4, 2, 6, 96)
    assert (found.job.seq_len, found.cluster.device.name) == (
        1024,
        import_text(LOOP, "train.py", GUESS).cluster.device.name,
    )
    assert not any("--devices" in one for one in found.notes)


LITGPT = """
model_config: {name: wee, n_layer: 8, n_embd: 512, n_head: 8, intermediate_size: 1376, mlp_class_name: LLaMAMLP,
  norm_class_name: RMSNorm, padded_vocab_size: 32000, block_size: 512, bias: false, parallel_residual: false}
precision: bf16-mixed
train: {global_batch_size: 512, micro_batch_size: 128, tie_embeddings: true}
"""


def test_litgpt_describes_a_model_by_its_class_s_fields():
    found = import_text(LITGPT, "pretrain.yaml", GUESS)
    assert (
        found.model.layers,
        found.model.hidden,
        found.model.ffn,
        found.model.gated,
        found.model.tied_embeddings,
    ) == (8, 512, 1376, True, True)
    assert (found.job.seq_len, found.layout.dp) == (
        512,
        4,
    )  # devices that the batch can be shared by
    usual = import_text(
        LITGPT.replace("n_layer: 8, ", "").replace("padded_vocab_size: 32000", "vocab_size: 1000"),
        "p.yaml",
        GUESS,
    )
    assert (usual.model.layers, usual.model.vocab) == (16, 1024)


def test_litgpt_s_programs_by_their_places():
    found = import_text(
        "python litgpt/finetune/lora.py --checkpoint_dir checkpoints/google/gemma-2b --train.global_batch_size 32 "
        "--train.micro_batch_size 2 --train.max_seq_length 1024 --precision bf16-true\n", "run.sh", GUESS,
    )  # fmt: skip
    assert (found.format, found.model.name, found.job.seq_len, found.job.finetune.method) == (
        "LitGPT command",
        "gemma-2b",
        1024,
        "lora",
    )


OLMO = {
    "run_name": "x", "model": {"d_model": 2048, "n_heads": 16, "n_layers": 16, "mlp_ratio": 8, "max_sequence_length": 2048, "vocab_size": 50280},
    "global_train_batch_size": 256, "device_train_microbatch_size": 4, "fsdp": {"sharding_strategy": "FULL_SHARD"}, "max_duration": 100,
    "optimizer": {"name": "adamw"}, "data": {"paths": ["x"]},
}  # fmt: skip


def test_olmo_s_strategy_masks_and_blocks_that_recompute():
    plain = import_text(yaml.safe_dump(OLMO), "c.yaml", GUESS)
    assert (plain.layout.zero, plain.layout.recompute, plain.job.document_masking) == (
        3,
        "none",
        False,
    )
    more = {
        **OLMO,
        "distributed_strategy": "ddp",
        "activation_checkpointing": "two_in_three",
        "data": {"paths": ["x"], "generate_doc_lengths": True},
    }
    found = import_text(yaml.safe_dump(more), "c.yaml", GUESS)
    assert (found.layout.zero, found.layout.recompute, found.job.document_masking) == (
        0,
        "full",
        True,
    )
    assert any("only some layers" in one for one in found.notes)


def test_maxtext_shards_the_optimizer_s_state_over_copies():
    text = "model_name: llama2-7b\nper_device_batch_size: 4\nmax_target_length: 2048\nici_data_parallelism: 4\nici_fsdp_parallelism: 1\nshard_optimizer_over_data: True\n"
    assert import_text(text, "c.yml", GUESS).layout.zero == 1


LEVANTER = """
data: {{tokenizer: gpt2}}
model: {{type: mistral, hidden_dim: 1024, intermediate_dim: 2816, num_layers: 12, num_heads: 16, num_kv_heads: 4, seq_len: 1024, {more}}}
trainer: {{mp: "p=f32,c=bfloat16", train_batch_size: 256, per_device_parallelism: 4, num_train_steps: 100}}
optimizer: {{learning_rate: 1e-4}}
"""


@pytest.mark.parametrize(
    ("more", "kernel"),
    [
        ("use_flash_attention: false", "unfused"),
        ("use_flash_attention: true", "flash"),
        ("sliding_window: 512", "flash"),
    ],
)
def test_levanter_s_older_switches(more: str, kernel: str):
    found = import_text(LEVANTER.format(more=more), "c.yaml", GUESS)
    assert found.job.attention_kernel == kernel
    assert any("window of attention" in one for one in found.notes) == ("window" in more)
    assert not any("not understood" in one for one in found.notes)


def test_easylm_names_its_model_by_another_option():
    found = import_text(
        "python -m EasyLM.models.llama.llama_train --mesh_dim=1,-1,1 --llama.base_model=llama32_1b --dtype=bf16\n",
        "r.sh",
        GUESS,
    )
    assert found.model.name == "llama3.2-1b"


ENGINE = """
import argparse, deepspeed, torch.nn as nn
parser = argparse.ArgumentParser()
parser.add_argument("--vocab_size", type=int, default=32000)
parser.add_argument("--embedding_size", type=int, default=512)
parser.add_argument("--num_layers", type=int, default=10)
parser.add_argument("--num_heads", type=int, default=8)
parser.add_argument("--seq_length", type=int, default=1024)
parser.add_argument("--deepspeed_config", type=str, required=True)
args = parser.parse_args()
engine, *_ = deepspeed.initialize(args=args, model=model, config=args.deepspeed_config)
for batch in data:
    engine.backward(engine(batch))
    engine.step()
"""


def test_a_deepspeed_program_describes_its_model_by_its_parser(tmp_path: Path):
    here = lay(tmp_path, {
        "src/gpt.py": ENGINE, "src/ds.json": '{"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2, "fp16": {"enabled": true}, "zero_optimization": {"stage": 1}}',
        "run.sh": "torchrun --nnodes=2 --nproc_per_node=4 src/gpt.py --seq_length 512 --epochs 1 --deepspeed_config src/ds.json\n",
    })  # fmt: skip
    found = import_file(here / "run.sh", GUESS)
    assert (found.model.layers, found.model.hidden, found.model.vocab, found.job.seq_len) == (
        10,
        512,
        32000,
        512,
    )
    assert (
        found.layout.dp,
        found.layout.zero,
        found.layout.micro_batch,
        found.job.global_batch,
    ) == (8, 1, 3, 48)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("m.json", '[{"weight": 0.5}]', "describes no training run"),
        ("train.py", LOOP.format(share="").replace("n_layer, n_embd, n_head, vocab_size, block_size = 6, 384, 6, 32000, 512\nmicro_batch_size = 4\n", "from settings import JobConfig\njob = JobConfig.parse_args()\n"), "takes model and batch from its command line"),
        ("loop.py", "import torch\ndef train(model: 'GPT', optimizer, config):\n    for batch in config.data:\n        loss = model(batch)  # causal\n        loss.backward()\n        optimizer.step()\n", "holds functions and classes"),
    ],
)  # fmt: skip
def test_what_says_nothing_by_itself_is_refused(name: str, text: str, said: str):
    with pytest.raises(SpecError, match=said):
        import_text(text, name, GUESS)


def test_one_visible_device_under_a_runner_of_environments(tmp_path: Path):
    here = lay(tmp_path, {
        "train.py": TRAINER.format(imports='BASE = "gpt2"', micro=2, steps=1),
        "run.sh": "export CUDA_VISIBLE_DEVICES=0\nuv run python train.py\n",
    })  # fmt: skip
    assert import_file(here / "run.sh", GUESS).layout.world == 1


def test_a_batch_in_tokens_by_its_name():
    text = "model: {n_layers: 8, d_model: 512, n_heads: 8}\nseq_len: 1024\nmicro_batch_size: 4\nglobal_batch_tokens: 65536\nlearning_rate: 1e-3\nmax_steps: 10\n"
    assert import_text(text, "c.yaml", GUESS).job.global_batch == 64


OLDER_CHAT = """
import torch
from nanochat.gpt import GPT, GPTConfig
depth = 12 # layers
max_seq_len = 1024
device_batch_size = 16
total_batch_size = 262144 # tokens
matrix_lr = 0.02
depth = depth
loss.backward()
optimizer.step()
"""


def test_nanochat_s_older_program_has_its_settings_as_constants():
    found = import_text(OLDER_CHAT, "base_train.py", GUESS)
    assert (found.format, found.model.layers, found.model.vocab, found.model.window) == (
        "nanochat program",
        12,
        65_536,
        0,
    )
    assert (
        found.job.seq_len,
        found.layout.micro_batch,
        found.job.global_batch,
        found.job.optimizer.name,
    ) == (1024, 16, 256, "muon")
    assert not any("value embeddings" in one for one in found.notes)


STUDENT = """
import argparse, torch
from transformers import GPT2Config, GPT2LMHeadModel
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=12)
parser.add_argument("--accumulation-steps", type=int, default=1)
parser.add_argument("--block-size", type=int, default=512)
parser.add_argument("--num-layer", type=int, default=24)
parser.add_argument("--num-head", type=int, default=16)
parser.add_argument("--num-embd", type=int, default=1024)
opt = parser.parse_args()
model = GPT2LMHeadModel(GPT2Config(n_layer=opt.num_layer, n_head=opt.num_head, n_embd=opt.num_embd, n_positions=opt.block_size))
optimizer = torch.optim.AdamW(model.parameters())
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = model(x, labels=x).loss
loss.backward()
optimizer.step()
"""


def test_a_command_s_sizes_reach_the_library_s_class_that_a_loop_makes(tmp_path: Path):
    here = lay(
        tmp_path,
        {
            "train_distill.py": STUDENT,
            "run.sh": "python train_distill.py --num-layer 8 --num-head 8 --num-embd 512 --batch-size 2\n",
        },
    )
    found = import_file(here / "run.sh", GUESS)
    assert (
        found.model.layers,
        found.model.hidden,
        found.model.positions,
        found.job.precision.compute,
    ) == (8, 512, "learned", "bf16")
    assert (found.layout.micro_batch, found.layout.world, found.task) == (2, 1, "distill")


OWN_TABLE = """
model: {block_size: 1024, hidden_size: 512, intermediate_size: 1376, num_hidden_layers: 10, num_attention_heads: 8}
tokenizer_name: HuggingFaceTB/SmolLM2-135M
trainer: {micro_batch_size: 4, gradient_accumulation_steps: 8, max_steps: 100, learning_rate: 1e-3, dtype: bfloat16}
"""


@pytest.mark.parametrize(
    ("code", "devices"),
    [("loss.backward()\n", 1), ("mp.spawn(main, nprocs=8)\nloss.backward()\n", 8)],
)
def test_python_alone_starts_one_process_for_a_table_too(tmp_path: Path, code: str, devices: int):
    here = lay(
        tmp_path,
        {"own/train.py": code, "c.yaml": OWN_TABLE, "run.sh": "python -m own.train c.yaml\n"},
    )
    found = import_file(here / "run.sh", GUESS)
    assert (found.layout.world, found.model.vocab) == (devices, 49_152)


def test_a_server_with_a_trainer_of_its_own_package_is_no_program_of_the_library():
    text = "from fastapi import FastAPI\nfrom transformers import AutoTokenizer\nfrom .trainer import Trainer\ntrainer = Trainer()\nmax_length = 64\n"
    with pytest.raises(SpecError, match="it starts nothing that trains"):
        import_text(text, "main.py", GUESS)


def test_a_command_that_names_a_configuration_in_python(tmp_path: Path):
    text = """
JOB_NAME = "wee"
model_type = "INTERNLM"
data = dict(seq_len=1024, micro_num=2, micro_bsz=2, pack_sample_into_one=False, total_steps=10)
model = dict(num_attention_heads=8, num_layers=8, hidden_size=512, vocab_size=32000, mlp_ratio=8 / 3, dtype="torch.bfloat16", checkpoint=False)
parallel = dict(zero1=dict(size=-1), tensor=dict(size=1, mode="mtp"), pipeline=dict(size=1), weight=dict(size=1))
"""
    here = lay(
        tmp_path,
        {
            "train.py": "import internlm\n",
            "configs/wee.py": text,
            "run.sh": "torchrun --nproc_per_node=8 train.py --config ./configs/wee.py --launcher torch\n",
        },
    )
    found = import_file(here / "run.sh", GUESS)
    assert (found.format, found.model.layers, found.layout.dp) == (
        "InternEvo configuration, named by a script",
        8,
        8,
    )


BUILDS = """
from olmo_core.data import NumpyDataLoaderConfig, NumpyFSLDatasetConfig, TokenizerConfig
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig
from olmo_core.train.train_module import TransformerTrainModuleConfig
def build_config():
    tokenizer = TokenizerConfig.{tokenizer}()
    model = TransformerConfig.{builder}
    data = NumpyFSLDatasetConfig(sequence_length=1024)
    loader = NumpyDataLoaderConfig(global_batch_size=64 * 1024, seed=0)
    train = TransformerTrainModuleConfig(rank_microbatch_size=2 * 1024, max_sequence_length=1024, optim=AdamWConfig(lr=1e-3))
    return model, data, loader, train
if __name__ == "__main__":
    build_config()
"""


@pytest.mark.parametrize(
    ("builder", "tokenizer", "shape"),
    [
        (
            "olmo2_190M(vocab_size=tokenizer.padded_vocab_size())",
            "dolma2",
            (12, 768, 12, 3072, 100_352, 0),
        ),
        (
            "olmo3_1B(vocab_size=tokenizer.padded_vocab_size(), n_layers=4)",
            "dolma2",
            (4, 2048, 16, 8192, 100_352, 4096),
        ),
        (
            "llama2_271M(vocab_size=tokenizer.padded_vocab_size())",
            "gpt2",
            (16, 1024, 8, 2816, 50_304, 0),
        ),
        (
            "llama2_7B(vocab_size=tokenizer.padded_vocab_size())",
            "dolma2",
            (32, 4096, 32, 11008, 100_352, 0),
        ),
        (
            "olmo2_7B(vocab_size=tokenizer.padded_vocab_size(), n_layers=2)",
            "dolma2",
            (2, 4096, 32, 11008, 100_352, 0),
        ),
        (
            "qwen3_0_6B(vocab_size=tokenizer.padded_vocab_size())",
            "gpt2",
            (28, 1024, 16, 3072, 50_304, 0),
        ),
    ],
)
def test_olmo_core_s_builders_by_name(builder: str, tokenizer: str, shape: tuple[int, ...]):
    model = import_text(
        BUILDS.format(builder=builder, tokenizer=tokenizer), "train.py", GUESS
    ).model
    assert (model.layers, model.hidden, model.heads, model.ffn, model.vocab, model.window) == shape


def test_settings_in_capitals_and_models_in_blocks():
    capitals = "NUM_LAYERS: 6\nEMBED_DIM: 258\nNUM_HEADS: 6\nFEED_FORWARD_DIM: 688\nBATCH_SIZE: 8\nLEARNING_RATE: 1e-4\nMAX_LENGTH: 512\nNUM_EPOCHS: 7\n"
    found = import_text(capitals, "config.yaml", GUESS)
    assert (
        found.model.layers,
        found.model.hidden,
        found.model.ffn,
        found.job.seq_len,
        found.layout.micro_batch,
    ) == (6, 258, 688, 512, 8)
    blocks = "data: {vocabulary_size: 32768}\nmodel: {max_sequence_length: 1200, hidden_size: 768, heads: 8, blocks: 8}\ntraining: {batch_size: 4, steps: 100, learning_rate: 3e-4}\n"
    found = import_text(blocks, "pretrain.yaml", GUESS)
    assert (found.model.layers, found.model.heads, found.model.vocab, found.job.seq_len) == (
        8,
        8,
        32_768,
        1200,
    )


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("model = GPT().bfloat16().to(rank)", "pure-bf16"), ("model = GPT(config).to(device=rank, dtype=torch.bfloat16)", "pure-bf16"),
        ("model.to(torch.bfloat16)", "pure-bf16"), ("torch.set_default_dtype(torch.bfloat16)", "pure-bf16"), ("x = x.to(torch.bfloat16)", "bf16"),
    ],
)  # fmt: skip
def test_a_whole_model_in_16_bits(line: str, name: str):
    found = import_text(
        LOOP.format(share="").replace("for step in", f"{line}\nfor step in"), "train.py", GUESS
    )
    assert found.job.precision.name == name
    assert found.job.optimizer.state_bytes == (4 if name == "pure-bf16" else 8)


DISTILS = """
from dataclasses import dataclass, field
from transformers import HfArgumentParser, Trainer, TrainingArguments, AutoModelForCausalLM, BitsAndBytesConfig
from peft import LoraConfig, get_peft_model
@dataclass
class ModelArguments:
    model_name_or_path: str = field(default="")
    lora_r: int = field(default=16)
    lora_alpha: int = field(default=32)
    load_teacher_in_4bit: bool = field(default=False)
    load_student_in_4bit: bool = field(default=False)
def configs(model_args):
    if model_args.load_teacher_in_4bit:
        quantization_config_teacher = BitsAndBytesConfig(load_in_4bit=True)
    quantization_config_student = None
    return quantization_config_teacher, quantization_config_student
model_args, training_args = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
teacher, student_config = configs(model_args)
student = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path, quantization_config=student_config)
if student_config is not None:
    student = get_peft_model(student, LoraConfig(r=model_args.lora_r))
Trainer(model=student, args=training_args).train()
"""


def test_a_teacher_in_4_bits_and_a_rank_that_nothing_asks_for(tmp_path: Path):
    here = lay(tmp_path, {
        "run_distillation.py": DISTILS,
        "run.sh": "accelerate launch --num_processes 8 --enable_numa_affinity ./run_distillation.py --model_name_or_path Qwen/Qwen2.5-1.5B "
        "--per_device_train_batch_size 4 --load_teacher_in_4bit true --bf16 true --max_seq_length 1024\n",
    })  # fmt: skip
    found = import_file(here / "run.sh", GUESS)
    assert (
        found.job.finetune is None or not found.job.finetune.adapts,
        found.layout.dp,
        found.task,
    ) == (True, 8, "distill")


def test_a_trainer_of_another_package_of_one_s_own():
    text = "from transformers import AutoTokenizer\nfrom pruning.src.trainer import PruningTrainer\ntrainer = PruningTrainer(model, batch_size=64)\ntrainer.train()\n"
    with pytest.raises(SpecError, match="describes no training run"):
        import_text(text, "run.py", GUESS)


BESIDE = """
model_args: {hidden_size: 1024, num_hidden_layers: 12, num_attention_heads: 16, num_key_value_heads: 4, intermediate_size: 2816, vocab_size: 32000, max_position_embeddings: 2048}
training_args: {output_dir: o, per_device_train_batch_size: 4, gradient_accumulation_steps: 8, learning_rate: 3.0e-4}
extra_args: {mixed_precision: bf16}
"""


def test_sizes_beside_training_arguments_build_the_model():
    found = import_text(BESIDE, "train.yaml", GUESS)
    model = found.model
    assert (model.hidden, model.layers, model.kv_heads, model.ffn) == (1024, 12, 4, 2816)
    assert found.job.precision.name == "bf16"


def test_counted_devices_make_no_performance_recipe(tmp_path: Path):
    here = lay(
        tmp_path, {"sweep.sh": "for s in 9 10; do\npython bench.py -m 7b.yaml -g 8 -s $s\ndone\n"}
    )
    with pytest.raises(SpecError) as told:
        import_file(here / "sweep.sh", GUESS)
    assert "recipe" not in str(told.value)


def test_dimensions_by_their_long_names():
    program = LOOP.format(share="").replace("n_embd", "embedding_dimension")
    assert import_text(program, "train.py", GUESS).model.hidden
