"""What a twenty-fifth draw of public files showed, by kind."""

from pathlib import Path

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given
from meshwright.specs.errors import SpecError

GUESS = Given(guess=True)


def test_what_a_script_prints_over_lines_stays_one_line():
    text = '#!/bin/bash\nA=$(printf \'no\\ncheckpoint\')\nswift sft --model Qwen/Qwen3-0.6B --adapters "$A" --odd_word "$A" --per_device_train_batch_size 1 --max_length 128\n'
    found = import_text(text, "s.sh", GUESS)
    assert all("\n" not in one.sentence() for one in found.remarks)


def test_a_teacher_of_generalised_distillation_is_named():
    text = "#!/bin/bash\nswift rlhf --rlhf_type gkd --model Qwen/Qwen3-0.6B --beta 0.5 --max_completion_length 64 --per_device_train_batch_size 1 --max_length 128\n"
    found = import_text(text, "s.sh", GUESS)
    tasks = [one.text for one in found.remarks if one.option == "task"]
    assert len(tasks) == 1 and "teacher" in tasks[0]


OWN = (
    "torchrun --nproc_per_node 8 train_own.py --num-layers 4 --hidden-size 256 --num-heads 4 --num-kv-heads 2 --intermediate-size 512 --vocab-size 1000 "
    "--batch-size 4 --grad-accumulation-steps 2 --seq-len 512 --precision bf16 --sharding-strategy fsdp_full_shard --activation-checkpointing --learning-rate 1e-4\n"
)


def test_another_programs_layers_are_not_megatrons():
    found = import_text("#!/bin/bash\n" + OWN, "r.sh", GUESS)
    assert found.format.startswith("script of a program")
    assert (found.model.layers, found.model.kv_heads) == (4, 2)
    assert (found.layout.zero, found.layout.recompute, found.job.global_batch) == (3, "full", 64)


def test_a_default_number_of_experts_makes_no_mixture(tmp_path: Path):
    (tmp_path / "train_own.py").write_text(
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--num-experts', type=int, default=4)\nargs = parser.parse_args()\nloss.backward()\n"
    )
    script = tmp_path / "r.sh"
    script.write_text("#!/bin/bash\n" + OWN)
    found = import_file(script, GUESS)
    assert found.model.experts is None
    assert any(one.kind == "guess" and "experts" in one.text for one in found.remarks)


def test_a_part_of_neox_beside_deepspeeds_words_asks_for_its_model():
    text = '{"optimizer": {"type": "Adam"}, "zero_optimization": {"stage": 1}, "train_batch_size": 64, "checkpoint_activations": true, "data_impl": "mmap", "train_iters": 10, "lr_decay_style": "cosine", "precision": "bfloat16"}'
    with pytest.raises(SpecError, match="GPT-NeoX needs num_layers"):
        import_text(text, "t.yml", GUESS)


@pytest.mark.parametrize("over", ["", "config.batch_size = 32\n    "])
def test_settings_of_a_class_beside_the_program_count(tmp_path: Path, over: str):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "config.py").write_text(
        "class OwnConfig:\n    def __init__(self):\n        self.model_id = 'Qwen/Qwen3-0.6B'\n        self.batch_size = 8\n        self.max_length = 1024\n        self.lora_rank = 16\n"
    )
    program = tmp_path / "train.py"
    program.write_text(f"""
from transformers import AutoModelForCausalLM, TrainingArguments, Trainer
from peft import LoraConfig
from own.config import OwnConfig
def main():
    config = OwnConfig()
    {over}model = AutoModelForCausalLM.from_pretrained(config.model_id)
    lora = LoraConfig(r=config.lora_rank)
    tok = tokenizer("x", max_length=config.max_length)
    args = TrainingArguments(per_device_train_batch_size=config.batch_size, bf16=True)
    Trainer(model=get_peft_model(model, lora), args=args).train()
""")
    found = import_file(program, GUESS)
    assert (found.model.name, found.job.seq_len) == ("qwen3-0.6b", 1024)
    assert found.layout.micro_batch == (32 if over else 8)
    assert found.job.finetune is not None and found.job.finetune.rank == 16


def test_a_table_that_describes_its_model_is_read_with_its_switches():
    text = """
model: {n_layers: 4, d_model: 256, n_heads: 4, n_kv_heads: 2, vocab_size: 1000, attention_type: hybrid}
optimizer: {lr: 0.001}
precision: {dtype: bf16, fp8_enabled: true}
data: {batch_size: 2, max_seq_len: 512}
training: {activation_checkpointing: {enabled: true}, gradient_accumulation_steps: 2}
"""
    found = import_text(text, "own.yaml", GUESS)
    assert (found.model.layers, found.model.kv_heads, found.job.seq_len) == (4, 2, 512)
    assert (found.layout.recompute, found.job.precision.name) == ("full", "fp8")
    assert any(one.option == "attention_type" for one in found.remarks if one.kind == "unmodelled")
