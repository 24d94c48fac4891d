"""AutoTrain's YAML and its command, against the defaults of its own parameters."""

import pytest
import yaml
from folders import GUESS, put

from meshwright.imports.files import import_text
from meshwright.imports.reading import Imported
from meshwright.specs.errors import SpecError


def configured(task: str = "llm-sft", **params: object) -> Imported:
    data = {
        "task": task, "base_model": "meta-llama/Meta-Llama-3-8B", "project_name": "mine", "log": "none", "backend": "local",
        "data": {"path": "d", "train_split": "train", "valid_split": None, "chat_template": None, "column_mapping": {"text_column": "text"}},
        "params": params, "hub": {"username": "${HF_USERNAME}", "token": "${HF_TOKEN}", "push_to_hub": False},
    }  # fmt: skip
    return import_text(yaml.safe_dump(data), "run.yml", GUESS)


def tune(run: Imported) -> str:
    return run.job.finetune.label() if run.job.finetune else "all weights"


def test_what_it_takes_where_nothing_is_said():
    run = configured()
    assert run.format == "AutoTrain YAML" and tune(run) == "all weights"
    assert (run.layout.micro_batch, run.job.global_batch, run.job.seq_len) == (2, 64, 1024)
    assert run.layout.recompute == "full" and run.job.precision.name == "fp32"
    assert not [one for one in run.remarks if one.kind == "unread"]


@pytest.mark.parametrize(
    ("params", "tuned"),
    [
        ({"peft": True}, "qlora rank 16 on all linear; nf4"),
        ({"peft": True, "quantization": None}, "lora rank 16 on all linear"),
        ({"peft": True, "quantization": "int8", "lora_r": 8}, "lora rank 8 on all linear; int8"),
        ({"peft": False, "quantization": "int4", "lora_r": 8}, "all weights"),
    ],
)
def test_weights_are_quantised_beside_adapters_alone(params, tuned):
    assert tune(configured(**params)) == tuned


@pytest.mark.parametrize(
    ("params", "field", "value"),
    [
        ({"block_size": 4096}, "seq_len", 4096),
        ({"block_size": -1}, "seq_len", 1024),
        ({"batch_size": 4, "gradient_accumulation": 2}, "global_batch", 64),
        ({"disable_gradient_checkpointing": True}, "recompute", "none"),
        ({"distributed_backend": "deepspeed"}, "zero", 3),
        ({"mixed_precision": "bf16"}, "precision", "bf16"),
        ({"optimizer": "adafactor"}, "optimizer", "adafactor"),
    ],
)  # fmt: skip
def test_each_parameter(params, field, value):
    run = configured(**params)
    said = getattr(run.job, field, None) or getattr(run.layout, field, None)
    assert getattr(said, "name", said) == value


@pytest.mark.parametrize("trainer", ["orpo", "dpo", "reward"])
def test_what_it_trains_for(trainer):
    assert configured(f"llm-{trainer}").task == trainer


@pytest.mark.parametrize("task", ["text-classification", "seq2seq", "vlm:vqa", "st:pair"])
def test_other_tasks_are_refused(task):
    with pytest.raises(SpecError, match="no decoder of text"):
        configured(task)


@pytest.mark.parametrize(
    "words",
    [
        "--project-name x --data-path d --peft --quantization int4 --lr 2e-4 --batch-size 4 --epochs 3 --trainer sft --block-size 2048 --mixed-precision fp16",
        "--project_name x --data_path d --use_peft --use_int4 --learning_rate 2e-4 --train_batch_size 4 --num_train_epochs 3 --trainer sft --block_size 2048 --fp16",
    ],
)  # fmt: skip
def test_the_command_of_both_generations(tmp_path, words):
    run = put(tmp_path, f"autotrain llm --train --model meta-llama/Llama-2-7b-hf {words}")
    assert (run.format, run.model.name, tune(run)) == ("AutoTrain command", "llama2-7b", "qlora rank 16 on all linear; nf4")  # fmt: skip
    assert (run.layout.micro_batch, run.job.seq_len, run.job.precision.name) == (4, 2048, "fp16")
    assert run.layout.recompute == "full"
