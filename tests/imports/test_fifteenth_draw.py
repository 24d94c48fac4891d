"""The faults of a fifteenth draw, by kind: templates that scripts fill in, arrays of jobs, choices by a command's words."""

import json
from pathlib import Path

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given
from meshwright.imports.shell.follow import read_script
from meshwright.imports.shell.sed import sed
from meshwright.specs import load_cluster, load_model
from meshwright.specs.errors import SpecError

H8 = Given(cluster=load_cluster("h100:1x8"), guess=True)
SHAPE = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 64 --fp16"


def test_a_template_that_a_script_fills_with_sed_is_read(tmp_path: Path):
    template = '{"train_batch_size": GBSIZE, "zero_optimization": {"stage": ZERO_STAGE, "offload_optimizer": {"device": "cpu"}}}'
    (tmp_path / "ds_TEMPLATE.json").write_text(template)
    (tmp_path / "run.sh").write_text(
        'stage=2\nT="ds_TEMPLATE.json"\nC="ds_${stage}.json"\n'
        'sed "s/GBSIZE/64/" ${T} | sed "s/ZERO_STAGE/${stage}/g" > ${C}\n'
        f"deepspeed --num_gpus 8 pretrain_gpt.py {SHAPE} --deepspeed --deepspeed_config ${{C}}\n"
    )
    back = import_file(tmp_path / "run.sh", H8)
    assert (back.layout.zero, back.offload) == (2, frozenset({"optimizer"}))
    assert not any("is not here" in one for one in back.notes)


def test_a_file_that_a_script_changes_in_place_is_read_as_changed(tmp_path: Path):
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 1}}')
    (tmp_path / "run.sh").write_text(
        'cat ds.json | sed -e "s/1/2/" > other.json\nsed -i "s/\\"stage\\": 1/\\"stage\\": 3/" ds.json\n'
    )
    script = read_script((tmp_path / "run.sh").read_text(), "run.sh", tmp_path)
    assert json.loads(script.files["ds.json"])["zero_optimization"]["stage"] == 3
    assert json.loads(script.files["other.json"])["zero_optimization"]["stage"] == 2
    assert json.loads((tmp_path / "ds.json").read_text())["zero_optimization"]["stage"] == 1


@pytest.mark.parametrize(
    ("expression", "made"),
    [
        ("s/b/X/", "aXbb\naXc"), ("s/b/X/g", "aXXX\naXc"), ("s#b.*#/x#", "a/x\na/x"), ("s/^a/&/", None),
        ("s/a/1/; s/c/2/", "1bbb\n1b2"), ("s/[bc]*$/z/", "az\naz"), ("s/\\(a\\)/\\1/", None), ("2d", None), ("s/a/b", None),
    ],
)  # fmt: skip
def test_sed_substitutes_what_gnu_sed_does_or_says_nothing(expression, made):
    assert sed("abbb\nabc", ["sed", expression, "file"]) == made


def test_of_an_array_of_jobs_the_first_is_read_and_named():
    script = "#!/bin/bash\n#SBATCH --gres=gpu:2\n#SBATCH --array=1-3%2\nM=(a Qwen/Qwen3-4B b)\ntorchrun --nproc_per_node 2 sft.py --model_name_or_path ${M[$SLURM_ARRAY_TASK_ID]} --per_device_train_batch_size 1 --bf16 --max_length 512\n"
    back = import_text(script, "x.sh", Given(guess=True))
    assert back.model.name == "qwen3-4b"
    assert any("SLURM_ARRAY_TASK_ID" in one and "1, the first" in one for one in back.notes)


PROGRAM = """
import argparse
from peft import LoraConfig, AdaLoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
parser = argparse.ArgumentParser()
parser.add_argument("--quantise", type=int, default=1)
parser.add_argument("--method", default="lora")
args = parser.parse_args()
bits = None
if args.quantise > 0:
    bits = BitsAndBytesConfig(load_in_4bit=True)
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-4B", quantization_config=bits)
if args.method != "ada":
    adapters = LoraConfig(r=8, target_modules=["q_proj"])
elif args.method in ("ada", "adalora"):
    adapters = LoraConfig(r=64, target_modules=["q_proj", "v_proj"])
model.add_adapter(adapters)
Trainer(model=model, args=TrainingArguments(per_device_train_batch_size=1, bf16=True, max_length=512)).train()
"""


@pytest.mark.parametrize(
    ("words", "rank", "bits"),
    [("", 8, True), (" --quantise 0", 8, False), (" --method ada", 64, True)],
)
def test_a_program_takes_the_branch_that_its_command_chooses(tmp_path: Path, words, rank, bits):
    (tmp_path / "tune.py").write_text(PROGRAM)
    (tmp_path / "run.sh").write_text(f"torchrun --nproc_per_node 8 tune.py{words}")
    tuned = import_file(tmp_path / "run.sh", H8).job.finetune
    assert (tuned.rank, "qlora" in tuned.label()) == (rank, bits)


def test_a_program_whose_name_is_an_argument_is_asked_for():
    script = "T=$2\nsrun accelerate launch --num_processes 8 scripts/run_$T.py recipes/$1.yaml\n"
    with pytest.raises(SpecError, match=r"run_\$2.py.*--args"):
        import_text(script, "x.sh", H8)


def test_sizes_that_an_argument_chooses_are_taken_with_a_guess_or_asked_for():
    script = f"S=$1\nif [[ $S -eq 345 ]]; then L=24; else L=$3; fi\ndeepspeed --num_gpus 8 pretrain_gpt.py {SHAPE.replace('24', '$L')}\n"
    assert import_text(script, "x.sh", H8).model.layers == 24
    open_sizes = f"deepspeed --num_gpus 8 pretrain_gpt.py {SHAPE.replace('24', '$3')}\n"
    with pytest.raises(SpecError, match="argument 3"):
        import_text(open_sizes, "x.sh", H8)


def test_a_record_of_a_run_says_how_many_ranks_it_had():
    record = {
        "command": {
            "argv": ["pretrain_gpt.py", *SHAPE.split(), "--tensor-model-parallel-size", "4"]
        },
        "environment": {"WORLD_SIZE": "16", "RANK": "0"},
    }
    back = import_text(json.dumps(record), "run.json", Given(guess=True))
    assert (back.cluster.gpus, back.layout.dp) == (16, 4)


def test_open_instructs_own_words_are_no_fp32():
    text = "model_name_or_path: meta-llama/Llama-3.1-8B\nuse_slow_tokenizer: true\nwith_tracking: true\nmax_seq_length: 4096\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 4\n"
    back = import_text(text, "a.yaml", H8)
    assert back.job.precision.name == "bf16"
    assert any("open-instruct's scripts" in one for one in back.notes)


@pytest.mark.parametrize(("stage", "loss"), [("sft", "liger"), ("dpo", "full")])
def test_llama_factorys_liger_holds_no_logits_where_no_stage_needs_them(stage, loss):
    text = f"model_name_or_path: Qwen/Qwen2.5-7B\nstage: {stage}\nfinetuning_type: full\nenable_liger_kernel: true\ncutoff_len: 1024\nper_device_train_batch_size: 1\nbf16: true\n"
    assert (import_text(text, "a.yaml", H8).job.loss == "liger") == (loss == "liger")


def test_an_autotuner_is_named():
    data = {
        "train_micro_batch_size_per_gpu": 1,
        "autotuning": {"enabled": True},
        "fp16": {"enabled": True},
        "zero_optimization": {"stage": 1},
    }
    given = Given(model=load_model("llama3-8b"), cluster=load_cluster("h100:1x8"), guess=True)
    assert any("autotuner" in one for one in import_text(json.dumps(data), "d.json", given).notes)
