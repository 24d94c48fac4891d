"""Configurations of many families, read by transformers' own classes: parameters, layers' class, a step."""

import os

import pytest
import torch
from plans import make_plan

from meshwright.costs.parameters import count_parameters
from meshwright.exports.hf import hf_config, hf_family, hf_problems, layer_class
from meshwright.exports.hf_families import WRITERS
from meshwright.exports.targets import export
from meshwright.imports.files import import_file
from meshwright.specs import Job
from meshwright.specs.errors import SpecError
from meshwright.specs.models import load_model, model_names

USUAL = ("gemma2", "gpt_neox", "qwen3_moe", "gpt_oss")
MORE = sorted(WRITERS) if os.environ.get("MESHWRIGHT_VALIDATE_MORE") else USUAL
JOB = Job(seq_len=32, global_batch=8, attention_kernel="unfused")


def of(family):
    """A published model of a family, whose parts are all among those that are priced."""
    named = (load_model(name) for name in model_names())
    return next(m for m in named if m.family == family and not m.unusual() and hf_family(m))


def small(model):
    """The same parts in few numbers."""
    changes = {"layers": 4, "hidden": 64, "heads": 4, "kv_heads": 4 if model.kv_heads == model.heads else 2,
               "head_dim": 16, "ffn": 256, "vocab": 160, "counted_parameters": 0}  # fmt: skip
    if model.window:
        changes["window"] = 16
    if model.experts is not None:
        shared = 32 * round(model.experts.shared_ffn / model.experts.ffn)
        cut = {
            "experts": 16,
            "top_k": 2,
            "ffn": 32,
            "shared_ffn": shared,
            "dense_layers": min(model.experts.dense_layers, 1),
        }
        changes["experts"] = model.experts.model_dump() | cut
        if model.ffn == model.experts.ffn:
            changes["ffn"] = 32
    if model.latent_attention is not None:
        ranks = {"q_rank": 24 if model.latent_attention.q_rank else 0, "kv_rank": 16}
        changes["latent_attention"] = ranks | {
            "nope_head_dim": 8,
            "rope_head_dim": 8,
            "v_head_dim": 8,
        }
    return model.but(**changes)


def built(model):
    """(the real model with a loss of its own, what its configuration is)."""
    from transformers import AutoConfig, AutoModelForCausalLM

    words = hf_config(model, JOB)
    net = AutoModelForCausalLM.from_config(AutoConfig.for_model(**words))
    return net, words


@pytest.mark.parametrize("family", MORE)
def test_transformers_builds_what_a_family_s_configuration_says(family):
    model = small(of(family))
    net, words = built(model)
    assert words["model_type"] == hf_family(model)
    assert sum(one.numel() for one in net.parameters()) == count_parameters(model).total
    assert layer_class(model) in {type(module).__name__ for module in net.modules()}
    tokens = torch.arange(64).reshape(2, 32)
    labels = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=-100)
    places = torch.arange(32).expand(2, 32)
    loss = net(input_ids=tokens, labels=labels, shift_labels=labels, position_ids=places).loss
    loss.backward()
    assert torch.isfinite(loss)


@pytest.mark.parametrize("target", ["deepspeed", "accelerate", "trainer"])
def test_scores_that_are_bent_come_with_the_kernel_that_bends_them(target):
    """PyTorch's own attention cannot, and would keep all of them."""
    made = export(make_plan("gemma2-9b", dp=8, zero=3), target)
    assert '"attn_implementation": "flash_attention_2"' in made.files["config.json"]
    assert "flash-attn" in made.files["run.sh"]
    assert '"attn_implementation"' not in export(make_plan("pythia-6.9b", dp=8, zero=3), target).files["config.json"]  # fmt: skip
    script = next(
        text
        for name, text in made.files.items()
        if name.startswith("train") and name.endswith(".py")
    )
    assert "NORM = 0.0 " in script  # Gemma's norms add one to their weights
    with pytest.raises(SpecError, match="keeping all its scores"):
        export(make_plan("gpt-oss-20b", dp=8, zero=3), target)


@pytest.mark.parametrize(("model", "says"), [
    ("granite-3.3-8b", "scales its embedding, residuals"), ("ministral-3-8b", "scales queries by their position"),
])  # fmt: skip
def test_families_without_words_say_why(model, says):
    """Where no config.json comes with them: a shape alone does not say it."""
    assert says in next(hf_problems(load_model(model).but(config_json=""))).lacks


@pytest.mark.parametrize(
    ("family", "says"), [("minicpm", "scales its embedding"), ("chatglm", "half of each head")]
)
def test_a_published_family_is_not_written_as_the_llama_it_is_shaped_like(family, says):
    shaped = load_model("llama3.2-1b").but(family=family)
    assert says in next(hf_problems(shaped)).lacks


def test_what_a_family_s_configuration_would_lose_is_named():
    odd = load_model("gemma2-9b").but(qk_norm="full")
    assert "no words for qk_norm of this one" in next(hf_problems(odd)).lacks
    stretched = {"kind": "longrope", "factor": 32.0}
    phi = load_model("phi-3-mini")
    long = phi.but(numerics={"rope_scaling": stretched})
    assert "no words for numerics.rope_scaling" in next(hf_problems(long)).lacks


@pytest.mark.parametrize(("target", "layout"), [
    ("deepspeed", {"tp": 2, "dp": 4}), ("deepspeed", {"pp": 2, "dp": 4}), ("deepspeed", {"cp": 2, "dp": 4, "cp_method": "ulysses"}),
    ("accelerate", {"tp": 2, "dp": 4, "zero": 2}), ("accelerate", {"cp": 2, "dp": 4, "zero": 2}),
])  # fmt: skip
def test_only_plain_layers_are_split(target, layout):
    with pytest.raises(SpecError, match="for models with plain layers"):
        export(make_plan("pythia-6.9b", **layout), target)


def test_a_trainer_s_files_of_such_a_family_are_read_back(tmp_path):
    plan = make_plan("pythia-6.9b", dp=8, zero=3)
    export(plan, "trainer").write(tmp_path)
    back = import_file(tmp_path / "run.sh").model
    assert (back.family, back.parallel_block, back.hidden) == ("gpt_neox", True, 4096)


def test_numbers_that_nobody_looked_up_are_left_to_the_family_s_class():
    words = hf_config(load_model("pythia-6.9b"), JOB)
    assert not {"hidden_act", "rope_parameters", "layer_norm_eps"} & set(words)
    auto = pytest.importorskip("transformers").AutoConfig.for_model(**words)
    assert (auto.hidden_act, auto.rope_parameters["partial_rotary_factor"]) == ("gelu", 0.25)


@pytest.mark.skipif(
    not os.environ.get("MESHWRIGHT_VALIDATE_MORE"), reason="a minute: every model of the table"
)
def test_every_model_of_the_table_is_built_with_the_parameters_that_are_priced(capsys):
    from transformers import AutoConfig, AutoModelForCausalLM

    written = [one for name in model_names() if hf_family(one := load_model(name)) is not None]
    for model in written:
        words = hf_config(model, JOB)
        with torch.device("meta"):
            net = AutoModelForCausalLM.from_config(AutoConfig.for_model(**words))
        assert sum(one.numel() for one in net.parameters()) == count_parameters(model).total, (
            model.name
        )
    with capsys.disabled():
        print(f"{len(written)} of {len(model_names())} models")
