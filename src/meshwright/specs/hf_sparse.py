"""Readers of mixture-of-experts families: from the keys of a config.json to fields of `Model`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.specs.errors import SpecError
from meshwright.specs.hf_config import Config, UndescribedError
from meshwright.specs.hf_dense import Fields, llama, mistral, olmo2, period, qwen2, windowed
from meshwright.specs.model import Experts


def experts_of(**fields: Any) -> Experts:
    """Experts whose bad values are reported as the config's."""
    return Experts.parse(fields, "config.experts")


def _mixtral(config: Config) -> Fields:
    fields = mistral(config)
    experts = experts_of(
        experts=config.whole("num_local_experts", "num_experts", default=8),
        top_k=config.whole("num_experts_per_tok", default=2),
        ffn=fields["ffn"],
    )
    return {**fields, "experts": experts}


def _phimoe(config: Config) -> Fields:
    return {
        **_mixtral(config),
        "norm": "layernorm",
        "norm_bias": True,
        "head_bias": config.flag("lm_head_bias", default=False),
    }


def _qwen_experts(config: Config, fields: Fields, **shared: Any) -> Fields:
    step = config.whole("decoder_sparse_step", default=1)
    dense = [
        layer
        for layer in range(fields["layers"])
        if layer in config.layers_named("mlp_only_layers") or (layer + 1) % step
    ]
    leading = step - 1
    while leading in dense and leading < fields["layers"]:
        leading += step
    experts = experts_of(
        experts=config.whole("num_experts", "num_local_experts"),
        top_k=config.whole("num_experts_per_tok"),
        ffn=config.whole("moe_intermediate_size"),
        dense_layers=min(leading, fields["layers"]),
        period=step,
        **shared,
    )
    sparse = [i for i in range(fields["layers"]) if i >= leading and (i - leading) % step == 0]
    if sorted({*dense, *sparse}) != list(range(fields["layers"])) or {*dense} & {*sparse}:
        raise UndescribedError(
            "config.mlp_only_layers",
            config.data.get("mlp_only_layers"),
            "only leading dense layers, or every n-th sparse one, can be described",
        )
    return {**fields, "experts": experts}


def _qwen2_moe(config: Config) -> Fields:
    shared = config.whole("shared_expert_intermediate_size", default=0, least=0)
    fields = {**qwen2(config), "qkv_bias": config.flag("qkv_bias", default=True)}
    return _qwen_experts(config, fields, shared_ffn=shared, shared_gate=shared > 0)


def _qwen3_moe(config: Config) -> Fields:
    # Unlike dense Qwen3, this family falls back to hidden / heads.
    fields = {**windowed(config, llama(config)), "qk_norm": "head"}
    fields["kv_heads"] = config.whole("num_key_value_heads", default=4)
    return _qwen_experts(config, fields)


def latent_of(config: Config, heads: int) -> Fields:
    """The fields of latent attention as DeepSeek's configurations spell them."""
    nope = config.whole("qk_nope_head_dim", default=128)
    rope = config.whole("qk_rope_head_dim", default=64, least=0)
    # An explicit null means no query compression; an absent key is the class's default.
    compressed = "q_lora_rank" not in config.data
    latent = {
        "q_rank": config.whole("q_lora_rank", default=1536 if compressed else 0, least=0),
        "kv_rank": config.whole("kv_lora_rank", default=512),
        "nope_head_dim": nope,
        "rope_head_dim": rope,
        "v_head_dim": config.whole("v_head_dim", default=128),
    }
    return {
        "head_dim": nope + rope, "kv_heads": heads, "latent_attention": latent, "window": 0,
    }  # fmt: skip


_LEADING = ("deepseek_v3", "deepseek_v32", "deepseek_v3_2", "glm_moe_dsa")


def deepseek(config: Config) -> Fields:
    """Latent attention with routed and shared experts (DeepSeek-V2 and V3)."""
    fields = llama(config)
    fields.update(latent_of(config, fields["heads"]))
    if config.flag("attention_bias", default=False):
        raise UndescribedError(
            "config.attention_bias", True, "biased latent attention is not supported"
        )
    width = config.whole("moe_intermediate_size")
    shared = 2 if config.data.get("model_type") == "deepseek_v2" else 1
    # Three leading dense layers are the default of DeepSeek-V3's class and of those made of it.
    leading = min(3, fields["layers"]) if config.data.get("model_type") in _LEADING else 0
    if config.data.get("model_type") in _LEADING:
        fields["ffn_bias"] = False
    experts = experts_of(
        experts=config.whole("n_routed_experts"),
        top_k=config.whole("num_experts_per_tok"),
        ffn=width,
        shared_ffn=width * config.whole("n_shared_experts", default=shared, least=0),
        dense_layers=config.whole("first_k_dense_replace", default=leading, least=0),
        period=config.whole("moe_layer_freq", default=1),
        latent=config.whole("routed_expert_hidden_size", default=0, least=0),
    )
    return {**fields, "experts": experts}


def _glm4_moe(config: Config) -> Fields:
    fields = llama(config)
    width = config.whole("moe_intermediate_size")
    experts = experts_of(
        experts=config.whole("n_routed_experts", "num_local_experts"),
        top_k=config.whole("num_experts_per_tok"),
        ffn=width,
        shared_ffn=width * config.whole("n_shared_experts", default=1, least=0),
        dense_layers=config.whole("first_k_dense_replace", default=1, least=0),
    )
    qk_norm = "head" if config.flag("use_qk_norm", default=False) else "none"
    return {**fields, "attention_out_bias": False, "qk_norm": qk_norm, "experts": experts}


def _bailing(config: Config) -> Fields:
    """Ling and Ring (inclusionAI's Bailing, whose code comes with its checkpoints; V2 normalises queries and keys)."""
    second = config.data.get("model_type") == "bailing_moe_v2"
    config.read.add("moe_router_enable_expert_bias")  # a buffer and no weight
    fields = llama(config)
    bias = config.flag("use_bias", default=not second)
    width = config.whole("moe_intermediate_size")
    shared = config.whole("num_shared_experts", default=1 if second else 0, least=0)
    experts = experts_of(
        experts=config.whole("num_experts"),
        top_k=config.whole("num_experts_per_tok"),
        ffn=width,
        shared_ffn=shared
        * config.whole("moe_shared_expert_intermediate_size", default=width, least=0),
        dense_layers=config.whole("first_k_dense_replace", default=1 if second else 0, least=0),
    )
    return {
        **fields,
        "qkv_bias": config.flag("use_qkv_bias", default=False),
        "attention_out_bias": bias,
        "ffn_bias": False,
        "qk_norm": "head" if config.flag("use_qk_norm", default=second) else "none",
        "experts": experts,
    }


def _gpt_oss(config: Config) -> Fields:
    fields = llama(config)
    bias = config.flag("attention_bias", default=True)
    experts = experts_of(
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
        window_period=period(config, 2),
    )
    return {
        **fields,
        "qkv_bias": bias,
        "attention_out_bias": bias,
        "attention_sinks": True,
        "experts": experts,
    }


def _llama4(config: Config) -> Fields:
    fields = mistral(config)
    step = config.whole("interleave_moe_layer_step", default=1)
    listed = config.layers_named("moe_layers")
    if listed and listed != list(range(step - 1, fields["layers"], step)):
        raise SpecError("config.moe_layers", listed, "every n-th layer is expected")
    width = config.whole("intermediate_size")
    experts = experts_of(
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


def _olmoe(config: Config) -> Fields:
    fields = olmo2(config)
    experts = experts_of(
        experts=config.whole("num_experts", "num_local_experts", default=64),
        top_k=config.whole("num_experts_per_tok", default=8),
        ffn=fields["ffn"],
    )
    return {**fields, "experts": experts}


def _granitemoe(config: Config) -> Fields:
    fields = llama(config)
    experts = experts_of(
        experts=config.whole("num_local_experts", "num_experts", default=8),
        top_k=config.whole("num_experts_per_tok", default=2),
        ffn=fields["ffn"],
    )
    return {**fields, "ffn_bias": False, "experts": experts}


def _dots1(config: Config) -> Fields:
    fields = llama(config)
    fields["kv_heads"] = config.whole("num_key_value_heads", default=32)
    width = config.whole("moe_intermediate_size", default=1408)
    experts = experts_of(
        experts=config.whole("n_routed_experts", "num_local_experts"),
        top_k=config.whole("num_experts_per_tok"),
        ffn=width,
        shared_ffn=width * config.whole("n_shared_experts", default=0, least=0),
        dense_layers=config.whole("first_k_dense_replace", default=0, least=0),
    )
    return {**fields, "ffn_bias": False, "qk_norm": "head", "experts": experts}


def _minimax_m2(config: Config) -> Fields:
    if not all(
        config.layers_named("attn_type_list")
    ):  # 0: the lightning attention of MiniMax-Text-01
        raise UndescribedError(
            "config.attn_type_list",
            config.data.get("attn_type_list"),
            "1, softmax attention, is expected of every layer",
        )
    fields = llama(config)
    experts = experts_of(
        experts=config.whole("num_local_experts", "num_experts", default=256),
        top_k=config.whole("num_experts_per_tok", default=8),
        ffn=fields["ffn"],
    )
    fields.update(
        kv_heads=config.whole("num_key_value_heads", default=8),
        head_dim=config.whole("head_dim", default=128),
        qkv_bias=False,
        attention_out_bias=False,
    )
    return {**fields, "ffn_bias": False, "qk_norm": "full", "experts": experts}


def _longcat(config: Config) -> Fields:
    """Two attentions and two FFNs a layer, and experts beside the first (transformers' LongcatFlashDecoderLayer).

    Each half counts as a layer here: the experts stand in the first with its FFN as what is always on. Tokens go
    evenly to all experts, so that so many of a token's choices compute as there are experts that do.
    """
    halves = 2 * config.whole("num_layers", "num_hidden_layers")
    width = config.whole("ffn_hidden_size", "intermediate_size")
    fields = llama(Config({**config.data, "num_hidden_layers": halves, "intermediate_size": width}))
    config.read |= {"num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size", "vocab_size",
                    "attention_bias", "tie_word_embeddings"}  # fmt: skip
    fields.update(latent_of(config, fields["heads"]))
    count, idle = (
        config.whole("n_routed_experts"),
        config.whole("zero_expert_num", default=0, least=0),
    )
    chosen = config.whole("moe_topk", "num_experts_per_tok")
    experts = experts_of(
        experts=count,
        top_k=max(round(chosen * count / (count + idle)), 1),
        ffn=config.whole("expert_ffn_hidden_size", "moe_intermediate_size"),
        shared_ffn=width,
        period=2,
    )
    routed = idle * fields["hidden"] * halves // 2
    extra = {"extra_parameters": {"routers' outputs of idle experts": routed}} if idle else {}
    return {**fields, **extra, "experts": experts}


SPARSE: dict[str, Callable[[Config], Fields]] = {
    "mixtral": _mixtral, "phimoe": _phimoe, "qwen2_moe": _qwen2_moe, "qwen3_moe": _qwen3_moe,
    "deepseek_v2": deepseek, "deepseek_v3": deepseek, "glm4_moe": _glm4_moe, "dots1": _dots1,
    "gpt_oss": _gpt_oss, "llama4_text": _llama4, "olmoe": _olmoe, "granitemoe": _granitemoe,
    "minimax_m2": _minimax_m2, "longcat_flash": _longcat, "bailing_moe": _bailing,
    "bailing_moe_v2": _bailing,
}  # fmt: skip
"""Reader of each mixture-of-experts `model_type`."""
