"""Kinds of fine-tuning files that were misread: each by a small file of our own."""

from pathlib import Path

import pytest
from folders import GUESS, lay

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given, Imported
from meshwright.specs.encoders import Encoder
from meshwright.specs.errors import SpecError
from meshwright.specs.model import Model


def written(folder: Path, name: str, text: str) -> Path:
    return lay(folder, {name: text}) / name


def notes(found: Imported) -> str:
    return "\n".join(found.notes)


ARGUMENTS = """model_name_or_path: Qwen/Qwen2.5-7B
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
learning_rate: 1e-5
max_length: 2048
bf16: true
"""


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("pre_seq_len: 128\n", "vectors before the text"),
        ("adapter_config: ia3\ntrain_adapter: true\n", "vectors before the text"),
        ("peft_method: prefix_tuning\n", "vectors before the text"),
        ("trainer: zo_adam\n", "without a backward pass"),
    ],
)
def test_methods_without_matrices_or_gradients_are_refused(more, reason):
    with pytest.raises(SpecError, match=reason):
        import_text(ARGUMENTS + more, "run.yaml", GUESS)


@pytest.mark.parametrize(
    "name", ["Salesforce/codet5-base", "google/byt5-small", "facebook/nllb-200-600M"]
)
def test_encoder_decoders_by_name(name):
    with pytest.raises(SpecError, match="encoder-decoder"):
        import_text(ARGUMENTS.replace("Qwen/Qwen2.5-7B", name), "run.yaml", GUESS)


def test_words_of_training_arguments_that_went_unread():
    found = import_text(
        ARGUMENTS + "training_method: DPO\neffective_batch_size: 16\n", "r.yaml", GUESS
    )
    assert (found.task, found.layout.world, found.job.global_batch) == ("dpo", 2, 16)
    packed = import_text(
        ARGUMENTS + "packing: true\npacking_strategy: bfd\nloss_type: chunked_nll\n",
        "r.yaml",
        GUESS,
    )
    assert (packed.job.document_masking, packed.job.loss) == (True, "chunked")
    mixed = import_text(ARGUMENTS + "packing: true\npacking_strategy: wrapped\n", "r.yaml", GUESS)
    assert not mixed.job.document_masking
    four = import_text(
        ARGUMENTS + "quantization: 4bit\nlora_r: 8\nuse_lora: true\n", "r.yaml", GUESS
    )
    assert four.job.finetune.storage == "nf4"
    waits = import_text(ARGUMENTS + "llm_int8_enable_fp32_cpu_offload: true\n", "r.yaml", GUESS)
    assert "wait on the host" in notes(waits)


def test_a_value_of_the_configuration_around_it():
    text = ARGUMENTS.replace("size: 4", "size: ${batch_size}")
    with pytest.raises(SpecError, match="configuration that includes it"):
        import_text(text, "run.yaml", GUESS)


SWIFT = "model: Qwen/Qwen2.5-7B-Instruct\ntuner_type: lora\nlearning_rate: 1e-4\nmax_length: 2048\n"


def test_ms_swift_s_own_counts_in_yaml_and_command():
    found = import_text(SWIFT, "run.yaml", GUESS)
    assert (found.layout.micro_batch, found.job.global_batch) == (1, 16)
    assert (found.layout.recompute, found.job.precision.name) == ("full", "bf16")
    command = (
        "NPROC_PER_NODE=4 swift sft --model Qwen/Qwen2.5-7B-Instruct --train_type full "
        "--max_length 2048 --packing true --lisa_activated_layers 2\n"
    )
    run = import_text(command, "run.sh", GUESS)
    assert (run.layout.dp, run.layout.micro_batch, run.job.global_batch) == (4, 1, 16)
    assert run.job.document_masking
    assert "lisa_activated_layers" in notes(run)


def test_llama_factory_quantises_under_its_default_adapters():
    found = import_text(
        "python src/train_bash.py --stage sft --model_name_or_path meta-llama/Llama-2-7b-hf "
        "--lora_target q_proj,v_proj --finetuning_type lora --quantization_bit 4 "
        "--per_device_train_batch_size 8 --cutoff_len 512 --bf16\n",
        "run.sh",
        GUESS,
    )
    assert found.job.finetune.storage == "nf4"
    assert "do not train without adapters" not in notes(found)


SWEEP = """program: run.py
method: grid
command:
- ${env}
- ${interpreter}
- ${program}
- ${args}
- --model_name_or_path=Qwen/Qwen2.5-7B
- --max_length=1024
- --use_lora
parameters:
  per_device_train_batch_size:
    value: 4
  lora_r:
    values: [32, 64]
"""


def test_a_sweep_s_command():
    found = import_text(SWEEP, "sweep.yaml", GUESS)
    assert (found.layout.micro_batch, found.job.finetune.rank) == (4, 32)
    assert "several values of lora_r" in notes(found)


PROGRAM = """
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model
{top}

def train(model_name: str = "Qwen/Qwen2.5-7B", optim: str = "adamw_bnb_8bit", cutoff: int = 512):
    use_cuda = torch.cuda.is_available()
    if not use_cuda and "bnb" in optim:
        optim = "adamw_torch"
    model = AutoModelForCausalLM.from_pretrained(model_name)
    model = get_peft_model(model, LoraConfig(r={rank}, target_modules=["q_proj"]))
    args = TrainingArguments(output_dir="out", per_device_train_batch_size=2, optim=optim, bf16=True)
    Trainer(model=model, args=args).train()

{bottom}
"""


def test_a_parameter_set_again_where_no_device_is():
    text = PROGRAM.format(top="", rank=8, bottom="import fire\nfire.Fire(train)")
    found = import_text(text, "train.py", GUESS)
    assert found.job.optimizer.name == "adam8bit"


@pytest.mark.parametrize(
    ("top", "rank", "module"),
    [
        ("from settings import RANK", "RANK", "RANK = 48\n"),
        ("import settings", "settings.RANK", "RANK = 48\n"),
        ("from settings import cfg", "cfg.RANK", "class Config:\n    RANK: int = 48\ncfg = Config()\n"),
    ],
)  # fmt: skip
def test_settings_imported_from_a_file_at_hand(tmp_path: Path, top, rank, module):
    written(tmp_path, "settings.py", module)
    path = written(tmp_path, "train.py", PROGRAM.format(top=top, rank=rank, bottom="train()"))
    assert import_file(path, GUESS).job.finetune.rank == 48


def test_the_words_that_fire_hands_to_a_function(tmp_path: Path):
    written(
        tmp_path, "tune.py", PROGRAM.format(top="", rank=8, bottom="import fire\nfire.Fire(train)")
    )
    path = written(
        tmp_path, "run.sh", "python tune.py --per_device_train_batch_size 2 --max_length 512\n"
    )
    found = import_file(path, GUESS)
    assert found.job.optimizer.name == "adam8bit"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("from transformers import AutoModelForSeq2SeqLM, Trainer, TrainingArguments\n"
         "model = AutoModelForSeq2SeqLM.from_pretrained(name)\nTrainer(model, TrainingArguments(per_device_train_batch_size=2))\n",
         "encoder-decoder"),
        ("from transformers import AutoModelForVision2Seq, Trainer, TrainingArguments\n"
         "model = AutoModelForVision2Seq.from_pretrained(name)\nTrainer(model, TrainingArguments(per_device_train_batch_size=2))\n",
         "vision-language"),
        ("from trl import SFTTrainer\nfrom transformers import TrainingArguments\n"
         "def fit(model, data, options):\n    SFTTrainer(model=model, args=TrainingArguments(per_device_train_batch_size=options.size)).train()\n",
         "takes model and batch from"),
    ],
)  # fmt: skip
def test_programs_of_other_models_or_of_their_callers(text, reason):
    with pytest.raises(SpecError, match=reason):
        import_text(text, "train.py", GUESS)


def test_a_model_from_a_file_that_is_not_followed_is_said():
    text = (
        "from trl import SFTTrainer, SFTConfig\nfrom helpers import load\nimport argparse\n"
        "p = argparse.ArgumentParser()\np.add_argument('--model_name', default='Qwen/Qwen2.5-7B')\n"
        "a = p.parse_args()\nmodel = load(a.model_name)\n"
        "SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=2, max_length=512)).train()\n"
    )
    assert "made in a file that is not followed" in notes(import_text(text, "t.py", GUESS))


UNSLOTH = """
from unsloth import FastLanguageModel
from trl import SFTConfig, SFTTrainer
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Qwen2.5-7B", load_in_4bit=False)
model = FastLanguageModel.get_peft_model(model, r=8, target_modules=["q_proj", "lm_head", "embed_tokens"])
if (1
    != 2):
    SFTTrainer(model, args=SFTConfig(per_device_train_batch_size=2)).train()
"""


def test_unsloth_trains_head_and_embedding_whole():
    found = import_text(UNSLOTH, "t.py", GUESS).job.finetune
    assert (found.targets, sorted(found.train)) == (("q",), ["embedding", "head"])


def test_a_notebook_whose_lines_begin_with_an_operator():
    import json

    cells = [
        {"cell_type": "code", "source": "%pip install \\\n  unsloth"},
        {"cell_type": "code", "source": UNSLOTH},
    ]
    found = import_text(json.dumps({"cells": cells, "nbformat": 4}), "t.ipynb", GUESS)
    assert found.job.finetune.rank == 8


def test_variables_before_nohup_reach_the_training():
    text = (
        'GPUS="${GPUS:-4,5}"\nCUDA_VISIBLE_DEVICES="${GPUS}" nohup llamafactory-cli train --stage sft '
        "--model_name_or_path Qwen/Qwen2.5-7B --finetuning_type lora --per_device_train_batch_size 1 --bf16 &\n"
    )
    assert import_text(text, "run.sh", GUESS).layout.world == 2


def test_tables_of_quantisation_and_adapters_in_short_words():
    text = (
        "model:\n  base_model: Qwen/Qwen2.5-7B\nquant:\n  load_in_4bit: true\n  bnb_4bit_use_double_quant: true\n"
        "lora:\n  r: 16\n  alpha: 48\n  dropout: 0.05\ntrain:\n  per_device_train_batch_size: 1\n  learning_rate: 1e-4\n"
    )
    found = import_text(text, "base.yaml", GUESS).job.finetune
    assert (found.storage, found.alpha, found.dropout) == ("nf4", 48.0, 0.05)
    own = "model: unsloth/Llama-3.2-3B-Instruct\ntraining:\n  batch_size: 4\n  max_seq_length: 512\n  learning_rate: 1e-4\nlora:\n  r: 8\n  dropout: 0.1\n"
    assert import_text(own, "preset.yaml", GUESS).job.finetune.dropout == 0.1


def test_targets_that_a_function_finds_among_the_layers():
    text = PROGRAM.format(top="", rank=8, bottom="train()").replace(
        '["q_proj"]', "find_all_linear_names(model)"
    )
    assert len(import_text(text, "train.py", GUESS).job.finetune.targets) == 7


def test_a_width_that_only_the_machine_knows_is_said():
    text = PROGRAM.format(top="", rank=8, bottom="train()")
    text = text.replace("pretrained(model_name)", "pretrained(model_name, torch_dtype=pick())")
    found = import_text(text.replace(", bf16=True", ""), "train.py", GUESS)
    assert found.job.precision.name == "pure-bf16"
    assert "torch_dtype from pick()" in notes(found)


def test_a_configuration_that_is_not_here_is_said():
    text = "python train.py conf/run.yaml --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --max_length 512 --bf16\n"
    assert "run.yaml is not here" in notes(import_text(text, "run.sh", GUESS))


def test_records_of_jobs_are_no_job():
    text = (
        '{"jobs": [{"command": ["torchrun", "--nproc_per_node", "8", "train.py"], "exitCode": 0}]}'
    )
    with pytest.raises(SpecError, match="records jobs that ran"):
        import_text(text, "jobs.json", GUESS)


MORE = """
import os
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model

METHOD = "lora"

def env_int(name, default):
    return int(os.getenv(name, default))

class TextDataset:
    def __init__(self, texts, max_length=2048):
        self.max_length = max_length

def answer(model, prompt, max_length=40):
    return model.generate(prompt, max_length=max_length)

class PairGRPOTrainer(Trainer):
    pass

data = TextDataset([], max_length=384)
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B")
match METHOD:
    case "dora":
        adapter = LoraConfig(r=256, use_dora=True, target_modules=["q_proj"])
    case "lora" | "plain":
        adapter = LoraConfig(r=24, target_modules=["q_proj"], **extra)
    case _:
        adapter = LoraConfig(r=2)
model = get_peft_model(model, adapter)
args = TrainingArguments("out", per_device_train_batch_size=env_int("BATCH", "6"), bf16=True)
PairGRPOTrainer(model=model, args=args, train_dataset=data).train()
"""


def test_cases_helpers_of_the_environment_data_sets_and_trainers_of_one_s_own():
    found = import_text(MORE, "train.py", GUESS)
    assert (found.job.finetune.rank, found.job.finetune.method) == (24, "lora")
    assert (found.layout.micro_batch, found.job.seq_len, found.task) == (6, 384, "grpo")
    assert "more of LoraConfig from **extra" in notes(found)


def test_a_program_that_tests_is_no_run():
    with pytest.raises(SpecError, match="tests a program"):
        import_text("import pytest\n" + MORE + "\ndef test_it():\n    pass\n", "check.py", GUESS)


def test_methods_and_lengths_of_tables_of_one_s_own():
    found = import_text(ARGUMENTS + "training_method: REFUEL\n", "run.yaml", GUESS)
    assert "REFUEL" in notes(found)
    text = (
        "model:\n  name_or_path: Qwen/Qwen2.5-7B\ndata:\n  seq_len: 768\n"
        "training:\n  per_device_train_batch_size: 1\n  learning_rate: 1e-4\n"
    )
    assert import_text(text, "run.yaml", GUESS).job.seq_len == 768


def test_forecasters_of_time_series_are_refused():
    text = "model:\n  name: chronos-small\n  prediction_length: 64\n  hidden_size: 512\n  num_layers: 6\ntraining:\n  batch_size: 8\n  lr: 1e-4\n"
    with pytest.raises(SpecError, match="time series"):
        import_text(text, "config.yaml", GUESS)


def test_a_parser_filled_elsewhere_and_settings_handed_to_what_is_not_followed(tmp_path: Path):
    written(
        tmp_path,
        "helpers.py",
        "def add_adapter_options(parser):\n    parser.add_argument('--lora_targets', default='q_proj,v_proj')\n",
    )
    text = PROGRAM.format(top="from helpers import add_adapter_options", rank=8, bottom="train()")
    path = written(
        tmp_path, "train.py", text.replace('["q_proj"]', "split_words(args.lora_targets)")
    )
    assert import_file(path, GUESS).job.finetune.targets == ("q", "v")
    away = (
        "import argparse\nfrom trl import GRPOTrainer\nfrom building import make_config, make_model\n"
        "p = argparse.ArgumentParser()\np.add_argument('--base_model', default='Qwen/Qwen2.5-7B')\n"
        "p.add_argument('--per_device_train_batch_size', type=int, default=2)\np.add_argument('--lora_r', type=int, default=24)\n"
        "p.add_argument('--max_completion_length', type=int, default=512)\na = p.parse_args()\n"
        "GRPOTrainer(model=make_model(a), args=make_config(**vars(a))).train()\n"
    )
    found = import_text(away, "grpo.py", GUESS)
    assert (found.layout.micro_batch, found.job.finetune.rank, found.task) == (2, 24, "grpo")
    assert len(found.job.finetune.targets) == 7
    assert "target_modules from a file that is not followed" in notes(found)


def test_widths_in_words_and_models_in_tables_of_other_names():
    text = (
        "base_model:\n  model_id: Qwen/Qwen2.5-7B\n  bnb_4bit_quant_type: nf4\n  bnb_4bit_use_double_quant: true\n"
        "lora:\n  r: 8\ntraining:\n  per_device_train_batch_size: 1\n  learning_rate: 1e-4\n"
    )
    found = import_text(text, "training.yaml", GUESS)
    assert (found.model.name, found.job.finetune.storage) == ("qwen2.5-7b", "nf4")
    own = "model: Qwen/Qwen2.5-7B\nquant: 8bit\nbatch_size: 2\nmax_sequence_length: 640\nlearning_rate: 1e-4\nlora_r: 8\n"
    read = import_text(own, "run.yaml", GUESS)
    assert (read.job.finetune.storage, read.job.seq_len) == ("int8", 640)


def test_tables_called_fsdp_and_configurations_that_they_begin_with(tmp_path: Path):
    written(tmp_path, "usual.yaml", ARGUMENTS + "optim: paged_adamw_32bit\n")
    text = "_base_: usual\nper_device_train_batch_size: 2\nfsdp:\n  sharding_strategy: FULL_SHARD\n  activation_checkpointing: true\n"
    found = import_file(written(tmp_path, "fsdp.yaml", text), GUESS)
    assert (found.layout.zero, found.layout.recompute, found.layout.micro_batch) == (3, "full", 2)
    assert found.job.optimizer.name == "paged-adamw"


def test_workers_of_ray_are_devices():
    text = ARGUMENTS + "stage: sft\nfinetuning_type: lora\nray_num_workers: 4\n"
    assert import_text(text, "ray.yaml", GUESS).layout.world == 4


def test_a_frozen_language_model_beside_a_connector():
    with pytest.raises(SpecError, match="projector"):
        import_text(ARGUMENTS + "tune_type_llm: frozen\n", "run.yaml", GUESS)


def test_precision_and_lengths_that_objects_of_one_s_own_hold():
    text = PROGRAM.format(top="", rank=8, bottom="train()").replace("bf16=True", "bf16=config.bf16")
    text += "\nclass PairCollator:\n    pass\nc = PairCollator(tokenizer, max_length=896)\n"
    found = import_text(text, "train.py", GUESS)
    assert (found.job.precision.name, found.job.seq_len) == ("bf16", 896)
    assert "bf16 from config.bf16" in notes(found)


def test_loops_whose_model_sees_are_refused():
    text = (
        "import torch\nfrom transformers import AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-7B')\n"
        "visual_embeds = projector(image)\nloss = model(inputs_embeds=visual_embeds).loss\nloss.backward()\noptimizer.step()\n"
    )
    with pytest.raises(SpecError, match="vision-language"):
        import_text(text, "train.py", GUESS)


def test_a_table_of_another_file_handed_to_a_function(tmp_path: Path):
    written(tmp_path, "settings.py", 'ADAPTER = {"r": 40, "targets": ["q_proj"]}\n')
    text = PROGRAM.format(top="from settings import ADAPTER", rank=8, bottom="train()")
    text = text.replace('LoraConfig(r=8, target_modules=["q_proj"])', "adapt(ADAPTER)")
    text += "\ndef adapt(table):\n    return LoraConfig(r=table['r'], target_modules=table['targets'])\n"
    found = import_file(written(tmp_path, "train.py", text), GUESS).job.finetune
    assert (found.rank, found.targets) == (40, ("q",))


SEEING = Model(
    layers=4, hidden=256, heads=4, kv_heads=4, head_dim=64, ffn=512, vocab=1000, name="seeing",
    encoder=Encoder(parameters=9_000_000, layers=2, hidden=128, heads=2, ffn=256, patches=2916, joined=4),
)  # fmt: skip
TABLE = "stage: sft\ndo_train: true\nfinetuning_type: full\ndataset: d\ntemplate: qwen2_vl\n"
BRIDGE = (
    "torchrun --nproc_per_node=8 scripts/training/run_recipe.py --recipe qwen3_vl_8b_sft_config train.global_batch_size=32 "
    "model.freeze_vision_model=True model.freeze_vision_projection=True train.micro_batch_size=1 model.seq_length=4096"
)
COMMAND = "swift sft --train_type full --dataset d --per_device_train_batch_size 1"


@pytest.mark.parametrize(
    ("name", "text", "freeze", "patches"),
    [
        ("run.yaml", TABLE, ("vision",), None),
        ("run.yaml", TABLE + "freeze_vision_tower: false\n", None, None),
        ("run.yaml", TABLE + "image_max_pixels: 147456\n", ("vision",), 729),
        ("run.sh", COMMAND, ("vision",), None),
        ("run.sh", f"{COMMAND} --freeze_vit false", None, None),
        ("run.sh", BRIDGE, ("vision",), None),
        ("run.sh", BRIDGE.replace("=True", "=False"), None, None),
        ("run.yaml", TABLE.replace("full", "lora"), (), None),
    ],
)
def test_whether_an_encoder_trains_is_read_and_what_it_sees_is_said(name, text, freeze, patches):
    text += " --model Qwen/Qwen2.5-VL-7B-Instruct" * text.startswith("swift")
    text = f"#!/bin/bash\n{text}\n" if name == "run.sh" else text
    text += "model_name_or_path: Qwen/Qwen2.5-VL-7B-Instruct\n" if name == "run.yaml" else ""
    found = import_text(text, name, Given(model=SEEING, guess=True))
    tune = found.job.finetune
    assert (tune.freeze if tune else None) == freeze
    assert found.job.image_patches == patches
    seen = next(one for one in found.remarks if one.option == "images")
    assert f"{patches or 2916:,} patches" in seen.text
    assert "freeze" not in notes(found)
