"""Training programs and loops as people write them: where a size is said, which calls count, what a command adds."""

import ast
from pathlib import Path

import pytest
from folders import GUESS, lay

from meshwright.imports.code.branches import calls_reached
from meshwright.imports.code.names import Known
from meshwright.imports.code.syntax import dotted
from meshwright.imports.files import import_file, import_text
from meshwright.specs.errors import SpecError

GPT = """
import torch, torch.nn as nn
from dataclasses import dataclass
@dataclass
class GPTConfig:
    block_size: int = 512
    vocab_size: int = 50257
    n_layer: int = 10
    n_head: int = 5
    n_embd: int = 640
class GPT(nn.Module):
    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    @classmethod
    def from_pretrained(cls, kind):
        from transformers import GPT2LMHeadModel
        sizes = {"gpt2": dict(n_layer=12, n_head=12, n_embd=768)}[kind]
        model = GPT(GPTConfig(**sizes))
        return model.take(GPT2LMHeadModel.from_pretrained(kind))
"""
STEPS = """
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
max_length = 32
for step in range(100):
    loss = model(x, y)
    loss.backward()
    optimizer.step()
"""


def test_weights_that_a_class_could_take_over_and_nobody_asks_for_say_nothing():
    made = "B = 4\nT = 256\nmodel = GPT(GPTConfig(vocab_size=50304))\n"
    found = import_text(GPT + made + STEPS, "train.py", GUESS)
    assert found.format == "training loop of one's own"
    assert (found.model.layers, found.model.hidden, found.model.vocab) == (10, 640, 50304)
    assert (found.layout.micro_batch, found.job.seq_len) == (4, 256)


LLAMA = """
import math
class Settings:
    def __init__(self, dim=1024, layers=8, **kwargs):
        self.dim = dim
        self.n_layers = layers
        self.n_heads = kwargs.get("n_heads", 8)
        self.vocab_size = kwargs.get("vocab_size", 6400)
        self.head_dim = kwargs.get("head_dim", self.dim // self.n_heads)
        self.intermediate_size = kwargs.get("intermediate_size", math.ceil(dim * math.pi / 64) * 64)
class SwiGLU: pass
class RMSNorm: pass
def apply_rotary(x): return scaled_dot_product_attention(x, x, x, is_causal=True)
"""


def test_what_a_class_computes_follows_the_call_that_makes_it(tmp_path: Path):
    loop = "import torch\nfrom model import Settings, Llama\nbatch_size, max_seq_len = 4, 256\nmodel = Llama(Settings(dim=512, layers=6))\n" + STEPS  # fmt: skip
    lay(tmp_path, {"model.py": LLAMA, "train.py": loop})
    model = import_file(tmp_path / "train.py", GUESS).model
    assert (model.hidden, model.layers, model.head_dim) == (512, 6, 64)
    assert model.ffn == 1664  # 26 blocks of 64, where 1024 would have 51


@pytest.mark.parametrize(("says", "ffn"), [("multiple_of = 32\n", 1376), ("", 1408)])
def test_llama_s_ffn_is_rounded_up_as_the_program_says(says: str, ffn: int):
    sizes = "dim, n_layers, n_heads, batch_size, max_seq_len, vocab_size = 512, 8, 8, 4, 256, 6400\n"  # fmt: skip
    code = "class SwiGLU(nn.Module): w3 = int(2 * hidden / 3)\ndef rope(x): return scaled_dot_product_attention(x, x, x, is_causal=True)\n"  # fmt: skip
    found = import_text("import torch\n" + says + sizes + code + STEPS, "train.py", GUESS)
    assert found.model.ffn == ffn


SIZES = "n_layer, n_head, n_embd, block_size, batch_size, vocab_size = 10, 5, 640, 512, 6, 6400\n"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("compile = True\nif compile: model = torch.compile(model)\n", True),
        ("model.compile(dynamic=False)\n", True),
        ("compile = False\nif compile: model = torch.compile(model)\n", False),
        ("if machine_has_it(): model = torch.compile(model)\n", False),
    ],
)
def test_a_loop_that_compiles_its_model_is_told_that_this_is_not_priced(line: str, named: bool):
    code = "class GPT: is_causal = True\nmodel = GPT()\n"
    found = import_text("import torch\n" + SIZES + code + line + STEPS, "train.py", GUESS)
    assert any(one.option == "compile" for one in found.remarks) is named


@pytest.mark.parametrize(
    ("line", "precision"),
    [
        ("embed = nn.Embedding(6400, 640).bfloat16()\n", "bf16"),
        ("model = GPT(1).cuda().bfloat16()\n", "bf16"),
        ("model = GPT(1).bfloat16()\n", "pure-bf16"),
    ],
)
def test_a_table_that_is_cast_is_not_the_whole_model(line: str, precision: str):
    code = "import torch\nfrom torch import nn\nclass GPT: is_causal = True\n"
    found = import_text(code + SIZES + line + STEPS, "train.py", GUESS)
    assert found.job.precision.name == precision


def test_answers_to_a_prompt_are_sequences_of_the_batch():
    text = """
import argparse, torch
class GPT: is_causal = True
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=2)
parser.add_argument("--num_generations", type=int, default=6)
parser.add_argument("--max_seq_len", type=int, default=200)
parser.add_argument("--max_gen_len", type=int, default=100)
args = parser.parse_args()
n_layer, n_head, n_embd, vocab_size = 10, 5, 640, 6400
model = GPT(length=args.max_seq_len + args.max_gen_len)
"""
    found = import_text(text + STEPS, "train_grpo.py", GUESS)
    assert (found.layout.micro_batch, found.job.seq_len) == (12, 300)
    plain = import_text(text + STEPS, "train_sft.py", GUESS)
    assert (plain.layout.micro_batch, plain.job.seq_len) == (2, 200)


def test_a_model_of_a_file_at_hand_that_builds_on_an_encoder_decoder_is_refused(tmp_path: Path):
    trains = """
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments
from chat_model import TextToText
model = TextToText(config)
Seq2SeqTrainer(model=model, args=Seq2SeqTrainingArguments(output_dir="out", per_device_train_batch_size=4)).train()
"""
    model = "from transformers import T5ForConditionalGeneration\nclass TextToText(T5ForConditionalGeneration):\n    pass\n"  # fmt: skip
    lay(tmp_path, {"chat_model.py": model, "train.py": trains})
    with pytest.raises(SpecError, match="encoder-decoder"):
        import_file(tmp_path / "train.py", GUESS)


def test_a_trainer_s_kind_counts_over_the_names_of_its_outputs():
    text = """
from trl import ORPOConfig, ORPOTrainer
args = ORPOConfig(output_dir="out", hub_model_id="Small-DPO", beta=0.1, max_prompt_length=128, max_length=256, per_device_train_batch_size=2)
ORPOTrainer(model="HuggingFaceTB/SmolLM2-135M", args=args).train()
"""
    told = [one.text for one in import_text(text, "train.py", GUESS).remarks if one.option == "task"]  # fmt: skip
    assert len(told) == 1 and told[0].startswith("orpo") and "reference" not in told[0]


ARGUMENTS = """
import torch, transformers
from dataclasses import dataclass, field
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, HfArgumentParser, Trainer
@dataclass
class TrainingArguments(transformers.TrainingArguments):
    bits: int = field(default=4)
    per_device_train_batch_size: int = field(default=2)
    model_max_length: int = field(default=512)
(args,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained(
    "EleutherAI/pythia-12b",
    torch_dtype=torch.float32 if args.fp16 else (torch.bfloat16 if args.bf16 else torch.float32),
    quantization_config=BitsAndBytesConfig(load_in_4bit=args.bits == 4, bnb_4bit_quant_type="nf4"),
)
Trainer(model=model, args=args).train()
"""


def test_transformers_own_settings_are_off_where_nothing_is_said():
    found = import_text(ARGUMENTS, "train.py", GUESS)
    assert found.job.precision.name == "fp32"
    assert not [one for one in found.remarks if one.option == "bits"]  # followed to its use


TYPER = """
import typer
from settings import LoRAConfig
app = typer.Typer()
@app.command()
def main(
    model_name: str = typer.Option("Qwen/Qwen2.5-1.5B-Instruct", "--model-name", "-m"),
    quantization_bits: int = typer.Option(4, "--bits-of-weights"),
    max_length: int = typer.Option(1024),
    batch_size: int = typer.Option(2, "--batch-size"),
    num_epochs: int = typer.Option(3, "--epochs"),
    lora_r: int = typer.Option(16, "--lora-r"),
    config_file: str = typer.Option(None, "--config"),
):
    if config_file:
        lora = load(config_file)
    else:
        lora = LoRAConfig(r=lora_r, lora_alpha=32)
    run_sft_training(model_name, lora, batch_size)
"""


def test_a_program_of_typer_s_says_its_options_by_its_parameters(tmp_path: Path):
    lay(tmp_path, {"train.py": TYPER})
    found = import_file(tmp_path / "train.py", GUESS)
    assert (found.model.name, found.job.seq_len, found.layout.micro_batch) == ("qwen2.5-1.5b", 1024, 2)  # fmt: skip
    assert found.job.finetune is not None and found.job.finetune.label().startswith("qlora rank 16")


def test_options_that_are_handed_on_as_a_table_decide_branches(tmp_path: Path):
    program = """
from fastcore.script import call_parse
import torch
class GPT: is_causal = True
def work(args):
    if args["use_gradient_checkpointing"]:
        apply_activation_checkpointing(model)
    with torch.autocast("cuda"):
        loss = model(x)
    scaler = GradScaler()
    loss.backward()
@call_parse
def main(model_name: str = "", batch_size: int = 1, context_length: int = 512, use_gradient_checkpointing: bool = True, precision: str = "bf16"):
    work(locals())
"""
    run = "python train.py --model_name meta-llama/Llama-2-7b-hf --batch_size 2 --precision bf16 --use_gradient_checkpointing "  # fmt: skip
    lay(tmp_path, {"train.py": program, "off.sh": run + "false\n", "on.sh": run + "true\n"})
    off, on = (import_file(tmp_path / one, GUESS) for one in ("off.sh", "on.sh"))
    assert (off.layout.recompute, on.layout.recompute) == ("none", "full")
    assert off.job.precision.name == "bf16"


BRANCHES = """
if known: first()
else: second()
if unknown: third()
match kind:
    case "a": fourth()
    case "b": fifth()
sixth() if known else seventh()
if hasattr(model, "x"): eighth()
"""


@pytest.mark.parametrize(
    ("certain", "kind", "expected"),
    [
        (False, "", "first third fourth fifth sixth hasattr-eighth"),
        (True, "", "first sixth hasattr-eighth"),
        (True, "kind = 'b'\n", "first fifth sixth hasattr-eighth"),
    ],
)
def test_one_walk_finds_the_calls_that_a_program_comes_to(certain: bool, kind: str, expected: str):
    tree = ast.parse("known = True\n" + kind + BRANCHES)
    calls = [dotted(one.func) for one in calls_reached(tree, Known(tree).holds, certain)]
    assert calls == [one.rpartition("-")[2] for one in expected.split()]


def test_a_program_beside_our_script_that_only_speaks_of_it_is_read_itself(tmp_path: Path):
    code = "import torch\nclass GPT: is_causal = True\nmodel = GPT()\n"
    alone = '"""As train_fsdp.py has it."""\n' + code + SIZES + STEPS
    other = code + SIZES.replace("10, 5, 640", "4, 4, 128") + STEPS
    lay(tmp_path, {"train_pp.py": alone, "train_fsdp.py": other})
    assert import_file(tmp_path / "train_pp.py", GUESS).model.layers == 10


@pytest.mark.parametrize(
    ("line", "precision"),
    [
        ("from tiny_deepspeed.core import AdamW\n", "fp32"),
        ("dtype = torch.bfloat16\nmodel.to(dtype).to(device)\n", "pure-bf16"),
        ("dtype = torch.float32\nmodel.to(dtype).to(device)\n", "fp32"),
    ],
)
def test_the_width_of_a_loop_is_that_of_its_own_lines(line: str, precision: str):
    code = "import torch\nclass GPT: is_causal = True\nmodel = GPT()\n" + line
    assert import_text(code + SIZES + STEPS, "train.py", GUESS).job.precision.name == precision


def test_the_ffn_of_lit_llama_is_rounded_as_its_code_says():
    sizes = "n_embd, n_layer, n_head, batch_size, block_size, vocab_size = 512, 8, 8, 4, 256, 6400\n"  # fmt: skip
    code = "class SwiGLU(nn.Module):\n    n_hidden = int(2 * hidden / 3)\n    n_hidden = find_multiple(n_hidden, 256)\ndef rope(x): return scaled_dot_product_attention(x, x, x, is_causal=True)\n"  # fmt: skip
    found = import_text("import torch\n" + sizes + code + STEPS, "train.py", GUESS)
    assert found.model.ffn == 1536


ENGINE = """
import torch, deepspeed
from transformers import AutoModelForCausalLM
from settings import ds_config
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B", torch_dtype=torch.bfloat16)
engine, optimizer, _, _ = deepspeed.initialize(config=ds_config, model=model, model_parameters=model.parameters())
for batch in loader:
    engine.backward(engine(batch).loss)
    engine.step()
"""
SETTINGS = """
base = {"batch": 4}
ds_config = {"train_micro_batch_size_per_gpu": base["batch"], "gradient_accumulation_steps": 3, "bf16": {"enabled": True},
             "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
"""


def test_the_table_that_makes_deepspeed_s_engine_is_the_run_s(tmp_path: Path):
    lay(tmp_path, {"settings.py": SETTINGS, "train.py": ENGINE})
    found = import_file(tmp_path / "train.py", GUESS)
    assert (found.layout.zero, found.layout.micro_batch, found.offload) == (2, 4, {"optimizer"})
    assert found.job.global_batch == 4 * 3 * found.layout.dp
    assert (found.job.framework, found.job.precision.name) == ("deepspeed", "bf16")


def test_a_model_that_a_file_at_hand_makes_when_it_is_imported_is_followed(tmp_path: Path):
    loads = 'from transformers import AutoModelForCausalLM\nname = "mistralai/Mistral-7B-v0.1"\nmodel = AutoModelForCausalLM.from_pretrained(name)\n'  # fmt: skip
    trains = 'from load import model\nfrom transformers import Trainer, TrainingArguments\nTrainer(model=model, args=TrainingArguments(output_dir="out", per_device_train_batch_size=4)).train()\n'  # fmt: skip
    lay(tmp_path, {"load.py": loads, "train.py": trains})
    assert import_file(tmp_path / "train.py", GUESS).model.name == "mistral-7b"


@pytest.mark.parametrize(("head", "refused"), [("n_out", True), ("vocab_size", False)])
def test_a_transformer_without_a_vocabulary_is_none_of_text(head: str, refused: bool):
    code = f"import torch\nclass GPT(nn.Module):\n    is_causal = True\n    head = nn.Linear(n_embd, {head})\nmodel = GPT()\n"  # fmt: skip
    sizes = "n_layer, n_head, n_embd, block_size, batch_size = 10, 5, 640, 512, 6\n"
    if refused:
        with pytest.raises(SpecError, match="no vocabulary"):
            import_text(code + sizes + STEPS, "train.py", GUESS)
    else:
        assert import_text(code + sizes + STEPS, "train.py", GUESS).model.layers == 10


LENGTH = """
from dataclasses import dataclass
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer, TrlParser
@dataclass
class ScriptArguments:
    model_id: str = "Qwen/Qwen2.5-7B"
    max_seq_length: int = 2048
script_args, training_args = TrlParser((ScriptArguments, SFTConfig)).parse_args_and_config()
{hands}
model = AutoModelForCausalLM.from_pretrained(script_args.model_id)
SFTTrainer(model=model, args=training_args).train()
"""


@pytest.mark.parametrize(
    ("hands", "length"), [("training_args.max_length = script_args.max_seq_length", 4096), ("", 1024)]
)  # fmt: skip
def test_a_length_beside_trl_s_settings_counts_where_it_is_handed_on(
    tmp_path: Path, hands: str, length: int
):
    run = "torchrun --nproc_per_node 4 train.py --max_seq_length 4096 --per_device_train_batch_size 2 --output_dir out --bf16 True\n"  # fmt: skip
    lay(tmp_path, {"train.py": LENGTH.format(hands=hands), "run.sh": run})
    assert import_file(tmp_path / "run.sh", GUESS).job.seq_len == length
