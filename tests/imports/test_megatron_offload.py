"""What Megatron-Core's switches move to host memory: the parts that are named, and nothing for a few layers."""

import pytest

from meshwright.imports.files import import_text
from meshwright.imports.reading import Given
from meshwright.specs import load_cluster

RUN = """torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 \\
 --num-experts 8 --moe-router-topk 2 --vocab-size 32000 --use-distributed-optimizer {more}
"""
BOX = Given(cluster=load_cluster("h100:1x8"), guess=True)


def read(more: str):
    return import_text(RUN.format(more=more), "run.sh", BOX, None)


FINE = "--fine-grained-activation-offloading --offload-modules"


@pytest.mark.parametrize(("more", "parts"), [
    (f"{FINE} moe_act core_attn", {"moe_act", "core_attn"}),
    (f"{FINE} fused_group_mlp", {"moe_act", "expert_fc1"}),
    (f"{FINE} moe_act --activation-offload-fraction 0.5", set()),
    ("--cpu-offloading-num-layers 8", set()), ("--cpu-offloading-num-layers 31", {"activations"}),
    ("--optimizer-cpu-offload", {"optimizer"}), ("--optimizer hybridadam --optimizer-offload-fraction 1.0", {"optimizer"}),
    ("--optimizer hybridadam", set()), ("--optimizer hybridadam --optimizer-offload-policy auto", {"optimizer"}), ("--offload-modules moe_act", set()),
])  # fmt: skip
def test_parts_are_read(more, parts):
    assert set(read(more).layout.offload) == parts


@pytest.mark.parametrize(("more", "option"), [
    ("--cpu-offloading-num-layers 8", "--cpu-offloading-num-layers"),
    (f"{FINE} gdp_qkv", "--offload-modules"),
    (f"{FINE} moe_act --activation-offload-fraction 0.5", "--activation-offload-fraction"),
])  # fmt: skip
def test_what_moves_in_part_is_said(more, option):
    run = read(more)
    assert not run.layout.offload and not run.offload
    assert any(one.option == option and "keeps them" in one.text for one in run.remarks)


@pytest.mark.parametrize(("more", "option"), [
    ("--optimizer hybridadam", "--optimizer-offload-fraction"),
    ("--optimizer hybridadam --optimizer-offload-policy auto", "--optimizer-offload-policy"),
    ("--use-precision-aware-optimizer", "--use-precision-aware-optimizer"),
])  # fmt: skip
def test_what_the_estimate_has_no_term_for_is_said(more, option):
    assert option in {one.option for one in read(more).remarks}
