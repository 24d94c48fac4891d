"""Export, then import, is the identity: plans drawn over every dimension, for every framework of the table."""

import os
from random import Random

import pytest
from plans import make_plan
from random_plans import OWN, drawn
from test_round_trip import READABLE, UNSPOKEN

from meshwright.costs.frameworks import behaviour
from meshwright.costs.loss import loss_of
from meshwright.exports.bridged import PROGRAM
from meshwright.exports.canonical import canonical
from meshwright.exports.limits import problems
from meshwright.exports.megatron import offload_names
from meshwright.exports.targets import FINETUNERS, FRAMEWORKS, STARTED, export
from meshwright.imports.files import import_file
from meshwright.planner.dispatchers import DEDUPLICATED
from meshwright.planner.dispatchers import OPTION as DISPATCH
from meshwright.planner.legality import Question, why_illegal
from meshwright.specs.errors import SpecError
from meshwright.specs.frameworks import framework, framework_names
from meshwright.specs.huggingface import model_from_config
from meshwright.specs.job import OPTIMIZERS, RECIPES, Job
from meshwright.specs.layout import OFFLOAD_MODULES
from meshwright.specs.models import load_model

PLANS = 300 if os.environ.get("MESHWRIGHT_VALIDATE_MORE") else 12
SEED = os.environ.get("MESHWRIGHT_SEED", "1")
SHAPE = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "gated", "tied_embeddings", "vocab", "positions",
    "qkv_bias", "ffn_bias", "qk_norm", "norm", "window", "latent_attention", "experts", "attention_sinks",
)  # fmt: skip
REGISTERED = ("llama3.1-8b", "llama3.1-70b", "llama3.1-405b", "qwen3-4b", "qwen3-30b-a3b", "deepseek-v2-lite",
              "deepseek-v3", "gpt-oss-20b")  # fmt: skip
WIDTHS = ("name", "gradient_bytes", "gradient_reduce_bytes")


def same_run(plan, back, made, target):
    """That a file, read back, is the plan that it was written from."""
    layout, read = canonical(plan.layout, plan.model), back.layout
    # Megatron-Core's selective recomputation is of attention where no module is named.
    if layout.recompute_modules == ("core_attn",):
        layout = layout.but(recompute_modules=())
    if target in ("megatron", "megatron-fsdp", "primus", "megatron-bridge") and layout.offload:
        # Activations are the parts of layers that Megatron-Core moves.
        parts = offload_names(layout, plan.model)
        rest = {*layout.offload} - {"activations", *OFFLOAD_MODULES}
        layout = layout.but(offload=(*rest, *parts))
    assert read == layout
    job, found = plan.job, back.job
    if any("gradients" in note for note in made.notes) or target in UNSPOKEN:
        same = {name: getattr(job.precision, name) for name in WIDTHS}
        found = found.but(precision=found.precision.but(**same).model_dump())
    usual = behaviour(job)
    assert loss_of(found, usual) == loss_of(job, usual)
    assert found.but(loss=job.loss) == job
    assert back.cluster == plan.cluster
    assert [one for one in back.remarks if one.kind == "unread"] == []
    if plan.model.name != OWN:
        assert back.model == plan.model
    for name in SHAPE if plan.model.name == OWN else ():
        assert getattr(back.model, name) == getattr(plan.model, name), name


@pytest.mark.parametrize("target", READABLE)
def test_what_is_written_is_read_as_what_was_planned(target, tmp_path):
    limits, random = FRAMEWORKS[target].limits, Random(f"{SEED} {target}")
    done = tries = 0
    while done < PLANS and tries < 120 * PLANS:
        tries += 1
        # torchtitan's models are those that it registers: few draws would meet one.
        known = load_model(random.choice(REGISTERED)) if target == "torchtitan" else None
        try:
            plan = drawn(random, limits.can, known)
        except SpecError:
            continue
        if plan.model.layers < plan.layout.pp * plan.layout.virtual_stages or problems(
            plan, limits
        ):
            continue
        made = export(plan, target)
        made.write(tmp_path)
        same_run(plan, import_file(tmp_path / READABLE[target]), made, target)
        done += 1
    assert done == PLANS


def test_every_framework_that_is_exported_is_read_back():
    """A row of the table has a target, whose file is read here or in `test_tuned_identity.py`."""
    written = {target.limits.framework for target in STARTED.values()} | {"megatron-fsdp"}
    rows = {name for name in framework_names() if framework(name).exported}
    assert rows - {"any", "meshwright"} == written  # the engine here runs a plan as it is
    assert set(READABLE) | set(FINETUNERS) == set(STARTED)


def there_and_back(plan, target, folder):
    made = export(plan, target)
    made.write(folder)
    back = import_file(folder / READABLE[target])
    same_run(plan, back, made, target)
    return back


def test_a_biased_router_comes_with_biased_layers(tmp_path):
    for target in ("megatron", "megatron-bridge", "primus"):
        job = Job(seq_len=2048, global_batch=64, framework=FRAMEWORKS[target].limits.framework)
        job = job.but(precision=RECIPES["bf16-fp32-grads"].model_dump())
        there_and_back(make_plan("gpt-oss-20b", job=job, dp=8), target, tmp_path)


def test_moments_of_adam_say_nothing_of_other_optimizers(tmp_path):
    for name in ("sgd-momentum", "muon"):
        job = Job(seq_len=2048, global_batch=64, optimizer=OPTIMIZERS[name], framework="nemo",
                  precision=RECIPES["bf16-fp32-grads"])  # fmt: skip
        there_and_back(make_plan("deepseek-v3", job=job, dp=8), "megatron-bridge", tmp_path)


def test_weights_of_16_bits_alone_have_their_own_names(tmp_path):
    job = Job(seq_len=2048, global_batch=64, framework="deepspeed", precision=RECIPES["pure-bf16"],
              optimizer=OPTIMIZERS["adamw-bf16"])  # fmt: skip
    there_and_back(make_plan(job=job, dp=8, zero=3), "deepspeed", tmp_path)


@pytest.mark.parametrize("target", ["deepspeed", "accelerate"])
def test_a_model_of_ones_own_is_read_from_the_config_beside_the_file(target, tmp_path):
    config = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8,
              "intermediate_size": 1024, "vocab_size": 32000}  # fmt: skip
    job = Job(seq_len=2048, global_batch=64, framework=target)
    plan = make_plan(job=job, dp=8, zero=3)
    plan = plan.but(model=model_from_config(config, OWN).model_dump())
    assert there_and_back(plan, target, tmp_path).model.layers == 6
    (tmp_path / "config.json").unlink()
    with pytest.raises(SpecError, match="does not describe the model"):
        import_file(tmp_path / READABLE[target])


def test_a_dispatcher_that_no_file_says_is_refused():
    job = Job(seq_len=2048, global_batch=64, framework="torchtitan", framework_options={DISPATCH: DEDUPLICATED})  # fmt: skip
    with pytest.raises(SpecError, match="all-to-all of experts"):
        export(make_plan("qwen3-30b-a3b", job=job, dp=8, zero=2), "torchtitan")


def test_a_pipeline_that_makes_whole_logits_is_not_planned_beside_a_smaller_loss():
    job = Job(seq_len=2048, global_batch=64, framework="deepspeed", loss="liger")
    plan = make_plan(job=job, dp=4, pp=2)
    with pytest.raises(SpecError, match="whole logits in its pipeline"):
        export(plan, "deepspeed")
    question = Question(plan.model, plan.cluster, job)
    assert why_illegal(question, plan.layout)
    whole = Question(plan.model, plan.cluster, job.but(loss="full"))
    assert why_illegal(whole, plan.layout) is None


@pytest.mark.parametrize(
    "name",
    ["gemma2-2b", "gemma3-4b", "gemma4-e2b", "qwen3-next-80b-a3b", "qwen3.5-9b", "exaone-4.0-32b"],
)
def test_models_that_a_bridge_builds_come_back_with_their_layout(name, tmp_path):
    job = Job(seq_len=2048, global_batch=64, framework="nemo", precision=RECIPES["bf16-fp32-grads"])
    plan = make_plan(name, job=job, dp=8, micro_batch=2)
    assert PROGRAM in export(plan, "megatron-bridge").files
    back = there_and_back(plan, "megatron-bridge", tmp_path)
    assert [one for one in back.remarks if one.kind == "unmodelled"] == []
