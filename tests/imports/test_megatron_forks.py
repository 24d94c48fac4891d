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


def test_a_fork_s_own_llama_needs_no_options(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "pretrain_llama.py").write_text(
        "from megatron.model import LlamaModel, LlamaModelPipe\n"
    )
    text = BASE.replace("pretrain_gpt.py", "pretrain_llama.py") + "--ffn-hidden-size 2816\n"
    model = import_text(text, str(tmp_path / "run.sh"), GIVEN, tmp_path).model
    assert (model.gated, model.norm, model.positions, model.ffn) == (True, "rmsnorm", "rope", 2816)


def test_an_optimizer_that_nobody_knows_is_named_and_priced_as_adamw():
    found = read("--optimizer somebodys")
    assert found.job.optimizer.name == "adamw"
    assert any("somebodys" in note for note in found.notes)


def test_what_trains_on_one_of_several_machines_is_found_by_a_guess():
    text = f'HERE=$(ip addr | tail -1)\nif [ "$HEAD" = "$HERE" ]; then\n  {BASE}\nelse\n  ray start\nfi\n'
    found = import_text(text, "run.sh", GIVEN)
    assert found.model.layers == 4
    assert any("counts as true" in note for note in found.notes)
