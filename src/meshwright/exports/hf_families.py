"""Families of transformers beyond the plainest, each as the configuration that builds it (transformers 5 names).

Names and defaults: `configuration_*.py` of each family, transformers 5.23. Which models a family's words can say is
decided by reading them back (`specs.huggingface`), so that nothing is written of which a part would be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.specs.huggingface import model_from_config
from meshwright.specs.model import Experts, Model
from meshwright.specs.numerics import Numerics, numerics_of, renormalizes_routing

Words = dict[str, Any]
ACTIVATIONS = {
    "silu": "silu", "gelu": "gelu", "gelu-tanh": "gelu_pytorch_tanh", "relu": "relu", "relu2": "relu2",
    "quick-gelu": "quick_gelu",
}  # fmt: skip
"""Our names of activations by transformers' (`transformers/activations.py`)."""


def rope(numerics: Numerics) -> Words:
    """`rope_parameters` of transformers 5 (`modeling_rope_utils.py`): base and stretching of rotary positions."""
    found: Words = {"rope_type": "default", "rope_theta": numerics.rope_theta}
    scaling = numerics.rope_scaling
    if scaling is None:
        return found
    found |= {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.original_positions:
        found["original_max_position_embeddings"] = scaling.original_positions
    if scaling.kind == "llama3":
        found |= {
            "low_freq_factor": scaling.low_frequency,
            "high_freq_factor": scaling.high_frequency,
        }
    elif scaling.kind == "yarn":
        found |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
        found |= {} if scaling.truncate else {"truncate": False}
        found |= {"attention_factor": scaling.attention_factor} if scaling.attention_factor else {}
    return found


def shape(model: Model, family: str, length: int) -> Words:
    """The sizes of a decoder of a family, by the names that nearly every one has."""
    return {
        "model_type": family, "num_hidden_layers": model.layers, "hidden_size": model.hidden,
        "intermediate_size": model.ffn, "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads, "head_dim": model.head_dim, "vocab_size": model.vocab,
        "max_position_embeddings": length, "tie_word_embeddings": model.tied_embeddings,
        "attention_dropout": 0.0, "use_cache": False,
    }  # fmt: skip


def _usual(model: Model, length: int) -> Words:
    """What nearly every family is told."""
    words = shape(model, model.family, length)
    return words | {"pad_token_id": None, **_numbers(model.numerics)}


def _numbers(numerics: Numerics | None) -> Words:
    """Activation and rotary positions; where nobody looked them up, a family's class has its usual ones."""
    if numerics is None:
        return {}
    turned = {"partial_rotary_factor": numerics.rotary_share} if numerics.rotary_share else {}
    return {
        "hidden_act": ACTIVATIONS[numerics.activation],
        "rope_parameters": rope(numerics) | turned,
    }


def _epsilon(model: Model, name: str) -> Words:
    """The epsilon of norms under a family's name for it."""
    return {} if model.numerics is None else {name: model.numerics.norm_epsilon}


def _llama_like(model: Model, length: int) -> Words:
    """With RMS norms, and biases of attention where the model has them."""
    found = _usual(model, length) | _epsilon(model, "rms_norm_eps")
    return found | {"attention_bias": model.qkv_bias}


def _layered(model: Model, length: int) -> Words:
    """The same with windows in some layers, which are listed one by one."""
    kinds = [
        "sliding_attention" if model.window and model.has_window(layer) else "full_attention"
        for layer in range(model.layers)
    ]
    found = _llama_like(model, length) | {"layer_types": kinds}
    return found | ({"sliding_window": model.window} if model.window else {})


def _gemma(model: Model, length: int) -> Words:
    found = _llama_like(model, length)
    return found | ({"hidden_activation": found["hidden_act"]} if "hidden_act" in found else {})


def _gemma2(model: Model, length: int) -> Words:
    numerics, found = numerics_of(model), _layered(model, length) | _gemma(model, length)
    found["query_pre_attn_scalar"] = numerics.query_scalar or model.head_dim
    caps = (
        ("attn_logit_softcapping", numerics.attention_softcap),
        ("final_logit_softcapping", numerics.logits_softcap),
    )
    return found | {name: cap or None for name, cap in caps if cap is not None}


def _gemma3(model: Model, length: int) -> Words:
    numerics, found = numerics_of(model), _gemma2(model, length)
    windowed = {"rope_type": "default", "rope_theta": numerics.window_rope_theta or 10_000.0}
    if "rope_parameters" in found:
        by_kind = {"full_attention": found["rope_parameters"], "sliding_attention": windowed}
        found["rope_parameters"] = by_kind
    return found


def _layer_norms(model: Model, length: int) -> Words:
    """With layer norms, whose epsilon has a name of its own."""
    return _usual(model, length) | _epsilon(model, "layer_norm_eps")


def _either_block(model: Model, length: int) -> Words:
    """The same, with a layer's halves side by side or one after the other."""
    halves = {"use_parallel_residual": model.parallel_block, "hidden_dropout": 0.0}
    return _layer_norms(model, length) | halves


def _gpt_neox(model: Model, length: int) -> Words:
    return _either_block(model, length) | {"attention_bias": model.qkv_bias}


def _phi(model: Model, length: int) -> Words:
    return _layer_norms(model, length) | {"resid_pdrop": 0.0, "embd_pdrop": 0.0}


def _phi3(model: Model, length: int) -> Words:
    window = {"sliding_window": model.window} if model.window else {}
    return _llama_like(model, length) | {"resid_pdrop": 0.0, "embd_pdrop": 0.0} | window


def _starcoder2(model: Model, length: int) -> Words:
    return _usual(model, length) | _epsilon(model, "norm_epsilon") | {
        "use_bias": model.ffn_bias,
        "sliding_window": model.window or None, "residual_dropout": 0.0, "embedding_dropout": 0.0,
    }  # fmt: skip


def _stablelm(model: Model, length: int) -> Words:
    return _either_block(model, length) | {"use_qkv_bias": model.qkv_bias}


def _cohere(model: Model, length: int) -> Words:
    return _layer_norms(model, length) | {"attention_bias": model.qkv_bias, "use_qk_norm": False}


def _nemotron(model: Model, length: int) -> Words:
    return _usual(model, length) | _epsilon(model, "norm_eps") | {
        "attention_bias": model.qkv_bias, "mlp_bias": model.ffn_bias,
    }  # fmt: skip


def _olmo(model: Model, length: int) -> Words:
    return _usual(model, length) | {"attention_bias": model.qkv_bias, "clip_qkv": None}


def _bloom(model: Model, length: int) -> Words:
    return {
        "model_type": "bloom", "n_layer": model.layers, "hidden_size": model.hidden, "n_head": model.heads,
        "vocab_size": model.vocab, **_epsilon(model, "layer_norm_epsilon"),
        "tie_word_embeddings": model.tied_embeddings, "hidden_dropout": 0.0, "attention_dropout": 0.0,
        "use_cache": False,
    }  # fmt: skip


def _gptj(model: Model, length: int) -> Words:
    known = model.numerics
    own = {"activation_function": ACTIVATIONS[known.activation]} if known is not None else {}
    share = known.rotary_share if known is not None else None
    turned = round(share * model.head_dim) if share else min(64, model.head_dim)  # as GPT-J has it
    return {
        "model_type": "gptj", "n_layer": model.layers, "n_embd": model.hidden, "n_head": model.heads,
        "n_inner": model.ffn, "vocab_size": model.vocab, "n_positions": length, "rotary_dim": turned, **own, "tie_word_embeddings": model.tied_embeddings,
        **_epsilon(model, "layer_norm_epsilon"), "resid_pdrop": 0.0, "embd_pdrop": 0.0,
        "attn_pdrop": 0.0, "use_cache": False,
    }  # fmt: skip


def _mpt(model: Model, length: int) -> Words:
    return {
        "model_type": "mpt", "d_model": model.hidden, "n_heads": model.heads, "n_layers": model.layers,
        "expansion_ratio": model.ffn // model.hidden, "vocab_size": model.vocab, "max_seq_len": length,
        "no_bias": not model.ffn_bias, "attn_config": {"alibi": True},
        "tie_word_embeddings": model.tied_embeddings, "use_cache": False,
    }  # fmt: skip


def _experts(model: Model) -> Experts:
    assert model.experts is not None, "a family of mixtures is asked for of a mixture alone"
    return model.experts


def _qwen2_moe(model: Model, length: int) -> Words:
    experts = _experts(model)
    found = _llama_like(model, length) | {
        "num_experts": experts.experts, "num_experts_per_tok": experts.top_k,
        "moe_intermediate_size": experts.ffn, "decoder_sparse_step": experts.period,
        "norm_topk_prob": renormalizes_routing(model),
        "mlp_only_layers": list(range(experts.dense_layers)) if experts.period == 1 else [],
    }  # fmt: skip
    return found | ({"shared_expert_intermediate_size": experts.shared_ffn} if experts.shared_ffn else {})  # fmt: skip


def _olmoe(model: Model, length: int) -> Words:
    experts = _experts(model)
    return _llama_like(model, length) | {
        "num_experts": experts.experts, "num_experts_per_tok": experts.top_k,
        "intermediate_size": experts.ffn, "norm_topk_prob": renormalizes_routing(model), "clip_qkv": None,
    }  # fmt: skip


def _phimoe(model: Model, length: int) -> Words:
    experts = _experts(model)
    return _usual(model, length) | _epsilon(model, "rms_norm_eps") | {
        "attention_bias": model.qkv_bias, "lm_head_bias": model.head_bias, "num_local_experts": experts.experts,
        "num_experts_per_tok": experts.top_k, "intermediate_size": experts.ffn,
        "sliding_window": model.window or None,
    }  # fmt: skip


def _gpt_oss(model: Model, length: int) -> Words:
    experts = _experts(model)
    return _layered(model, length) | {
        "num_local_experts": experts.experts, "num_experts_per_tok": experts.top_k,
        "intermediate_size": experts.ffn,
    }  # fmt: skip


def _routed(model: Model, length: int) -> Words:
    """Routed and shared experts as DeepSeek's configurations name them."""
    experts, numerics = _experts(model), numerics_of(model)
    return _llama_like(model, length) | {
        "n_routed_experts": experts.experts, "num_experts_per_tok": experts.top_k,
        "moe_intermediate_size": experts.ffn, "n_shared_experts": experts.shared_ffn // experts.ffn,
        "first_k_dense_replace": experts.dense_layers, "norm_topk_prob": renormalizes_routing(model),
        "routed_scaling_factor": numerics.router_scaling, "n_group": numerics.router_groups,
        "topk_group": numerics.router_group_top_k,
    }  # fmt: skip


def _glm4_moe(model: Model, length: int) -> Words:
    return _routed(model, length) | {"use_qk_norm": model.qk_norm == "head"}


def _deepseek(model: Model, length: int) -> Words:
    latent, numerics, found = model.latent_attention, numerics_of(model), _routed(model, length)
    assert latent is not None, "the family has latent attention"
    found |= {
        "q_lora_rank": latent.q_rank or None, "kv_lora_rank": latent.kv_rank,
        "qk_nope_head_dim": latent.nope_head_dim, "qk_rope_head_dim": latent.rope_head_dim,
        "v_head_dim": latent.v_head_dim, "head_dim": latent.rope_head_dim,
        "scoring_func": numerics.router,
    }  # fmt: skip
    if model.family == "deepseek_v2":
        found["topk_method"] = "group_limited_greedy" if numerics.router_groups > 1 else "greedy"
    elif numerics.router_balances:
        found["topk_method"] = "noaux_tc"
    scaling = numerics.rope_scaling
    if scaling is not None and scaling.kind == "yarn" and "rope_parameters" in found:
        found["rope_parameters"] |= {
            "mscale": scaling.mscale,
            "mscale_all_dim": scaling.mscale_all_dim,
        }
    return found


WRITERS: dict[str, tuple[Callable[[Model, int], Words], str]] = {
    "gemma": (_gemma, "GemmaDecoderLayer"), "gemma2": (_gemma2, "Gemma2DecoderLayer"),
    "gemma3_text": (_gemma3, "Gemma3DecoderLayer"), "gpt_neox": (_gpt_neox, "GPTNeoXLayer"),
    "gptj": (_gptj, "GPTJBlock"), "bloom": (_bloom, "BloomBlock"), "mpt": (_mpt, "MptBlock"),
    "olmo": (_olmo, "OlmoDecoderLayer"), "olmo2": (_llama_like, "Olmo2DecoderLayer"),
    "olmo3": (_layered, "Olmo3DecoderLayer"), "olmoe": (_olmoe, "OlmoeDecoderLayer"),
    "phi": (_phi, "PhiDecoderLayer"), "phi3": (_phi3, "Phi3DecoderLayer"),
    "phimoe": (_phimoe, "PhimoeDecoderLayer"), "starcoder2": (_starcoder2, "Starcoder2DecoderLayer"),
    "stablelm": (_stablelm, "StableLmDecoderLayer"), "cohere": (_cohere, "CohereDecoderLayer"),
    "nemotron": (_nemotron, "NemotronDecoderLayer"), "exaone4": (_layered, "Exaone4DecoderLayer"),
    "smollm3": (_llama_like, "SmolLM3DecoderLayer"), "glm4_moe": (_glm4_moe, "Glm4MoeDecoderLayer"),
    "deepseek_v2": (_deepseek, "DeepseekV2DecoderLayer"), "deepseek_v3": (_deepseek, "DeepseekV3DecoderLayer"),
    "gpt_oss": (_gpt_oss, "GptOssDecoderLayer"), "qwen2_moe": (_qwen2_moe, "Qwen2MoeDecoderLayer"),
    "qwen3_moe": (_qwen2_moe, "Qwen3MoeDecoderLayer"),
}  # fmt: skip
"""Family → what writes its configuration, and the class of one of its layers."""
ZERO_NORMS = ("gemma", "gemma2", "gemma3_text")
"""Families whose norms add one to their weights, which begin at zero."""
_NAMES_ONLY = frozenset({
    "name", "source", "numerics", "max_positions", "counted_parameters", "extra_parameters", "encoder", "config_json",
})  # fmt: skip


def lost(model: Model, words: Words) -> str:
    """The first field of a model that a configuration would not bring back; "" where it says all of it."""
    back = model_from_config(words, model.name)
    for name in type(model).model_fields:
        if name not in _NAMES_ONLY and getattr(back, name) != getattr(model, name):
            return name
    if model.extra_parameters or model.encoder is not None:
        return "extra_parameters" if model.extra_parameters else "encoder"
    return _lost_number(model.numerics, back.numerics)


def _lost_number(mine: Numerics | None, back: Numerics | None) -> str:
    """The first number of a model that did not come back; what nobody stated is its family's own."""
    if mine is None or back is None:
        return ""
    stretched = mine.rope_scaling
    if stretched is not None and stretched.kind == "longrope":
        return "numerics.rope_scaling"  # whose factors, one a frequency, are not among them
    for name in type(mine).model_fields:
        ours, said = getattr(mine, name), getattr(back, name)
        if name == "rope_scaling" and ours is not None and said is not None:
            stated = ours.model_dump(exclude_defaults=True)
            ours, said = stated, {key: getattr(said, key) for key in stated}
        usual = name == "init_std" or ours is None or (name == "query_scalar" and not ours)
        if not usual and ours != said:
            return f"numerics.{name}"
    return ""
