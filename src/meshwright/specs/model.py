"""The architecture of a decoder-only transformer, as far as its cost depends on it."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from meshwright.specs.base import Spec
from meshwright.specs.errors import SpecError
from meshwright.specs.numerics import Numerics

Norm = Literal["rmsnorm", "layernorm", "none"]
Positions = Literal["rope", "learned", "alibi", "none"]


class LatentAttention(Spec):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 §2.1): low-rank queries and KV."""

    q_rank: int = Field(0, ge=0, description="rank of the query compression; 0 means none")
    kv_rank: int = Field(ge=1)
    nope_head_dim: int = Field(ge=1, description="per-head query/key width without rotary")
    rope_head_dim: int = Field(ge=0, description="shared rotary key width")
    v_head_dim: int = Field(ge=1)


class Experts(Spec):
    """The mixture-of-experts part of a model."""

    experts: int = Field(ge=1, description="routed experts in a MoE layer")
    top_k: int = Field(ge=1, description="routed experts that one token visits")
    ffn: int = Field(ge=1, description="width of one routed expert")
    shared_ffn: int = Field(0, ge=0, description="total width of the always-on shared experts")
    shared_gate: bool = Field(False, description="a hidden→1 gate on the shared expert (Qwen2-MoE)")
    dense_layers: int = Field(0, ge=0, description="leading layers with a dense FFN instead")
    period: int = Field(1, ge=1, description="every period-th layer is MoE (after dense_layers)")
    router_bias: bool = Field(False, description="a trained bias per expert in the router")
    expert_bias: bool = Field(False, description="biases inside the experts")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.top_k > self.experts:
            raise SpecError("top_k", self.top_k, f"at most experts = {self.experts}")
        return self


class Model(Spec):
    """A decoder-only transformer.

    Shapes are per layer; every layer is alike except where `experts.dense_layers` and
    `experts.period` say otherwise.
    """

    name: str = "custom"
    family: str = Field("llama", description="the Hugging Face model_type it is a member of")
    layers: int = Field(ge=1, le=10_000)
    hidden: int = Field(ge=1, le=1_000_000)
    heads: int = Field(ge=1, le=10_000)
    kv_heads: int = Field(ge=1, le=10_000)
    head_dim: int = Field(
        ge=1, le=10_000, description="query and key width per head (MLA: nope + rope)"
    )
    ffn: int = Field(ge=1, le=10_000_000, description="width of the dense FFN")
    vocab: int = Field(ge=1, le=10_000_000)
    gated: bool = Field(True, description="SwiGLU-like FFN with three matrices instead of two")
    tied_embeddings: bool = False
    norm: Norm = "rmsnorm"
    norm_weight: bool = Field(True, description="norms carry a scale (OLMo 1's do not)")
    norm_bias: bool = Field(False, description="layer norms carry a bias")
    norms_per_layer: int = Field(2, ge=0, le=4)
    final_norm: bool = True
    embedding_norm: bool = Field(False, description="a norm right after the embedding (BLOOM)")
    qk_norm: Literal["none", "head", "full"] = Field(
        "none", description="norm on queries and keys: one head_dim weight, or the full width"
    )
    qkv_bias: bool = False
    attention_out_bias: bool = False
    attention_sinks: bool = Field(False, description="one trained sink logit per head (GPT-OSS)")
    ffn_bias: bool = False
    head_bias: bool = Field(False, description="the LM head has a bias (Phi)")
    positions: Positions = "rope"
    max_positions: int = Field(0, ge=0, description="rows of a learned position table")
    window: int = Field(0, ge=0, description="sliding-window width in tokens; 0 means none")
    window_period: int = Field(
        1, ge=1, description="1: every layer has the window; n: every n-th layer is global"
    )
    parallel_block: bool = Field(False, description="attention and FFN side by side (GPT-NeoX)")
    latent_attention: LatentAttention | None = None
    experts: Experts | None = None
    extra_parameters: dict[str, int] = Field(
        default_factory=dict, description="named parameter counts that no other field expresses"
    )
    numerics: Numerics | None = Field(
        None, description="what a layer computes beyond its shape; None: as published for the name"
    )
    source: str = Field("", description="where the numbers come from")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.heads % self.kv_heads:
            raise SpecError(
                "kv_heads", self.kv_heads, f"a divisor of heads = {self.heads} is expected"
            )
        if self.positions == "learned" and self.max_positions < 1:
            raise SpecError(
                "max_positions", self.max_positions, "learned positions need at least 1"
            )
        if self.experts and self.experts.dense_layers > self.layers:
            raise SpecError(
                "experts.dense_layers", self.experts.dense_layers, f"at most {self.layers} layers"
            )
        return self

    @property
    def attention_width(self) -> int:
        """Width of the concatenated heads that enter the output projection."""
        if self.latent_attention:
            return self.heads * self.latent_attention.v_head_dim
        return self.heads * self.head_dim

    @property
    def moe_layers(self) -> int:
        """Number of layers whose FFN is a mixture of experts."""
        if self.experts is None:
            return 0
        return (self.layers - self.experts.dense_layers + self.experts.period - 1) // (
            self.experts.period
        )

    def is_moe_layer(self, index: int) -> bool:
        """Whether layer `index` (from 0) has experts."""
        if self.experts is None or index < self.experts.dense_layers:
            return False
        return (index - self.experts.dense_layers) % self.experts.period == 0
