"""Batch systems, task runners and programs that start a training command."""

import pytest
from folders import GUESS

from meshwright.imports.files import import_text
from meshwright.imports.reading import Imported

RUN = "train.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2 --max_seq_length 2048 --bf16 True --learning_rate 1e-5"


def hosts(text: str, name: str) -> tuple[int, int]:
    cluster = import_text(text, name, GUESS).cluster
    return cluster.nodes, cluster.gpus_per_node


BATCH = {
    "a.lsf": (f"#BSUB -nnodes 2\njsrun -n 2 -a 1 -g 6 torchrun --nnodes 2 --nproc_per_node 6 {RUN}\n", (2, 6)),
    "b.lsf": (f"#BSUB -nnodes 4\njsrun -n 24 -a 1 -g 1 -c 7 -r 6 python {RUN}\n", (4, 6)),
    "c.lsf": (f'#BSUB -n 8\n#BSUB -gpu "num=4:mode=exclusive_process"\nmpirun -np 8 python {RUN}\n', (2, 4)),
    "d.pbs": (f"#PBS -l select=2:ncpus=64:ngpus=4:system=polaris\nmpiexec -n 8 --ppn 4 python {RUN}\n", (2, 4)),
    "e.sh": (f"flux run -N 2 -n 8 -g 1 python {RUN}\n", (2, 4)),
    "f.sh": (f"#!/bin/bash\n#SBATCH -N 2\n#SBATCH -n 6\nibrun python {RUN}\n", (2, 3)),
    "g.sh": (f"#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks=8\nsrun python {RUN}\n", (2, 4)),
    "h.sh": (f"#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks=2\nsrun torchrun --nnodes 2 --nproc_per_node 8 {RUN}\n", (2, 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", BATCH)
def test_batch_systems_say_how_many_ranks_of_how_many_hosts(name: str):
    text, expected = BATCH[name]
    assert hosts(text, name) == expected


def test_a_makefile_s_variables_stand_in_its_recipes():
    text = f"NGPU ?= 4\nBATCH := 3\n\n.PHONY: train\ninstall:\n\tpip install -r requirements.txt\ntrain: install\n\t@torchrun --nproc_per_node=$(NGPU) \\\n\t  {RUN} --gradient_accumulation_steps $(BATCH)\n"
    found = import_text(text, "Makefile", GUESS)
    assert (found.layout.world, found.job.global_batch) == (4, 24)


def test_a_justfile_s_variables_and_parameters_stand_in_its_recipes():
    text = f'ngpu := "4"\n\ndefault:\n    just --list\n\ntrain steps="3":\n    torchrun --nproc_per_node={{{{ngpu}}}} {RUN} --gradient_accumulation_steps {{{{steps}}}}\n'
    found = import_text(text, "justfile", GUESS)
    assert (found.layout.world, found.job.global_batch) == (4, 24)


def test_a_task_file_s_lines_are_commands():
    text = f'version: "3"\ntasks:\n  train:\n    cmds:\n      - pip install x\n      - torchrun --nproc_per_node=4 {RUN}\n'
    assert import_text(text, "Taskfile.yml", GUESS).layout.world == 4


def test_azure_ml_starts_processes_that_its_command_does_not_say():
    text = f"$schema: https://example.org/commandJob.schema.json\ncommand: >-\n  python {RUN}\ncompute: x\ndistribution: {{type: pytorch, process_count_per_instance: 8}}\nresources: {{instance_count: 2}}\n"
    assert hosts(text, "job.yml") == (2, 8)


def modal(call: str) -> Imported:
    text = f'import modal, subprocess\napp = modal.App("x")\n@app.function(gpu="A100-80GB:4", timeout=3600)\ndef train():\n    {call}\n'
    return import_text(text, "app.py", GUESS)


@pytest.mark.parametrize(
    "call",
    [
        f'subprocess.run("torchrun --nproc_per_node=4 {RUN}", shell=True, check=True)',
        f'subprocess.run(["torchrun", "--nproc_per_node=4"] + "{RUN}".split(), check=True)',
    ],
)
def test_a_program_hands_its_training_to_a_shell(call: str):
    found = modal(call)
    assert (found.layout.world, found.model.name) == (4, "qwen2.5-7b")
    assert "A100" in found.cluster.device.name.upper()


def test_an_estimator_in_a_program_starts_its_entry_point():
    text = """
from sagemaker.huggingface import HuggingFace
words = {"model_name_or_path": "Qwen/Qwen2.5-7B", "per_device_train_batch_size": 2, "max_seq_length": 2048, "learning_rate": 1e-5}
job = HuggingFace(entry_point="train.py", instance_type="ml.p4d.24xlarge", instance_count=2, hyperparameters=words,
                  distribution={"torch_distributed": {"enabled": True}})
job.fit()
"""
    assert hosts(text, "launch.py") == (2, 8)
