"""Oumi's YAML, tables of other tools by the names that they use, and what a further draw showed."""

from pathlib import Path

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given, Imported
from meshwright.imports.shell.follow import read_script
from meshwright.specs import load_model
from meshwright.specs.errors import SpecError

GUESS = Given(guess=True)
MODEL = Given(guess=True, model=load_model("qwen3-4b"))
OUMI = """
model: {model_name: Qwen/Qwen2.5-7B-Instruct, model_max_length: 4096, torch_dtype_str: bfloat16}
data: {train: {datasets: [{dataset_name: a}], pack: true}}
training:
  trainer_type: TRL_SFT
  per_device_train_batch_size: 2
  gradient_accumulation_steps: 4
  enable_gradient_checkpointing: true
  optimizer: adamw_torch_fused
  learning_rate: 1.0e-4
  include_performance_metrics: true
"""


def notes(found: Imported) -> str:
    return "\n".join(found.notes)


def test_oumi_trains_in_the_weights_own_width():
    found = import_text(OUMI, "train.yaml", GUESS)
    assert (found.format, found.model.name, found.job.seq_len) == ("Oumi YAML", "qwen2.5-7b", 4096)
    assert (found.layout.micro_batch, found.layout.recompute, found.layout.zero) == (2, "full", 0)
    assert found.job.global_batch == 8 * found.layout.dp
    assert (found.job.precision.name, found.job.finetune) == ("pure-bf16", None)
    assert "not understood" not in notes(found)


@pytest.mark.parametrize(
    ("tables", "zero", "offload"),
    [
        ("fsdp: {enable_fsdp: true, sharding_strategy: SHARD_GRAD_OP}", 2, set()),
        ("fsdp: {enable_fsdp: true, cpu_offload: true}", 3, {"optimizer", "parameters"}),
        ("fsdp: {enable_fsdp: false}", 0, set()),
        (
            "deepspeed: {enable_deepspeed: true, zero_stage: 3, offload_optimizer: {device: cpu}}",
            3,
            {"optimizer"},
        ),
    ],
)
def test_oumi_shards_as_it_is_told(tables: str, zero: int, offload: set[str]):
    found = import_text(f"{OUMI}{tables}\n", "train.yaml", GUESS)
    assert (found.layout.zero, found.offload) == (zero, offload)


def test_oumis_adapters_count_only_where_they_are_switched_on():
    table = (
        "peft: {lora_r: 32, lora_alpha: 64, q_lora: true, lora_target_modules: [q_proj, v_proj]}\n"
    )
    assert import_text(OUMI + table, "train.yaml", GUESS).job.finetune is None
    on = OUMI.replace("  learning_rate", "  use_peft: true\n  learning_rate")
    tuned = import_text(on + table, "train.yaml", GUESS).job.finetune
    assert (tuned.rank, tuned.alpha, tuned.storage, tuned.targets) == (32, 64, "nf4", ("q", "v"))
    assert import_text(on, "train.yaml", GUESS).job.finetune.rank == 8


def test_oumi_names_its_task_and_refuses_images():
    text = OUMI.replace("TRL_SFT", "TRL_DPO")
    assert import_text(text, "train.yaml", GUESS).task == "dpo"
    with pytest.raises(SpecError, match="vision-language"):
        import_text(OUMI.replace("pack: true", "collator_name: vision_language_sft"), "train.yaml", GUESS)  # fmt: skip


def test_ludwigs_file_is_not_axolotls():
    text = "model_type: llm\nbase_model: Qwen/Qwen3-4B\nadapter: {type: lora, r: 16, alpha: 32}\nquantization: {bits: 4}\ntrainer: {type: dpo, epochs: 1, learning_rate: 5.0e-7, batch_size: 2, gradient_accumulation_steps: 8}\ninput_features: [{name: prompt, type: text}]\n"
    found = import_text(text, "config.yaml", GUESS)
    assert (found.format, found.layout.micro_batch, found.job.global_batch) == ("Ludwig YAML", 2, 16)  # fmt: skip
    assert (found.job.finetune.rank, found.job.finetune.storage, found.task) == (16, "nf4", "dpo")


def test_a_table_names_a_backbone_that_is_kept_in_four_bits_on_listed_devices():
    text = "architecture: {backbone_dtype: int4, gradient_checkpointing: true}\nenvironment: {gpus: ['0', '1'], mixed_precision: true, mixed_precision_dtype: bfloat16}\nllm_backbone: Qwen/Qwen3-4B\ntokenizer: {max_length: 512}\ntraining: {batch_size: 2, grad_accumulation: 3, learning_rate: 0.0001, lora: true, lora_r: 4, lora_alpha: 16}\n"
    found = import_text(text, "cfg.yaml", GUESS)
    assert (found.model.name, found.layout.world, found.job.global_batch) == ("qwen3-4b", 2, 12)
    assert (found.job.finetune.storage, found.layout.recompute, found.job.seq_len) == ("nf4", "full", 512)  # fmt: skip
    assert (found.job.precision.name, "precision: no option" in notes(found)) == ("bf16", False)


def test_a_model_that_is_left_empty_is_asked_for():
    text = 'model_id_or_path: ""\nlora: {rank: 64}\nseq_len: 32768\nbatch_size: 1\noptim: {lr: 6.e-5}\n'
    with pytest.raises(SpecError, match="--model"):
        import_text(text, "7B.yaml", GUESS)
    found = import_text(text, "7B.yaml", MODEL)
    assert (found.job.finetune.rank, found.job.seq_len) == (64, 32768)


def test_deepspeeds_table_counts_wherever_it_stands_and_hides_no_other_option():
    text = "model: {model_id: Qwen/Qwen3-4B, training: {per_device_train_batch_size: 1, gradient_accumulation_steps: 16, learning_rate: 1.0e-5, bf16: true, deepspeed: {gradient_accumulation_steps: auto, zero_optimization: {stage: 2, offload_optimizer: {device: cpu}}}}}\n"
    found = import_text(text, "config.yml", GUESS)
    assert (found.layout.zero, found.offload, found.job.framework) == (2, {"optimizer"}, "deepspeed")  # fmt: skip
    assert found.job.global_batch == 16 * found.layout.dp


UNUSED = """
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, TrainingArguments
from trl import SFTTrainer
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-4B"{used})
kept = BitsAndBytesConfig(load_in_4bit=True)
SFTTrainer(model=model, args=TrainingArguments(per_device_train_batch_size=1, bf16=True), peft_config=LoraConfig(r=8))
"""


@pytest.mark.parametrize(
    ("used", "storage"), [("", "16-bit"), (", quantization_config=kept", "nf4")]
)
def test_a_configuration_that_nothing_reads_changes_nothing(used: str, storage: str):
    tuned = import_text(UNUSED.format(used=used), "a.py", GUESS).job.finetune
    assert tuned is not None and tuned.storage == storage


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=x/$M/$T/c_$R.yaml", "x/a/b/c_r.yaml"),
        ("A=$M-$T-q", "a-b-q"),
        ('export A=$M-$T-"$R/z"/q', "a-b-r/z/q"),
        ("A=$(basename $M)/$T/x", "a/b/x"),
        ("A=$1/$2/f", "p/q/f"),
        ("A='$M/$T/x'", "$M/$T/x"),
    ],
)
def test_words_of_several_variables_without_braces_stay_whole(line: str, value: str):
    script = read_script(f"M=a\nT=b\nR=r\n{line}\n", "x.sh", None, {}, ["p", "q"])
    assert script.scope.variables["A"] == value
    assert not script.commands


def test_the_server_of_answers_is_not_what_trains(tmp_path: Path):
    (tmp_path / "conf.yaml").write_text("model_name_or_path: Qwen/Qwen3-4B\nper_device_train_batch_size: 2\nbf16: true\nmax_length: 512\n")  # fmt: skip
    (tmp_path / "run.sh").write_text(
        "srun trl vllm-serve --model $M --revision $R --tensor_parallel_size 2 &\n"
        'export LAUNCHER="accelerate launch --num_processes 4 "\n'
        'srun bash -c "$LAUNCHER src/$1.py --config conf.yaml"\n'
    )
    found = import_file(tmp_path / "run.sh", Given(guess=True, arguments=("sft",)))
    assert (found.model.name, found.layout.world) == ("qwen3-4b", 4)


def test_accelerates_own_parallelism_is_no_recipe_of_torchtitan():
    text = (
        "from accelerate import Accelerator\nfrom accelerate.utils import ParallelismConfig\n"
        "from transformers import AutoModelForCausalLM\n"
        'config = ParallelismConfig(sp_backend="deepspeed", sp_size=4)\naccelerator = Accelerator(parallelism_config=config)\n'
        'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-4B")\nloader = DataLoader(data, batch_size=1)\n'
    )
    found = import_text(text, "sp.py", GUESS)
    assert (found.layout.cp, found.layout.cp_method, found.layout.micro_batch) == (4, "ulysses", 1)


@pytest.mark.parametrize("word", ["true", "legacy", "disk", "hidden_states"])
def test_axolotl_names_several_ways_to_move_activations(word: str):
    text = f"base_model: Qwen/Qwen3-4B\ndatasets: []\nsequence_len: 2048\nmicro_batch_size: 1\nbf16: true\ngradient_checkpointing: true\nactivation_offloading: {word}\n"
    found = import_text(text, "a.yaml", GUESS)
    assert (found.layout.recompute, found.offload) == ("full", {"activations"})
    assert ("a disk" in notes(found)) == (word == "disk")


def test_what_the_environment_fills_in_is_asked_for_and_given():
    text = "base_model: Qwen/Qwen3-4B\ndatasets: []\nsequence_len: 2048\nmicro_batch_size: ${MICRO_BATCH_SIZE}\nbf16: true\n"
    with pytest.raises(SpecError, match="--set MICRO_BATCH_SIZE="):
        import_text(text, "a.yaml", Given())
    told = Given(guess=True, variables=(("MICRO_BATCH_SIZE", "6"),))
    assert import_text(text, "a.yaml", told).layout.micro_batch == 6
    assert "MICRO_BATCH_SIZE is not stated" in notes(import_text(text, "a.yaml", GUESS))
