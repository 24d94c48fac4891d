"""One table says which classes of transformers describe a model, and their own sizes."""

import pytest

from meshwright.imports.config_classes import CLASSES, family_of, sizes_of
from meshwright.imports.own.made_models import made_model
from meshwright.imports.reading import Reading
from meshwright.specs.huggingface import model_from_config
from meshwright.specs.model import Model

_SIZES = {
    "bloom": ("hidden_size", "n_layer", "n_head"), "gpt2": ("n_embd", "n_layer", "n_head"),
    "gptj": ("n_embd", "n_layer", "n_head"), "mpt": ("d_model", "n_layers", "n_heads"),
}  # fmt: skip
_NAMES = ("hidden_size", "num_hidden_layers", "num_attention_heads")


def shape(model: Model) -> dict[str, object]:
    return model.model_dump(
        exclude={"name", "source", "numerics", "counted_parameters", "config_json"}
    )


@pytest.mark.parametrize("called", CLASSES)
def test_a_class_with_some_sizes_is_the_model_that_transformers_makes(called: str):
    transformers = pytest.importorskip("transformers")
    family = family_of(called)
    hidden, layers, heads = _SIZES.get(family, _NAMES)
    for said in ({}, {hidden: 2048}, {hidden: 1024, layers: 4, heads: 16}, {"vocab_size": 1000}):
        theirs = getattr(transformers, called)(**said).to_dict()
        try:
            wanted = model_from_config(theirs, "imported", "a program")
        except Exception:  # sizes that the class's other ones do not go with
            continue
        assert shape(made_model(family, dict(said), [], Reading("test"))) == shape(wanted), said


def test_a_size_counts_under_whichever_name_it_is_said():
    assert "n_embd" not in sizes_of("gpt2", {"hidden_size": 256})
    assert sizes_of("gpt2", {"hidden_size": 256})["n_layer"] == 12
    assert family_of("transformers.LlamaConfig") == "llama"
    assert family_of("LoraConfig") == ""


def test_sizes_that_a_program_computes_are_named():
    reading = Reading("test")
    model = made_model("llama", {"hidden_size": 512, "num_attention_heads": 8}, ["num_hidden_layers"], reading)  # fmt: skip
    assert model.layers == 32
    assert "num_hidden_layers" in reading.remarks[0].text
