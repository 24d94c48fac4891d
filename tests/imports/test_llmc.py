"""llm.c's command lines: options of one or two letters."""

import pytest
from folders import GUESS

from meshwright.imports.files import import_text
from meshwright.imports.reading import Given
from meshwright.specs import load_model
from meshwright.specs.errors import SpecError

RUN = """make train_gpt2cu USE_CUDNN=1{made}
while true; do
    mpirun -np 8 ./train_gpt2cu -i "fineweb_train_*.bin" -o log -b 16 -t 1024 -d 1048576 -r {again} -z 1 -l 0.0006 -n 2000 -sl 7.0 {rest}
done
"""


def run(again: int = 0, made: str = "", rest: str = '-e "d48"'):
    return import_text(RUN.format(again=again, made=made, rest=rest), "run.sh", GUESS)


def test_a_command_line_gives_model_ranks_batch_and_stage():
    found = run()
    model, layout = found.model, found.layout
    assert found.format == "llm.c command"
    assert (model.layers, model.hidden, model.heads, model.vocab) == (48, 1600, 25, 50_304)
    assert model.positions == "learned"
    assert model.tied_embeddings
    assert (layout.world, layout.zero, layout.micro_batch) == (8, 1, 16)
    assert (found.job.global_batch, found.job.seq_len) == (1024, 1024)
    assert (found.job.precision.parameter_bytes, found.job.precision.master_bytes) == (2, 4)


def test_its_shape_is_gpt2s_own():
    ours, theirs = run(rest="-e gpt2:d12").model, load_model("gpt2")
    assert (ours.layers, ours.hidden, ours.ffn) == (theirs.layers, theirs.hidden, theirs.ffn)
    assert run(rest="-e gpt3:c768").model.max_positions == 2048


def test_weights_without_a_copy_and_other_widths():
    assert run(rest="-e d12 -w 0").job.precision.master_bytes == 0
    assert run(made=" PRECISION=FP32").job.precision.parameter_bytes == 4


def test_what_it_computes_again_is_named():
    assert any("computed again" in note for note in run(again=1).notes)
    assert not any("computed again" in note for note in run(again=0).notes)


def test_attention_without_cudnn_keeps_its_scores():
    text = "make train_gpt2cu\n./train_gpt2cu -b 4 -t 1024 -e d12\n"
    found = import_text(text, "run.sh", GUESS)
    assert (found.job.attention_kernel, found.layout.world) == ("unfused", 1)


def test_srun_starts_it_in_a_shell_of_its_own():
    text = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gres=gpu:8
make train_gpt2cu USE_CUDNN=1 NO_USE_MPI=1
binary_path="/home/me/llm.c/train_gpt2cu"
srun -l -u bash -c "
    $binary_path \\
    -b 64 -t 1024 \\
    -d 2097152 -z 1 -e d12 \\
    -pn \\$SLURM_NTASKS -pr \\$SLURM_PROCID -pg \\$SLURM_NTASKS_PER_NODE \\
    -pi "fs" \\
"
"""
    found = import_text(text, "run.sbatch", GUESS)
    assert (found.layout.world, found.cluster.nodes, found.job.global_batch) == (16, 2, 2048)


@pytest.mark.parametrize("size", ["d13", "gpt3:c5140", "gpt3:c769"])
def test_a_size_that_the_program_does_not_know_is_refused(size: str):
    with pytest.raises(SpecError, match="is what the program knows"):
        run(rest=f"-e {size}")


def test_a_checkpoint_of_one_s_own_asks_for_the_model():
    with pytest.raises(SpecError, match="--model"):
        import_text(
            RUN.format(again=0, made="", rest="-e log/model_00010000.bin"), "run.sh", Given()
        )
