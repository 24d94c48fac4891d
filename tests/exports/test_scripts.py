"""Shell scripts as people write them: arrays, comments, continuations, defaults, branches, sbatch."""

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given
from meshwright.imports.shell.follow import read_script
from meshwright.imports.shell.words import shown
from meshwright.specs import SpecError, load_cluster

DATA = Path(__file__).parent / "data"
TINY = "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --vocab-size 512"


def test_a_script_of_arrays_and_branches_is_read():
    given = Given(cluster=load_cluster("a100:1x2"))
    unset = import_file(DATA / "moe_example.sh", given)
    assert unset.job.precision.compute == "bf16"
    assert any("DTYPE" in note and "counts as false" in note for note in unset.notes)
    back = import_file(DATA / "moe_example.sh", replace(given, variables=(("DTYPE", "fp8"),)))
    assert (back.layout.dp, back.layout.ep, back.layout.zero, back.job.global_batch) == (2, 2, 1, 4)
    assert back.model.experts is not None
    assert (back.model.experts.experts, back.model.ffn, back.job.seq_len) == (2, 896, 256)
    assert back.job.precision.compute == "fp8"
    assert any("vocabulary" in note for note in back.notes)


def test_comments_end_with_their_line_even_before_a_backslash():
    script = read_script("A=(\n  # --one 1 \\\n  --two 2 # --three 3\n)\nrun.py ${A[@]}\n")
    assert [command.words for command in script.commands] == [["run.py", "--two", "2"]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("N=${NODES:-4}\nrun.py --n $N", ["run.py", "--n", "4"]),
        ("A=2\nB=3\nrun.py --n $((A*$B+1))", ["run.py", "--n", "7"]),
        ("export X='a b'\nrun.py \"$X\"", ["run.py", "a b"]),
        ('A="--p 1"\nA+=" --q 2"\nrun.py $A', ["run.py", "--p", "1", "--q", "2"]),
        ("run.py \\\n  --a 1 \\\n\n", ["run.py", "--a", "1"]),
        (
            "run.py --name $1 --host $(hostname)",
            ["run.py", "--name", "$1", "--host", "$(hostname)"],
        ),
    ],
)
def test_variables_and_arithmetic(text, words):
    assert [shown(word) for word in read_script(text).commands[-1].words] == words


@pytest.mark.parametrize(
    ("head", "launch", "world"),
    [
        ("#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\n", "srun python pretrain_gpt.py", 32),
        ("#SBATCH -N 2\n#SBATCH --gres=gpu:h100:4\n", "srun python pretrain_gpt.py", 8),
        ("#SBATCH --nodes 2\n#SBATCH --ntasks-per-node=8\n", "srun python pretrain_gpt.py", 16),
        ("", "torchrun --nnodes=1:4 --nproc_per_node=8 pretrain_gpt.py", 32),
        ("", "torchrun --nproc-per-node 2 pretrain_gpt.py", 2),
        ("G=8\nN=3\n", "torchrun --nnodes $N --nproc-per-node $G pretrain_gpt.py", 24),
    ],
)
def test_the_number_of_devices_is_what_the_script_starts(head, launch, world):
    text = f"#!/bin/bash\n{head}{launch} {TINY} --micro-batch-size 1 --global-batch-size 96\n"
    per_host = min(8, world)
    given = Given(cluster=load_cluster(f"h100:{world // per_host}x{per_host}"))
    back = import_text(text, "x.sbatch", given)
    assert back.layout.dp == world
    assert not any("--cluster says" in note for note in back.notes)
    if "h100" in head:  # the batch system is asked for a device by name
        assert import_text(text, "x.sbatch", Given()).cluster.gpus == world
        return
    with pytest.raises(SpecError, match=f"{world} devices are started"):
        import_text(text, "x.sbatch", Given())


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2",
         {"virtual_stages": 2, "stage_layers": None}),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*3|t*5L",
         {"stage_layers": (3, 5)}),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout E|(tt|)*2,t*4L",
         {"virtual_stages": 2, "stage_layers": (0, 2, 2, 4)}),
        ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 2",
         {"stage_layers": None}),
        ("--pipeline-model-parallel-size 4 --decoder-last-pipeline-num-layers 5",
         {"stage_layers": (1, 1, 1, 5)}),
        ("--recompute-activations", {"recompute": "selective"}),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 3",
         {"recompute": "full", "recompute_layers": 3}),
        ("--use-megatron-fsdp --use-distributed-optimizer", {"zero": 3}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", {"zero": 2}),
        ("--use-distributed-optimizer --num-distributed-optimizer-instances 2",
         {"zero": 1, "shard": 4}),
        ("--tensor-model-parallel-size 2 --sequence-parallel --use-tp-pp-dp-mapping "
         "--pipeline-model-parallel-size 2", {"rank_order": "tp-cp-ep-pp-dp"}),
    ],
)  # fmt: skip
def test_megatron_flags_become_fields_of_the_layout(flags, expected):
    text = f"torchrun --nproc-per-node 8 pretrain_gpt.py {TINY} --global-batch-size 16 '{flags}'"
    back = import_text(text, "x.sh", Given(cluster=load_cluster("h100:1x8")))
    for field, value in expected.items():
        assert getattr(back.layout, field) == value, field
