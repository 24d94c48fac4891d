"""What a nineteenth draw of public files showed, by kind."""

from pathlib import Path

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given, Imported
from meshwright.specs import load_cluster, load_model
from meshwright.specs.errors import SpecError

GUESS = Given(guess=True, cluster=load_cluster("h100:1x8"))


def options(found: Imported) -> str:
    return " ".join(one.option for one in found.remarks)


SWIFT = "NPROC_PER_NODE=4 megatron {task} --model {model} --dataset x --tensor_model_parallel_size 4 --global_batch_size 16 --max_length 8192 {more}\n"


def swift(task: str = "sft", model: str = "Qwen/Qwen3-4B", more: str = "") -> Imported:
    return import_text(SWIFT.format(task=task, model=model, more=more), "s.sh", Given(guess=True))


def test_ms_swift_takes_its_own_defaults():
    found = swift()
    assert (found.layout.recompute, found.layout.micro_batch) == ("selective", 1)
    assert found.job.document_masking  # padding_free
    assert found.job.finetune is None
    assert not swift(more="--padding_free false").job.document_masking
    assert swift(more="--recompute_granularity none").layout.recompute == "none"
    tuned = swift(
        more="--tuner_type lora --lora_rank 16 --target_modules q_proj v_proj"
    ).job.finetune
    assert tuned is not None
    assert (tuned.rank, tuned.targets) == (16, ("q", "v"))


def test_ms_swift_names_its_task_and_what_it_freezes():
    assert "task" in options(swift("rlhf", more="--rlhf_type dpo --beta 0.1"))
    assert "--freeze-llm" in options(swift(more="--freeze_llm true"))
    assert "--beta" not in options(swift("rlhf", more="--rlhf_type dpo --beta 0.1"))
    assert "--quite-new" in options(swift(more="--quite_new 7"))


@pytest.mark.parametrize(
    ("model", "more", "why"),
    [("Qwen/Qwen3-VL-8B-Instruct", "", "vision-language"), ("Qwen/Qwen3-4B", "--task_type seq_cls", "classifier")],
)  # fmt: skip
def test_ms_swift_refuses_what_is_no_decoder_of_text(model: str, more: str, why: str):
    with pytest.raises(SpecError, match=why):
        swift(model=model, more=more)


OWN = """
import argparse, deepspeed
from transformers import AutoModelForCausalLM
parser = argparse.ArgumentParser()
parser.add_argument("--seq_length", type=int, default=16000)
parser.add_argument("--seq_parallel_size", type=int, default=8)
parser.add_argument("--batch_size", type=int, default=2)
args = parser.parse_args()
micro = args.batch_size
config = {"train_micro_batch_size_per_gpu": micro, "zero_optimization": {"stage": 3}, "bf16": {"enabled": True},
          "sequence_parallel_size": args.seq_parallel_size}
model, _, _, _ = deepspeed.initialize(model=AutoModelForCausalLM.from_pretrained("x"), config=config)
"""


def test_the_table_that_a_program_hands_to_deepspeed_is_read(tmp_path: Path):
    (tmp_path / "train_it.py").write_text(OWN)
    (tmp_path / "run.sh").write_text(
        "torchrun --nproc_per_node 4 train_it.py --model_name meta-llama/Llama-3.2-3B --seq_length 512 --seq_parallel_size 4 --batch_size 2\n"
    )
    found = import_file(tmp_path / "run.sh", Given(guess=True))
    assert (found.layout.zero, found.layout.cp, found.layout.cp_method) == (3, 4, "ulysses")
    assert (found.layout.micro_batch, found.job.seq_len, found.job.framework) == (
        2,
        512,
        "deepspeed",
    )


CHAT = """deepspeed --num_gpus 8 main.py --data_split 2,4,4 --actor_model_name_or_path facebook/opt-13b --critic_model_name_or_path facebook/opt-350m \\
 --per_device_train_batch_size 8 --per_device_mini_train_batch_size 4 --max_answer_seq_len 256 --max_prompt_seq_len 128 \\
 --actor_zero_stage 3 --critic_zero_stage 2 --actor_gradient_checkpointing --enable_hybrid_engine --num_padding_at_beginning 1{more}
"""


def test_deepspeed_chats_third_step_is_its_actors():
    found = import_text(CHAT.format(more=""), "c.sh", GUESS)
    assert (found.model.name, found.layout.zero, found.layout.recompute) == ("opt-13b", 3, "full")
    assert (found.layout.micro_batch, found.job.seq_len, found.job.precision.name) == (
        4,
        384,
        "fp16",
    )
    assert "--critic_model_name_or_path" in options(found)
    tuned = import_text(CHAT.format(more=" --actor_lora_dim 128"), "c.sh", GUESS).job.finetune
    assert tuned is not None
    assert tuned.rank == 128


def test_a_program_that_hides_every_device_is_told_so():
    text = """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-2-7b-hf")
Trainer(model=model, args=TrainingArguments(per_device_train_batch_size=4)).train()
"""
    assert "CUDA_VISIBLE_DEVICES" in options(import_text(text, "u.py", GUESS))


def test_a_function_that_is_told_all_by_a_command_line_is_no_recipe():
    text = """
from megatron.bridge.training.config import ConfigContainer, TrainingConfig
def pretrain_config_from_args(args):
    return ConfigContainer(train=TrainingConfig(global_batch_size=args.gbs))
"""
    with pytest.raises(SpecError, match="takes model and batch from its command line"):
        import_text(text, "a.py", Given(guess=True, model=load_model("llama3-8b")))


@pytest.mark.parametrize(
    ("flavor", "model"), [("17bx16e", "llama4-scout"), ("17bx128e", "llama4-maverick")]
)
def test_torchtitans_llama4_is_a_preset(flavor: str, model: str):
    text = f'[job]\n[model]\nname = "llama4"\nflavor = "{flavor}"\n[training]\nlocal_batch_size = 1\nseq_len = 1024\n[parallelism]\ntensor_parallel_degree = 8\n'
    assert import_text(text, "l.toml", GUESS).model.name == model


def test_maxtexts_own_values_need_no_word():
    text = "model_name: llama3.1-8b\nper_device_batch_size: 1\nmax_target_length: 1024\nremat_policy: full\nmlpwi: remat\ndecoder_layer_input: device\nprompt: I love to\n"
    found = import_text(text, "m.yml", GUESS)
    assert not {"mlpwi", "decoder_layer_input", "prompt"} & set(
        options(found).replace(",", " ").split()
    )
    assert "mlpwi" in options(
        import_text(text.replace("mlpwi: remat", "mlpwi: device"), "m.yml", GUESS)
    )
