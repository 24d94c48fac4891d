"""Classes of transformers that describe a model, and the shape that each has where nothing is said.

Only what the reader of a family's config.json (specs/huggingface.py) has no value of its own for stands
here; a test builds the classes with other sizes and compares (transformers 5.x, models/*/configuration_*.py).
"""

from __future__ import annotations

from typing import Any

CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "BloomConfig": ("bloom", {"vocab_size": 250880, "hidden_size": 64, "n_layer": 2, "n_head": 8}),
    "CohereConfig": ("cohere", {"vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40, "num_attention_heads": 64}),
    "Ernie4_5Config": ("ernie4_5", {"vocab_size": 103424, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 18, "num_attention_heads": 16}),
    "Exaone4Config": ("exaone4", {"vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 32, "num_attention_heads": 32, "sliding_window": 4096}),
    "GemmaConfig": ("gemma", {"vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28, "num_attention_heads": 16}),
    "Gemma2Config": ("gemma2", {"vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4}),
    "Gemma3TextConfig": ("gemma3_text", {"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4}),
    "Glm4Config": ("glm4", {"vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40, "num_attention_heads": 32}),
    "GPT2Config": ("gpt2", {"vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12}),
    "GPTNeoXConfig": ("gpt_neox", {"vocab_size": 50432, "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 44, "num_attention_heads": 64}),
    "GptOssConfig": ("gpt_oss", {"vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64}),
    "GPTJConfig": ("gptj", {"vocab_size": 50400, "n_embd": 4096, "n_layer": 28, "n_head": 16}),
    "GraniteConfig": ("granite", {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}),
    "GraniteMoeConfig": ("granitemoe", {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}),
    "LlamaConfig": ("llama", {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}),
    "MistralConfig": ("mistral", {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "sliding_window": 4096}),
    "MixtralConfig": ("mixtral", {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}),
    "MptConfig": ("mpt", {"vocab_size": 50368, "d_model": 2048, "n_layers": 24, "n_heads": 16}),
    "OlmoConfig": ("olmo", {"vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}),
    "Olmo2Config": ("olmo2", {"vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}),
    "Olmo3Config": ("olmo3", {"vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}),
    "OlmoeConfig": ("olmoe", {"vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16}),
    "OPTConfig": ("opt", {"vocab_size": 50272, "hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}),
    "PhiConfig": ("phi", {"vocab_size": 51200, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24, "num_attention_heads": 32}),
    "Phi3Config": ("phi3", {"vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 32}),
    "PhimoeConfig": ("phimoe", {"vocab_size": 32064, "hidden_size": 4096, "intermediate_size": 6400, "num_hidden_layers": 32, "num_attention_heads": 32, "num_local_experts": 16}),
    "Qwen2Config": ("qwen2", {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32}),
    "Qwen3Config": ("qwen3", {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32}),
    "SeedOssConfig": ("seed_oss", {"vocab_size": 155136, "hidden_size": 4096, "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 80}),
    "SmolLM3Config": ("smollm3", {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16}),
    "StableLmConfig": ("stablelm", {"vocab_size": 50304, "hidden_size": 2560, "intermediate_size": 6912, "num_hidden_layers": 32, "num_attention_heads": 32}),
    "Starcoder2Config": ("starcoder2", {"vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30, "num_attention_heads": 24}),
}  # fmt: skip
"""By the class's name: its `model_type`, and its own sizes."""

_SPELLINGS = (
    ("hidden_size", "n_embd", "d_model"),
    ("num_hidden_layers", "n_layer", "n_layers"),
    ("num_attention_heads", "n_head", "n_heads"),
    ("intermediate_size", "n_inner", "ffn_dim"),
)
"""Names of one size: a class takes any of its own and the usual one."""


def family_of(called: str) -> str:
    """The family whose configuration class a call makes (`transformers.GPT2Config`); empty for another call."""
    return CLASSES.get(called.rpartition(".")[2], ("", {}))[0]


def sizes_of(family: str, said: dict[str, Any]) -> dict[str, Any]:
    """The sizes of a family's class with these arguments: what it says counts, under whichever name."""
    own = next(sizes for name, sizes in CLASSES.values() if name == family)
    taken = {name for names in _SPELLINGS if set(names) & set(said) for name in names}
    return {name: value for name, value in own.items() if name not in taken} | said
