"""A fine-tuning plan, written for a tool and imported again, is the plan: random models, layouts and jobs."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.costs.frameworks import behaviour
from meshwright.costs.loss import loss_of
from meshwright.exports.canonical import canonical
from meshwright.exports.targets import FINETUNERS, export
from meshwright.imports.files import import_file
from meshwright.imports.reading import Given
from meshwright.planner.plan import price_layout
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.finetune import finetune_recipe
from meshwright.specs.frameworks import framework
from meshwright.specs.job import OPTIMIZERS, RECIPES, Job
from meshwright.specs.layout import Layout
from meshwright.specs.models import load_model

EXAMPLES = 200 if os.environ.get("MESHWRIGHT_VALIDATE_MORE") else 40
FILES = {name: f"{name}.yaml" for name in FINETUNERS} | {"verl": "run.sh"}
MODELS = (
    "llama3.1-8b",
    "llama3.2-1b",
    "qwen2.5-7b",
    "gemma2-9b",
    "mistral-7b",
    "llama2-13b",
    "qwen2.5-0.5b",
)
CLUSTERS = ("h100:1x8", "a100:2x8", "rtx4090:1x4", "h200:4x8", "l40s:1x2", "h100:1x1")
TARGETS = (["q", "v"], ["q", "k", "v", "o"], ["q", "k", "v", "o", "gate", "up", "down"])


@st.composite
def tunings(draw, name):
    """A model, a cluster, a job and a layout as fine-tuning tools run them."""
    plain = name == "verl"  # it trains LoRA over 16-bit weights with AdamW alone
    method = draw(st.sampled_from(("full", "lora") if plain else ("full", "lora", "dora", "qlora")))
    recipe = {"method": method}
    if method != "full":
        rank = draw(st.sampled_from((4, 8, 16, 64)))
        recipe |= {
            "rank": rank,
            "alpha": draw(st.sampled_from((rank, 2 * rank))),
            "targets": draw(st.sampled_from(TARGETS)),
        }
    cluster = load_cluster(draw(st.sampled_from(CLUSTERS)))
    dp, micro = cluster.gpus, draw(st.sampled_from((1, 2, 4)))
    zero = draw(st.sampled_from((0, 2, 3))) if dp > 1 else 0
    offload = (
        draw(st.sampled_from(((), ("optimizer", "parameters"), ("activations",))))
        if zero == 3
        else ()
    )
    able = framework(name)
    cp = draw(st.sampled_from((1, 1, 2, 4))) if able.has("cp") and dp % 4 == 0 else 1
    tp = draw(st.sampled_from((1, 1, 2))) if able.has("tp") and dp % 8 == 0 else 1
    dp //= cp * tp
    method_of_cp = draw(st.sampled_from(able.context_methods)) if cp > 1 else "all-gather"
    layout = Layout(
        dp=dp,
        cp=cp,
        tp=tp,
        cp_method=method_of_cp,
        sequence_parallel=able.sequence_parallel == "always" and tp > 1,
        zero=zero,
        micro_batch=micro,
        recompute=draw(st.sampled_from(("none", "full"))),
        offload=offload,
    )
    job = {
        "seq_len": draw(st.sampled_from((1024, 4096))), "global_batch": dp * micro * draw(st.sampled_from((1, 3, 8))),
        "precision": RECIPES[draw(st.sampled_from(("pure-bf16", "bf16")))], "finetune": finetune_recipe(recipe),
        "optimizer": OPTIMIZERS[draw(st.sampled_from(("adamw", "adamw-bf16") if plain else ("adamw",) if name == "torchtune" else ("adamw", "adam8bit", "paged-adamw")))],
        "document_masking": draw(st.booleans()), "loss": draw(st.sampled_from(("framework", *able.losses))),
        "attention_kernel": draw(st.sampled_from(("flash", *able.attention_kernels))),
    }  # fmt: skip
    if draw(st.booleans()):
        job["token_budget"] = float(
            draw(st.integers(1001, 50_000)) * job["global_batch"] * job["seq_len"]
        )
    return load_model(draw(st.sampled_from(MODELS))), cluster, job, layout


@pytest.mark.parametrize("name", FINETUNERS)
def test_what_a_tool_is_given_is_imported_as_what_was_planned(name, tmp_path):
    written = []

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(asked=tunings(name))
    def check(asked):
        model, cluster, fields, layout = asked
        try:
            plan = price_layout(model, cluster, Job(framework=name, **fields), layout)
            bundle = export(plan, name)
        except SpecError:
            return
        bundle.write(tmp_path)
        back = import_file(tmp_path / FILES[name], Given(cluster=cluster))
        assert back.layout.but(offload=()) == canonical(plan.layout, model).but(offload=())
        assert set(back.offload) == set(plan.layout.offload)
        assert back.model == plan.model
        job, read = plan.job, back.job
        assert (read.seq_len, read.global_batch) == (job.seq_len, job.global_batch)
        assert (read.attention_kernel, read.token_budget) == (
            job.attention_kernel,
            job.token_budget,
        )
        assert loss_of(read, behaviour(job)) == loss_of(job, behaviour(job))
        assert read.optimizer.name == job.optimizer.name.removesuffix("-bf16")
        if job.optimizer.name == "adamw-bf16":  # torch's, of 16-bit weights
            assert read.optimizer.state_bytes == job.optimizer.state_bytes
        # A tool that keeps other bytes than were priced says so when it is written.
        assert read.precision.compute == job.precision.compute
        kept = read.precision.parameter_bytes + read.precision.master_bytes
        priced = job.precision.parameter_bytes + job.precision.master_bytes
        if kept != priced and not job.finetune.adapts:
            assert any("32-bit weights" in note for note in bundle.notes), (
                layout.label(),
                job.precision,
            )
        # axolotl and torchtune pack documents and keep attention inside each, whatever was priced.
        if not any("packs nothing beside" in note for note in bundle.notes):
            # verl splits sequences of rows without padding alone.
            apart = name in ("axolotl", "torchtune") or (name == "verl" and layout.cp > 1)
            assert read.document_masking == (job.document_masking or apart)
        tune = job.finetune
        if not tune.adapts:
            assert read.finetune is None or not read.finetune.adapts
        else:
            assert (read.finetune.method, read.finetune.rank, read.finetune.alpha) == (
                tune.method,
                tune.rank,
                tune.alpha,
            )
            assert (read.finetune.targets, read.finetune.storage) == (tune.targets, tune.storage)
            assert read.finetune.double_quantization == tune.double_quantization
        assert [one for one in back.remarks if one.kind == "unread"] == []
        written.append(plan.layout)

    check()
    assert len(written) > EXAMPLES // 10
