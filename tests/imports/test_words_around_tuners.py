"""What stands around a tuner's own words: short options, empty variables, files of adapters, Ray's resources, words of width."""

import json
from pathlib import Path

import pytest
from folders import GUESS, lay, put

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given, Imported
from meshwright.imports.shell.filters import translated
from meshwright.specs import load_model
from meshwright.specs.errors import SpecError

ARGUMENTS = """model_name_or_path: Qwen/Qwen2.5-7B
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
learning_rate: 1e-5
max_length: 2048
bf16: true
"""


def label(run: Imported) -> str:
    return run.job.finetune.label() if run.job.finetune else "all weights"


@pytest.mark.parametrize(
    ("more", "tuned"),
    [
        ("lora: {r: 8}\nquantization: {enabled: true, bits: 4, quant_type: fp4, double_quant: false}\n", "qlora rank 8 on q, v; fp4"),
        ("lora: {r: 8}\nquantization: {enabled: false, bits: 4, quant_type: nf4}\n", "lora rank 8 on q, v"),
        ("lora: {r: 8}\nquantization: {num_bits: 8}\n", "lora rank 8 on q, v; int8"),
        ("lora_r: 8\nlora_alpha: 16\nquant_bits: 8\n", "lora rank 8 on all linear; int8"),
        ("lora_r: 8\nlora_alpha: 16\nmethod: qlora\n", "qlora rank 8 on all linear; nf4 twice quantised"),
        ("lora_r: 8\nlora_alpha: 16\ntraining_method: full_finetune\n", "all weights"),
        ("method: dora\nlora_r: 8\nlora_alpha: 16\n", "dora rank 8 on all linear"),
    ],
)  # fmt: skip
def test_width_and_method_in_words(more, tuned):
    run = import_text(ARGUMENTS + more, "run.yaml", GUESS)
    assert label(run) == tuned
    assert not [one for one in run.remarks if one.kind == "unread"]


LLAMA_FACTORY = """model_name_or_path: meta-llama/Meta-Llama-3-8B
stage: sft
do_train: true
finetuning_type: lora
dataset: mine
cutoff_len: 1024
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
"""


@pytest.mark.parametrize(
    ("more", "tuned"),
    [
        ("quant_bit: 4\nuse_qlora: true\n", "qlora rank 8 on all linear; nf4 twice quantised"),
        ("quant_bit: 4\nuse_qlora: false\n", "lora rank 8 on all linear"),
        ("use_qlora: true\n", "qlora rank 8 on all linear; nf4 twice quantised"),
    ],
)
def test_llamatuner_s_words_of_width(more, tuned):
    assert label(import_text(LLAMA_FACTORY + more, "run.yaml", GUESS)) == tuned


@pytest.mark.parametrize(
    ("resources", "cluster"),
    [
        ("{GPU: 1, 'anyscale/accelerator_shape:4xL4': 0.001}", ("l4", 2, 4)),
        ("{GPU: 1, 'accelerator_type:L40S': 0.001}", ("l40s", 1, 8)),
    ],
)
def test_ray_s_resources_name_the_device(resources, cluster):
    text = f"{LLAMA_FACTORY}ray_num_workers: 8\nresources_per_worker: {resources}\n"
    run = import_text(text, "run.yaml", Given())  # nothing is left to be asked
    device, hosts, each = cluster
    assert run.cluster.name == f"{device}:{hosts}x{each}"
    assert not [one for one in run.remarks if one.kind in ("unread", "guess")]


OWN = """model_id: mistralai/Mistral-7B-v0.1
context_length: 512
num_devices: 16
train_batch_size_per_device: 8
learning_rate: 5e-6
deepspeed:
  config_path: configs/zero_3_offload_optim.json
worker_resources:
  accelerator_type:A10G: 0.001
"""


def test_a_table_of_one_s_own_says_its_devices_batch_and_deepspeed(tmp_path: Path):
    zero = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}  # fmt: skip
    lay(tmp_path, {"run.yaml": OWN, "configs/zero_3_offload_optim.json": json.dumps(zero)})
    run = import_file(tmp_path / "run.yaml", Given())
    assert run.cluster.name == "a10g:2x8" and run.layout.dp == 16
    assert (run.layout.micro_batch, run.job.seq_len, run.job.global_batch) == (8, 512, 128)
    assert run.layout.zero == 3 and set(run.offload) == {"optimizer"}
    assert not [one for one in run.remarks if one.kind == "unread"]


def test_a_run_on_processors_is_said():
    text = OWN.replace("num_devices: 16", "num_training_workers: 2\ndevice: cpu\naccelerate_mode: FSDP").partition("deepspeed:")[0]  # fmt: skip
    run = import_text(text, "run.yaml", GUESS)
    assert run.layout.dp == 2 and run.layout.zero == 3
    assert any(one.option == "device" and "processors" in one.text for one in run.remarks)


@pytest.mark.parametrize("more", ["", "adapter_name_or_path: out\n", "template: llama3\n"])
def test_llama_factory_s_file_for_chat_does_not_train(more):
    text = "model_name_or_path: meta-llama/Meta-Llama-3-8B\nfinetuning_type: lora\n" + more
    with pytest.raises(SpecError, match="does not train"):
        import_text(text, "chat.yaml", GUESS)


TRAINER = """
from transformers import HfArgumentParser, TrainingArguments, Trainer, AutoModelForCausalLM, BitsAndBytesConfig
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
parser = HfArgumentParser((TrainingArguments,))
(training_args,) = parser.parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B", quantization_config=BitsAndBytesConfig(load_in_4bit=True))
model = PREPARED
model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj"]))
Trainer(model=model, args=training_args).train()
"""
COMMAND = "torchrun --nproc_per_node 8 train.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2 --bf16 True --max_length 1024"  # fmt: skip


@pytest.mark.parametrize(
    ("call", "words", "again"),
    [
        ("prepare_model_for_kbit_training(model)", "", "full"),
        ("prepare_model_for_int8_training(model)", "", "full"),
        ("prepare_model_for_kbit_training(model, False)", "", "none"),
        ("prepare_model_for_kbit_training(model, use_gradient_checkpointing=training_args.gradient_checkpointing)", "", "none"),
        ("prepare_model_for_kbit_training(model, use_gradient_checkpointing=training_args.gradient_checkpointing)", " --gradient_checkpointing True", "full"),
    ],
)  # fmt: skip
def test_preparing_quantised_weights_recomputes_as_it_is_told(tmp_path, call, words, again):
    run = put(tmp_path, COMMAND + words, train__py=TRAINER.replace("PREPARED", call))
    assert run.layout.recompute == again


def test_a_test_that_nobody_decides_does_not_rule_a_call_out(tmp_path):
    # An option that has a default must not stand for every test that is no name.
    guarded = TRAINER.replace("model = PREPARED", "if QUANTISED is True:\n    model = prepare_model_for_int8_training(model)")  # fmt: skip
    program = guarded.replace("parser = Hf", 'import argparse\nother = argparse.ArgumentParser()\nother.add_argument(\"--kept\", default=1)\nQUANTISED = True\nparser = Hf')  # fmt: skip
    assert put(tmp_path, "python train.py", train__py=program).layout.recompute == "full"


@pytest.mark.parametrize("place", ["adapters", "adapters/adapter_config.json"])
def test_a_file_of_adapters_that_an_option_names(tmp_path, place):
    lay(tmp_path, {"adapters/adapter_config.json": json.dumps({"r": 6, "lora_alpha": 12, "target_modules": ["q_proj", "k_proj"]})})  # fmt: skip
    run = put(tmp_path, f"{COMMAND} --use_peft True --peft_config_path ./{place}")
    assert label(run) == "lora rank 6 on q, k" and run.job.finetune.alpha == 12
    away = put(tmp_path, f"{COMMAND} --use_peft True --peft_config_path ./elsewhere/x")
    assert any("is not here" in one.text for one in away.remarks)


PARSED = """
import argparse
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
parser = argparse.ArgumentParser()
parser.add_argument("-m", "--model", type=str)
parser.add_argument("-b", "--batch-size", type=int, default=8)
parser.add_argument("--accum-steps", type=int, default=1)
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained(args.model)
Trainer(model=model, args=TrainingArguments(output_dir="x", bf16=True, per_device_train_batch_size=args.batch_size, gradient_accumulation_steps=args.accum_steps)).train()
"""


@pytest.mark.parametrize("words", ["-m Qwen/Qwen2.5-7B -b 2 --accum 4", "--model Qwen/Qwen2.5-7B -b 2 --accum-steps 4"])  # fmt: skip
def test_options_in_short_by_the_program_s_own_parser(tmp_path, words):
    run = put(tmp_path, f"python train.py {words}", train__py=PARSED)
    assert run.model.name == "qwen2.5-7b"
    assert (run.layout.micro_batch, run.job.global_batch) == (2, 8)


def test_a_short_option_is_no_value_of_the_one_before():
    run = import_text(f"{COMMAND.replace(' --bf16', ' -v --bf16')}\n", "run.sh", GUESS)
    assert (run.layout.micro_batch, run.job.precision.name) == (2, "bf16")


LISTED = """#!/bin/bash
DEVICES=""
COUNT=$(echo $DEVICES | awk -F',' '{print NF}')
STEPS=$((64/$COUNT/1))
deepspeed --include localhost:${DEVICES} train.py --model_name_or_path mistralai/Mistral-7B-v0.1 --per_device_train_batch_size 1 --gradient_accumulation_steps $STEPS --bf16 True --model_max_length 2048
"""  # fmt: skip


def test_a_list_of_devices_that_is_left_empty_counts_none():
    with pytest.raises(SpecError, match="gradient_accumulation_steps") as caught:
        import_text(LISTED, "run.sh", Given())
    assert "STEPS" in str(caught.value)
    told = import_text(LISTED.replace('=""', '="0,1,2,3"'), "run.sh", GUESS)
    assert (told.layout.dp, told.job.global_batch) == (4, 64)


@pytest.mark.parametrize(("said", "printed"), [("NF", "0"), ("$1", ""), ("$NF", ""), ("$0", "")])
def test_awk_of_nothing(said, printed):
    assert translated("", ["awk", "-F,", f"{{print {said}}}"]) == printed


@pytest.mark.parametrize("count", ["wc -w", "tr ' ' '\\n' | wc -l"])
def test_hosts_that_are_counted_through_a_variable(count):
    text = f"""nodes=$(scontrol show hostnames $SLURM_JOB_NODELIST)
n=$(echo $nodes | {count})
torchrun --nnodes=$n --nproc_per_node=8 train.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --gradient_accumulation_steps $((32/(8*n))) --bf16 True --max_length 2048
"""
    run = import_text(text, "run.sh", GUESS)
    assert (run.layout.dp, run.job.global_batch) == (8, 32)


ENGINE = """
import argparse, deepspeed
from transformers import LlamaForCausalLM
from peft import get_peft_model
from settings import adapters, WITH_ADAPTERS, ALL
parser = argparse.ArgumentParser()
parser.add_argument("--model_path")
parser.add_argument("--max_length", type=int, default=1024)
parser.add_argument("--use_lora", action="store_true")
args = parser.parse_args()
if args.use_lora:
    CHOSEN = WITH_ADAPTERS
else:
    CHOSEN = ALL
model = LlamaForCausalLM.from_pretrained(args.model_path)
if args.use_lora:
    model = get_peft_model(model, adapters)
engine, _, _, _ = deepspeed.initialize(config=CHOSEN, model=model)
for batch in loader:
    loss = engine(input_ids=batch[0], labels=batch[1]).loss
    engine.backward(loss)
    engine.step()
"""
SETTINGS = """
from peft import LoraConfig
RANK = 4
adapters = LoraConfig(r=RANK, lora_alpha=8, target_modules=["q_proj", "v_proj"])
WITH_ADAPTERS = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8}
ALL = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4}
"""


@pytest.mark.parametrize(
    ("words", "tuned", "zero", "micro", "batch"),
    [(" --use_lora", "lora rank 4 on q, v", 1, 2, 128), ("", "all weights", 2, 1, 32)],
)
def test_tables_and_adapters_that_a_program_imports_from_beside_it(
    tmp_path, words, tuned, zero, micro, batch
):
    lay(tmp_path, {"code/train.py": ENGINE, "code/settings.py": SETTINGS})
    run = put(tmp_path, f"deepspeed --num_gpus 8 code/train.py --model_path meta-llama/Llama-2-7b-hf --max_length 2048{words}")  # fmt: skip
    assert (label(run), run.layout.zero, run.job.framework) == (tuned, zero, "deepspeed")
    assert (run.layout.micro_batch, run.job.global_batch, run.job.seq_len) == (micro, batch, 2048)
    assert run.job.precision.name == "bf16"


def test_a_tuned_checkpoint_is_no_run_of_maxtext():
    text = """base_model: Qwen/Qwen2.5-7B
run_name: mine
learning_rate: 1.0e-5
max_seq_len: 2048
per_device_batch_size: 2
grad_accum: 16
lora_rank: 16
"""
    run = import_text(text, "run.yaml", GUESS)
    assert (run.model.name, run.job.seq_len, label(run)) == ("qwen2.5-7b", 2048, "lora rank 16 on all linear")  # fmt: skip
    assert run.job.global_batch == 2 * 16 * run.layout.dp and run.format != "MaxText YAML"


@pytest.mark.parametrize(
    ("named", "stage"), [("zero-stage3.json", 3), ("ds_z1.json", 1), ("settings.json", 2)]
)
def test_accelerate_s_deepspeed_file_by_its_name(named, stage):
    text = f"""compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config: {{deepspeed_config_file: /away/{named}, zero3_init_flag: false}}
num_machines: 1
num_processes: 8
"""
    run = import_text(text, "accelerate.yaml", Given(guess=True, model=load_model("llama3-8b")))
    assert run.layout.zero == stage
    assert any("is not here" in one.text for one in run.remarks)


LUDWIG = """model_type: llm
base_model: meta-llama/Llama-2-7b-hf
input_features: [{name: prompt, type: text}]
output_features: [{name: answer, type: text}]
preprocessing: {global_max_sequence_length: 2048}
adapter: {type: lora}
trainer: {type: finetune, batch_size: 1, learning_rate: 0.0002, gradient_accumulation_steps: 16, enable_gradient_checkpointing: true}
"""  # fmt: skip


@pytest.mark.parametrize(
    ("adapter", "tuned", "alpha"),
    [
        ("{type: lora}", "lora rank 8 on q, v", 16),
        ("{type: lora, r: 32}", "lora rank 32 on q, v", 64),
        ("{type: lora, r: 4, alpha: 4, target_modules: [o_proj]}", "lora rank 4 on o", 4),
    ],
)
def test_ludwig_s_adapters_where_a_file_says_nothing(adapter, tuned, alpha):
    run = import_text(LUDWIG.replace("{type: lora}", adapter), "run.yaml", GUESS)
    assert (label(run), run.job.finetune.alpha, run.layout.recompute) == (tuned, alpha, "full")


def test_a_batch_a_device_by_either_name():
    words = COMMAND.replace("--per_device_train_batch_size 2", "--batch_size_per_device 3").replace("--max_length", "--seq_len")  # fmt: skip
    run = import_text(f"{words} --gradient_accumulation_steps 2\n", "run.sh", GUESS)
    assert (run.layout.micro_batch, run.job.seq_len, run.job.global_batch) == (3, 1024, 48)
