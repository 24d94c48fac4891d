"""A model as a Hugging Face `config.json` (transformers 5 names), for the targets that load one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.exports.families import computes_otherwise
from meshwright.exports.limit_rules import Problem
from meshwright.specs.errors import SpecError
from meshwright.specs.job import Job
from meshwright.specs.model import Model
from meshwright.specs.numerics import Numerics, numerics_of


def hf_problems(model: Model) -> Iterator[Problem]:
    """Why an architecture has no configuration among the families written here."""
    yield from computes_otherwise(model)
    if hf_family(model) is None:
        yield Problem(
            "model.family",
            model.family,
            "gets its model from a Hugging Face config.json, written here for the architectures of "
            "Llama, Mistral, Qwen2, Qwen3, Mixtral and GPT-2",
        )


def hf_family(model: Model) -> str | None:
    """The Hugging Face model_type with exactly this architecture, if it is one we write."""
    if model.latent_attention or model.parallel_block or model.embedding_norm or model.head_bias:
        return None
    if model.norms_per_layer != 2 or not model.final_norm or model.extra_parameters:
        return None
    if numerics_of(model).rotary_share not in (None, 1.0):
        return None
    if model.positions == "learned":
        plain = model.norm == "layernorm" and not model.gated and model.kv_heads == model.heads
        plain &= model.ffn_bias and model.qkv_bias and model.attention_out_bias
        plain &= model.qk_norm == "none" and not model.window and model.experts is None
        return "gpt2" if plain and model.head_dim * model.heads == model.hidden else None
    if model.positions != "rope" or model.norm != "rmsnorm" or not model.gated or model.ffn_bias:
        return None
    if model.experts is not None:
        e = model.experts
        simple = not (e.shared_ffn or e.dense_layers or e.router_bias or e.expert_bias)
        simple &= e.period == 1 and model.qk_norm == "none" and not model.qkv_bias
        return "mixtral" if simple and not model.attention_out_bias else None
    if model.window:
        even = model.window_period == 1 and not model.qkv_bias and model.qk_norm == "none"
        return "mistral" if even and not model.attention_out_bias else None
    if model.qk_norm == "head":
        return "qwen3" if model.qkv_bias == model.attention_out_bias else None
    if model.qk_norm != "none":
        return None
    if model.qkv_bias != model.attention_out_bias:
        return "qwen2" if model.qkv_bias else None
    return "llama"


def hf_config(model: Model, job: Job) -> dict[str, Any]:
    """The configuration that builds this architecture, with the kernel of its attention where it is not the usual.

    Raises:
        SpecError: no family written here has this architecture.
    """
    kernel = {"attn_implementation": EAGER} if job.attention_kernel == "unfused" else {}
    return _shape(model, job.seq_len) | kernel


EAGER = "eager"
"""transformers' attention that keeps its scores; PyTorch's fused one otherwise."""


def _shape(model: Model, seq_len: int) -> dict[str, Any]:
    family = hf_family(model)
    if family is None:
        raise SpecError("model.family", model.family, next(hf_problems(model)).lacks)
    numerics = numerics_of(model)
    if family == "gpt2":
        return {
            "model_type": "gpt2", "n_layer": model.layers, "n_embd": model.hidden,
            "n_head": model.heads, "n_inner": model.ffn, "vocab_size": model.vocab,
            "n_positions": max(model.max_positions, seq_len),
            "activation_function": ACTIVATIONS[numerics.activation],
            "layer_norm_epsilon": numerics.norm_epsilon, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
            "tie_word_embeddings": model.tied_embeddings,
        }  # fmt: skip
    config: dict[str, Any] = {
        "model_type": family, "num_hidden_layers": model.layers, "hidden_size": model.hidden,
        "intermediate_size": model.ffn, "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads, "head_dim": model.head_dim,
        "vocab_size": model.vocab, "max_position_embeddings": seq_len,
        "rms_norm_eps": numerics.norm_epsilon, "hidden_act": ACTIVATIONS[numerics.activation],
        "rope_parameters": _rope(numerics),
        "tie_word_embeddings": model.tied_embeddings, "attention_dropout": 0.0, "use_cache": False,
    }  # fmt: skip
    if family in ("llama", "qwen3"):
        config["attention_bias"] = model.qkv_bias
    if family == "mistral":
        config["sliding_window"] = model.window
    if family == "mixtral" and model.experts is not None:
        config |= {
            "num_local_experts": model.experts.experts,
            "num_experts_per_tok": model.experts.top_k,
            "intermediate_size": model.experts.ffn,
        }
    return config


ACTIVATIONS = {
    "silu": "silu", "gelu": "gelu", "gelu-tanh": "gelu_pytorch_tanh", "relu": "relu", "relu2": "relu2",
    "quick-gelu": "quick_gelu",
}  # fmt: skip
"""Our names of activations by transformers' (`transformers/activations.py`)."""


def _rope(numerics: Numerics) -> dict[str, Any]:
    """`rope_parameters` of transformers 5 (`modeling_rope_utils.py`): base and stretching of rotary positions."""
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": numerics.rope_theta}
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
    return found


def layer_class(model: Model) -> str:
    """The class of one transformer layer, the unit that FSDP shards.

    Raises:
        SpecError: no family written here has this architecture.
    """
    names = {
        "llama": "LlamaDecoderLayer", "mistral": "MistralDecoderLayer",
        "qwen2": "Qwen2DecoderLayer", "qwen3": "Qwen3DecoderLayer",
        "mixtral": "MixtralDecoderLayer", "gpt2": "GPT2Block",
    }  # fmt: skip
    family = hf_family(model)
    if family is None:
        raise SpecError("model.family", model.family, next(hf_problems(model)).lacks)
    return names[family]
