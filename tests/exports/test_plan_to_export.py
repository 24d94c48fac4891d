"""What the planner chooses for a framework, that framework's target writes and reads back."""

import os
from random import Random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from random_plans import drawn
from test_round_trip import READABLE

from meshwright.exports.canonical import canonical
from meshwright.exports.expressible import require_expressible, unwritten
from meshwright.exports.limits import problems
from meshwright.exports.nearest import nearest_plan
from meshwright.exports.targets import FRAMEWORKS, export, export_all
from meshwright.imports.files import import_file
from meshwright.planner.compared import STACKS
from meshwright.planner.legality import Question, why_illegal
from meshwright.planner.plan import plan
from meshwright.planner.space import Constraints
from meshwright.planner.stacks import under
from meshwright.specs import Layout, load_cluster, load_model
from meshwright.specs.errors import DoesNotFitError, SpecError
from meshwright.specs.frameworks import framework
from meshwright.specs.job import OPTIMIZERS, RECIPES, Job

DRAWN = 600 if os.environ.get("MESHWRIGHT_VALIDATE_MORE") else 120
LAID_OUT = frozenset(Layout.model_fields)
EXAMPLES = 40 if os.environ.get("MESHWRIGHT_VALIDATE_MORE") else 5
MODELS = ("llama3.2-1b", "llama3-8b", "llama3-70b", "qwen2.5-7b", "qwen3-4b", "qwen3-30b-a3b",
          "mixtral-8x7b", "gpt2-xl", "deepseek-v3", "mistral-7b", "llama3.1-8b")  # fmt: skip
PODS = ("tpu-v5p:2x4", "tpu-v5p:16x4", "tpu-v6e:4x8", "tpu-v5e:8x4")
CLUSTERS = ("h100:1x8", "h100:2x8", "h100:8x8", "a100:4x8", "h200:16x8", "mi300x:2x8", "h100:3x8")


@st.composite
def questions(draw, name):
    """A model, a cluster and a job that a framework can express, and what a user may fix."""
    model = load_model(draw(st.sampled_from(MODELS)))
    vendors = framework(name).exported_on
    clusters = [one for one in (*PODS, *CLUSTERS) if load_cluster(one).device.vendor in vendors]
    cluster = load_cluster(draw(st.sampled_from(clusters)))
    job = Job(
        seq_len=draw(st.sampled_from((2048, 8192, 32768))),
        global_batch=draw(st.sampled_from((96, 128, 512))),
        # The framework's own, or one that is named.
        precision=draw(
            st.sampled_from(
                (
                    under(Job(), name).precision,
                    *(RECIPES[one] for one in ("bf16", "bf16-fp32-grads", "fp8", "fp16")),
                )
            )
        ),
        optimizer=OPTIMIZERS[draw(st.sampled_from(("adamw", "muon", "sgd")))],
        framework=name,
    )
    try:
        require_expressible(model, job, cluster)
    except SpecError:
        assume(False)
    assume(not unwritten(model, job, cluster))
    fixed = draw(
        st.sampled_from(
            ({}, {"tp": 2}, {"pp": 2}, {"cp": 2}, {"recompute": "full"}, {"micro_batch": 1},
             {"rank_order": "tp-cp-ep-pp-dp"}, {"zero": 3}, {"virtual_stages": 2, "pp": 4})
        )
    )  # fmt: skip
    return model, cluster, job, Constraints(**fixed)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_plan_made_for_a_framework_exports_to_it_and_reads_back(name, tmp_path):
    done = []

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(asked=questions(FRAMEWORKS[name].limits.framework))
    def check(asked):
        model, cluster, job, constraints = asked
        try:
            made = plan(model, cluster, job, constraints=constraints, defend=False, top=0)
        except (DoesNotFitError, SpecError):
            return
        export(made, name).write(tmp_path)
        back = import_file(tmp_path / READABLE[name])
        assert back.layout == canonical(made.layout, model)
        assert (back.model, back.cluster) == (made.model, made.cluster)
        assert back.job.but(precision=made.job.precision.model_dump()) == made.job
        done.append(made.layout)

    check()
    assert done


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_planner_and_export_agree_on_what_a_framework_can_lay_out(name):
    """No layout is legal under a framework whose files have no words for it."""
    limits, random, legal = FRAMEWORKS[name].limits, Random(f"agreement {name}"), 0
    for _ in range(DRAWN):
        try:
            made = drawn(random, limits.can)
        except SpecError:
            continue
        made = made.but(layout=canonical(made.layout, made.model).model_dump())
        asked = Question(made.model, made.cluster, made.job)
        if why_illegal(asked, made.layout) is None:
            legal += 1
            lacking = [one for one in problems(made, limits) if one.field in LAID_OUT]
            assert lacking == [], (made.model.name, made.layout.label(), made.job.optimizer.name)
    assert legal > DRAWN / 20


@pytest.mark.parametrize(
    ("model", "cluster", "seq_len"),
    [("llama3-8b", "h100:1x8", 8192), ("llama3-8b", "h100:8x8", 8192),
     ("llama3-70b", "h100:8x8", 8192), ("llama3.1-405b", "h100:64x8", 8192),
     ("mixtral-8x7b", "h100:4x8", 4096), ("deepseek-v3", "h100:64x8", 4096),
     ("qwen3-30b-a3b", "h100:4x8", 4096), ("qwen2.5-7b", "a100:2x8", 4096),
     ("gpt2-xl", "a100:1x8", 1024)],
)  # fmt: skip
def test_a_default_plan_exports_to_three_frameworks(model, cluster, seq_len):
    job = Job(seq_len=seq_len, global_batch=1024)
    made = plan(load_model(model), load_cluster(cluster), job, defend=False, top=0)
    bundles, refused = export_all(made)
    assert len(set(bundles) & set(FRAMEWORKS)) >= 3, refused


@pytest.mark.parametrize(
    "name", [name for name in FRAMEWORKS if name not in ("torchtitan", "maxtext")]
)
def test_the_nearest_plan_can_be_exported_and_says_what_changed(name):
    job = Job(seq_len=8192, global_batch=512)
    made = plan(load_model("llama3-70b"), load_cluster("h100:8x8"), job, defend=False, top=0)
    close, changes = nearest_plan(made, FRAMEWORKS[name].limits)
    export(close, name)
    assert close.fits
    assert (close.layout == made.layout) == (not changes)
    if changes:
        assert changes[-1].startswith("step ")
        assert "→" in changes[0]


def test_a_framework_says_whether_a_plan_can_be_written_for_it():
    written = {target.limits.framework for target in FRAMEWORKS.values()}
    written |= {"megatron-fsdp"}  # Megatron-LM's own switch
    for name in {name for names in STACKS.values() for name in names} - {"meshwright"}:
        assert framework(name).exported == (name in written), name
