"""Plans drawn over every dimension go through the configuration code of four frameworks; `make validate-more` runs it."""

import json
import os
from random import Random

import pytest
from random_plans import drawn
from test_more_parsers import NEWER, parsed
from test_real_parsers import ask_megatron, question

from meshwright.exports import megatron, megatron_bridge
from meshwright.exports.canonical import canonical
from meshwright.exports.limits import problems
from meshwright.exports.targets import FRAMEWORKS, export
from meshwright.planner.graphs import graphs_of
from meshwright.planner.legality import Question, why_illegal
from meshwright.specs.errors import SpecError
from meshwright.specs.numerics import numerics_of

pytestmark = pytest.mark.skipif(
    not os.environ.get("MESHWRIGHT_VALIDATE_MORE"), reason="run by make validate-more"
)
PLANS = int(os.environ.get("MESHWRIGHT_PLANS", "60"))
SEED = os.environ.get("MESHWRIGHT_SEED", "parsers")
BRIDGE = "megatron-bridge-067f987"
"""A checkout of the repository with the Megatron-LM inside it: its newest release is older than its recipes' runner."""


def legal(target):
    """Plans that the planner would give and the target can express."""
    limits, random, found = FRAMEWORKS[target].limits, Random(f"{SEED} {target}"), []
    while len(found) < PLANS:
        try:
            plan = drawn(random, limits.can)
        except SpecError:
            continue
        few = plan.model.layers < plan.layout.pp * plan.layout.virtual_stages
        if few or problems(plan, limits):
            continue
        if why_illegal(Question(plan.model, plan.cluster, plan.job), plan.layout) is None:
            found.append(plan)
    return found


def refused(plans, answers):
    return [
        (plan.model.name, plan.layout.label(), answer["error"])
        for plan, answer in zip(plans, answers, strict=True)
        if answer.get("error")
    ]


def test_megatron_validates_what_is_drawn():
    chosen = legal("megatron")
    _flags, *answers = ask_megatron([question(plan) for plan in chosen])
    assert refused(chosen, answers) == []


def test_maxtext_takes_what_is_drawn(tmp_path):
    chosen = legal("maxtext")
    texts = [f"{one.layout.world}\n{export(one, 'maxtext').files['maxtext.yml']}" for one in chosen]
    assert refused(chosen, parsed("maxtext", "maxtext-0.2.5", texts, tmp_path)) == []


def test_nanotron_takes_what_is_drawn(tmp_path):
    chosen = legal("nanotron")
    texts = [export(one, "nanotron").files["nanotron.yaml"] for one in chosen]
    assert refused(chosen, parsed("nanotron", "nanotron-2411b02", texts, tmp_path)) == []


def test_megatron_bridge_s_recipe_becomes_what_is_planned(tmp_path):
    """Its own program, as far as it goes without devices: the recipe is made, overridden and validated."""
    chosen = legal("megatron-bridge")
    seen = {one.model.latent_attention is not None for one in chosen}
    assert seen == {True, False}  # both base recipes
    asked = [
        {"words": list(megatron_bridge.words(one)[1:]), "world": one.layout.world} for one in chosen
    ]
    answers = parsed("megatron-bridge-recipe", BRIDGE, [json.dumps(one) for one in asked], tmp_path)
    assert refused(chosen, answers) == []
    for plan, read in zip(chosen, answers, strict=True):
        layout, model, job = canonical(plan.layout, plan.model), plan.model, plan.job
        numerics = numerics_of(model)
        scaling = numerics.rope_scaling
        kind = scaling.kind if scaling is not None else ""
        latent, rotary = model.latent_attention is not None, model.positions == "rope"
        uneven = read.pop("uneven")
        assert uneven or layout.stage_layers is None
        assert read == {
            "dp": layout.dp, "tp": layout.tp, "pp": layout.pp, "cp": layout.cp, "ep": layout.ep,
            "sequence_parallel": layout.sequence_parallel,
            "recompute": None if layout.recompute == "none" else layout.recompute,
            "virtual": layout.virtual_stages if layout.virtual_stages > 1 else None, "layers": model.layers,
            "vocab": model.vocab, "tokenizer_vocab": model.vocab,
            "distributed_optimizer": layout.zero > 0,
            "sharding": "no_shard" if layout.zero < 2 else megatron.SHARDING[layout.zero],
            "overlaps": [True, layout.zero > 0],
            "micro_batch": layout.micro_batch, "global_batch": job.global_batch,
            "seq_len": [job.seq_len, job.seq_len], "mask": False,
            "fused": [
                model.gated or (numerics.activation != "relu2" and model.attention_out_bias), True,
                rotary and ((kind == "yarn") if latent else (kind != "yarn")),
            ],
            "graphs": {"none": "none", "layers": "transformer_engine", "all": "full_iteration"}[graphs_of(job)],
            "further": None, "precise": False,
            "linear_scaling": scaling.factor if kind == "linear" else None,
            "yarn": scaling.factor if kind == "yarn" and not latent else None,
        }  # fmt: skip


def test_megatron_bridge_takes_what_is_drawn(tmp_path):
    chosen = legal("megatron-bridge")
    newer = (*NEWER, "model.cuda_graph_modules=")
    given = [
        [f"{field}={value}" for field, value in megatron_bridge.overrides(plan).items()]
        for plan in chosen
    ]
    texts = [json.dumps([one for one in words if not one.startswith(newer)]) for words in given]
    answers = parsed("megatron-bridge", "megatron-bridge-0.3.1", texts, tmp_path)
    assert refused(chosen, answers) == []
