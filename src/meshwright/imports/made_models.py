"""A model that a program builds itself, from one of transformers' configuration classes."""

from __future__ import annotations

from typing import Any

from meshwright.imports.reading import Reading
from meshwright.specs.errors import SpecError
from meshwright.specs.huggingface import model_from_config
from meshwright.specs.model import Model

_DEFAULTS: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
             "tie_word_embeddings": True},
    "llama": {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
              "num_attention_heads": 32, "max_position_embeddings": 2048, "tie_word_embeddings": False},
    "mistral": {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
                "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False},
    "mixtral": {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
                "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
                "tie_word_embeddings": False},
    "qwen2": {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
              "num_attention_heads": 32, "num_key_value_heads": 32, "tie_word_embeddings": False},
    "qwen3": {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
              "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "tie_word_embeddings": False},
    "gpt_neox": {"vocab_size": 50432, "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 44,
                 "num_attention_heads": 64, "max_position_embeddings": 2048, "tie_word_embeddings": False},
    "opt": {"vocab_size": 50272, "hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 12,
            "num_attention_heads": 12, "max_position_embeddings": 2048, "word_embed_proj_dim": 768},
    "gemma": {"vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
              "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256},
}  # fmt: skip
"""What these classes take where a program says nothing (transformers 5.x, models/*/configuration_*.py)."""

_FAMILIES = {f"{family.replace('_', '')}config": family for family in _DEFAULTS}


def family_of(called: str) -> str:
    """The family whose configuration class a call makes (`GPT2Config`); empty for another call."""
    return _FAMILIES.get(called.rpartition(".")[2].lower(), "")


def made_model(family: str, said: dict[str, Any], left: list[str], reading: Reading) -> Model:
    """The model that the class with these arguments describes.

    Args:
        left: arguments whose values the program does not state; the class's own are taken, and named.

    Raises:
        SpecError: a shape that cannot be.
    """
    defaults = _DEFAULTS[family]
    fields = defaults | {key: value for key, value in said.items() if value is not None}
    width = fields.get("hidden_size")
    if family == "llama" and said.get("num_key_value_heads") is None:
        fields["num_key_value_heads"] = fields["num_attention_heads"]  # as the class does
    if family == "opt" and "word_embed_proj_dim" not in said:
        fields["word_embed_proj_dim"] = width
    guessed = [name for name in left if name in defaults]
    if guessed:
        reading.guess(
            "--model",
            f"the program computes {', '.join(guessed)}: "
            f"{', '.join(str(defaults[name]) for name in guessed)}, the class's own, "
            f"{'is' if len(guessed) == 1 else 'are'} taken",
        )
    try:
        return model_from_config({"model_type": family, **fields}, "imported", "a program")
    except SpecError as error:
        raise SpecError("--model", family, f"the shape that the program builds cannot be: {error}") from None  # fmt: skip
