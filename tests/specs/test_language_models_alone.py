"""Configurations of a multimodal model's language model, for which transformers has no causal model by itself."""

from typing import Any

import pytest

from meshwright.costs.parameters import count_parameters
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
