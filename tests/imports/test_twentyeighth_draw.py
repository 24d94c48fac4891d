"""What a twenty-eighth draw of public files showed, by kind."""

import json
from pathlib import Path

import pytest
from folders import GUESS, put

from meshwright.imports.files import import_text
from meshwright.imports.names import _spellings
from meshwright.imports.reading import Imported
from meshwright.specs.errors import SpecError


def notes(found: Imported) -> str:
    return "\n".join(found.notes)


RECIPES = "torchrun --nnodes 1 --nproc_per_node 4 {program} {words}"


def recipes(words: str, program: str = "getting-started/finetuning/finetuning.py") -> Imported:
    return import_text(RECIPES.format(program=program, words=words), "s.sh", GUESS)


def test_llama_recipes_train_adapters_under_fsdp():
    found = recipes("--enable_fsdp --model_name meta-llama/Meta-Llama-3-8B --use_peft --peft_method lora --batch_size_training 2 --gradient_accumulation_steps 4")  # fmt: skip
    assert found.format == "llama-recipes command"
    assert (found.model.name, found.cluster.gpus, found.layout.dp) == ("llama3-8b", 4, 4)
    assert (found.layout.zero, found.layout.recompute, found.layout.micro_batch) == (3, "full", 2)
    assert (found.job.seq_len, found.job.global_batch) == (4096, 2 * 4 * 4)
    tuned = found.job.finetune
    assert (tuned.rank, tuned.alpha, tuned.targets) == (8, 32, ("q", "v"))


@pytest.mark.parametrize(
    ("words", "zero", "precision", "storage"),
    [
        ("--enable_fsdp --fsdp_config.pure_bf16", 3, "pure-bf16", None),
        ("--enable_fsdp --pure_bf16 --sharding_strategy SHARD_GRAD_OP", 2, "pure-bf16", None),
        ("--enable_fsdp --use_peft --peft_method lora --quantization 4bit --quantization_config.quant_type nf4", 3, "bf16", "nf4"),
        ("--use_peft --peft_method lora --quantization", 0, "bf16", "int8"),
    ],
)  # fmt: skip
def test_llama_recipes_shard_and_store_as_they_are_told(
    words: str, zero: int, precision: str, storage: str | None
):
    found = recipes(f"--model_name meta-llama/Llama-2-7b-hf {words}", "llama_finetuning.py")
    assert (found.layout.zero, found.job.precision.name) == (zero, precision)
    assert (found.job.finetune and found.job.finetune.storage) == storage


def test_what_llama_recipes_cannot_plan_is_one_sentence():
    with pytest.raises(SpecError, match="vectors before the text"):
        recipes("--enable_fsdp --use_peft --peft_method prefix --model_name meta-llama/Llama-2-7b-hf")  # fmt: skip
    with pytest.raises(SpecError, match="sees images"):
        recipes("--enable_fsdp --model_name meta-llama/Llama-3.2-11B-Vision-Instruct")


def test_a_copy_of_llama_recipes_says_its_own_defaults(tmp_path: Path):
    found = put(
        tmp_path,
        "torchrun --nproc_per_node 2 tune_it.py --enable_fsdp --model_name Qwen/Qwen3-0.6B",
        tune_it__py="from configs import fsdp_config, train_config\ndef main(**kw):\n    update_config((train_config, fsdp_config), **kw)\n",
        configs___training__py="@dataclass\nclass train_config:\n    model_name: str = 'x'\n    batch_size_training: int = 6\n",
        configs___fsdp__py="@dataclass\nclass fsdp_config:\n    pure_bf16: bool = True\n    fsdp_activation_checkpointing: bool = False\n",
    )
    assert (found.layout.micro_batch, found.layout.recompute) == (6, "none")
    assert found.job.precision.name == "pure-bf16"
    assert "holds no sequence length" in notes(found)  # releases that had no such option


@pytest.mark.parametrize(
    ("words", "layers", "hidden", "heads", "ffn"),
    [
        ("", 16, 2048, 16, 7168),
        ("global_parameter_scale=2", 16, 2048, 32, 14336),
        ("global_parameter_scale=4", 16, 4096, 32, 14336),
        ("global_parameter_scale=64", 64, 8192, 64, 28672),
        ("base_emb_dim=4096 base_num_heads=8 base_mlp_dim=16384 base_num_decoder_layers=4", 4, 4096, 8, 16384),
    ],
)  # fmt: skip
def test_maxtext_without_a_model_trains_its_own(
    words: str, layers: int, hidden: int, heads: int, ffn: int
):
    text = f"python3 MaxText/train.py MaxText/configs/base.yml steps=5 per_device_batch_size=1 {words}\n"
    model = import_text(text, "s.sh", GUESS).model
    assert (model.layers, model.hidden, model.heads, model.ffn) == (layers, hidden, heads, ffn)


def test_a_scale_that_is_no_power_of_two_is_refused():
    with pytest.raises(SpecError, match="power of two"):
        import_text("python3 MaxText/train.py MaxText/configs/base.yml per_device_batch_size=1 global_parameter_scale=3\n", "s.sh", GUESS)  # fmt: skip


LOOP = """
import argparse, yaml
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForCausalLM
from accelerate import Accelerator
parser = argparse.ArgumentParser()
parser.add_argument("--model_config", default="configs/model/small.json")
parser.add_argument("--train_config", default="configs/train.yaml")
args = parser.parse_args()
cfg = yaml.safe_load(open(args.train_config))
micro = cfg["train_micro_batch_size_per_gpu"]
steps = cfg["gradient_accumulation_steps"]
accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=steps)
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.model_config))
loader = DataLoader(data, batch_size=micro)
accelerator.backward(loss)
"""
SHAPE = {
    "model_type": "llama", "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
    "num_attention_heads": 12, "vocab_size": 32000,
}  # fmt: skip
OWN = {
    "train__py": LOOP,
    "configs___model___small__json": json.dumps(SHAPE),
    "configs___train__yaml": "train_micro_batch_size_per_gpu: 4\ngradient_accumulation_steps: 3\n",
}


def test_a_program_says_what_its_own_files_say(tmp_path: Path):
    found = put(tmp_path, "accelerate launch --num_processes 2 train.py", **OWN)
    assert (found.model.layers, found.model.hidden, found.model.vocab) == (12, 768, 32000)
    assert (found.layout.micro_batch, found.job.global_batch) == (4, 4 * 3 * 2)
    assert "is described by model/small.json" in notes(found)


def test_a_file_that_the_command_names_counts_over_the_programs_own(tmp_path: Path):
    (tmp_path / "other.yaml").write_text(
        "train_micro_batch_size_per_gpu: 2\ngradient_accumulation_steps: 1\n"
    )
    command = "accelerate launch --num_processes 2 train.py --train_config other.yaml"
    assert put(tmp_path, command, **OWN).layout.micro_batch == 2


def test_a_folder_of_a_checkpoint_is_its_config(tmp_path: Path):
    command = "torchrun --nproc_per_node 2 train.py --model_name_or_path ./mine --per_device_train_batch_size 3 --bf16 True"
    found = put(tmp_path, command, mine___config__json=json.dumps(SHAPE))
    assert (found.model.layers, found.layout.micro_batch) == (12, 3)
    # A config.json of something else that lies above is none of the model's.
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    with pytest.raises(SpecError, match="theirs, which is no preset"):
        put(tmp_path, command.replace("./mine", "somebody/theirs"))


def test_a_loop_around_accelerate_takes_its_batch_from_its_command_line(tmp_path: Path):
    program = (
        "import argparse\nfrom accelerate import Accelerator\nfrom transformers import AutoModelForCausalLM\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--base_model')\nparser.add_argument('--train_batch_size', type=int, default=8)\n"
        "args = parser.parse_args()\nmodel = AutoModelForCausalLM.from_pretrained(args.base_model)\n"
        "loader = build_dataloader(data, args.train_batch_size)\naccelerator = Accelerator()\naccelerator.backward(loss)\n"
    )
    command = "accelerate launch --num_processes 2 ft.py --base_model Qwen/Qwen3-0.6B --train_batch_size 1 --epoch 6"
    found = put(tmp_path, command, ft__py=program)
    assert found.layout.micro_batch == 1
    assert not [one for one in found.remarks if one.kind == "unread"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("run.py --config_name large.json --mlm_probability 0.15", "masked words"),
        ("train.py --model_name_or_path google/switch-base-32", "encoder-decoder"),
    ],
)
def test_what_is_no_decoder_is_refused(words: str, sentence: str):
    text = f"torchrun --nproc_per_node 4 {words} --per_device_train_batch_size 2 --bf16\n"
    with pytest.raises(SpecError, match=sentence):
        import_text(text, "s.sh", GUESS)


def test_a_name_has_few_spellings():
    assert len(_spellings("meta-qwen2-0-5b-instruct-v1-chat-hf-4bit-sft")) < 100


def test_a_loop_that_chooses_by_words_has_heard_them_and_they_count(tmp_path: Path):
    program = (
        "import argparse, torch\nfrom transformers import AutoConfig, AutoModelForCausalLM\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--model_config')\nparser.add_argument('--batch_size', type=int)\nparser.add_argument('--max_length', type=int, default=256)\n"
        "parser.add_argument('--total_batch_size', type=int)\nparser.add_argument('--dtype', default='bfloat16')\nparser.add_argument('--optimizer', default='adam')\n"
        "args = parser.parse_args()\nmodel = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.model_config))\n"
        "if args.dtype in ['bf16', 'bfloat16']:\n    model = model.to(dtype=torch.bfloat16)\n"
        "if args.optimizer.lower() == 'adafactor':\n    optimizer = Adafactor(model.parameters())\n"
        "model = torch.nn.parallel.DistributedDataParallel(model)\nloader = torch.utils.data.DataLoader(data, batch_size=args.batch_size)\nloss.backward()\n"
    )
    command = "torchrun --standalone --nproc_per_node 2 own.py --model_config small.json --batch_size 8 --total_batch_size 64 --dtype bfloat16 --optimizer adafactor"
    found = put(tmp_path, command, own__py=program, small__json=json.dumps(SHAPE))
    assert (found.layout.micro_batch, found.job.global_batch, found.job.seq_len) == (8, 64, 256)
    assert (found.job.precision.name, found.job.optimizer.name) == ("pure-bf16", "adafactor")
