"""Which parameters a model has, and of which shape: written apart from the engine's modules."""

from __future__ import annotations

import torch

from meshwright.specs.model import Model

Tensors = dict[str, torch.Tensor]

NORMS_AROUND = {"gemma2", "gemma3_text", "glm4"}
"""Families that norm both what attention and FFN take and what they give."""
CORRECTED = {"deepseek_v3"}
"""Families whose experts are chosen by score plus a bias that is not trained, groups by their best two."""


def shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Every parameter that the model has, by name."""
    h = model.hidden
    found: dict[str, tuple[int, ...]] = {"embed.weight": (model.vocab, h)}
    if model.positions == "learned":
        found["embed.positions"] = (model.max_positions, h)
    for index in range(model.layers):
        found |= _layer_shapes(f"layers.{index}.", model, index)
    for index in range(model.layers, model.layers + model.predict_layers):
        found |= _further_shapes(f"layers.{index}.", model, index)
    if model.final_norm:
        found |= _norm_shapes("norm", model)
    if not model.tied_embeddings:
        found["head.weight"] = (model.vocab, h)
    return found


def _layer_shapes(at: str, model: Model, index: int) -> dict[str, tuple[int, ...]]:
    found = _norm_shapes(at + "attention_norm", model) | _norm_shapes(at + "ffn_norm", model)
    if model.family in NORMS_AROUND:
        found |= _norm_shapes(at + "attention_post_norm", model)
        found |= _norm_shapes(at + "ffn_post_norm", model)
    found |= _attention_shapes(at + "attention.", model)
    if model.is_moe_layer(index):
        return found | _expert_shapes(at + "moe.", model)
    return found | _ffn_shapes(at + "mlp.", model, model.ffn)


def _further_shapes(at: str, model: Model, index: int) -> dict[str, tuple[int, ...]]:
    """A layer that predicts further tokens."""
    found = _layer_shapes(at, model, index)
    for name in ("embedding_norm", "hidden_norm", "norm"):
        found |= _norm_shapes(f"{at}join.{name}", model)
    return found | _linear(at + "join.product", model.hidden, 2 * model.hidden, False)


def _attention_shapes(at: str, model: Model) -> dict[str, tuple[int, ...]]:
    h, width, kv = model.hidden, model.heads * model.head_dim, model.kv_heads * model.head_dim
    found: dict[str, tuple[int, ...]] = {}
    if (latent := model.latent_attention) is not None:
        if latent.q_rank:
            found |= _linear(at + "q_compress", latent.q_rank, h, False)
            found[at + "q_latent_norm.weight"] = (latent.q_rank,)
            found |= _linear(at + "q_expand", width, latent.q_rank, False)
        else:
            found |= _linear(at + "q", width, h, False)
        found |= _linear(at + "kv_compress", latent.kv_rank + latent.rope_head_dim, h, False)
        found[at + "kv_latent_norm.weight"] = (latent.kv_rank,)
        inner = model.heads * (latent.nope_head_dim + latent.v_head_dim)
        found |= _linear(at + "kv_expand", inner, latent.kv_rank, False)
        return found | _linear(at + "o", h, model.heads * latent.v_head_dim, False)
    for name, rows, columns, bias in (
        ("q", width, h, model.qkv_bias),
        ("k", kv, h, model.qkv_bias),
        ("v", kv, h, model.qkv_bias),
        ("o", h, width, model.attention_out_bias),
    ):
        found |= _linear(at + name, rows, columns, bias)
    if model.attention_gate:
        found |= _linear(at + "gate", width, h, model.qkv_bias)
    if model.qk_norm != "none":
        sizes = (width, kv) if model.qk_norm == "full" else (model.head_dim,) * 2
        found |= {at + "q_norm.weight": sizes[:1], at + "k_norm.weight": sizes[1:]}
    if model.attention_sinks:
        found[at + "sinks"] = (model.heads,)
    return found


def _linear(name: str, rows: int, columns: int, bias: bool) -> dict[str, tuple[int, ...]]:
    return {name + ".weight": (rows, columns)} | ({name + ".bias": (rows,)} if bias else {})


def _norm_shapes(name: str, model: Model) -> dict[str, tuple[int, ...]]:
    if model.norm == "none":
        return {}
    bias = model.norm == "layernorm" and model.norm_bias
    found: dict[str, tuple[int, ...]] = {name + ".weight": (model.hidden,)}
    return found | ({name + ".bias": (model.hidden,)} if bias else {})


def _ffn_shapes(at: str, model: Model, width: int) -> dict[str, tuple[int, ...]]:
    inner = ("gate", "up") if model.gated else ("up",)
    found: dict[str, tuple[int, ...]] = {}
    for name in inner:
        found |= _linear(at + name, width, model.hidden, model.ffn_bias)
    return found | _linear(at + "down", model.hidden, width, model.ffn_bias)


def _expert_shapes(at: str, model: Model) -> dict[str, tuple[int, ...]]:
    spec = model.experts
    assert spec is not None
    found = _linear(at + "router", spec.experts, model.hidden, spec.router_bias)
    for name in ("gate", "up"):
        found[f"{at}experts.{name}"] = (spec.experts, spec.ffn, model.hidden)
    found[at + "experts.down"] = (spec.experts, model.hidden, spec.ffn)
    if spec.expert_bias:
        found |= {f"{at}experts.{name}_bias": (spec.experts, spec.ffn) for name in ("gate", "up")}
        found[at + "experts.down_bias"] = (spec.experts, model.hidden)
    if model.family in CORRECTED:
        found[at + "correction"] = (spec.experts,)
    if spec.shared_ffn:
        found |= _ffn_shapes(at + "shared.", model, spec.shared_ffn)
    if spec.shared_gate:
        found |= _linear(at + "shared_gate", 1, model.hidden, False)
    return found
