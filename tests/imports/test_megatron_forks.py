"""What forks of Megatron-LM spell or default otherwise."""

import pytest

from meshwright.imports.files import import_text
from meshwright.imports.reading import Given
from meshwright.specs import SpecError, load_cluster

GIVEN = Given(cluster=load_cluster("h100:1x8"), guess=True)
BASE = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 8 --vocab-size 50257 --bf16 "
)


def read(words: str, base: str = BASE):
    return import_text(f"#!/bin/bash\n{base}{words}\n", "run.sh", GIVEN)


def test_megablocks_routes_to_one_expert_unless_it_says_more():
    for words, top_k in (("", 1), ("--moe-top-k=2", 2)):
        experts = read(f"--moe-num-experts=8 {words}").model.experts
        assert experts is not None
        assert (experts.experts, experts.top_k) == (8, top_k)


def test_yuan_keeps_four_widths_under_swiglu():
    assert read("--swiglu").model.ffn == 2688
    assert read("--swiglu --use-lf-gate").model.ffn == 4096


@pytest.mark.parametrize("more", ["", "--zero-stage 1"])
def test_the_vocabulary_is_padded_as_it_says_in_every_dialect(more):
    found = read(f"--make-vocab-size-divisible-by 64 {more}")
    assert found.job.framework_options["vocab_multiple"] == 64


@pytest.mark.parametrize("program", ["mmlu.py", "examples/validate.py"])
def test_what_only_tests_a_model_does_not_train(program):
    with pytest.raises(SpecError, match="does not train"):
        read("", BASE.replace("pretrain_gpt.py", program))
