"""What an eighteenth draw of public files showed, by kind."""

from pathlib import Path

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given, Imported
from meshwright.specs import load_cluster
from meshwright.specs.errors import SpecError

GUESS = Given(guess=True, cluster=load_cluster("h100:1x8"))


def options(found: Imported) -> str:
    return " ".join(one.option for one in found.remarks)


FOUNDRY = """
max_seq_len: 2048
model:
  name: hf_causal_lm
  pretrained_model_name_or_path: mosaicml/mpt-7b-instruct
  config_overrides: {attn_config: {attn_impl: torch, attn_uses_sequence_id: true}}
train_loader: {name: finetuning}
device_train_microbatch_size: 4
precision: amp_bf16
knowledge_distillation: {teacher_name_or_path: null}
fsdp_config: {sharding_strategy: FULL_SHARD, mixed_precision: FULL}
"""


def test_llm_foundry_reads_what_is_written_over_a_models_own_configuration():
    found = import_text(FOUNDRY, "f.yaml", GUESS)
    assert found.job.attention_kernel == "unfused"
    assert found.job.document_masking
    assert found.job.precision.gradient_reduce_bytes == 4
    for one in ("knowledge_distillation", "fsdp_config.mixed_precision", "--global-batch"):
        assert one in options(found)


TUNE = """
model: {_component_: torchtune.models.llama3_2.lora_llama3_2_1b, lora_rank: 8}
tokenizer: {_component_: x, max_seq_len: 1024}
optimizer: {_component_: torch.optim.AdamW}
batch_size: 4
quantizer: {_component_: torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer, groupsize: 256}
"""


def test_torchtunes_quantizer_is_named():
    assert "quantizer._component_" in options(import_text(TUNE, "t.yaml", GUESS))


TRAINER = """
import transformers
from args import ModelArguments, TrainingArguments
from peft import LoraConfig, get_peft_model
parser = transformers.HfArgumentParser((ModelArguments, TrainingArguments))
model_args, training_args = parser.parse_args_into_dataclasses()
model = transformers.AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path)
{guard}model = get_peft_model(model, LoraConfig(r=16, lora_alpha=16, target_modules=["q_proj", "v_proj"], lora_dropout=0.05))
transformers.Trainer(model=model, args=training_args).train()
"""
COMMAND = "torchrun --nproc_per_node 8 train_lora.py --model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 8 --bf16 --use_it {on}\n"


@pytest.mark.parametrize(
    ("guard", "on", "rank"),
    [("", "true", 16), ("if training_args.use_it: ", "true", 16), ("if training_args.use_it: ", "false", 0),
     ("if made_elsewhere(): ", "true", 0)],
)  # fmt: skip
def test_adapters_that_a_program_makes_itself_are_its_commands(
    tmp_path: Path, guard: str, on: str, rank: int
):
    (tmp_path / "train_lora.py").write_text(TRAINER.format(guard=guard))
    (tmp_path / "run.sh").write_text(COMMAND.format(on=on))
    tuned = import_file(tmp_path / "run.sh", GUESS).job.finetune
    assert (tuned.rank if tuned is not None else 0) == rank


def test_words_that_a_function_hands_on_to_a_configuration_are_read():
    text = """
import argparse, inspect
from trl import GRPOConfig, GRPOTrainer
def build(**kwargs):
    return GRPOConfig(**{k: v for k, v in kwargs.items() if k in inspect.signature(GRPOConfig).parameters})
parser = argparse.ArgumentParser()
parser.add_argument("--base_model_dir", required=True)
parser.add_argument("--batch", type=int, default=2)
args = parser.parse_args()
words = {"per_device_train_batch_size": args.batch, "max_prompt_length": 1024, "max_completion_length": 4096}
GRPOTrainer(model=args.base_model_dir, args=build(**words)).train()
"""
    with pytest.raises(SpecError, match="--model"):
        import_text(text, "g.py", Given())
    found = import_text(text, "g.py", Given(guess=True, model=GUESS.model or _model()))
    assert (found.layout.micro_batch, found.job.seq_len) == (2, 5120)


def _model():
    from meshwright.specs import load_model

    return load_model("llama3-8b")


def test_targets_that_a_configuration_leaves_to_its_program_are_a_guess():
    text = "model_name_or_path: Qwen/Qwen2.5-1.5B\nper_device_train_batch_size: 1\nmax_seq_length: 1024\nlora_r: 16\nbf16: true\nlearning_rate: 1.0e-4\n"
    assert "lora_target_modules" in options(import_text(text, "s.yaml", GUESS))


def test_what_a_shell_sources_for_its_environment_is_no_missing_part():
    text = "source ~/.bashrc\nsource activate x\nsource venv/bin/activate\nsource ./more.sh\ntorchrun --nproc_per_node 8 t.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1\n"
    said = " ".join(import_text(text, "r.sh", GUESS).notes)
    assert "more.sh" in said
    assert "activate" not in said
    assert "bashrc" not in said
