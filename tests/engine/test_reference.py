"""The proof's reference: written apart from the engine, and equal to transformers."""

import ast
import textwrap
from pathlib import Path

import pytest
import torch

from family_models import of_families
from meshwright.engine.model.decoder import Decoder
from meshwright.engine.model.numerics import Numerics, RopeScaling, default_numerics
from meshwright.engine.proof import (
    derivatives,
    reference,
    reference_ffn,
    reference_rotary,
    reference_shapes,
    reference_training,
)
from meshwright.engine.proof.derivatives import derivative_errors
from meshwright.engine.proof.material import weight
from meshwright.engine.proof.reference import Batch, Reference
from meshwright.engine.proof.reference_shapes import shapes
from meshwright.engine.proof.reference_training import rate_at
from meshwright.engine.recipe import SCHEDULES, Recipe
from meshwright.specs.model import Model

LLAMA = Model(layers=3, hidden=32, heads=4, kv_heads=2, head_dim=8, ffn=48, vocab=40)
FAMILIES = of_families(LLAMA)
GPT2, DEEPSEEK = FAMILIES["gpt2"], FAMILIES["deepseek"]
QWEN3 = LLAMA.but(family="qwen3", qk_norm="head", tied_embeddings=True)
SHARED = LLAMA.but(
    family="qwen2_moe",
    qkv_bias=True,
    experts={"experts": 4, "top_k": 2, "ffn": 24, "shared_ffn": 16, "shared_gate": True},
)
MIXTRAL = LLAMA.but(family="mixtral", experts={"experts": 4, "top_k": 2, "ffn": 24})
YARN = RopeScaling(kind="yarn", factor=4.0, original_positions=16, beta_fast=4.0).model_dump()
OLMO3 = LLAMA.but(family="olmo3", qk_norm="full", window=5, window_period=2)
LISTED = LLAMA.but(
    family="qwen3", qk_norm="head", window=5,
    layer_kinds=["attention+dense", "window+dense", "window+dense"],
)  # fmt: skip
MODELS = {
    "llama": LLAMA, "gpt2": GPT2, "qwen3": QWEN3, "phi3": LLAMA.but(family="phi3"),
    "olmo2": LLAMA.but(family="olmo2", qk_norm="full"), "olmo3": OLMO3,
    "gemma": LLAMA.but(family="gemma", tied_embeddings=True), "gemma2": FAMILIES["gemma2"],
    "gemma3": FAMILIES["gemma3"], "glm4": FAMILIES["glm4"], "gpt_oss": FAMILIES["gpt_oss"],
    "deepseek_v2": DEEPSEEK.but(family="deepseek_v2"), "deepseek_v3": DEEPSEEK,
    "llama4": FAMILIES["llama4"], "qwen3_next": FAMILIES["qwen3_next"],
    "qwen2_moe": SHARED, "mixtral": MIXTRAL, "listed windows": LISTED,
}  # fmt: skip


def test_the_reference_uses_nothing_that_trains():
    parts = (
        reference, reference_ffn, reference_rotary, reference_shapes, reference_training, derivatives,
    )  # fmt: skip
    nodes = [
        node for part in parts for node in ast.walk(ast.parse(Path(part.__file__).read_text()))
    ]
    used = {n.module for n in nodes if isinstance(n, ast.ImportFrom)}
    ours = {name for name in used if name.startswith("meshwright")} - {
        part.__name__ for part in parts
    }
    # Settings of the model, settings of the steps, and the model's shape: data, no arithmetic.
    assert ours == {
        "meshwright.engine.model.numerics",
        "meshwright.engine.recipe",
        "meshwright.specs.model",
    }
    calls = {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    assert not calls & {"rate", "cross_entropy", "scaled_dot_product_attention"}


@pytest.mark.parametrize("name", MODELS)
def test_the_reference_knows_every_parameter(name):
    with torch.device("meta"):
        held = {n: tuple(p.shape) for n, p in Decoder(MODELS[name]).named_parameters()}
    assert shapes(MODELS[name]) == held


@pytest.mark.parametrize("name", MODELS)
def test_the_reference_computes_the_logits_of_transformers(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    from meshwright.engine.model.export import export

    model, numerics = MODELS[name], default_numerics(MODELS[name])
    if name == "llama":
        numerics = numerics.but(
            rope_scaling=RopeScaling(kind="llama3", factor=4.0, original_positions=16).model_dump()
        )
    if name.startswith("deepseek"):
        yarn = YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}
        numerics = numerics.but(
            rope_scaling=yarn, router_groups=4, router_group_top_k=2, router_scaling=1.5
        )
    if name == "llama4":
        numerics = numerics.but(temperature_floor=6)
    if name == "gpt_oss":
        numerics = numerics.but(rope_scaling=YARN | {"truncate": False})
    values = {n: weight(n, s, model, numerics).float() for n, s in shapes(model).items()}
    export(tmp_path, values.items(), model, numerics, 32)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = torch.randint(0, model.vocab, (2, 24), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = theirs(tokens).logits
        found = Reference(model, numerics).logits(
            {n: v.double() for n, v in values.items()}, tokens
        )
    assert (found.float() - wanted).abs().max() < 2e-4 * wanted.abs().max()


def test_derivatives_notice_a_wrong_gradient():
    numerics = default_numerics(LLAMA)
    values = {n: weight(n, s, LLAMA, numerics) for n, s in shapes(LLAMA).items()}
    tokens = torch.randint(0, 40, (2, 9), generator=torch.Generator().manual_seed(0))
    batch = Batch(tokens[:, :-1], tokens[:, 1:], None)
    sound = Reference(LLAMA, numerics)
    errors = derivative_errors(sound, values, batch, 0)
    assert len(errors) == 12
    assert max(errors.values()) < 1e-6

    class Broken(Reference):
        def gradients(self, values, batch, step):
            loss, found = super().gradients(values, batch, step)
            return loss, found | {"norm.weight": 2 * found["norm.weight"]}

    assert derivative_errors(Broken(LLAMA, numerics), values, batch, 0)["norm.weight"] > 0.1


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_two_statements_of_the_schedule_agree(schedule):
    recipe = Recipe(schedule=schedule, steps=50, warmup=5, learning_rate=1.0, least=0.2)
    rates = [recipe.rate(step) for step in range(60)]
    assert rates == pytest.approx([rate_at(recipe, step) for step in range(60)])
    assert rates[4] == 1.0
    assert rates[55] == pytest.approx(1.0 if schedule == "constant" else 0.2)


def test_every_mutation_fits_the_source_it_changes():
    import inspect
    from importlib import import_module

    from mutations import BENCHES, MUTATIONS

    assert len(MUTATIONS) > 122
    for one in MUTATIONS:
        assert one.bench in BENCHES
        name, _, path = one.where.partition(":")
        found = import_module(f"meshwright.engine.{name}")
        for part in path.split("."):
            found = inspect.getattr_static(found, part)
        found = getattr(found, "__func__", getattr(found, "fget", None) or found)
        assert one.old in textwrap.dedent(inspect.getsource(inspect.unwrap(found))), one.title


def test_numerics_of_a_plan_are_those_of_its_model():
    own = {"rope_theta": 1234.0, "norm_epsilon": 1e-4, "activation": "gelu-tanh", "init_std": 0.01,
           "rope_scaling": {"kind": "linear", "factor": 2.0}}  # fmt: skip
    found = default_numerics(LLAMA.but(numerics=own))
    assert found == Numerics(
        activation="gelu_tanh", norm_eps=1e-4, rope_theta=1234.0, init_std=0.01,
        rope_scaling=RopeScaling(kind="linear", factor=2.0),
    )  # fmt: skip
