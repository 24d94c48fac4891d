"""Configurations of a multimodal model's language model, for which transformers has no causal model by itself."""

from typing import Any

import pytest

from meshwright.costs.parameters import count_parameters
from meshwright.specs import huggingface, traced
from meshwright.specs.errors import SpecError
from meshwright.specs.huggingface import model_from_config

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXT: dict[str, Any] = {
    "num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128_300,
}  # fmt: skip


@pytest.mark.parametrize(("family", "whole", "change"), [
    ("step3p5", "step3p7", {}), ("mllama_text_model", "mllama", {"cross_attention_layers": [1]}),
])  # fmt: skip
def test_the_encoder_that_comes_with_the_class_is_not_counted(
    family: str, whole: str, change: dict[str, Any]
) -> None:
    config = {**TEXT, **change}
    with torch.device("meta"):
        made = transformers.AutoConfig.for_model(whole, text_config=dict(config))
        built = transformers.AutoModelForImageTextToText.from_config(made)
    seen = ("vision", "multi_modal", "projector", "downsample")
    text = sum(
        weight.numel()
        for name, weight in built.named_parameters()
        if not any(part in name for part in seen)
    )
    model = model_from_config({"model_type": family, **config})
    assert count_parameters(model).total == text
    assert model.encoder is None
    assert model.layers == 4


def test_a_published_name_is_that_of_the_class() -> None:
    config = {**TEXT, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    one, other = (
        model_from_config({"model_type": name, **config}, "same", "same")
        for name in ("minimax_m3", "minimax_m3_vl_text")
    )
    assert count_parameters(one).total == count_parameters(other).total


def test_an_encoder_that_cannot_be_built_leaves_the_language_model(monkeypatch: Any) -> None:
    """As where it is made by a package that is not installed."""
    whole = {
        "model_type": "aria",
        "text_config": {"model_type": "nobodys_text"},
        "vision_config": {},
    }
    text = {"model_type": "helium", **TEXT}

    def without_pictures(config: Any) -> Any:
        if "vision_config" in config:
            raise SpecError("config.model_type", config["model_type"], "ImportError")
        return traced.trace(config)

    monkeypatch.setattr(huggingface, "trace", without_pictures)
    model = model_from_config({**whole, "text_config": text})
    assert count_parameters(model).total == count_parameters(model_from_config(text)).total
    assert model.encoder is None
    assert "the other parts are not counted" in model.source
    with pytest.raises(SpecError, match="aria"):  # neither: what stood in the way of the whole
        model_from_config(whole)


def test_experts_for_images_are_of_the_language_model_and_no_token_of_text_visits_them() -> None:
    text = {
        "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 160,
        "num_hidden_layers": 3, "moe_intermediate_size": [32, 16], "moe_num_experts": 4, "moe_k": 2,
        "moe_num_shared_experts": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 4]},
    }  # fmt: skip
    vision = {"depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64}
    config = {"model_type": "ernie4_5_vl_moe", "text_config": text, "vision_config": vision}
    with torch.device("meta"):
        made = transformers.AutoConfig.for_model(**config)
        built = transformers.AutoModelForImageTextToText.from_config(made)
    model = model_from_config(config)
    assert count_parameters(model).total == sum(one.numel() for one in built.parameters())
    assert model.experts is not None
    assert (model.experts.experts, model.experts.ffn) == (4, 32)
    seen = sum(
        one.numel()
        for name, one in built.named_parameters()
        if "vision" in name.partition(".layers.")[0] or "resampler" in name
    )
    assert model.encoder is not None
    assert model.encoder.parameters == seen


def test_a_model_that_fills_in_words_is_counted_with_its_head() -> None:
    config = {"model_type": "eurobert", **TEXT}
    with torch.device("meta"):
        made = transformers.AutoConfig.for_model(**config)
        built = transformers.AutoModelForMaskedLM.from_config(made)
    total = sum(one.numel() for one in built.parameters())
    assert count_parameters(model_from_config(config)).total == total
