"""Readers of dense families: from the keys of a config.json to the fields of `Model`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.specs.hf_config import Config, UndescribedError

Fields = dict[str, Any]
"""Fields of Model, by name."""


def grouped(config: Config, kv_default: int | None = None) -> Fields:
    """The keys that most families share."""
    hidden = config.whole("hidden_size", "n_embd", "d_model")
    heads = config.whole("num_attention_heads", "n_head", "n_heads")
    return {
        "layers": config.whole("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": config.whole("num_key_value_heads", default=kv_default or heads),
        "head_dim": config.whole("head_dim", default=max(1, hidden // heads)),
        "vocab": config.whole("vocab_size"),
        "window": config.whole("sliding_window", default=0, least=0),
    }


def llama(config: Config) -> Fields:
    """Llama and what is spelt like it."""
    bias = config.flag("attention_bias", default=False)
    return {
        **grouped(config),
        "ffn": config.whole("intermediate_size"),
        "tied_embeddings": config.flag("tie_word_embeddings", default=False),
        "qkv_bias": bias,
        "attention_out_bias": bias,
        "ffn_bias": config.flag("mlp_bias", default=False),
    }


def mistral(config: Config) -> Fields:
    """Mistral and Ministral."""
    return {**llama(config), **grouped(config, kv_default=8)}


def qwen2(config: Config) -> Fields:
    """Qwen 1.5 to 2.5, dense."""
    fields = windowed(config, llama(config))
    return {**fields, "qkv_bias": True, "attention_out_bias": False, "ffn_bias": False}


def windowed(config: Config, fields: Fields) -> Fields:
    """Qwen configs name a window that `use_sliding_window` leaves off."""
    used = config.flag("use_sliding_window", default=False)
    width = config.whole("sliding_window", default=4096, least=0)
    return {**fields, "window": width if used else 0}


def _qwen3(config: Config) -> Fields:
    # The family's default head width is 128 whatever the hidden width.
    head_dim = config.whole("head_dim", default=128)
    return {**windowed(config, llama(config)), "head_dim": head_dim, "qk_norm": "head"}


def _gemma(config: Config) -> Fields:
    fields = llama(config)
    fields["head_dim"] = config.whole("head_dim", default=256)
    fields["tied_embeddings"] = config.flag("tie_word_embeddings", default=True)
    return fields


def _gemma2(config: Config) -> Fields:
    fields = _gemma(config)
    fields["window"] = config.whole("sliding_window", default=4096, least=0)
    return {**fields, "norms_per_layer": 4, "window_period": period(config, 2)}


def _gemma3(config: Config) -> Fields:
    pattern = config.whole("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return {**_gemma2(config), "qk_norm": "head", "window_period": period(config, pattern)}


def period(config: Config, default: int) -> int:
    """Every how many layers one attends to everything, from `layer_types` if it is there."""
    types = config.layers_named("layer_types")
    return types.index("full_attention") + 1 if "full_attention" in types else default


def _olmo(config: Config) -> Fields:
    return {**llama(config), "norm": "layernorm", "norm_weight": False, "ffn_bias": False}


def olmo2(config: Config) -> Fields:
    """OLMo 2: norms on the full width of queries and keys."""
    return {**llama(config), "qk_norm": "full", "ffn_bias": False}


def _olmo3(config: Config) -> Fields:
    fields = olmo2(config)
    fields["window"] = config.whole("sliding_window", default=4096, least=0)
    return {**fields, "window_period": period(config, 4)}


def _phi(config: Config) -> Fields:
    if config.flag("qk_layernorm", default=False):
        raise UndescribedError("config.qk_layernorm", True, "this variant of Phi is not supported")
    return {
        **llama(config),
        "head_dim": max(
            1, config.whole("hidden_size") // config.whole("num_attention_heads", "n_head")
        ),
        "gated": False,
        "norm": "layernorm",
        "norm_bias": True,
        "norms_per_layer": 1,
        "qkv_bias": True,
        "attention_out_bias": True,
        "ffn_bias": True,
        "head_bias": True,
        "parallel_block": True,
    }


def _phi3(config: Config) -> Fields:
    return {**llama(config), "qkv_bias": False, "attention_out_bias": False, "ffn_bias": False}


def _gpt_neox(config: Config) -> Fields:
    bias = config.flag("attention_bias", default=True)
    fields = llama(config)
    heads = fields["heads"]  # the family knows neither kv heads nor a head width of its own
    return {
        **fields,
        "kv_heads": heads,
        "head_dim": max(1, fields["hidden"] // heads),
        "gated": False,
        "norm": "layernorm",
        "norm_bias": True,
        "qkv_bias": bias,
        "attention_out_bias": bias,
        "ffn_bias": True,
        "parallel_block": config.flag("use_parallel_residual", default=True),
    }


def _gptj(config: Config) -> Fields:
    """GPT-J: attention and FFN side by side behind one norm; biases in the FFN and the head alone."""
    fields = grouped(config)
    return {
        **fields,
        "ffn": config.whole("n_inner", "intermediate_size", default=4 * fields["hidden"]),
        "gated": False, "norm": "layernorm", "norm_bias": True, "norms_per_layer": 1,
        "qkv_bias": False, "attention_out_bias": False, "ffn_bias": True, "head_bias": True,
        "tied_embeddings": config.flag("tie_word_embeddings", default=False),
        "parallel_block": True, "positions": "rope",
    }  # fmt: skip


def _nemotron(config: Config) -> Fields:
    return {**llama(config), "gated": False, "norm": "layernorm", "norm_bias": True}


def _biased(config: Config, ffn: int, positions: str, rows: int = 0) -> Fields:
    """GPT-2 and its kin: layer norms and biases everywhere, embeddings tied."""
    return {
        **grouped(config),
        "ffn": ffn,
        "gated": False,
        "tied_embeddings": config.flag("tie_word_embeddings", default=True),
        "norm": "layernorm",
        "norm_bias": True,
        "qkv_bias": True,
        "attention_out_bias": True,
        "ffn_bias": True,
        "positions": positions,
        "max_positions": rows,
    }


def _gpt2(config: Config) -> Fields:
    hidden = config.whole("hidden_size", "n_embd")
    rows = config.whole("max_position_embeddings", "n_positions", "n_ctx", default=1024)
    return _biased(config, config.whole("n_inner", default=4 * hidden), "learned", rows)


_OPT_USUAL = {"do_layer_norm_before": True, "_remove_final_layer_norm": False, "enable_bias": True,
              "layer_norm_elementwise_affine": True}  # fmt: skip


def _opt(config: Config) -> Fields:
    hidden = config.whole("hidden_size")
    if config.whole("word_embed_proj_dim", default=hidden) != hidden:
        raise UndescribedError(
            "config.word_embed_proj_dim",
            config.data["word_embed_proj_dim"],
            f"projected embeddings are not supported; {hidden} is expected",
        )
    for key, usual in _OPT_USUAL.items():
        if config.flag(key, default=usual) != usual:
            raise UndescribedError(
                f"config.{key}", not usual, "this variant of OPT is not supported"
            )
    # The table has two rows in front that padding reserves.
    rows = config.whole("max_position_embeddings", default=2048) + 2
    return _biased(config, config.whole("ffn_dim", default=4 * hidden), "learned", rows)


def _bloom(config: Config) -> Fields:
    hidden = config.whole("hidden_size", "n_embed")
    return {
        **_biased(config.spelt(hidden_size=hidden), 4 * hidden, "alibi"),
        "embedding_norm": True,
    }


def _mpt(config: Config) -> Fields:
    hidden = config.whole("d_model", "hidden_size")
    if not config.flag("no_bias", default=True):
        raise UndescribedError("config.no_bias", False, "MPT with biases is not supported")
    return {
        **grouped(config),
        "ffn": hidden * config.whole("expansion_ratio", default=4),
        "gated": False,
        "tied_embeddings": config.flag("tie_word_embeddings", default=True),
        "norm": "layernorm",
        "positions": "alibi",
    }


def _seed_oss(config: Config) -> Fields:
    fields = llama(config)
    fields.update(
        qkv_bias=config.flag("attention_bias", default=True),
        attention_out_bias=config.flag("attention_out_bias", default=False),
        kv_heads=config.whole("num_key_value_heads", default=8),
        head_dim=config.whole("head_dim", default=128),
    )
    return fields


def _smollm3(config: Config) -> Fields:
    fields = llama(config)
    fields["kv_heads"] = config.whole("num_key_value_heads", default=4)
    fields["tied_embeddings"] = config.flag("tie_word_embeddings", default=True)
    return windowed(config, fields)


def _arcee(config: Config) -> Fields:
    return {**llama(config), "gated": False}


def _ernie(config: Config) -> Fields:
    bias = config.flag("use_bias", default=False)
    fields = llama(config)
    fields.update(
        qkv_bias=bias,
        attention_out_bias=bias,
        ffn_bias=bias,
        kv_heads=config.whole("num_key_value_heads", default=2),
        head_dim=config.whole("head_dim", default=128),
        tied_embeddings=config.flag("tie_word_embeddings", default=True),
    )
    return fields


def _glm4(config: Config) -> Fields:
    fields = llama(config)
    fields.update(
        qkv_bias=config.flag("attention_bias", default=True),
        attention_out_bias=False,
        ffn_bias=False,
        kv_heads=config.whole("num_key_value_heads", default=2),
        head_dim=config.whole("head_dim", default=128),
        norms_per_layer=4,
    )
    return fields


def _exaone4(config: Config) -> Fields:
    fields = {**llama(config), "qk_norm": "head", "window_period": period(config, 4)}
    fields["kv_heads"] = config.whole("num_key_value_heads", default=32)
    config.read.add("sliding_window_pattern")  # "LLLG", which the period says
    return {**fields, "qkv_bias": False, "attention_out_bias": False, "ffn_bias": False}


def _starcoder2(config: Config) -> Fields:
    bias = config.flag("use_bias", default=True)
    return {
        **llama(config),
        "kv_heads": config.whole("num_key_value_heads", default=2),
        "tied_embeddings": config.flag("tie_word_embeddings", default=True),
        "gated": False,
        "norm": "layernorm",
        "norm_bias": True,
        "qkv_bias": bias,
        "attention_out_bias": bias,
        "ffn_bias": bias,
    }


def _stablelm(config: Config) -> Fields:
    if config.flag("qk_layernorm", default=False):
        raise UndescribedError(
            "config.qk_layernorm", True, "this variant of StableLM is not supported"
        )
    parallel = config.flag("use_parallel_residual", default=False)
    return {
        **llama(config),
        "kv_heads": config.whole("num_key_value_heads", default=32),
        "norm": "layernorm",
        "norm_bias": True,
        "norms_per_layer": 1 if parallel else 2,
        "parallel_block": parallel,
        "qkv_bias": config.flag("use_qkv_bias", default=False),
        "attention_out_bias": False,
        "ffn_bias": False,
    }


def _cohere(config: Config) -> Fields:
    if config.flag("use_qk_norm", default=False):
        raise UndescribedError(
            "config.use_qk_norm", True, "Cohere with norms per head is not supported"
        )
    return {
        **llama(config),
        "tied_embeddings": config.flag("tie_word_embeddings", default=True),
        "norm": "layernorm",
        "norms_per_layer": 1,
        "parallel_block": True,
        "ffn_bias": False,
    }


def _cohere2(config: Config) -> Fields:
    fields = _cohere(config)
    fields["window"] = config.whole("sliding_window", default=4096, least=0)
    return {**fields, "window_period": period(config, 4)}


DENSE: dict[str, Callable[[Config], Fields]] = {
    "llama": llama, "granite": llama, "smollm3": _smollm3, "seed_oss": _seed_oss, "arcee": _arcee,
    "ernie4_5": _ernie, "glm4": _glm4, "exaone4": _exaone4, "mistral": mistral,
    "qwen2": qwen2, "qwen3": _qwen3, "gemma": _gemma, "gemma2": _gemma2, "gemma3_text": _gemma3,
    "olmo": _olmo, "olmo2": olmo2, "olmo3": _olmo3, "phi": _phi, "phi3": _phi3,
    "gpt_neox": _gpt_neox, "gptj": _gptj, "nemotron": _nemotron, "starcoder2": _starcoder2,
    "stablelm": _stablelm, "cohere": _cohere, "cohere2": _cohere2,
    "gpt2": _gpt2, "opt": _opt, "bloom": _bloom, "mpt": _mpt,
}  # fmt: skip
"""Reader of each dense `model_type`."""
