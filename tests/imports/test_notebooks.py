"""Notebooks that train by a command or a job, not by a trainer of their own."""

import json
from pathlib import Path

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.names import refuse_other
from meshwright.imports.reading import Given
from meshwright.imports.script_devices import instance
from meshwright.specs.errors import SpecError

GUESS = Given(guess=True)


def notebook(*cells: str) -> str:
    return json.dumps({"cells": [{"cell_type": "code", "source": one} for one in cells]})


ARGS = "model_name_or_path: Qwen/Qwen3-4B\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 4\nbf16: true\nmax_length: 1024\n"
LAUNCH = "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config: {zero_stage: 3, offload_optimizer_device: cpu}\n"


def test_a_command_of_a_notebooks_shell_reads_the_files_of_its_cells():
    text = notebook(
        "%pip install trl",
        f"%%writefile args.yaml\n{ARGS}",
        f"%%bash\ncat > zero.yaml <<EOF\n{LAUNCH}EOF\n",
        "gpus = 4",
        "!accelerate launch --config_file zero.yaml --num_processes {gpus} \\\n    sft.py --config args.yaml",
    )
    found = import_text(text, "a.ipynb", GUESS)
    assert (found.model.name, found.layout.world, found.layout.zero) == ("qwen3-4b", 4, 3)
    assert (found.job.global_batch, found.job.seq_len, found.offload) == (32, 1024, {"optimizer"})


JOB = """
import sagemaker
from sagemaker.modules.configs import Compute, SourceCode
from sagemaker.modules.distributed import Torchrun
from sagemaker.modules.train import ModelTrainer
instance_type = "ml.g5.12xlarge"
code = SourceCode(source_dir="./scripts", entry_script="train.py")
job = ModelTrainer(source_code=code, compute=Compute(instance_type=instance_type, instance_count=1), {spread}
                   hyperparameters={{"config": "/opt/ml/input/data/config/args.yaml"}})
"""


@pytest.mark.parametrize(
    ("spread", "devices"), [("distributed=Torchrun(),", 4), ("", 1)], ids=["torchrun", "alone"]
)
def test_a_job_of_sagemaker_starts_its_program_on_its_machines(spread: str, devices: int):
    found = import_text(notebook(f"%%writefile args.yaml\n{ARGS}", JOB.format(spread=spread)), "a.ipynb", GUESS)  # fmt: skip
    assert (found.model.name, found.layout.world) == ("qwen3-4b", devices)
    assert found.cluster.name.startswith("a10g")
    assert found.job.global_batch == 2 * 4 * devices


def test_a_job_of_sagemaker_may_be_a_command(tmp_path: Path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "start.sh").write_text(
        "if accelerate launch --config_file $2 --num_processes $((SM_HOST_COUNT * SM_NUM_GPUS)) sft.py --config $1; then echo done; fi\n"
    )
    job = """
import sagemaker
kind = "ml.p4de.24xlarge"
training_instance_type = kind
words = ["/opt/ml/args.yaml", "/opt/ml/zero.yaml"]
code = SourceCode(source_dir="./code", command=f"bash start.sh {' '.join(words)}")
job = ModelTrainer(source_code=code, compute=Compute(instance_type=training_instance_type))
"""
    (tmp_path / "a.ipynb").write_text(
        notebook(f"%%writefile args.yaml\n{ARGS}", f"%%writefile zero.yaml\n{LAUNCH}", job)
    )
    found = import_file(tmp_path / "a.ipynb", GUESS)
    assert (found.cluster.name, found.layout.zero) == ("a100-80g:1x8", 3)
    assert found.offload == {"optimizer"}


def test_a_notebook_that_starts_nothing_is_one_sentence():
    with pytest.raises(SpecError, match="starts no training"):
        import_text(notebook("import sagemaker\nsession = sagemaker.Session()"), "a.ipynb", GUESS)
    with pytest.raises(SpecError, match="describes no training run"):
        import_text(notebook("%matplotlib inline", "import torch\nmodel = f()"), "a.ipynb", GUESS)


def test_a_trainer_in_the_notebook_counts_before_its_shell():
    text = notebook(
        "!python -m pip install trl",
        "from trl import SFTConfig, SFTTrainer\n",
        'SFTTrainer(model="Qwen/Qwen3-4B", args=SFTConfig(per_device_train_batch_size=3, max_length=512, bf16=True))',
    )
    found = import_text(text, "a.ipynb", GUESS)
    assert (found.model.name, found.layout.micro_batch, found.layout.world) == ("qwen3-4b", 3, 1)


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("ml.g5.12xlarge", ("a10g", 4)),
        ("ml.g6e.2xlarge", ("l40s", 1)),
        ("ml.p5en.48xlarge", ("h200", 8)),
        ("p5.4xlarge", ("h100", 1)),
        ("ml.trn1.32xlarge", ("trainium1", 16)),
        ("ml.p6-b200.48xlarge", ("b200", 8)),
        ("ml.m5.xlarge", ("", 0)),
    ],
)
def test_amazons_machines(name: str, device: tuple[str, int]):
    assert instance(name) == device


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("meta-llama/Llama-3.2-11B-Vision-Instruct", "vision-language"),
        ("Qwen/Qwen2-Audio-7B-Instruct", "a model of speech"),
        ("black-forest-labs/FLUX.1-dev", "diffusion"),
    ],
)
def test_models_that_are_no_decoders_of_text_by_their_names(name: str, kind: str):
    with pytest.raises(SpecError, match=kind):
        refuse_other(name)


def test_a_table_of_settings_is_read_with_what_the_parser_says_below_it():
    text = """
import argparse
from trl import SFTConfig, SFTTrainer

def build(args):
    settings = dict(per_device_train_batch_size=args.batch, max_length=args.length, num_proc=2, bf16=True)
    return SFTConfig(**settings)

SFTTrainer(model="Qwen/Qwen3-4B", args=build(None))
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=6)
parser.add_argument("--length", type=int, default=768)
"""
    found = import_text(text, "a.py", GUESS)
    assert (found.layout.micro_batch, found.job.seq_len) == (6, 768)


def test_a_line_of_an_expression_that_begins_with_a_percent_sign_is_no_notebooks():
    text = (
        "from trl import SFTConfig, SFTTrainer\nprint(\n    'a %s'\n    % 3\n)\n"
        'SFTTrainer(model="Qwen/Qwen3-4B", args=SFTConfig(per_device_train_batch_size=3, max_length=512, bf16=True))\n'
    )
    assert import_text(text, "a.py", GUESS).layout.micro_batch == 3


def test_a_program_of_diffusers_is_refused():
    text = "import diffusers\nfrom transformers import Trainer\nTrainer(model=1)\n"
    with pytest.raises(SpecError, match="diffusion"):
        import_text(text, "a.py", GUESS)
