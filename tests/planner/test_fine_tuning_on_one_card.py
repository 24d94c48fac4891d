"""What a person with one card asks first gets a plan by default."""

import re

import pytest

from meshwright.cli import run
from meshwright.exports.targets import export
from meshwright.imports.files import import_file
from meshwright.imports.reading import Given
from meshwright.planner.legality import Question, why_illegal
from meshwright.planner.plan import plan
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import DoesNotFitError, SpecError
from meshwright.specs.finetune import finetune_recipe
from meshwright.specs.frameworks import framework
from meshwright.specs.job import OPTIMIZERS, RECIPES, Job
from meshwright.specs.models import load_model


@pytest.mark.parametrize(
    ("model", "cluster", "method"),
    [("llama3-8b", "rtx4090:1x1", "qlora"), ("qwen3-32b", "h100:1x1", "qlora")],
)
def test_adapters_on_one_card_are_planned_by_default(model, cluster, method, capsys):
    words = ["plan", model, "--cluster", cluster, "--finetune", method, "--seq", "2048", "--brief"]
    assert run(words) == 0, capsys.readouterr().err
    assert re.search(r"fits with (?:9\d|100)%", capsys.readouterr().out)


@pytest.mark.parametrize("name", ["trl", "axolotl", "llama-factory", "torchtune", "verl"])
def test_what_torch_updates_element_by_element_works_on_shards(name):
    """16-bit weights with torch's AdamW are what full fine-tuning is: it must not lose ZeRO-2 and 3."""
    can = framework(name)
    elementwise = {"adamw", "adamw-bf16", "lion", "sgd"} & set(can.optimizers)
    assert elementwise <= set(can.optimizers_sharded)


def test_full_fine_tuning_shards_what_it_trains():
    """Without ZeRO-2 this was planned with a step four times as long, over sequences cut in four."""
    job = Job(
        framework="trl", finetune=finetune_recipe("full"), precision=RECIPES["pure-bf16"],
        optimizer=OPTIMIZERS["adamw-bf16"], seq_len=8192, global_batch=64,
    )  # fmt: skip
    made = plan(load_model("qwen3-30b-a3b"), load_cluster("mi300x:1x8"), job, defend=False)
    assert made.layout.zero >= 2
    assert made.layout.cp == 1
    assert made.estimate.fit_probability >= 0.9


def test_a_model_that_no_file_can_be_written_for_is_planned_and_the_plan_says_so(capsys):
    """An encoder beside the text that is planned: TRL loads a checkpoint whole, and nobody asked for TRL."""
    words = [
        "plan",
        "gemma4-e4b",
        "-c",
        "h100:1x1",
        "--finetune",
        "lora",
        "--seq",
        "1024",
        "--brief",
    ]
    assert run(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "no files can be written for this plan: TRL" in said
    assert run([*words, "--framework", "trl"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "no files can be written for this plan: TRL loads a published checkpoint whole" in said
    assert run(["plan", "llama3.2-1b", *words[2:]]) == 0
    assert "no files can" not in capsys.readouterr().out


IN_BACKWARD = Job(
    framework="torchtune", finetune=finetune_recipe("full"), precision=RECIPES["pure-bf16"],
    optimizer=OPTIMIZERS["paged-adam8bit"], seq_len=1024, global_batch=8,
    framework_options={"optimizer_in_backward": True},
)  # fmt: skip


def test_all_weights_of_8b_train_on_24_gb_where_each_is_updated_in_backward(tmp_path):
    """torchtune's 8B_full_single_device: no place for 15 GiB of gradients, no accumulation."""
    model, card = load_model("llama3.1-8b"), load_cluster("rtx4090:1x1")
    with pytest.raises(DoesNotFitError, match=r"updated in backward .*optimizer_in_backward"):
        plan(model, card, IN_BACKWARD.but(framework_options={}), defend=False)
    made = plan(model, card, IN_BACKWARD, defend=False)
    assert made.layout.micro_batch == 8
    summed = made.layout.but(micro_batch=1)
    assert "one micro-batch" in (why_illegal(Question(model, card, IN_BACKWARD), summed) or "")
    export(made, "torchtune").write(tmp_path)
    back = import_file(tmp_path / "torchtune.yaml", Given(cluster=card))
    assert back.job.framework_options == {"optimizer_in_backward": True}
    assert back.layout == made.layout


def test_updates_in_backward_are_refused_where_a_framework_has_none():
    model, card = load_model("llama3.1-8b"), load_cluster("rtx4090:1x1")
    with pytest.raises(SpecError, match="after all gradients are there"):
        plan(model, card, IN_BACKWARD.but(framework="trl"), defend=False)
