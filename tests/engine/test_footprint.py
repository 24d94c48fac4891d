"""The cost model's memory of this engine equals what its own program holds, layout by layout.

`costs/eager.py` adds up closed forms; `engine/proof/dryrun.py` traces the real program on tensors without
data and follows every storage. Nothing is shared between them but the names of the parts.
"""

import numpy as np
import pytest

from meshwright.costs.columns import from_layouts
from meshwright.costs.frameworks import behaviour
from meshwright.costs.memory import memory
from meshwright.costs.stages import stage_layers
from meshwright.engine.proof.dryrun import predicted_parts, trace
from meshwright.engine.proof.footprint import PARTS
from meshwright.specs.job import Job
from meshwright.specs.jobs import precision_recipe
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model

pytestmark = pytest.mark.dist

LLAMA = Model(
    name="llama", layers=4, hidden=256, heads=8, kv_heads=4, head_dim=32, ffn=768, vocab=2048
)
GPT2 = LLAMA.but(
    name="gpt2", family="gpt2", kv_heads=8, ffn=1024, gated=False, norm="layernorm", norm_bias=True,
    positions="learned", max_positions=512, tied_embeddings=True, qkv_bias=True,
    attention_out_bias=True, ffn_bias=True,
)  # fmt: skip
QWEN3 = LLAMA.but(name="qwen3", family="qwen3", qk_norm="head", tied_embeddings=True)
MIXTRAL = LLAMA.but(name="mixtral", experts={"experts": 4, "top_k": 2, "ffn": 384})
DEEP = LLAMA.but(layers=8)
TOLERANCE = 0.02

CASES = {
    "one": (LLAMA, {}, {}),
    "one-fp32": (LLAMA, {"micro_batch": 4}, {"precision": "fp32"}),
    "gpt2": (GPT2, {}, {}),
    "qwen3": (QWEN3, {"micro_batch": 8}, {}),
    "full-recompute": (LLAMA, {"micro_batch": 4, "recompute": "full"}, {}),
    "some-recompute": (LLAMA, {"micro_batch": 4, "recompute": "full", "recompute_layers": 2}, {}),
    "selective": (LLAMA, {"micro_batch": 4, "recompute": "selective"}, {}),
    "dp": (LLAMA, {"dp": 2}, {"precision": "fp32", "micro_batches": 1}),
    "zero1": (LLAMA, {"dp": 4, "zero": 1}, {}),
    "zero1-fp32-gradients": (LLAMA, {"dp": 4, "zero": 1}, {"precision": "bf16-fp32-grads"}),
    "zero2": (LLAMA, {"dp": 4, "zero": 2}, {}),
    "zero3": (LLAMA, {"dp": 4, "zero": 3}, {}),
    "zero3-embedding-apart": (LLAMA.but(vocab=2**15), {"dp": 4, "zero": 3}, {}),
    "tied": (QWEN3.but(vocab=2**15), {}, {"precision": "fp32"}),
    "zero1-tied": (QWEN3.but(vocab=2**15), {"dp": 4, "zero": 1}, {}),
    "zero3-tied": (QWEN3.but(vocab=2**15), {"dp": 4, "zero": 3}, {}),
    "hsdp-full": (
        LLAMA,
        {"dp": 4, "zero": 3, "shard": 2, "micro_batch": 2, "recompute": "full"},
        {},
    ),
    "tp": (GPT2, {"tp": 2, "dp": 2, "zero": 1}, {}),
    "sequence-parallel": (LLAMA, {"tp": 4, "sequence_parallel": True, "micro_batch": 2}, {}),
    "pp-first": (DEEP, {"pp": 4}, {}),
    "pp-middle": (DEEP, {"pp": 4, "dp": 2, "zero": 2}, {"rank": 2}),
    "pp-last": (GPT2, {"pp": 2, "dp": 2, "zero": 1}, {"rank": 1}),
    "gpipe": (LLAMA, {"pp": 2, "schedule": "gpipe"}, {"rank": 1}),
    "interleaved": (LLAMA, {"pp": 2, "virtual_stages": 2, "schedule": "interleaved"}, {"rank": 1}),
    "zb-v-last": (DEEP, {"pp": 4, "virtual_stages": 2, "schedule": "zb-v"}, {"rank": 3}),
    "zb-h1-last": (LLAMA, {"pp": 2, "virtual_stages": 2, "schedule": "zb-h1"}, {"rank": 1}),
    "zb-v": (LLAMA, {"pp": 2, "virtual_stages": 2, "schedule": "zb-v"}, {}),
    "zb-h1-whole-first": (DEEP, {"pp": 4, "schedule": "zb-h1"}, {}),
    "zb-h2-first": (DEEP, {"pp": 4, "schedule": "zb-h2"}, {}),
    "zb-h2-middle": (DEEP, {"pp": 4, "schedule": "zb-h2"}, {"rank": 2}),
    "zb-h2-last": (DEEP, {"pp": 4, "schedule": "zb-h2"}, {"rank": 3}),
    "zb-auto-last": (DEEP, {"pp": 4, "schedule": "zb-auto"}, {"rank": 3}),
    "v-half": (DEEP, {"pp": 4, "virtual_stages": 2, "schedule": "v-half"}, {"rank": 1}),
    "v-half-last": (DEEP, {"pp": 4, "virtual_stages": 2, "schedule": "v-half"}, {"rank": 3}),
    "v-min": (DEEP, {"pp": 4, "virtual_stages": 2, "schedule": "v-min"}, {}),
    "v-min-last": (DEEP, {"pp": 4, "virtual_stages": 2, "schedule": "v-min"}, {"rank": 3}),
    "3d": (DEEP, {"tp": 2, "pp": 2, "dp": 2, "zero": 1, "sequence_parallel": True}, {}),
    "cp": (LLAMA, {"cp": 2, "micro_batch": 2}, {}),
    "ring": (LLAMA, {"cp": 2, "cp_method": "ring", "micro_batch": 2}, {}),
    "ring-fp32": (QWEN3, {"cp": 4, "cp_method": "ring", "micro_batch": 8}, {"precision": "fp32"}),
    "ring-ungrouped": (GPT2, {"cp": 2, "cp_method": "ring", "micro_batch": 4}, {}),
    "window": (LLAMA.but(window=128), {"micro_batch": 2}, {}),
    "window-period": (LLAMA.but(window=128, window_period=2), {"cp": 2, "micro_batch": 2}, {}),
    "window-recompute": (LLAMA.but(window=128), {"micro_batch": 2, "recompute": "full"}, {}),
    "window-pp": (LLAMA.but(window=128), {"pp": 2, "micro_batch": 2}, {}),
    "documents": (LLAMA, {"micro_batch": 2}, {"document_masking": True}),
    "documents-pp": (LLAMA, {"pp": 2, "micro_batch": 2}, {"document_masking": True}),
    "documents-cp": (LLAMA, {"cp": 2, "micro_batch": 2}, {"document_masking": True}),
    "documents-ring": (
        LLAMA,
        {"cp": 2, "cp_method": "ring", "micro_batch": 2},
        {"document_masking": True},
    ),
    "dropout": (GPT2, {"micro_batch": 2}, {"dropout": 0.1}),
    "dropout-pp": (GPT2, {"pp": 2}, {"dropout": 0.1}),
    "dropout-recompute": (LLAMA, {"micro_batch": 4, "recompute": "full"}, {"dropout": 0.1}),
    "dropout-split": (
        LLAMA,
        {"tp": 2, "sequence_parallel": True, "micro_batch": 2},
        {"dropout": 0.1},
    ),
    "experts": (MIXTRAL, {"dp": 2, "ep": 2, "zero": 1}, {}),
    "experts-full": (
        MIXTRAL,
        {"dp": 2, "tp": 2, "ep": 4, "sequence_parallel": True, "zero": 3, "recompute": "full"},
        {},
    ),
}


def _job(layout, precision="bf16", rank=0, micro_batches=0, **changes):
    """Two micro-batches a stage, unless the case says how many."""
    count = micro_batches or (2 if layout.pp == 1 else 2 * layout.pp)
    return Job(
        seq_len=512, global_batch=layout.dp * layout.micro_batch * count,
        precision=precision_recipe(precision), framework="meshwright", **changes,
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_prediction_equals_the_program(name):
    model, layout, changes = CASES[name]
    rank = changes.get("rank", 0)
    report = trace(model, Layout(**layout), _job(Layout(**layout), **changes), rank)
    found, wanted = report.predicted_peak_parts, report.peak_parts
    assert set(found) == set(wanted) == set(PARTS)
    assert abs(report.peak_error) <= TOLERANCE, (report.peak_error, found, wanted)
    # Between the parts that come and go, the two may take moments of the peak beside each other.
    for part in ("parameters", "optimizer"):
        assert found[part] == pytest.approx(wanted[part], rel=0.002), part


@pytest.mark.parametrize(
    ("schedule", "rank"),
    [("hanayo", 0), ("hanayo", 2), ("hanayo", 3), ("dualpipe-v", 0), ("dualpipe-v", 3),
     ("zb-auto", 1), ("v-min", 2)],
)  # fmt: skip
def test_where_most_is_in_flight_before_gradients_exist_the_prediction_is_above(schedule, rank):
    """Closed forms take both for one moment."""
    layout = Layout(pp=4, virtual_stages=1 if schedule == "zb-auto" else 2, schedule=schedule)
    report = trace(DEEP, layout, _job(layout), rank)
    assert 0.0 < report.peak_error < 0.07


def test_a_model_of_another_software_would_not_pass():
    """The check notices formulas of fused kernels."""
    model, layout, changes = CASES["one-fp32"]
    report = trace(model, Layout(**layout), _job(Layout(**layout), **changes), 0)
    fused = _role_peak(
        model, Layout(**layout), _job(Layout(**layout), **changes).but(framework="megatron")
    )
    assert abs(fused / report.peak_bytes - 1.0) > TOLERANCE


@pytest.mark.parametrize("name", ["one", "zero3", "tp", "experts", "pp-first"])
def test_estimates_use_the_same_formulas(name):
    model, layout, changes = CASES[name]
    layout = Layout(**layout)
    job = _job(layout, **changes)
    parts = predicted_parts(model, layout, job, 0)
    assert _role_peak(model, layout, job) == pytest.approx(sum(parts.values()), rel=1e-12)


def _role_peak(model, layout, job):
    """Tensors of the first rank by the function that estimates and the planner call."""
    columns = from_layouts([layout])
    micro_batches = np.array([layout.micro_batches(job.global_batch)])
    priced = memory(
        model, job, behaviour(job), columns, stage_layers(model, columns), micro_batches
    )
    outside = ("communicators", "context", "fragmentation")
    return sum(float(v[0]) for k, v in priced.parts["first"].items() if k not in outside)
