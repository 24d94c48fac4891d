"""MindSpeed's options (Megatron-LM on Ascend NPUs): layers, experts, Ulysses, what is swapped."""

from __future__ import annotations

import pytest

from meshwright.imports.files import import_text
from meshwright.imports.reading import Given, Imported
from meshwright.specs import load_cluster
from meshwright.specs.errors import SpecError

HEAD = """
NPUS_PER_NODE=8
torchrun --nproc_per_node $NPUS_PER_NODE --nnodes {hosts} pretrain_gpt.py --use-mcore-models --bf16 --swiglu \\
  --hidden-size 1024 --num-attention-heads 16 --group-query-attention --num-query-groups {groups} --ffn-hidden-size 4096 \\
  --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --padded-vocab-size 32000 --normalization RMSNorm \\
  --position-embedding-type rope --disable-bias-linear --attention-dropout 0 --hidden-dropout 0 \\
  --tokenizer-not-use-fast {more}
"""


def _read(more: str, hosts: int = 1, groups: int = 16) -> Imported:
    text = HEAD.format(hosts=hosts, groups=groups, more=more)
    return import_text(
        text, "run.sh", Given(cluster=load_cluster("h100:1x8" if hosts == 1 else f"h100:{hosts}x8"))
    )


def _said(found: Imported) -> str:
    return "\n".join(found.notes)


EXPERTS = (
    "--num-experts 32 --moe-router-topk 4 --moe-ffn-hidden-size 512 --expert-model-parallel-size 8"
)


def test_dense_layers_and_shared_experts_are_counted() -> None:
    """A frequency of -1 is every layer after the first dense ones; shared experts are as wide as n experts."""
    found = _read(f"--num-layers 6 {EXPERTS} --moe-layer-freq -1 --first-k-dense-replace 2 --n-shared-experts 2")  # fmt: skip
    experts = found.model.experts
    assert experts is not None
    assert (experts.dense_layers, experts.period, experts.shared_ffn) == (2, 1, 1024)


def test_empty_layers_only_fill_stages_up() -> None:
    """The last stage holds fewer layers, and the model has none of the empty ones."""
    found = _read("--num-layers 8 --noop-layers 6,7 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2")  # fmt: skip
    assert found.model.layers == 6
    assert (found.layout.virtual_stages, found.layout.stage_layers) == (2, (2, 2, 2, 0))


def test_stages_of_named_sizes() -> None:
    """A list of layers is a stage's each."""
    found = _read("--num-layers 8 --num-layer-list 5,3 --pipeline-model-parallel-size 2")
    assert found.layout.stage_layers == (5, 3)
    with pytest.raises(SpecError, match="num-layer-list"):
        _read("--num-layers 8 --num-layer-list 5,5 --pipeline-model-parallel-size 2")


def test_two_stages_folded_into_a_v() -> None:
    """DualPipeV cuts every rank's layers into two stages."""
    found = _read("--num-layers 8 --schedules-method dualpipev --pipeline-model-parallel-size 2")
    assert (found.layout.schedule, found.layout.virtual_stages) == ("dualpipe-v", 2)


def test_ulysses_by_its_name_here() -> None:
    """The algorithm's name counts; heads that must be repeated for it are said not to be modelled."""
    found = _read(
        "--num-layers 8 --context-parallel-size 4 --context-parallel-algo ulysses_cp_algo"
    )
    assert found.layout.cp_method == "ulysses"
    repeated = _read(
        "--num-layers 8 --context-parallel-size 4 --context-parallel-algo ulysses_cp_algo", groups=2
    )
    assert repeated.layout.cp_method == "ring" and "repeated to be dealt out" in _said(repeated)


def test_what_is_swapped_shared_and_narrowed() -> None:
    """The optimizer in host memory, 32-bit weights as 16 bits and a remainder, moments in 16 bits."""
    found = _read("--num-layers 8 --use-distributed-optimizer --swap-optimizer --reuse-fp32-param --o2-optimizer")  # fmt: skip
    assert "optimizer" in found.offload
    assert found.job.precision.master_bytes == 2 and found.job.optimizer.state_bytes == 4
    found = _read("--num-layers 8 --swap-attention --recompute-num-layers 3")
    assert (found.layout.recompute, found.layout.recompute_layers) == ("full", 3)
    assert "--swap-attention" in _said(found)


@pytest.mark.parametrize(("said", "option"), [
    ("--enable-high-availability", "--enable-high-availability"), ("--sparse-mode 4 --pre-tockens 1024", "--pre-tockens"), ("--sparse-mode 1", "--sparse-mode"),
])  # fmt: skip
def test_copies_and_masks_are_named(said: str, option: str) -> None:
    """A replica of the optimizer, masks that are not causal, bands."""
    usual = _read("--num-layers 8 --sparse-mode 2 --pre-tockens 65536 --enable-high-availability --distributed-optimizer-no-replica")  # fmt: skip
    assert option not in _said(usual)
    assert option in _said(_read(f"--num-layers 8 {said}"))


def test_experts_over_tensor_ranks_too() -> None:
    """`--moe-tp-extend-ep` deals whole experts out over tensor ranks."""
    more = EXPERTS.replace("parallel-size 8", "parallel-size 2")
    found = _read(
        f"--num-layers 4 {more} --tensor-model-parallel-size 2 --sequence-parallel --moe-tp-extend-ep --moe-token-dispatcher-type alltoall_seq"
    )
    assert (found.layout.ep, found.layout.etp) == (4, 1)


def test_adapters_and_preferences() -> None:
    """LoRA's rank and DPO's stage are the job's."""
    found = _read("--num-layers 8 --finetune --stage dpo --lora-r 8 --lora-alpha 16 --lora-target-modules linear_qkv linear_proj")  # fmt: skip
    assert found.job.finetune is not None and found.job.finetune.rank == 8
    assert found.task == "dpo" and found.reference


def test_linear_attention_is_refused() -> None:
    """Every third layer alone attends: no model of softmax attention."""
    with pytest.raises(SpecError, match="linear or state-space"):
        _read("--num-layers 8 --full-attention-interval 3")


@pytest.mark.parametrize(
    ("more", "owners"),
    [
        ("--share-kvstates --cla-share-factor 2", 4), ("--share-kvstates --cla-share-factor 3", 5),
        ("--share-kvstates --cla-share-factor 1", 0), ("", 0),
    ],
)  # fmt: skip
def test_layers_that_share_keys_and_values_are_priced(more: str, owners: int) -> None:
    found = _read(f"--num-layers 7 {more}", groups=8)
    assert found.model.kv_owners == owners
    assert "share keys" not in _said(found)


def test_a_factor_without_shared_states_is_said() -> None:
    assert "--cla-share-factor: layers share keys" in _said(
        _read("--num-layers 7 --cla-share-factor 2", groups=8)
    )
