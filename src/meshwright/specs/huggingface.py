"""Reads a Hugging Face `config.json` into a `Model`, in old and new key spellings.

Where a key is absent, the default is that of the family's configuration class in transformers, so
that the parameter count equals what transformers would build (a differential test holds this).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshwright.specs.errors import SpecError, nearest
from meshwright.specs.model import Experts, Model

_LIMIT = 10**9


class Config:
    """A parsed config.json whose values are checked when read; each may have several spellings."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data

    def _find(self, names: Sequence[str]) -> tuple[str, Any]:
        for name in names:
            if self.data.get(name) is not None:
                return name, self.data[name]
        return names[0], None

    def whole(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """Return a whole number.

        Raises:
            SpecError: absent without a default, not whole, or out of range.
        """
        name, value = self._find(names)
        if value is None:
            if default is None:
                spellings = " or ".join(names)
                raise SpecError(f"config.{name}", None, f"this key is required ({spellings})")
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LIMIT:
            raise SpecError(f"config.{name}", value, f"a whole number of at least {least} expected")
        return value

    def flag(self, *names: str, default: bool) -> bool:
        """Return a true or false.

        Raises:
            SpecError: anything else.
        """
        name, value = self._find(names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise SpecError(f"config.{name}", value, "true or false is expected")
        return value

    def layers_named(self, name: str) -> list[Any]:
        """Return a list, or an empty one where the key is absent.

        Raises:
            SpecError: not a list.
        """
        value = self.data.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise SpecError(f"config.{name}", value, "a list is expected")
        return value


def is_config(data: Mapping[str, Any]) -> bool:
    """Whether parsed data looks like a Hugging Face config rather than our own model file."""
    return "model_type" in data or "architectures" in data


def model_from_config(data: Mapping[str, Any], name: str = "", source: str = "") -> Model:
    """Build a Model from a parsed config.json of a supported family.

    Of a multimodal config only the language model (`text_config`) is taken.

    Raises:
        SpecError: unsupported family, a required key is absent, or a value is impossible.
    """
    given_type = data.get("model_type")
    text = data.get("text_config")
    if isinstance(text, Mapping):
        note = f"language model of the multimodal {given_type} config; other parts are not counted"
        inner = {"model_type": _TEXT_OF.get(str(given_type), f"{given_type}_text"), **text}
        return model_from_config(inner, name, f"{source}; {note}" if source else note)
    if not isinstance(given_type, str):
        raise SpecError("config.model_type", given_type, f"a family is expected: {_FAMILY_LIST}")
    family = _SAME_AS.get(given_type, given_type)
    read = _READERS.get(family)
    if read is None:
        raise SpecError(
            "config.model_type", given_type,
            f"this family is not supported ({nearest(given_type, _READERS)}); "
            "describe the model by its shape instead",
        )  # fmt: skip
    config = Config(data)
    fields = read(config)
    fields.setdefault("family", family)
    known = data.get("_name_or_path")
    fields["name"] = name or (known if isinstance(known, str) and known else given_type)
    fields["source"] = source or "a Hugging Face config.json"
    if data.get("num_nextn_predict_layers"):
        fields["source"] += "; its multi-token-prediction layers are not counted"
    return Model.parse(fields, "config")


def families() -> list[str]:
    """Names of the supported `model_type`s, aliases included."""
    return sorted({*_READERS, *_SAME_AS})


def _grouped(config: Config, kv_default: int | None = None) -> dict[str, Any]:
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


def _experts(**fields: Any) -> Experts:
    return Experts.parse(fields, "config.experts")


def _llama(config: Config) -> dict[str, Any]:
    bias = config.flag("attention_bias", default=False)
    return {
        **_grouped(config),
        "ffn": config.whole("intermediate_size"),
        "tied_embeddings": config.flag("tie_word_embeddings", default=False),
        "qkv_bias": bias,
        "attention_out_bias": bias,
        "ffn_bias": config.flag("mlp_bias", default=False),
    }


def _mistral(config: Config) -> dict[str, Any]:
    return {**_llama(config), **_grouped(config, kv_default=8)}


def _mixtral(config: Config) -> dict[str, Any]:
    fields = _mistral(config)
    experts = _experts(
        experts=config.whole("num_local_experts", "num_experts", default=8),
        top_k=config.whole("num_experts_per_tok", default=2),
        ffn=fields["ffn"],
    )
    return {**fields, "experts": experts}


def _phimoe(config: Config) -> dict[str, Any]:
    return {
        **_mixtral(config),
        "norm": "layernorm",
        "norm_bias": True,
        "head_bias": config.flag("lm_head_bias", default=False),
    }


def _qwen2(config: Config) -> dict[str, Any]:
    fields = _windowed(config, _llama(config))
    return {**fields, "qkv_bias": True, "attention_out_bias": False, "ffn_bias": False}


def _windowed(config: Config, fields: dict[str, Any]) -> dict[str, Any]:
    """Qwen configs name a window that `use_sliding_window` leaves off."""
    used = config.flag("use_sliding_window", default=False)
    return fields if used else {**fields, "window": 0}


def _qwen3(config: Config) -> dict[str, Any]:
    # The family's default head width is 128 whatever the hidden width.
    head_dim = config.whole("head_dim", default=128)
    return {**_windowed(config, _llama(config)), "head_dim": head_dim, "qk_norm": "head"}


def _qwen_experts(config: Config, fields: dict[str, Any], **shared: Any) -> dict[str, Any]:
    step = config.whole("decoder_sparse_step", default=1)
    dense = [
        layer for layer in range(fields["layers"])
        if layer in config.layers_named("mlp_only_layers") or (layer + 1) % step
    ]  # fmt: skip
    leading = step - 1
    while leading in dense and leading < fields["layers"]:
        leading += step
    experts = _experts(
        experts=config.whole("num_experts", "num_local_experts"),
        top_k=config.whole("num_experts_per_tok"),
        ffn=config.whole("moe_intermediate_size"),
        dense_layers=min(leading, fields["layers"]),
        period=step,
        **shared,
    )
    sparse = [i for i in range(fields["layers"]) if i >= leading and (i - leading) % step == 0]
    if sorted({*dense, *sparse}) != list(range(fields["layers"])) or {*dense} & {*sparse}:
        raise SpecError(
            "config.mlp_only_layers", config.data.get("mlp_only_layers"),
            "only leading dense layers, or every n-th sparse one, can be described",
        )  # fmt: skip
    return {**fields, "experts": experts}


def _qwen2_moe(config: Config) -> dict[str, Any]:
    shared = config.whole("shared_expert_intermediate_size", default=0, least=0)
    return _qwen_experts(config, _qwen2(config), shared_ffn=shared, shared_gate=shared > 0)


def _qwen3_moe(config: Config) -> dict[str, Any]:
    # Unlike dense Qwen3, this family falls back to hidden / heads.
    fields = {**_windowed(config, _llama(config)), "qk_norm": "head"}
    fields["kv_heads"] = config.whole("num_key_value_heads", default=4)
    return _qwen_experts(config, fields)


def _gemma(config: Config) -> dict[str, Any]:
    fields = _llama(config)
    fields["head_dim"] = config.whole("head_dim", default=256)
    fields["tied_embeddings"] = config.flag("tie_word_embeddings", default=True)
    return fields


def _gemma2(config: Config) -> dict[str, Any]:
    fields = _gemma(config)
    fields["window"] = config.whole("sliding_window", default=4096, least=0)
    return {**fields, "norms_per_layer": 4, "window_period": _period(config, 2)}


def _gemma3(config: Config) -> dict[str, Any]:
    pattern = config.whole("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return {**_gemma2(config), "qk_norm": "head", "window_period": _period(config, pattern)}


def _period(config: Config, default: int) -> int:
    """Every how many layers one attends to everything, from `layer_types` if it is there."""
    types = config.layers_named("layer_types")
    return types.index("full_attention") + 1 if "full_attention" in types else default


def _deepseek(config: Config) -> dict[str, Any]:
    fields = _llama(config)
    nope = config.whole("qk_nope_head_dim", default=128)
    rope = config.whole("qk_rope_head_dim", default=64)
    # An explicit null means no query compression; an absent key is the class's default.
    compressed = "q_lora_rank" not in config.data
    latent = {
        "q_rank": config.whole("q_lora_rank", default=1536 if compressed else 0, least=0),
        "kv_rank": config.whole("kv_lora_rank", default=512),
        "nope_head_dim": nope,
        "rope_head_dim": rope,
        "v_head_dim": config.whole("v_head_dim", default=128),
    }
    fields.update(head_dim=nope + rope, kv_heads=fields["heads"], latent_attention=latent, window=0)
    if config.flag("attention_bias", default=False):
        raise SpecError("config.attention_bias", True, "biased latent attention is not supported")
    width = config.whole("moe_intermediate_size")
    shared = 2 if config.data.get("model_type") == "deepseek_v2" else 1
    experts = _experts(
        experts=config.whole("n_routed_experts"),
        top_k=config.whole("num_experts_per_tok"),
        ffn=width,
        shared_ffn=width * config.whole("n_shared_experts", default=shared, least=0),
        dense_layers=config.whole("first_k_dense_replace", default=0, least=0),
        period=config.whole("moe_layer_freq", default=1),
    )
    return {**fields, "experts": experts}


def _glm4_moe(config: Config) -> dict[str, Any]:
    fields = _llama(config)
    width = config.whole("moe_intermediate_size")
    experts = _experts(
        experts=config.whole("n_routed_experts", "num_local_experts"),
        top_k=config.whole("num_experts_per_tok"),
        ffn=width,
        shared_ffn=width * config.whole("n_shared_experts", default=1, least=0),
        dense_layers=config.whole("first_k_dense_replace", default=1, least=0),
    )
    qk_norm = "head" if config.flag("use_qk_norm", default=False) else "none"
    return {**fields, "attention_out_bias": False, "qk_norm": qk_norm, "experts": experts}


def _gpt_oss(config: Config) -> dict[str, Any]:
    fields = _llama(config)
    bias = config.flag("attention_bias", default=True)
    experts = _experts(
        experts=config.whole("num_local_experts", "num_experts", default=128),
        top_k=config.whole("num_experts_per_tok", "experts_per_token", default=4),
        ffn=fields["ffn"],
        router_bias=True,
        expert_bias=True,
    )
    fields.update(
        head_dim=config.whole("head_dim", default=64),
        kv_heads=config.whole("num_key_value_heads", default=8),
        window=config.whole("sliding_window", default=128, least=0),
        window_period=_period(config, 2),
    )
    return {
        **fields,
        "qkv_bias": bias,
        "attention_out_bias": bias,
        "attention_sinks": True,
        "experts": experts,
    }


def _llama4(config: Config) -> dict[str, Any]:
    fields = _mistral(config)
    step = config.whole("interleave_moe_layer_step", default=1)
    listed = config.layers_named("moe_layers")
    if listed and listed != list(range(step - 1, fields["layers"], step)):
        raise SpecError("config.moe_layers", listed, "every n-th layer is expected")
    width = config.whole("intermediate_size")
    experts = _experts(
        experts=config.whole("num_local_experts", default=16),
        top_k=config.whole("num_experts_per_tok", default=1),
        ffn=width,
        shared_ffn=width,
        dense_layers=min(step - 1, fields["layers"]),
        period=step,
    )
    fields.update(
        ffn=config.whole("intermediate_size_mlp", default=16384),
        head_dim=config.whole("head_dim", default=128),
        window=config.whole("attention_chunk_size", default=8192, least=0),
        window_period=config.whole("no_rope_layer_interval", default=4),
        ffn_bias=False,
    )
    return {**fields, "experts": experts}


def _olmo(config: Config) -> dict[str, Any]:
    return {**_llama(config), "norm": "layernorm", "norm_weight": False, "ffn_bias": False}


def _olmo2(config: Config) -> dict[str, Any]:
    return {**_llama(config), "qk_norm": "full", "ffn_bias": False}


def _olmo3(config: Config) -> dict[str, Any]:
    fields = _olmo2(config)
    fields["window"] = config.whole("sliding_window", default=4096, least=0)
    return {**fields, "window_period": _period(config, 4)}


def _olmoe(config: Config) -> dict[str, Any]:
    fields = _olmo2(config)
    experts = _experts(
        experts=config.whole("num_experts", "num_local_experts", default=64),
        top_k=config.whole("num_experts_per_tok", default=8),
        ffn=fields["ffn"],
    )
    return {**fields, "experts": experts}


def _phi(config: Config) -> dict[str, Any]:
    if config.flag("qk_layernorm", default=False):
        raise SpecError("config.qk_layernorm", True, "this variant of Phi is not supported")
    return {
        **_llama(config),
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


def _phi3(config: Config) -> dict[str, Any]:
    return {**_llama(config), "qkv_bias": False, "attention_out_bias": False, "ffn_bias": False}


def _gpt_neox(config: Config) -> dict[str, Any]:
    bias = config.flag("attention_bias", default=True)
    fields = _llama(config)
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


def _nemotron(config: Config) -> dict[str, Any]:
    return {**_llama(config), "gated": False, "norm": "layernorm", "norm_bias": True}


def _biased(config: Config, ffn: int, positions: str, rows: int = 0) -> dict[str, Any]:
    """GPT-2 and its kin: layer norms and biases everywhere, embeddings tied."""
    return {
        **_grouped(config),
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


def _gpt2(config: Config) -> dict[str, Any]:
    hidden = config.whole("hidden_size", "n_embd")
    rows = config.whole("max_position_embeddings", "n_positions", "n_ctx", default=1024)
    return _biased(config, config.whole("n_inner", default=4 * hidden), "learned", rows)


def _opt(config: Config) -> dict[str, Any]:
    hidden = config.whole("hidden_size")
    if config.whole("word_embed_proj_dim", default=hidden) != hidden:
        raise SpecError(
            "config.word_embed_proj_dim", config.data["word_embed_proj_dim"],
            f"projected embeddings are not supported; {hidden} is expected",
        )  # fmt: skip
    # The table has two rows in front that padding reserves.
    rows = config.whole("max_position_embeddings", default=2048) + 2
    return _biased(config, config.whole("ffn_dim", default=4 * hidden), "learned", rows)


def _bloom(config: Config) -> dict[str, Any]:
    hidden = config.whole("hidden_size", "n_embed")
    spelt = {**config.data, "hidden_size": hidden}
    return {**_biased(Config(spelt), 4 * hidden, "alibi"), "embedding_norm": True}


def _mpt(config: Config) -> dict[str, Any]:
    hidden = config.whole("d_model", "hidden_size")
    if not config.flag("no_bias", default=True):
        raise SpecError("config.no_bias", False, "MPT with biases is not supported")
    return {
        **_grouped(config),
        "ffn": hidden * config.whole("expansion_ratio", default=4),
        "gated": False,
        "tied_embeddings": config.flag("tie_word_embeddings", default=True),
        "norm": "layernorm",
        "positions": "alibi",
    }


_READERS: dict[str, Callable[[Config], dict[str, Any]]] = {
    "llama": _llama, "mistral": _mistral, "mixtral": _mixtral, "phimoe": _phimoe,
    "qwen2": _qwen2, "qwen2_moe": _qwen2_moe, "qwen3": _qwen3, "qwen3_moe": _qwen3_moe,
    "gemma": _gemma, "gemma2": _gemma2, "gemma3_text": _gemma3,
    "deepseek_v2": _deepseek, "deepseek_v3": _deepseek, "glm4_moe": _glm4_moe,
    "gpt_oss": _gpt_oss, "llama4_text": _llama4,
    "olmo": _olmo, "olmo2": _olmo2, "olmo3": _olmo3, "olmoe": _olmoe,
    "phi": _phi, "phi3": _phi3, "gpt_neox": _gpt_neox, "nemotron": _nemotron,
    "gpt2": _gpt2, "opt": _opt, "bloom": _bloom, "mpt": _mpt,
}  # fmt: skip
_SAME_AS = {"kimi_k2": "deepseek_v3", "ministral": "mistral", "phi4": "phi3"}
_TEXT_OF = {"gemma3": "gemma3_text", "llama4": "llama4_text", "mistral3": "mistral"}
_FAMILY_LIST = ", ".join(sorted(_READERS))
