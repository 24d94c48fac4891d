"""llm-recipes' commands: Megatron-LM's spellings around FSDP, no llama-recipes of Meta's."""

import pytest

from meshwright.imports.files import import_text
from meshwright.imports.reading import Given
from meshwright.specs import load_cluster
from meshwright.specs.errors import SpecError

GIVEN = Given(cluster=load_cluster("h100:2x8"))
RUN = (
    "mpirun -np 16 --npernode 8 python examples/finetuning.py --seq-length 8192 --micro-batch-size 2 --global-batch-size 512 --train-iters 25000 "
    "--base-model /models/Meta-Llama-3-8B --lr 2.5e-5 --optimizer adam --adam-beta1 0.9 --save /c --tokenizer-type Llama3Tokenizer "
)


def test_the_batch_counts_whole_steps_and_weights_stay_in_16_bits():
    found = import_text(RUN + "--bf16 --mixed-precision --fsdp-activation-checkpointing --sharding-strategy SHARD_GRAD_OP", "run.sh", GIVEN)  # fmt: skip
    layout, job = found.layout, found.job
    assert (found.model.name, layout.zero, layout.micro_batch, layout.recompute) == ("llama3-8b", 2, 2, "full")  # fmt: skip
    assert (job.global_batch, job.seq_len, job.precision.name) == (512, 8192, "pure-bf16")
    assert not [one for one in found.remarks if one.kind == "unread"]


def test_wide_weights_and_unknown_options_are_seen():
    found = import_text(RUN + "--bf16 --param-dtype fp32 --something-new 3", "run.sh", GIVEN)
    assert found.job.precision.name == "bf16"
    assert any(one.kind == "unread" and "something" in one.option for one in found.remarks)


def test_a_strategy_that_is_none_is_refused():
    with pytest.raises(SpecError, match="sharding-strategy"):
        import_text(RUN + "--sharding-strategy SOME", "run.sh", GIVEN)
