"""What a seventeenth draw of public files showed, by kind."""

import pytest

from meshwright.imports.files import import_text
from meshwright.imports.names import guess_model, model_named
from meshwright.imports.reading import Given
from meshwright.specs import load_cluster
from meshwright.specs.errors import SpecError

GUESS = Given(guess=True, cluster=load_cluster("h100:1x8"))
PROGRAM = """
import argparse, os
from pathlib import Path
from trl import SFTConfig, SFTTrainer
from transformers import AutoModelForCausalLM
parser = argparse.ArgumentParser()
parser.add_argument("--model-path", default={model})
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained(args.model_path{more})
SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size={batch}, max_length=1024)).train()
"""


def program(model: str = '"Qwen/Qwen2.5-3B"', batch: str = "1", more: str = ""):
    return import_text(PROGRAM.format(model=model, batch=batch, more=more), "t.py", GUESS)


@pytest.mark.parametrize(
    "written",
    ['os.path.expanduser("Qwen/Qwen2.5-3B")', 'str(Path("Qwen/Qwen2.5-3B"))', '"Qwen/" + "Qwen2.5-3B"',
     'os.path.join("Qwen", "Qwen2.5-3B")', '" Qwen/Qwen2.5-3B ".strip()'],
)  # fmt: skip
def test_a_default_is_what_a_well_known_function_gives_back(written: str):
    assert program(model=written).model.name == "qwen2.5-3b"


@pytest.mark.parametrize(
    "written", ["max(1, 4)", "[8, 4][1]", 'int("4")', "abs(-4)", '"2,4".split(",")[1]']
)
def test_a_number_is_what_a_well_known_function_gives_back(written: str):
    asked = f"int({written})" if "split" in written else written
    assert program(batch=asked).layout.micro_batch == 4


def test_layers_that_one_process_spreads_over_devices_are_named():
    said = program(more=', device_map="auto"').remarks
    assert any(one.option == "device_map" for one in said)
    assert not any(
        one.option == "device_map" for one in program(more=', device_map={"": 0}').remarks
    )


AXOLOTL = """
base_model: NousResearch/Meta-Llama-3.1-8B
datasets: [{path: x}]
adapter: qlora
load_in_4bit: true
peft_use_dora: true
lora_r: 64
lora_target_linear: true
lora_modules_to_save: [embed_tokens, lm_head]
micro_batch_size: 2
sequence_len: 4096
"""


def test_modules_beside_the_adapters_train_whole():
    tuned = import_text(AXOLOTL, "a.yaml", GUESS).job.finetune
    assert tuned is not None
    assert (tuned.train, tuned.double_quantization) == (("embedding", "head"), True)
    factory = """
model_name_or_path: meta-llama/Llama-3.1-8B
stage: sft
finetuning_type: lora
additional_target: embed_tokens,lm_head
dataset: x
template: llama3
per_device_train_batch_size: 1
cutoff_len: 1024
"""
    found = import_text(factory, "f.yaml", GUESS)
    assert found.job.finetune is not None
    assert found.job.finetune.train == ("embedding", "head")
    assert not any("additional_target" in one.option for one in found.remarks)


@pytest.mark.parametrize(
    ("path", "model"),
    [("/x/sft-qwen-2.5-32b-instruct/global_step_372", "qwen2.5-32b"), ("out/Llama-2-7b/checkpoint-500", "llama2-7b"),
     ("out/qwen3-8b/step_100/hf", "qwen3-8b"), ("hub/models--Qwen--Qwen2.5-7B/snapshots/" + 40 * "0", "qwen2.5-7b")],
)  # fmt: skip
def test_folders_of_a_checkpoint_are_none_of_the_models_name(path: str, model: str):
    found = model_named(path) or guess_model(path)
    assert found is not None
    assert found.name == model


def test_a_script_that_builds_a_package_does_not_train():
    with pytest.raises(SpecError, match="does not train"):
        import_text("set -e\npython -m build --wheel --no-isolation\n", "install.sh", GUESS)


def test_verl_takes_the_lengths_of_its_rollout():
    text = """
actor_rollout_ref:
  model: {path: Qwen/Qwen2.5-7B-Instruct}
  actor: {ppo_mini_batch_size: 64, ppo_micro_batch_size_per_gpu: 1}
  rollout: {n: 4, prompt_length: 2048, response_length: 2048}
trainer: {nnodes: 1, n_gpus_per_node: 8}
reward_model: {enable: true}
"""
    found = import_text(text, "v.yaml", GUESS)
    assert found.job.seq_len == 4096
    assert any(one.option == "reward_model.enable" for one in found.remarks)


def test_tables_of_no_framework_that_name_a_model_and_a_micro_batch_are_read():
    text = """
model: {model_name_or_path: Qwen/Qwen3-1.7B, lora: {r: 16}}
optimization: {train_micro_batch_size: 2, optimizer: {learning_rate: 1.0e-6}}
distributed: {devices: 4, num_nodes: 1}
"""
    found = import_text(text, "c.yaml", Given(guess=True))
    assert (found.model.name, found.layout.micro_batch, found.cluster.gpus) == ("qwen3-1.7b", 2, 4)
    with pytest.raises(SpecError, match="import the program or the script that reads it"):
        import_text(
            "task: grpo\noptimizer: {lr: 1.0e-6}\nblocks: [1, 2]\n", "c.yaml", Given(guess=True)
        )
