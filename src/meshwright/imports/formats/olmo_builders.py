"""Models that OLMo-core builds by a function's name (`TransformerConfig.olmo2_190M`), where they are no preset's.

Sizes are those that its own class gives back (olmo_core/nn/transformer/config.py, 3.0): layers, hidden, heads, heads of
keys, FFN.
"""

from __future__ import annotations

from typing import Any

from meshwright.imports.code.values import Made
from meshwright.imports.names import model_named
from meshwright.specs import load_model
from meshwright.specs.model import Model

_SIZES: dict[str, tuple[int, int, int, int, int]] = {
    "1M": (4, 12, 4, 4, 256), "14M": (4, 128, 8, 8, 512), "30M": (4, 256, 8, 8, 768), "60M": (8, 384, 8, 8, 1536), "100M": (12, 512, 8, 8, 2048),
    "190M": (12, 768, 12, 12, 3072), "370M": (16, 1024, 16, 16, 4096), "760M": (16, 1536, 16, 16, 6144), "3B": (16, 3328, 16, 16, 13312),
}  # fmt: skip
_OWN: dict[str, tuple[int, int, int, int, int]] = {
    **{f"{family}_{size}": one for family in ("olmo2", "olmo3") for size, one in _SIZES.items()},
    "olmo2_600M": (16, 1344, 16, 16, 5376), "olmo3_600M": (16, 1280, 16, 16, 5120), "olmo2_1B": (18, 2048, 16, 16, 8192), "olmo3_1B": (16, 2048, 16, 16, 8192),
    "olmo3_13B": (40, 5120, 40, 40, 13824), "llama2_271M": (16, 1024, 8, 8, 2816), "llama2_1B": (18, 2048, 16, 16, 5632), "llama2_26B": (80, 5120, 40, 40, 13824),
    "llama3_1B": (16, 2048, 32, 8, 8192), "qwen3_14B": (48, 5120, 40, 8, 17408), "qwen3_32B": (64, 5120, 40, 8, 25600), "qwen3_1_7B": (28, 2048, 16, 8, 6144),
    "smallmoe": (12, 768, 12, 12, 1536),
}  # fmt: skip
_LIKE = {"olmo2": "olmo2-7b", "olmo3": "olmo3-7b", "llama2": "llama2-7b", "llama3": "llama3-8b", "qwen3": "qwen3-8b", "smallmoe": "olmo2-7b"}  # fmt: skip
"""Presets that are built alike: norms, windows, activations."""
_SMALL_EXPERTS = {"experts": 32, "top_k": 4, "ffn": 384, "shared_ffn": 1536}
_TABLES = {"dolma2": 100_352, "gpt_neox_olmo_dolma_v1_5": 50_304, "gpt2": 50_304, "gpt_neox": 50_304, "llama3": 128_256}  # fmt: skip
"""Rows of the tables for each tokenizer, padded to a multiple of 128 (olmo_core/data/tokenizer.py)."""


def built(model: Made, hub: str, tokenizer: Made | None) -> Model | None:
    """The model that a builder makes, with what it is told itself; None for a preset as it is, and for one that is not known.

    Args:
        hub: the preset's name that the builder's stands for.
        tokenizer: what the script makes for it.

    Raises:
        SpecError: a shape that cannot be.
    """
    name = model.name.rsplit(".", 1)[-1]
    rows = _TABLES.get("" if tokenizer is None else tokenizer.name.rsplit(".", 1)[-1])
    said = {key: one for key, one in model.fields.items() if isinstance(one, int) and not isinstance(one, bool)}  # fmt: skip
    told = {ours: said[theirs] for theirs, ours in _TOLD.items() if theirs in said}
    if name not in _OWN:
        known = model_named(hub) if hub else None
        fields = told | ({"vocab": rows} if rows and "vocab" not in told else {})  # fmt: skip
        if known is None or all(getattr(known, key) == one for key, one in fields.items()):
            return None
        return Model.parse({**known.model_dump(), "counted_parameters": 0, "source": "", **fields}, "model")  # fmt: skip
    layers, hidden, heads, keys, ffn = _OWN[name]
    base = load_model(_LIKE[name.partition("_")[0]])
    heads = told.get("heads", heads)
    shape: dict[str, Any] = {
        "name": name.replace("_", "-").lower(), "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": keys,
        "head_dim": 128 if name.startswith("qwen3") else hidden // heads, "ffn": ffn, "vocab": rows or base.vocab,
        "experts": _SMALL_EXPERTS if name == "smallmoe" else None, "counted_parameters": 0, "source": "", "tied_embeddings": False,
    }  # fmt: skip
    return Model.parse({**base.model_dump(), **shape, **told}, "model")


_TOLD = {"n_layers": "layers", "n_heads": "heads", "n_kv_heads": "kv_heads", "vocab_size": "vocab"}
"""What a builder is told of its sizes, by our names."""
