"""The lengths of examples decide the layout where micro-batches are padded."""

import json
import math
from dataclasses import replace

import pytest

from meshwright.cli import run
from meshwright.planner.data_choice import longest, padded_choice, slowest_tokens
from meshwright.planner.legality import Question
from meshwright.planner.search import search
from meshwright.planner.space import Constraints
from meshwright.specs.clusters import load_cluster
from meshwright.specs.finetune import finetune_recipe
from meshwright.specs.job import RECIPES, Job
from meshwright.specs.lengths import Lengths
from meshwright.specs.models import load_model

EVEN = Lengths((1024,))
MIXED = Lengths((128,) * 15 + (2048,))


@pytest.fixture(scope="module")
def question():
    job = Job(
        framework="trl", finetune=finetune_recipe("lora"), precision=RECIPES["pure-bf16"],
        seq_len=2048, global_batch=64,
    )  # fmt: skip
    return Question(load_model("llama3-8b"), load_cluster("h100:1x8"), job)


def test_the_slowest_rank_is_what_chance_makes_it():
    alone = slowest_tokens(MIXED, 2048, micro_batch=1, ranks=1, together=10_000)
    assert alone == pytest.approx((15 * 128 + 2048) / 16, rel=0.15)
    # Of eight ranks one has the long example with 1 - (15/16)^8.
    meets = 1 - (15 / 16) ** 8
    waiting = slowest_tokens(MIXED, 2048, micro_batch=1, ranks=8, together=1)
    assert waiting == pytest.approx(128 + meets * 1920, rel=0.25)
    assert slowest_tokens(EVEN, 4096, micro_batch=4, ranks=8, together=1) == 1024


def test_even_data_is_planned_as_full_sequences_of_its_length(question):
    found = padded_choice(question, Constraints(), EVEN)
    whole = replace(question, job=question.job.but(seq_len=1024))
    assert longest(question, EVEN) == whole
    ranked = search(whole, Constraints(), bounded=True).ranked
    assert found.step_time_s == pytest.approx(float(ranked.step_time_s[0]), rel=0.01)


def test_uneven_data_takes_smaller_micro_batches_and_less_time(question):
    even = padded_choice(question, Constraints(zero=1, cp=1, tp=1, recompute="none"), EVEN)
    mixed = padded_choice(question, Constraints(zero=1, cp=1, tp=1, recompute="none"), MIXED)
    assert mixed.layout.micro_batch < even.layout.micro_batch
    full = search(question, Constraints(), bounded=True).ranked
    assert mixed.step_time_s < float(full.step_time_s[0]) / 2
    assert math.isfinite(mixed.sequence_tokens)


def test_the_command_says_what_padding_costs(tmp_path, capsys):
    data = tmp_path / "lengths.json"
    data.write_text(json.dumps({"128": 15, "2048": 1}))
    words = ["plan", "llama3-8b", "-c", "h100:1x8", "--finetune", "lora", "--seq", "4k", "--brief"]
    assert run([*words, "--lengths", str(data), "--padded"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "padded:" in said and "memory holds 2,048" in said
    assert run([*words, "--padded"]) == 2
