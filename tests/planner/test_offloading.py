"""Host memory as a searched choice: only where it helps, only where the framework has it."""

from dataclasses import replace

import pytest

from meshwright.costs.columns import from_layouts
from meshwright.costs.step import estimate
from meshwright.planner.corners import in_words_of
from meshwright.planner.legality import Question, why_illegal
from meshwright.planner.plan import IN_HOST, plan
from meshwright.planner.search import reprice
from meshwright.planner.solve import solve
from meshwright.planner.space import Constraints
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.finetune import finetune_recipe
from meshwright.specs.frameworks import framework
from meshwright.specs.job import OPTIMIZERS, RECIPES, Job
from meshwright.specs.layout import OFFLOAD_MODULES, Layout
from meshwright.specs.models import load_model


def question(model, cluster, framework, **job):
    fields = {"precision": RECIPES["bf16-fp32-grads"], "global_batch": 256, **job}
    return Question(load_model(model), load_cluster(cluster), Job(framework=framework, **fields))


def test_what_fits_on_no_device_fits_with_the_host():
    asked = question("llama3.1-405b", "h100:8x8", "megatron")
    without = solve(asked, Constraints(offload=()))
    assert without.choice is None
    found = solve(asked, Constraints())
    assert found.choice is not None
    assert found.layout.offload
    assert why_illegal(asked, found.layout) is None


def test_nothing_travels_where_there_is_room():
    found = solve(question("llama3.1-8b", "h100:1x8", "megatron"), Constraints())
    assert found.layout.offload == ()


def test_a_framework_without_offload_is_not_asked_for_it():
    layout = Layout(dp=8, zero=1, offload=("optimizer",))
    sentence = why_illegal(question("llama3.1-8b", "h100:1x8", "nanotron"), layout)
    assert sentence is not None
    assert "host memory" in sentence
    asked = question("llama3.1-70b", "a100-40g:1x8", "nanotron")
    assert solve(asked, Constraints()).choice is None


@pytest.mark.parametrize("framework", ["torchtitan", "nanotron", "maxtext"])
def test_modules_are_recomputed_by_name_only_where_a_framework_has_names(framework):
    layout = Layout(dp=8, recompute="selective", recompute_modules=("mlp",), zero=3)
    assert why_illegal(question("llama3.1-8b", "h100:1x8", framework), layout) is not None
    megatron = layout.but(zero=1)
    assert why_illegal(question("llama3.1-8b", "h100:1x8", "megatron"), megatron) is None


def test_a_million_tokens_of_an_8b_model_fit_on_one_host_with_the_loss_in_chunks():
    asked = question("llama3-8b", "h100:1x8", "maxtext", seq_len=2**20, global_batch=1)
    found = solve(asked, Constraints())
    assert found.choice is not None
    assert found.question.job.loss == "chunked"
    assert found.layout.cp == 8 and "activations" in found.layout.offload
    assert found.result.fit_probability >= 0.9
    # Recomputing less would be faster, and hosts of 2 TiB could not hold it.
    assert found.layout.recompute == "full"
    faster = found.layout.but(recompute="selective")
    held = reprice(found.question, from_layouts([faster])).peak_bytes[0]
    assert held == float("inf")
    roomy = replace(
        found.question, cluster=found.question.cluster.but(host_memory_bytes=16 * 2**40)
    )
    assert reprice(roomy, from_layouts([faster])).peak_bytes[0] < 80 * 2**30


def test_the_loss_stays_as_it_is_where_all_logits_fit():
    found = solve(question("llama3.1-405b", "h100:8x8", "torchtitan"), Constraints())
    assert found.choice is None or found.question.job.loss == "framework"
    named = question("llama3-8b", "h100:1x8", "maxtext", seq_len=2**21, global_batch=1, loss="full")
    assert solve(named, Constraints()).choice is None


def test_a_framework_is_not_planned_with_a_loss_it_has_no_words_for():
    with pytest.raises(SpecError, match="cross-entropy"):
        plan(
            load_model("llama3-8b"),
            load_cluster("h100:1x8"),
            Job(framework="megatron", loss="liger"),
        )


def test_a_seventy_billion_model_trains_adapters_on_two_gaming_cards():
    """FSDP-QLoRA as answer.ai published it: sharded, recomputed, weights in host memory."""
    tune = finetune_recipe("qlora")
    asked = question(
        "llama3-70b", "rtx4090:1x2", "trl", precision=RECIPES["pure-bf16"], finetune=tune,
        seq_len=2048, global_batch=16,
    )  # fmt: skip
    found = solve(asked, Constraints())
    assert found.choice is not None
    assert found.result.fit_probability >= 0.9
    assert found.layout.dp == 2 and found.layout.zero == 3
    assert found.layout.recompute == "full" and "parameters" in found.layout.offload


def test_host_memory_is_shown_beside_a_default_that_fits_without():
    made = plan(
        load_model("gpt-oss-120b"), load_cluster("h100:4x8"),
        Job(seq_len=8192, global_batch=256, framework="megatron"), defend=False, top=2,
    )  # fmt: skip
    parts = set(OFFLOAD_MODULES)
    assert not parts & {*made.layout.offload}
    (shown,) = (other for other in made.alternatives if other.axis == IN_HOST)
    assert parts == {*shown.layout.offload}
    assert shown.estimate is not None and shown.estimate.fits
    assert shown.estimate.step_time_s < made.estimate.step_time_s * 0.95
    assert "no published run has" in shown.why_not


def test_activations_leave_in_megatrons_parts_and_a_dense_ffn_stays():
    asked = question("llama3-8b", "h100:1x8", "megatron")
    parts = in_words_of(asked, ("activations", "optimizer"))
    assert parts == ("optimizer", "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm")
    assert in_words_of(question("llama3-8b", "h100:1x8", "trl"), ("activations",)) == (
        "activations",
    )
    layout = Layout(dp=8, zero=1)
    kept, some, none = (
        estimate(asked.model, asked.cluster, asked.job, layout.but(offload=away)).memory_parts["activations"]
        for away in ((), parts, ("activations",))
    )  # fmt: skip
    # Of 34 bytes a token and hidden width the FFN of 3.5 widths keeps 21 (two inputs, one output).
    assert 0.55 * kept < some < 0.8 * kept
    assert none < 0.2 * kept
    one = layout.but(offload=("attn_proj",))
    assert "host memory" in (why_illegal(asked, one) or "")
    assert why_illegal(asked, one.but(offload=("attn_proj", "core_attn"))) is None


def test_experts_that_run_again_stay():
    asked = question("mixtral-8x7b", "h100:1x8", "megatron")
    layout = Layout(dp=8, ep=8, zero=1, recompute="selective", recompute_modules=("moe",))
    assert why_illegal(asked, layout.but(offload=("expert_fc1",))) is not None
    assert why_illegal(asked, layout.but(offload=("mlp_norm",))) is None


def test_a_framework_without_an_export_does_not_win_where_others_fit():
    model, cluster = load_model("qwen3-30b-a3b"), load_cluster("h100:1x8")
    made = plan(model, cluster, defend=False, top=0)
    table = {one.framework: one for one in made.frameworks}
    # Its kernels of experts are for TPUs; a dense model is written for either.
    assert not framework("maxtext").is_exported_on("nvidia", experts=True)
    assert framework("maxtext").is_exported_on("nvidia")
    assert framework(made.job.framework).is_exported_on("nvidia", experts=True)
    assert made.job.framework != "maxtext" and "google alone" in table["maxtext"].why_not
    on_tpu = plan(load_model("llama3-8b"), load_cluster("tpu-v5p:2x4"), defend=False, top=0)
    assert on_tpu.job.framework == "maxtext"


@pytest.mark.parametrize("recipe", ["pure-bf16", "bf16"])
def test_deepspeed_keeps_no_optimizer_in_host_memory_beside_16_bits_alone(recipe):
    """It makes a 32-bit copy of the weights there, which such a plan does not price."""
    asked = question("llama3.1-8b", "h100:1x8", "deepspeed")
    alone = recipe == "pure-bf16"
    job = asked.job.but(
        precision=RECIPES[recipe].model_dump(),
        optimizer=OPTIMIZERS["adamw-bf16" if alone else "adamw"].model_dump(),
    )
    sentence = why_illegal(replace(asked, job=job), Layout(dp=8, zero=3, offload=("optimizer",)))
    assert (sentence is not None) == alone
