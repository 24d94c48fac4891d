"""Plans drawn over every dimension go through the configuration code of four frameworks; `make validate-more` runs it."""

import json
import os
from random import Random

import pytest
from random_plans import drawn
from test_more_parsers import NEWER, parsed
from test_real_parsers import ask_megatron, question

from meshwright.exports import megatron_bridge
from meshwright.exports.limits import problems
from meshwright.exports.targets import FRAMEWORKS, export
from meshwright.planner.legality import Question, why_illegal
from meshwright.specs.errors import SpecError

pytestmark = pytest.mark.skipif(
    not os.environ.get("MESHWRIGHT_VALIDATE_MORE"), reason="run by make validate-more"
)
PLANS = 60


def legal(target):
    """Plans that the planner would give and the target can express."""
    limits, random, found = FRAMEWORKS[target].limits, Random(f"parsers {target}"), []
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
