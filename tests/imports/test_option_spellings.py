"""How people spell a configuration: words over a file, an environment, merged tables, shifts and powers."""

from pathlib import Path

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given, Imported
from meshwright.imports.word_overrides import overridden
from meshwright.specs import load_cluster

H8 = Given(cluster=load_cluster("h100:1x8"), guess=True)
AXOLOTL = """base_model: ${MODEL:-Qwen/Qwen2.5-7B}
adapter: lora
lora_r: 16
micro_batch_size: 2
gradient_accumulation_steps: "4"
sequence_len: 2_048
bf16: auto
datasets: [{path: x, type: alpaca}]
"""


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (["a.b=2", "--a.c", "3"], {"a": {"b": 2, "c": 3}, "d": 1}),
        (["--d-e=x", "--config", "f.yaml"], {"a": {"b": 0}, "d": 1, "d_e": "x"}),
        (["a.b=[q,k]", "d=null"], {"a": {"b": ["q", "k"]}, "d": None}),
        (["~a.b", "++d=2.5"], {"a": {"b": None}, "d": 2.5}),
        ([], {"a": {"b": 0}, "d": 1}),
    ],
)
def test_words_count_over_a_configuration(words: list[str], made: dict[str, object]):
    data = {"a": {"b": 0}, "d": 1}
    assert overridden(data, words) == made
    assert data == {"a": {"b": 0}, "d": 1}


def test_axolotls_command_counts_over_its_file(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(AXOLOTL)
    script = tmp_path / "run.sh"
    script.write_text("axolotl train a.yaml --micro-batch-size 8 --lora-r=64 --debug\n")
    run = import_file(script, H8)
    assert run.job.finetune and run.job.finetune.rank == 64
    assert (run.layout.micro_batch, run.job.seq_len) == (8, 2048)
    assert run.model.name == "qwen2.5-7b"


def test_llamafactorys_words_count_over_its_file_and_stand_alone(tmp_path: Path):
    (tmp_path / "l.yaml").write_text(
        "model_name_or_path: Qwen/Qwen2.5-7B\nstage: sft\nfinetuning_type: lora\nlora_rank: 8\n"
        "per_device_train_batch_size: 1\ncutoff_len: 1024\nbf16: true\n"
    )
    script = tmp_path / "run.sh"
    script.write_text("llamafactory-cli train l.yaml per_device_train_batch_size=4 lora_rank=64\n")
    run = import_file(script, H8)
    assert run.job.finetune and (run.job.finetune.rank, run.layout.micro_batch) == (64, 4)
    alone = (
        "llamafactory-cli train absent.yaml model_name_or_path=Qwen/Qwen2.5-7B stage=sft lora_rank=32 "
        "finetuning_type=lora per_device_train_batch_size=2 cutoff_len=512\n"
    )
    run = import_text(alone, "run.sh", H8, tmp_path)
    assert run.format == "LLaMA-Factory YAML" and run.job.finetune
    assert (run.job.finetune.rank, run.job.seq_len) == (32, 512)


def test_tables_that_others_take_in_are_no_options():
    text = "base: &b\n  bf16: true\n  per_device_train_batch_size: '4'\n<<: *b\nmodel_name_or_path: Qwen/Qwen2.5-7B\nmax_length: 512\n"
    run = import_text(text, "a.yaml", H8, None)
    assert run.layout.micro_batch == 4
    assert not [one for one in run.remarks if one.kind == "unread"]


@pytest.mark.parametrize("asked", ["A100-80GB:8", "{A100-80GB: 8}", "['A100-80GB:8', 'H100:8']"])
def test_skypilots_environment_and_size_reach_its_script(asked: str):
    text = f"""resources:
  accelerators: {asked}
num_nodes: 2
envs:
  MODEL: Qwen/Qwen2.5-7B
  TOKEN:
run: |
  torchrun --nnodes $SKYPILOT_NUM_NODES --nproc_per_node $SKYPILOT_NUM_GPUS_PER_NODE train.py \\
    --model_name_or_path ${{MODEL}} --per_device_train_batch_size 2 --bf16 --max_seq_length 1024
"""
    run = import_text(text, "sky.yaml", Given(guess=True), None)
    assert (run.cluster.gpus, run.cluster.device.preset, run.model.name) == (
        16,
        "a100-80g",
        "qwen2.5-7b",
    )


PROGRAM = """
from trl import SFTConfig, SFTTrainer
from peft import LoraConfig
SIZE = "7B"
MODEL = f"Qwen/Qwen2.5-{SIZE}"
args = SFTConfig(max_length=1 << 12, per_device_train_batch_size=2, bf16=True, model_init_kwargs={"attn_implementation": "eager"})
SFTTrainer(MODEL, args=args, peft_config=LoraConfig(RANK, lora_alpha=64))
"""


def read(rank: str) -> Imported:
    return import_text(PROGRAM.replace("RANK", rank), "p.py", H8, None)


def test_a_program_names_its_model_by_place_and_its_numbers_by_powers():
    run = read("r=2**5")
    assert run.model.name == "qwen2.5-7b" and run.job.seq_len == 4096
    assert run.job.finetune and run.job.finetune.rank == 32
    assert run.job.attention_kernel == "unfused"


def test_a_rank_that_is_not_stated_is_a_guess():
    run = read("r=ask()")
    assert run.job.finetune and run.job.finetune.rank == 8
    assert [one.kind for one in run.remarks if one.option == "lora_r"] == ["guess"]


def script(text: str) -> Imported:
    return import_text(text, "run.sh", Given(guess=True), None)


TRAINER = "--model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2 --bf16 --max_seq_length 1024"


@pytest.mark.parametrize(
    ("named", "zero", "offload"),
    [
        ("accelerate_configs/zero3.yaml", 3, set()),
        ("configs/deepspeed_zero2_offload.yaml", 2, {"optimizer"}),
        ("accelerate_configs/fsdp2.yaml", 3, set()),
        ("accelerate_configs/multi_gpu.yaml", 0, set()),
        ("other.yaml", 0, set()),
    ],
)
def test_a_launchers_configuration_that_is_not_here_goes_by_its_name(
    named: str, zero: int, offload: set[str]
):
    run = script(f"accelerate launch --config_file {named} train.py {TRAINER}\n")
    assert (run.layout.zero, run.offload) == (zero, offload)
    assert [one.kind for one in run.remarks if one.option == "--config_file"] == ["guess"]


def test_visible_devices_are_those_of_one_host():
    words = f"accelerate launch --config_file accelerate_configs/fsdp2.yaml train.py {TRAINER}\n"
    assert script(f"CUDA_VISIBLE_DEVICES='4,7' {words}").layout.world == 2


def test_ms_swift_starts_one_process_unless_told():
    words = "swift sft --model Qwen/Qwen2.5-7B-Instruct --dataset y --max_length 1024\n"
    run = script(f"CUDA_VISIBLE_DEVICES=0,1 {words}")
    assert run.layout.world == 1 and run.job.finetune
    assert (run.job.finetune.rank, run.job.finetune.alpha) == (8, 32)
    assert script(f"NPROC_PER_NODE=2 {words}").layout.world == 2


def test_a_program_that_is_called_after_qlora_holds_4_bits():
    words = TRAINER.replace("--bf16", "--bf16 --lora_r 4 --lora_alpha 16")
    run = script(f"python train_qlora.py {words}\n")
    assert run.job.finetune and run.job.finetune.storage == "nf4"
    run = script(f"python train_qlora.py {words} --bits 8\n")
    assert run.job.finetune and run.job.finetune.storage == "int8"


def test_openrlhfs_words_are_read_from_a_program_of_another_name():
    words = "--pretrain Qwen/Qwen2.5-7B --train_batch_size 64 --micro_train_batch_size 2 --max_len 2048 --bf16"
    run = script(f"deepspeed --num_gpus 4 openrlhf_dpo.py {words} --deepspeed z.json\n")
    assert (run.format, run.task, run.layout.world) == ("OpenRLHF command", "dpo", 4)
    assert [one for one in run.remarks if one.option == "--deepspeed"]


def test_lengths_of_question_and_answer_are_added():
    text = "model_name_or_path: Qwen/Qwen2.5-3B\nbeta: 0.1\nmax_prompt_length: 512\nmax_answer_length: 256\nper_device_train_batch_size: 1\nbf16: true\n"
    assert import_text(text, "d.yaml", H8, None).job.seq_len == 768


def test_axolotl_cuts_sequences_at_its_own_length():
    run = import_text(AXOLOTL.replace("sequence_len: 2_048\n", ""), "a.yaml", H8, None)
    assert run.job.seq_len == 512
    assert "--seq" in [one.option for one in run.remarks if one.kind == "guess"]


def test_a_micro_batch_of_arguments_that_are_made_elsewhere_is_a_guess():
    text = PROGRAM.replace("RANK", "r=8").replace("per_device_train_batch_size=2, ", "")
    run = import_text(text.replace("max_length=1 << 12", "max_length=elsewhere"), "p.py", H8, None)
    assert "--micro-batch" in [one.option for one in run.remarks if one.kind == "guess"]


def test_trls_own_scripts_take_trls_defaults_wherever_they_lie():
    words = "--model_name_or_path Qwen/Qwen2.5-7B --dataset_name x --per_device_train_batch_size 2"
    run = script(f"accelerate launch --num_processes 2 ../trl/examples/scripts/sft.py {words}\n")
    assert (run.job.seq_len, run.layout.recompute, run.job.precision.compute) == (
        1024,
        "full",
        "bf16",
    )
    run = script(f"accelerate launch --num_processes 2 mine/sft.py {words}\n")
    assert run.layout.recompute == "none"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--eval_strategy steps", True),
        ("--eval_strategy steps --per_device_eval_batch_size 2", False),
        ("--do_eval --per_device_eval_batch_size 16", True),
        ("--per_device_eval_batch_size 16", False),
        ("--evaluation_strategy no --per_device_eval_batch_size 16", False),
    ],
)
def test_an_evaluation_of_larger_batches_is_named(words: str, named: bool):
    run = script(f"torchrun --nproc_per_node 2 train.py {TRAINER} {words}\n")
    found = [one for one in run.remarks if one.option == "per_device_eval_batch_size"]
    assert bool(found) is named


def test_axolotls_evaluation_of_larger_batches_is_named():
    text = AXOLOTL + "val_set_size: 0.05\neval_batch_size: 8\n"
    run = import_text(text, "a.yaml", H8, None)
    assert [one for one in run.remarks if one.option == "eval_batch_size"]


XTUNER = """
framework = 'huggingface'
pretrained_model_name_or_path = 'meta-llama/Llama-2-70b-hf'
max_length = 2048
trainer = Trainer
training_args = dict(type=TrainingArguments, per_device_train_batch_size=1, gradient_accumulation_steps=16, fp16=True)
model = dict(
    type=AutoModelForCausalLM.from_pretrained,
    pretrained_model_name_or_path=pretrained_model_name_or_path,
    quantization_config=dict(type=BitsAndBytesConfig, load_in_4bit=True, bnb_4bit_quant_type='nf4'))
lora = dict(type=LoraConfig, r=64, lora_alpha=16, target_modules=['gate_proj', 'down_proj'])
train_dataset = dict(type=process_hf_dataset, max_length=max_length)
"""


def test_tables_of_types_are_the_calls_that_they_stand_for():
    run = import_text(XTUNER, "x.py", H8, None)
    assert run.model.name == "llama2-70b" and run.job.precision.name == "fp16"
    assert run.job.finetune and (run.job.finetune.rank, run.job.finetune.storage) == (64, "nf4")
    assert run.job.finetune.targets == ("gate", "down") and run.job.seq_len == 2048
    assert run.job.global_batch == 16 * run.layout.dp


def test_axolotl_says_its_devices_by_rays_workers_and_when_it_reduces():
    run = import_text(
        f"{AXOLOTL}use_ray: true\nray_num_workers: 2\n", "a.yaml", Given(guess=True), None
    )
    assert run.layout.world == 2
    whole = AXOLOTL.replace("adapter: lora\nlora_r: 16\n", "")
    alone = f"{whole}dp_shard_size: 1\nfsdp_config:\n  reshard_after_forward: true\n"
    run = import_text(alone, "a.yaml", Given(guess=True), None)
    assert run.layout.world == 8
    assert [one for one in run.remarks if "sync_each_batch" in one.text]
    each = "accelerator_config:\n  gradient_accumulation_kwargs:\n    sync_each_batch: true\n"
    run = import_text(alone + each, "a.yaml", Given(guess=True), None)
    assert not [one for one in run.remarks if "sync_each_batch" in one.text + one.option]
