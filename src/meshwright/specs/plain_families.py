"""Decoders that the plainest families of transformers build: Llama, Mistral, Qwen 2 and 3, Mixtral and GPT-2.

Whatever has their shape and computes as they do can be written under their names, whoever made it; software that
rebuilds or splits a model by its layers' names knows these.
"""

from __future__ import annotations

from meshwright.specs.model import Model
from meshwright.specs.numerics import numerics_of

OTHERWISE = {
    "baichuan": "normalises the weights of its head (Baichuan 2)",
    "chatglm": "turns half of each head, neighbours in pairs",
    "exaone4": "normalises what attention and FFN give, not what they take, and leaves positions out of layers without a window",
    "gemma": "scales its embedding and adds one to the weights of its norms",
    **dict.fromkeys(
        ("granite", "granitemoe", "granitemoehybrid"),
        "scales its embedding, residuals, scores and logits",
    ),
    "llama4_text": "leaves positions out of every fourth layer and sees chunks in the others",
    "minicpm": "scales its embedding, residuals and logits",
    "ministral3": "scales queries by their position",
    "olmo": "normalises without weights",
    "phimoe": "routes by SparseMixer",
    "smollm3": "leaves positions out of every fourth layer",
}
"""Families that compute otherwise than the architecture they are shaped like (their modelling files: transformers 5.23, or beside
their checkpoints)."""


def plain_family(model: Model) -> str | None:
    """The plain family that computes exactly what a model does; None where none does."""
    scaling = numerics_of(model).rope_scaling
    # Its factors, one a frequency, are not among a model's numbers.
    listed = scaling is not None and scaling.kind == "longrope"
    if model.family in OTHERWISE or listed or model.unusual() or model.attention_sinks:
        return None
    return _of_shape(model)


def _of_shape(model: Model) -> str | None:
    if model.latent_attention or model.parallel_block or model.embedding_norm or model.head_bias:
        return None
    if model.norms_per_layer != 2 or not model.final_norm or model.extra_parameters:
        return None
    if not model.norm_weight or numerics_of(model).rotary_share not in (None, 1.0):
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
