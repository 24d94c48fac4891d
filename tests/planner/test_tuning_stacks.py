"""Fine-tuning for which nobody names a tool: all that could run it are held against each other."""

import pytest

from meshwright.exports.expressible import why_unwritten
from meshwright.exports.targets import export
from meshwright.planner.compared import TUNING_STACKS
from meshwright.planner.legality import Question
from meshwright.planner.plan import plan
from meshwright.planner.space import Constraints
from meshwright.planner.stacks import solve_all
from meshwright.planner.tuning import as_tuned
from meshwright.specs.clusters import load_cluster
from meshwright.specs.finetune import finetune_recipe
from meshwright.specs.job import RECIPES, Job
from meshwright.specs.models import load_model

CARD = load_cluster("rtx4090:1x1")


def tuned(model: str, method: str, cluster=CARD, **job):
    asked = Job(seq_len=4096, global_batch=16, finetune=finetune_recipe(method), **job)
    return plan(load_model(model), cluster, asked, defend=False, top=0, refuses=why_unwritten)


def test_tools_are_compared_by_their_own_rules():
    made = tuned("llama3-8b", "lora")
    rows = {row.framework: row for row in made.frameworks}
    assert set(rows) == set(TUNING_STACKS)
    # Tools that make all logits do not fit where those that make them in pieces do.
    assert rows["trl"].layout is not None and "does not fit" in rows["axolotl"].why_not
    assert made.job.framework == "trl" and made.job.loss == "chunked"
    assert "loss_type: chunked_nll" in export(made, "trl").files["trl.yaml"]


def test_a_tool_that_has_no_words_for_a_model_says_so():
    rows = {row.framework: row.why_not for row in tuned("qwen3-8b", "qlora").frameworks}
    assert "0.6.1 builds" in rows["torchtune"] and "16-bit" in rows["verl"]


def test_what_no_tool_can_write_is_planned_all_the_same():
    asked = Question(load_model("llama3-8b"), CARD, Job(seq_len=512, global_batch=1, finetune=finetune_recipe("qlora")))  # fmt: skip
    solutions, refused = solve_all(asked, Constraints(), refuses=lambda *_: "has no words")
    assert [one.question.job.framework for one in solutions] == ["trl"]
    assert set(refused) == set(TUNING_STACKS) - {"trl"}


@pytest.mark.parametrize(
    ("tool", "devices", "precision"),
    [("trl", 1, "pure-bf16"), ("trl", 8, "bf16"), ("verl", 1, "bf16"), ("torchtune", 8, "pure-bf16")],
)  # fmt: skip
def test_whole_weights_have_the_precision_that_a_tool_trains_in(tool, devices, precision):
    job = Job(finetune=finetune_recipe("full"))
    assert as_tuned(job, tool, CARD.device, devices).precision.name == precision
    named = job.but(precision=RECIPES["bf16-fp32-grads"])
    assert as_tuned(named, tool, CARD.device, devices).precision == named.precision
