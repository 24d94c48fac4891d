"""Selective recomputation by module: what each frees, what each costs, and how they nest."""

import pytest

from meshwright.costs.step import estimate
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES, Job
from meshwright.specs.layout import MODULES, Layout
from meshwright.specs.models import load_model

BASE = Layout(dp=32, pp=8, ep=32, micro_batch=1, zero=1)


def priced(modules, recompute="selective", model="deepseek-v3", layout=BASE):
    job = Job(global_batch=256, framework="megatron", precision=RECIPES["bf16-fp32-grads"])
    layout = layout.but(
        recompute=recompute, recompute_modules=modules if recompute == "selective" else ()
    )
    return estimate(load_model(model), load_cluster("h100:32x8"), job, layout)


def kept(modules, **options):
    return priced(modules, **options).memory_parts["activations"]


def again(modules, **options):
    return priced(modules, **options).time_parts["recompute"]


@pytest.mark.parametrize("module", ["layernorm", "moe_act", "mla_up_proj", "moe", "shared_experts"])
def test_a_module_frees_memory_and_costs_time_less_than_whole_layers(module):
    assert kept((), recompute="full") < kept((module,)) < kept((), recompute="none")
    assert 0 < again((module,)) < again((), recompute="full")


def test_all_modules_keep_more_than_whole_layers_do_and_the_whole_moe_holds_its_parts():
    assert kept((), recompute="full") < kept(MODULES)
    assert kept(("moe", "moe_act", "shared_experts")) == pytest.approx(kept(("moe",)))
    assert again(("moe", "moe_act", "shared_experts")) == pytest.approx(again(("moe",)))


def test_modules_that_do_not_nest_add_up():
    none = kept((), recompute="none")
    parts = [none - kept((name,)) for name in ("layernorm", "moe_act", "mla_up_proj")]
    together = none - kept(("layernorm", "moe_act", "mla_up_proj"))
    assert together == pytest.approx(sum(parts), rel=1e-9)


def test_deepseeks_up_projections_by_hand():
    # Queries and keys of 192 numbers, values of 128, 128 heads, 16 bits, 4096 tokens, in the first
    # stage: seven of 61, for as many micro-batches in flight as there are stages.
    none, less = kept((), recompute="none"), kept(("mla_up_proj",))
    one_layer = 4096 * 128 * (192 + 192 + 128) * 2
    assert (none - less) / one_layer == pytest.approx(7 * 8)


def test_a_dense_layer_knows_the_modules_it_has():
    layout = Layout(dp=32, tp=8, micro_batch=1, zero=1, sequence_parallel=True)
    dense = {"model": "llama3.1-70b", "layout": layout}
    assert kept(("moe_act",), **dense) == kept((), recompute="none", **dense)
    assert kept(("mlp",), **dense) < kept((), recompute="none", **dense)


def test_modules_are_a_set_and_need_selective_recomputation():
    one = Layout(recompute="selective", recompute_modules=("moe_act", "layernorm", "moe_act"))
    assert one == Layout(recompute="selective", recompute_modules=("layernorm", "moe_act"))
    assert "selective(moe_act,layernorm)" in one.label()
    with pytest.raises(SpecError, match="recompute = selective"):
        Layout.parse({"recompute": "full", "recompute_modules": ["mlp"]})
