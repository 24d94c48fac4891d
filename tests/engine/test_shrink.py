"""A plan too large to prove here becomes a small one of the same structure, and says what changed."""

import pytest

from meshwright.engine.model.toy import TOY
from meshwright.engine.parallel.guards import check
from meshwright.engine.proof.shrink import parameters, shrink
from meshwright.specs.layout import Layout
from meshwright.specs.models import load_model

MODELS = ("llama3-8b", "llama3.1-405b", "gpt2-xl", "mistral-7b", "qwen2.5-7b", "qwen3-30b-a3b",
          "mixtral-8x22b", "qwen1.5-moe-a2.7b")  # fmt: skip
LAYOUTS = {
    "3d": {"dp": 64, "tp": 8, "pp": 4, "zero": 1, "sequence_parallel": True},
    "hsdp-cp": {"dp": 64, "cp": 4, "zero": 3, "shard": 16},
    "zb-v": {"dp": 8, "pp": 8, "virtual_stages": 2, "schedule": "zb-v", "zero": 2},
    "interleaved": {"pp": 4, "tp": 4, "virtual_stages": 4, "schedule": "interleaved",
                    "sequence_parallel": True},
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("which", LAYOUTS)
def test_real_models_shrink_to_what_the_engine_runs(name, which):
    model, layout = load_model(name), Layout(**LAYOUTS[which])
    if model.experts is not None:
        layout = layout.but(ep=4)
    case = shrink(model, layout, max_ranks=16)
    check(case.model, case.layout, global_batch=case.global_batch, seq_len=case.seq_len)
    assert case.layout.world <= 16
    assert parameters(case.model) < 2_000_000
    for axis in ("dp", "tp", "pp", "cp", "ep", "virtual_stages"):
        assert (getattr(case.layout, axis) > 1) == (getattr(layout, axis) > 1), axis
    for field in ("schedule", "zero", "recompute", "sequence_parallel", "cp_method"):
        assert getattr(case.layout, field) == getattr(layout, field)
    for field in ("family", "norm", "positions", "gated", "tied_embeddings", "qkv_bias", "qk_norm"):
        assert getattr(case.model, field) == getattr(model, field)
    assert (case.model.window > 0) == (model.window > 0)
    assert (case.model.kv_heads < case.layout.tp) == (model.kv_heads < layout.tp)
    assert (case.model.experts is None) == (model.experts is None)
    assert (1 < case.layout.shard_degree < case.layout.dp * case.layout.cp) == (
        1 < layout.shard_degree < layout.dp * layout.cp
    )
    said = "; ".join(case.shrunk)
    for old, new in ((model.layers, case.model.layers), (model.hidden, case.model.hidden),
                     (model.vocab, case.model.vocab), (layout.world, case.layout.world)):  # fmt: skip
        assert old == new or f"{old} to {new}" in said or f"{old} ranks to {new}" in said


def test_uneven_splits_stay_uneven():
    layout = Layout(
        pp=4, stage_layers=(5, 9, 9, 9), recompute="full", stage_recompute_layers=(4, 2, 0, 0)
    )
    case = shrink(load_model("llama3-8b"), layout, max_ranks=16)
    assert case.layout.stage_layers == (1, 2, 2, 2)
    assert case.model.layers == 7
    assert case.layout.stage_recompute_layers == (1, 1, 0, 0)
    alike = shrink(load_model("llama3-8b"), layout.but(stage_recompute_layers=(2,) * 4), 16)
    assert alike.layout.stage_recompute_layers == (1, 1, 1, 1)


def test_a_small_plan_is_proved_as_it_is():
    layout = Layout(
        pp=2, tp=2, stage_layers=(1, 3), recompute="full", stage_recompute_layers=(0, 2)
    )
    case = shrink(TOY, layout, max_ranks=16)
    assert (case.model, case.layout, case.shrunk) == (TOY, layout, ())
