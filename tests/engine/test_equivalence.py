"""Every layout on real gloo processes against one device: gradients, losses, norms, parameters.

The whole matrix shares one fork server; each case is two optimizers, two steps each, in fp64.
"""

import pytest
import torch

from meshwright.cli import run
from meshwright.engine.parallel.guards import check
from meshwright.engine.proof import verify as proof
from meshwright.engine.proof.agreement import (
    FP64_BOUND,
    Trace,
    absolute_error,
    derived_bounds,
    relative_differences,
)
from meshwright.engine.proof.shrink import Case
from meshwright.engine.ranks.processes import run_ranks
from meshwright.schedules import build, write_torch_csv
from meshwright.specs.errors import SpecError
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model

pytestmark = pytest.mark.dist

LLAMA = Model(layers=4, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=64)
TIED = LLAMA.but(tied_embeddings=True)
QWEN = LLAMA.but(family="qwen3", qk_norm="head", qkv_bias=True, window=5)
GPT2 = LLAMA.but(
    family="gpt2", kv_heads=4, gated=False, tied_embeddings=True, norm="layernorm", norm_bias=True,
    qkv_bias=True, attention_out_bias=True, ffn_bias=True, positions="learned", max_positions=16,
)  # fmt: skip
MOE = LLAMA.but(family="mixtral", experts={"experts": 4, "top_k": 2, "ffn": 48, "dense_layers": 1})
SHARED = MOE.but(experts={"experts": 4, "top_k": 2, "ffn": 48, "shared_ffn": 32,
                          "shared_gate": True})  # fmt: skip
V = {"virtual_stages": 2}
SP = {"sequence_parallel": True}

CASES = {
    "dp2": (LLAMA, {"dp": 2}),
    "dp4-uneven-rows": (LLAMA.but(hidden=65), {"dp": 4, "zero": 3}),
    "zero1": (LLAMA, {"dp": 2, "zero": 1}),
    "zero2": (LLAMA, {"dp": 2, "zero": 2}),
    "zero3": (LLAMA, {"dp": 2, "zero": 3, "micro_batch": 2}),
    "zero3-tied": (TIED, {"dp": 2, "zero": 3}),
    "hsdp": (LLAMA, {"dp": 4, "zero": 3, "shard": 2}),
    "hsdp-zero1": (LLAMA, {"dp": 4, "zero": 1, "shard": 2}),
    "tp2": (LLAMA, {"tp": 2}),
    "tp2-sp": (LLAMA, {"tp": 2, **SP}),
    "tp4-fewer-kv-heads": (LLAMA, {"tp": 4}),
    "tp4-sp-fewer-kv-heads": (QWEN, {"tp": 4, **SP}),
    "tp2-gpt2": (GPT2, {"tp": 2}),
    "tp2-sp-gpt2": (GPT2, {"tp": 2, **SP}),
    "pp2-1f1b": (LLAMA, {"pp": 2}),
    "pp4-gpipe": (LLAMA, {"pp": 4, "schedule": "gpipe"}),
    "pp2-uneven": (LLAMA, {"pp": 2, "stage_layers": (1, 3)}),
    "pp2-interleaved": (LLAMA, {"pp": 2, **V, "schedule": "interleaved"}),
    "pp2-looped-bfs": (LLAMA, {"pp": 2, **V, "schedule": "looped-bfs"}),
    "pp2-zb-h1": (LLAMA, {"pp": 2, "schedule": "zb-h1"}),
    "pp2-zb-interleaved": (LLAMA, {"pp": 2, **V, "schedule": "zb-h1"}),
    "pp2-zb-v": (LLAMA, {"pp": 2, **V, "schedule": "zb-v"}),
    "pp2-dualpipe-v": (LLAMA, {"pp": 2, **V, "schedule": "dualpipe-v"}),
    "pp4-zb-h2": (LLAMA, {"pp": 4, "schedule": "zb-h2"}),
    "pp2-zb-auto-zero2": (LLAMA, {"pp": 2, "dp": 2, "zero": 2, "schedule": "zb-auto"}),
    "pp2-v-half": (LLAMA, {"pp": 2, **V, "schedule": "v-half"}),
    "pp2-v-min-tp2": (TIED, {"pp": 2, "tp": 2, **V, "schedule": "v-min", **SP}),
    "pp2-hanayo": (LLAMA, {"pp": 2, **V, "schedule": "hanayo"}),
    "pp2-tied": (TIED, {"pp": 2}),
    "pp2-tied-zb-v": (TIED, {"pp": 2, **V, "schedule": "zb-v"}),
    "pp2-gpt2-zero3": (GPT2, {"pp": 2, "dp": 2, "zero": 3}),
    "cp2": (LLAMA, {"cp": 2}),
    "cp4-window": (QWEN, {"cp": 4, "zero": 3}),
    "cp4-ring": (LLAMA, {"cp": 4, "cp_method": "ring"}),
    "cp2-ring-window-selective": (
        QWEN, {"cp": 2, "tp": 2, **SP, "cp_method": "ring", "recompute": "selective"}
    ),
    "cp2-ring-pp2-zb-v": (
        GPT2, {"cp": 2, "pp": 2, **V, "schedule": "zb-v", "cp_method": "ring", "zero": 1}
    ),
    "cp2-gpt2": (GPT2, {"cp": 2}),
    "ep2": (MOE, {"dp": 2, "ep": 2}),
    "ep2-of-4-zero3": (MOE, {"dp": 4, "ep": 2, "zero": 3}),
    "moe-one-expert-a-rank": (MOE, {"dp": 4, "ep": 4, "zero": 2}),
    "moe-without-ep-zero3": (MOE, {"dp": 2, "zero": 3}),
    "moe-tp2-ep2-shared": (SHARED, {"dp": 2, "tp": 2, "ep": 2, **SP}),
    "moe-ep-over-tp-pp2": (MOE, {"dp": 2, "tp": 2, "pp": 2, "ep": 4, **SP}),
    "moe-cp2-ep2": (MOE, {"cp": 2, "ep": 2}),
    "recompute-full-zero3": (LLAMA, {"dp": 2, "zero": 3, "recompute": "full"}),
    "recompute-selective-tp2": (LLAMA, {"tp": 2, "recompute": "selective"}),
    "recompute-one-layer-zb-v": (
        LLAMA, {"pp": 2, **V, "schedule": "zb-v", "recompute": "full", "recompute_layers": 1}
    ),
    "recompute-per-stage-uneven": (
        LLAMA, {"pp": 2, "tp": 2, **SP, "stage_layers": (1, 3), "recompute": "full",
                "stage_recompute_layers": (1, 2)}
    ),
    "recompute-full-moe-ep2": (MOE, {"dp": 2, "ep": 2, "recompute": "full"}),
    "3d": (LLAMA, {"dp": 2, "tp": 2, "pp": 2, **SP}),
    "3d-no-sp-zero1": (QWEN, {"dp": 2, "tp": 2, "pp": 2, "zero": 1}),
    "3d-zero3-interleaved": (
        LLAMA, {"dp": 2, "tp": 2, "pp": 2, "zero": 3, **V, "schedule": "interleaved"}
    ),
    "3d-tied-zero2-zb-v": (
        TIED, {"dp": 2, "tp": 2, "pp": 2, "zero": 2, **V, "schedule": "zb-v", **SP}
    ),
    "3d-other-rank-order": (
        LLAMA, {"dp": 2, "tp": 2, "pp": 2, "zero": 1, "rank_order": "pp-dp-cp-ep-tp"}
    ),
    "cp2-tp2-pp2": (LLAMA, {"cp": 2, "tp": 2, "pp": 2, **SP}),
    "4d": (LLAMA, {"dp": 2, "cp": 2, "tp": 2, "pp": 2, "zero": 1, **SP}),
}  # fmt: skip

TINY = {"layers": 2, "hidden": 32, "head_dim": 8, "ffn": 48}
FIVE = {
    "16-ranks-ring-zero2": (
        MOE.but(**TINY, tied_embeddings=True),
        {"dp": 2, "cp": 2, "tp": 2, "pp": 2, "ep": 4, "zero": 2, **SP, "cp_method": "ring",
         "recompute": "selective"},
    ),
    "32-ranks-hsdp": (
        MOE.but(**TINY, kv_heads=1),
        {"dp": 4, "cp": 2, "tp": 2, "pp": 2, "ep": 4, "zero": 3, "shard": 4, **SP},
    ),
}  # fmt: skip
"""All five axes at once on a tiny model, with packed documents."""

PACKED = {
    "zero3-full-recompute": (LLAMA, {"dp": 2, "zero": 3, "recompute": "full"}),
    "tp4-sp-window-selective": (QWEN, {"tp": 4, **SP, "recompute": "selective"}),
    "tp2-gpt2": (GPT2, {"tp": 2}),
    "cp4-ring": (GPT2, {"cp": 4, "cp_method": "ring"}),
    "cp2-tp2-sp-pp2": (QWEN, {"cp": 2, "tp": 2, "pp": 2, **SP, "recompute": "full"}),
    "pp2-zb-v-ring": (LLAMA, {"pp": 2, "cp": 2, **V, "schedule": "zb-v", "cp_method": "ring"}),
    "pp2-interleaved-zero3": (
        TIED, {"pp": 2, "dp": 2, "zero": 3, **V, "schedule": "interleaved"}
    ),
    "moe-ep2-tp2": (MOE, {"dp": 2, "tp": 2, "ep": 2, **SP}),
}  # fmt: skip
"""Packed documents, with attention confined to each, and dropout at once."""

MUTANTS = {
    "dp": (LLAMA, {"dp": 2}), "dp-zero3": (LLAMA, {"dp": 2, "zero": 3}),
    "tp": (LLAMA, {"tp": 2}), "tp-sp": (LLAMA, {"tp": 2, **SP}), "sp": (LLAMA, {"tp": 2, **SP}),
    "sp-kv": (LLAMA, {"tp": 4}), "pp": (LLAMA, {"pp": 2}), "tied": (TIED, {"pp": 2}),
    "tied-v": (TIED, {"pp": 2, **V, "schedule": "zb-v"}), "cp": (LLAMA, {"cp": 2}),
    "cp-ring": (LLAMA, {"cp": 2, "cp_method": "ring"}),
    "ep": (MOE, {"dp": 2, "ep": 2}), "edp": (MOE, {"dp": 4, "ep": 2}),
    "edp-zero3": (MOE, {"dp": 4, "ep": 2, "zero": 3}), "loss": (LLAMA, {"tp": 2}),
    "hsdp": (LLAMA, {"dp": 4, "zero": 1, "shard": 2}), "tokens": (LLAMA, {"dp": 2}),
    "documents": (LLAMA, {"cp": 2}),
    "documents-ring": (LLAMA, {"cp": 2, "cp_method": "ring"}), "dropout": (LLAMA, {"tp": 2}),
}  # fmt: skip

STEPS = 2


def _case(model, options, **extra):
    layout = Layout(**options)
    return Case(
        model=model, layout=layout, global_batch=8 if layout.micro_batch == 1 else 16,
        seq_len=16, shrunk=(), **extra,
    )  # fmt: skip


@pytest.fixture(scope="module")
def oracles():
    """The single-device run of each (model, batch), made once."""
    known = {}

    def get(case):
        key = (case.model.model_dump_json(), case.global_batch, case.documents, case.dropout)
        if key not in known:
            known[key] = run_ranks(
                proof.oracle, 1, case, proof.default_numerics(case.model), STEPS, 0, "fp64"
            )[0]
        return known[key]

    return get


@pytest.mark.parametrize("name", CASES)
def test_plan_equals_one_device(name, oracles):
    _assert_equal(_case(*CASES[name]), oracles)


@pytest.mark.parametrize("name", PACKED)
def test_packed_documents_and_dropout_equal_one_device(name, oracles):
    case = _case(*PACKED[name], documents=True, dropout=0.2)
    _assert_equal(case, oracles, optimizers=("sgd",))


@pytest.mark.parametrize("name", FIVE)
def test_five_axes_at_once_equal_one_device(name, oracles):
    case = _case(*FIVE[name], documents=True)
    _assert_equal(case, oracles, optimizers=("sgd",), steps=1)


def _assert_equal(case, oracles, optimizers=proof.OPTIMIZERS, steps=STEPS):
    wanted = oracles(case)
    numerics = proof.default_numerics(case.model)
    ranks = run_ranks(
        proof.planned, case.layout.world, case, numerics, steps, 0, "fp64",
        optimizers, "", "", timeout_s=120,
    )  # fmt: skip
    seen = set()
    for rank in ranks:
        for optimizer in optimizers:
            error, where = absolute_error(rank[optimizer], wanted[optimizer])
            assert error <= FP64_BOUND, (optimizer, where)
        seen |= set(rank["sgd"].gradients[0])
    assert seen == set(wanted["sgd"].gradients[0])  # no parameter escaped the comparison


def test_any_schedule_file_runs_and_equals_one_device(tmp_path):
    file = tmp_path / "order.csv"
    order = build("interleaved", pp=2, micro_batches=6, virtual_stages=2, group=3)
    file.write_text(write_torch_csv(order))
    layout = Layout(pp=2, virtual_stages=2, schedule="interleaved")
    verdict = proof.verify(LLAMA, layout, steps=1, mutants=False, csv=str(file))
    assert verdict.passed
    with pytest.raises(SpecError, match="its pp is 2, the layout's 4"):
        proof.verify(LLAMA, Layout(pp=4), csv=str(file))


@pytest.mark.parametrize(
    "schedule", ["gpipe", "interleaved", "looped-bfs", "zb-h1", "zb-v", "dualpipe-v", "hanayo"]
)
def test_schedules_that_simulate_writes_are_executed_as_written(schedule, oracles, tmp_path):
    file, chunks = tmp_path / "order.csv", 1 if schedule in ("gpipe", "zb-h1") else 2
    flags = ["simulate", "--schedule", schedule, "--pp", 2, "--micro-batches", 8]
    assert run([*map(str, flags), "--virtual-stages", str(chunks), "--csv", str(file)]) == 0
    # The layout names another schedule: what runs is the file's.
    named = "interleaved" if chunks > 1 else "1f1b"
    case = _case(TIED, {"pp": 2, "virtual_stages": chunks, "schedule": named})
    check(case.model, case.layout, global_batch=8, seq_len=16, csv=str(file))
    ranks = run_ranks(
        proof.planned, 2, case, proof.default_numerics(TIED), 1, 0, "fp64", ("sgd",), "", str(file)
    )
    wanted = oracles(case)["sgd"]
    for rank in ranks:
        assert absolute_error(rank["sgd"], wanted)[0] <= FP64_BOUND
    assert set().union(*(rank["sgd"].gradients[0] for rank in ranks)) == set(wanted.gradients[0])


@pytest.mark.parametrize("name", MUTANTS)
def test_a_missing_reduction_is_caught(name, oracles):
    axis = name.split("-")[0]
    extra = {"documents": axis == "documents", "dropout": 0.1 if axis == "dropout" else 0.0}
    case = _case(*MUTANTS[name], **extra)
    assert axis in dict(proof.active_mutants(case))
    ranks = run_ranks(
        proof.planned, case.layout.world, case, proof.default_numerics(case.model), 1, 0, "fp64",
        ("sgd",), axis, "",
    )  # fmt: skip
    wanted = oracles(case)["sgd"]
    assert max(absolute_error(rank["sgd"], wanted)[0] for rank in ranks) > 1e-6


@pytest.mark.parametrize(
    ("precision", "model", "options", "mutants"),
    [
        ("fp32", LLAMA, {"dp": 2, "tp": 2, **SP, "zero": 1}, False),
        # A GPT-2's key biases have no gradient: only rounding, at any precision.
        ("bf16", GPT2, {"dp": 2, "tp": 2, **SP, "zero": 3}, True),
        ("bf16", MOE, {"dp": 2, "ep": 2, "zero": 2}, True),
        ("bf16", LLAMA, {"cp": 2, "pp": 2, "cp_method": "ring"}, False),
    ],
    ids=["fp32-2d", "bf16-zero3-tp", "bf16-experts", "bf16-ring-pipeline"],
)
def test_low_precision_stays_within_a_few_times_one_devices_own_error(
    precision, model, options, mutants
):
    assert proof.PRECISIONS[precision].master == torch.float32
    verdict = proof.verify(model, Layout(**options), precision=precision, steps=1, mutants=mutants)
    assert verdict.passed
    assert verdict.equal
    assert len(verdict.mutants) >= 2 * mutants
    assert verdict.bound < (1e-4 if precision == "fp32" else 0.6)
    assert verdict.loss_bound < (1e-5 if precision == "fp32" else 0.05)


def test_differences_are_held_against_their_own_bounds():
    exact = Trace(losses=[2.0], norms=[1.0], gradients=[{"w": torch.ones(4), "b": torch.zeros(2)}])
    near = Trace(losses=[2.02], norms=[1.0],
                 gradients=[{"w": torch.full((4,), 1.1), "b": torch.full((2,), 1e-9)}])  # fmt: skip
    differences = relative_differences(near, exact)
    assert differences == pytest.approx({"loss": 0.01, "grad_norm": 0.0, "w": 0.1})
    bounds = derived_bounds([differences], torch.bfloat16)
    assert (bounds.tensors, bounds.scalars) == pytest.approx((0.2, 0.02))
    assert bounds.hold(differences)
    assert bounds.worst({"w": 0.15, "loss": 0.05}) == (0.05, "loss")
    assert not bounds.hold({"w": 0.15, "loss": 0.05})
    assert not bounds.hold({"w": float("inf")})
    lucky = derived_bounds([{"loss": 0.0, "w": 0.1}], torch.bfloat16)
    assert lucky.scalars == pytest.approx(2 * 2**-7)
    broken = Trace(losses=[float("nan")], norms=[1.0], gradients=near.gradients)
    assert relative_differences(broken, exact)["loss"] == float("inf")


def test_the_test_weights_exercise_norms_and_biases():
    ones = proof.test_value("norm.weight", (64,), LLAMA, proof.default_numerics(LLAMA))
    zeros = proof.test_value(
        "layers.0.attention.q.bias", (64,), LLAMA, proof.default_numerics(LLAMA)
    )
    assert (ones - 1).abs().min() > 0
    assert torch.count_nonzero(zeros) == 64
