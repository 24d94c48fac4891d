"""What Megatron-LM's switches change is priced, or named."""

import pytest

from meshwright.imports.critique import criticise, price
from meshwright.imports.files import import_text
from meshwright.imports.reading import Given, Imported
from meshwright.specs import load_cluster
from meshwright.specs.errors import SpecError

GIVEN = Given(cluster=load_cluster("h100:2x8"), guess=True)
BASE = (
    "#!/bin/bash\ntorchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \\\n  --num-layers 16 --hidden-size 4096 \\\n"
    "  --num-attention-heads 32 --ffn-hidden-size 14336 --swiglu --normalization RMSNorm --disable-bias-linear \\\n"
    "  --position-embedding-type rope --vocab-size 128256 --tokenizer-type NullTokenizer --max-position-embeddings 4096 \\\n"
    "  --seq-length 4096 --micro-batch-size 1 --global-batch-size 16 --bf16 --attention-dropout 0 --hidden-dropout 0 \\\n"
    "  --tensor-model-parallel-size 2 --use-distributed-optimizer "
)
OVERLAP = "--overlap-grad-reduce --overlap-param-gather "


def script(words: str) -> Imported:
    return import_text(f"{BASE}{words}\n", "run.sh", GIVEN)


def step_s(words: str) -> float:
    return price(script(words)).estimate.step_time_s


def named(found: Imported) -> str:
    return " ".join(one.option for one in found.remarks if one.kind == "unmodelled")


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (OVERLAP, {}),
        ("", {"reduce_overlapped": False, "gather_overlapped": False}),
        ("--overlap-grad-reduce", {"gather_overlapped": False}),
        (OVERLAP + "--tp-comm-overlap", {"tensor_overlapped": True}),
        (OVERLAP + "--no-overlap-p2p-communication", {"p2p_overlapped": False}),
        (OVERLAP + "--ddp-bucket-size 1000000", {"bucket_parameters": 1e6, "bucket_parameters_per_rank": 0.0}),
        (OVERLAP + "--make-vocab-size-divisible-by 1024", {"vocab_multiple": 1024}),
        (OVERLAP + "--cross-entropy-loss-fusion", {"logits_bytes": 4.0}),
        (OVERLAP + "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", {}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", {}),
    ],
)  # fmt: skip
def test_switches_change_what_is_priced(words: str, options: dict[str, object]):
    assert script(words).job.framework_options == options


def test_what_is_not_hidden_takes_time():
    assert step_s("") > step_s("--overlap-grad-reduce") > step_s(OVERLAP)


def test_the_switches_that_hide_collectives_are_offered_with_their_lines():
    back = script("")
    text = f"{BASE}\n"
    changes = criticise(
        back, price(back), text, lambda new: import_text(new, "x.sh", GIVEN)
    ).changes
    change = next(one for one in changes if one.what.startswith("hide"))
    assert change.gain > 0.02 and OVERLAP.strip() in change.edits[0].new
    assert not any(
        one.what.startswith("hide")
        for one in criticise(script(OVERLAP), price(script(OVERLAP))).changes
    )


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("--output-logit-dtype fp32", "--output-logit-dtype"),
        ("--logits-load-dir /d", "--logits-load-dir"),
        ("--distributed-backend gloo", "--distributed-backend"),
        ("--spec my_models.layers my_spec", "--spec"),
        ("--transformer-impl inference_optimized", "--transformer-impl"),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl linear", "--cross-entropy-fusion-impl"),
        ("--num-experts 8 --moe-router-topk 2", "--moe-grouped-gemm"),
        ("--num-experts 8 --moe-grouped-gemm --moe-router-force-load-balancing", "--moe-router-force-load-balancing"),
        ("--seq-length 65536", "--no-create-attention-mask-in-dataloader"),
    ],
)  # fmt: skip
def test_what_no_price_holds_is_named(words: str, option: str):
    assert option in named(script(words))


@pytest.mark.parametrize(
    "words",
    [
        "--spec megatron.core.models.gpt.gpt_layer_specs get_gpt_layer_with_transformer_engine_spec",
        "--seq-length 65536 --no-create-attention-mask-in-dataloader",
        "--num-experts 8 --moe-grouped-gemm",
    ],
)
def test_what_is_as_priced_is_not(words: str):
    found = named(script(words))
    assert not any(name in found for name in ("--spec", "mask", "grouped"))


@pytest.mark.parametrize("words", ["--skip-train", "--train-iters 0 --train-samples 0", "--train-samples 0"])  # fmt: skip
def test_a_run_that_skips_training_is_none(words: str):
    with pytest.raises(SpecError, match="does not train"):
        script(words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--stage orm --noop-layers 15 --is-pairwise-dataset", "head has one output"),
        ("--stage prm --noop-layers 15", "head has one output"),
        ("--stage simpo --noop-layers 15", "pair of sequences"),
    ],
)
def test_a_stage_that_trains_something_else_is_named(words: str, said: str):
    assert said in "\n".join(script(words).notes)
