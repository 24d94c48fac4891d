"""Hunyuan-Large: layers that take over their neighbour's keys and values hold and compute none of their own."""

import numpy as np
import pytest

from meshwright.costs.adapters import layer_matrices
from meshwright.costs.parameters import count_parameters
from meshwright.specs.errors import SpecError
from meshwright.specs.huggingface import model_from_config
from meshwright.specs.models import load_model

SMALL = {
    "model_type": "hunyuan", "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 7,
    "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 300, "num_experts": 4, "moe_topk": 1,
    "num_shared_expert": 2, "use_mixed_mlp_moe": True, "use_qk_norm": True, "use_cla": True,
    "cla_share_factor": 2, "tie_word_embeddings": True,
}  # fmt: skip


def built(config: dict[str, object]) -> int:
    """Parameters by the modules that its modeling code makes, one after the other."""
    hidden, width, layers = 96, 160, 7
    keys, head = 2 * 16, 16
    total = 300 * hidden * (1 if config["tie_word_embeddings"] else 2) + hidden
    for layer in range(layers):
        total += 2 * hidden * hidden + 2 * hidden
        if not (config["use_cla"] and layer % config["cla_share_factor"]):
            total += 2 * hidden * keys
        if config["use_qk_norm"]:
            total += 2 * head
        ffn = 3 * hidden * width
        if config["num_experts"] == 1:
            total += ffn
            continue
        total += config["num_experts"] * (ffn + hidden)
        if config["use_mixed_mlp_moe"]:
            total += config["num_shared_expert"] * ffn
    return total


@pytest.mark.parametrize(
    "change",
    [
        {}, {"cla_share_factor": 3}, {"cla_share_factor": 9}, {"use_cla": False}, {"num_experts": 1},
        {"use_mixed_mlp_moe": False}, {"use_qk_norm": False}, {"tie_word_embeddings": False},
    ],
)  # fmt: skip
def test_counts_equal_the_modules_of_its_code(change):
    config = SMALL | change
    model = model_from_config(config)
    assert count_parameters(model).total == built(config)
    assert "not read" not in model.source


def test_hunyuan_large_has_the_size_that_is_published():
    model = model_from_config(
        SMALL
        | {"hidden_size": 6400, "intermediate_size": 18304, "num_hidden_layers": 64, "num_attention_heads": 80,
           "num_key_value_heads": 8, "num_experts": 16, "num_shared_expert": 1, "vocab_size": 128512}
    )  # fmt: skip
    assert count_parameters(model).total == pytest.approx(389e9, rel=2e-3)
    assert model.kv_owners == 32
    assert "layers that take over keys and values" in model.unusual()


def test_adapters_stand_on_the_projections_that_are_there():
    model = load_model("llama3-8b").but(kv_owners=8)
    copies = {one.target: one.copies for one in layer_matrices(model, moe=False)}
    assert (copies["q"], copies["k"], copies["v"], copies["o"]) == (1, 0.25, 0.25, 1)


def test_less_is_kept_and_multiplied_than_with_keys_of_every_layer():
    from meshwright.costs.activations import _attention_bytes
    from meshwright.costs.transformers_layer import _attention
    from meshwright.specs.job import Job

    every = load_model("llama3-8b")
    shared = every.but(kv_owners=16)
    values = every.kv_heads * every.head_dim * 2
    one = np.ones(1)
    assert _attention_bytes(every, 2, one) - _attention_bytes(shared, 2, one) == values / 2
    assert _attention(every, Job(), 2) - _attention(shared, Job(), 2) == values / 2


def test_more_owners_than_layers_are_refused():
    with pytest.raises(SpecError, match="kv_owners"):
        load_model("llama3-8b").but(kv_owners=33)


def test_a_plan_says_what_of_shared_keys_it_does_not_count():
    from meshwright.planner.legality import Question
    from meshwright.planner.notes import _mismatches
    from meshwright.specs import load_cluster
    from meshwright.specs.job import Job

    model = load_model("llama3-8b")
    asked = [
        Question(one, load_cluster("h100:1x8"), Job()) for one in (model, model.but(kv_owners=16))
    ]
    without, with_them = ("\n".join(_mismatches(one)) for one in asked)
    assert "take over keys" not in without
    assert "take over keys" in with_them
