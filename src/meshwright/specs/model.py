"""The architecture of a decoder-only transformer, as far as its cost depends on it."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from meshwright.specs.base import Spec
from meshwright.specs.encoders import Encoder
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


TABLES = "looked-up tables"
"""Name among a model's extra parameters of what tokens look up besides their embedding."""


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
    latent: int = Field(
        0,
        ge=0,
        description="width that routed experts read and write (Nemotron 3 Super); 0: hidden",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.top_k > self.experts:
            raise SpecError("top_k", self.top_k, f"at most experts = {self.experts}")
        return self


class Mixer(Spec):
    """What mixes tokens in layers without softmax attention: linear in the length.

    A head keeps a state of `key_dim` × `head_dim` numbers.
    """

    kind: Literal["mamba2", "mamba", "gated-delta", "kda", "lightning", "short-conv"]
    heads: int = Field(ge=1, description="heads of values (mamba: one per channel group)")
    head_dim: int = Field(ge=1, description="width of a head's values")
    key_heads: int = Field(1, ge=1, description="heads of keys and queries, or Mamba's groups")
    key_dim: int = Field(1, ge=1, description="width of a head's keys: the state's other side")
    conv: int = Field(0, ge=0, description="taps of the causal convolution; 0: none")
    rank: int = Field(0, ge=0, description="of Mamba's step width or of KDA's gates; 0: full")
    bias: bool = Field(False, description="biases of the projections")
    conv_bias: bool = False
    norm: bool = Field(True, description="a gated norm on the output")
    inner_norms: bool = Field(False, description="norms on step width and states (Jamba)")

    @property
    def width(self) -> int:
        """Width of all values."""
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Width of all keys."""
        return self.key_heads * self.key_dim


class Indexer(Spec):
    """DeepSeek sparse attention: a small attention that picks the keys (arXiv 2512.02556 §2.1)."""

    heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    top_k: int = Field(ge=1, description="keys that a query then attends to")
    compress: int = Field(1, ge=1, description="tokens that one scored key stands for")
    owners: int = Field(
        0,
        ge=0,
        description="layers with an indexer, whose keys the others take over; 0: every layer",
    )

    layers: int = Field(
        0,
        ge=0,
        description="layers that attend to picked keys; 0: all with attention and no window",
    )


class Factored(Spec):
    """Low-rank projections around plain heads: queries from a compression, outputs in groups (DeepSeek-V4).

    Each of `out_groups` groups of heads is brought to `out_rank` numbers, and all of them to the hidden width.
    """

    q_rank: int = Field(ge=1)
    out_rank: int = Field(ge=1)
    out_groups: int = Field(ge=1)


LayerKind = str
"""Mixer and FFN of one layer: `attention`, `window`, `linear`, `both` or `none`, a plus sign, and
`dense`, `moe` or `none`."""

LISTED_WINDOWS = "windows in listed layers"
"""What `Model.unusual` calls windows that no rule of every n-th layer gives."""

GATED_ATTENTION = "gated attention"
"""What it calls queries that come with a gate."""

ENCODER = "an encoder of images or sound"
"""What it calls the encoder of a multimodal model."""

FURTHER_TOKENS = "layers that predict further tokens"
"""What it calls multi-token prediction, where a plan asks for it."""

_MIXERS = ("attention", "window", "linear", "both", "none")
_FFNS = ("dense", "moe", "none")


class Model(Spec):
    """A decoder-only transformer.

    Shapes are per layer; every layer is alike except where `experts.dense_layers` and
    `experts.period`, or `layer_kinds`, say otherwise.
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
    predict_layers: int = Field(
        0, ge=0, le=8, description="layers behind the others that each predict one token further"
    )
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
    mixer: Mixer | None = Field(None, description="of the layers without softmax attention")
    layer_kinds: tuple[LayerKind, ...] = Field(
        (), description="each layer as mixer+ffn, such as linear+moe; empty: attention everywhere"
    )
    attention_gate: bool = Field(False, description="queries come with a gate of their width")
    keys_are_values: bool = Field(False, description="one projection gives keys and values")
    kv_owners: int = Field(
        0,
        ge=0,
        description="layers with keys and values of their own, which the others take over; 0: every",
    )
    indexer: Indexer | None = None
    residual_streams: int = Field(
        1, ge=1, le=64, description="copies of the residual stream (hyper-connections)"
    )
    factored: Factored | None = Field(
        None, description="low-rank queries and outputs of plain heads"
    )
    encoder: Encoder | None = Field(None, description="of a multimodal model")
    extra_parameters: dict[str, int] = Field(
        default_factory=dict, description="named parameter counts that no other field expresses"
    )
    numerics: Numerics | None = Field(
        None, description="what a layer computes beyond its shape; None: as published for the name"
    )
    counted_parameters: int = Field(
        0,
        ge=0,
        description="all parameters, where they were counted: what the shape lacks is extra",
    )
    config_json: str = Field(
        "",
        description="its Hugging Face config.json as one line, where the fields do not say all that a layer computes",
    )
    source: str = Field("", description="where the numbers come from")

    def but(self, **changes: Any) -> Self:
        """A copy with some fields changed; another shape is not what the carried config.json says any more.

        Raises:
            SpecError: a field is unknown or its new value is not accepted.
        """
        if self.config_json and changes.keys() - {"name", "source", "config_json"}:
            changes = {"config_json": "", **changes}
        return super().but(**changes)

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
        self._check_kinds()
        if self.kv_owners > self.layers:
            raise SpecError("kv_owners", self.kv_owners, f"at most {self.layers} layers")
        if self.indexer and self.indexer.owners > self.layers:
            raise SpecError("indexer.owners", self.indexer.owners, f"at most {self.layers} layers")
        if self.experts and self.experts.dense_layers > self.layers:
            raise SpecError(
                "experts.dense_layers", self.experts.dense_layers, f"at most {self.layers} layers"
            )
        return self

    def _check_kinds(self) -> None:
        if not self.layer_kinds:
            if self.mixer is not None:
                raise SpecError("layer_kinds", [], "a model with a mixer says which layers have it")
            return
        if len(self.layer_kinds) != self.layers:
            raise SpecError(
                "layer_kinds", len(self.layer_kinds), f"one for each of the {self.layers} layers"
            )
        for kind in self.layer_kinds:
            mixer, _, ffn = kind.partition("+")
            if mixer not in _MIXERS or ffn not in _FFNS:
                raise SpecError(
                    "layer_kinds", kind, f"{' or '.join(_MIXERS)}, +, {' or '.join(_FFNS)} expected"
                )
            if mixer in ("linear", "both") and self.mixer is None:
                raise SpecError("mixer", None, f"layers of kind {kind} need one")
            if ffn == "moe" and self.experts is None:
                raise SpecError("experts", None, f"layers of kind {kind} need some")

    def unusual(self) -> list[str]:
        """Parts beyond a plain decoder's, in words: what most software refuses or must be told of."""
        found = []
        if self.mixer is not None:
            found.append(f"{self.mixer.kind} layers")
        mixers = {kind.partition("+")[0] for kind in self.layer_kinds}
        if "window" in mixers:
            found.append(LISTED_WINDOWS)
        if "none" in mixers or any(kind.endswith("+none") for kind in self.layer_kinds):
            found.append("blocks of one part")
        if self.indexer is not None:
            found.append("sparse attention by an indexer")
        if self.attention_gate:
            found.append(GATED_ATTENTION)
        if self.factored is not None:
            found.append("low-rank queries and outputs")
        if self.experts is not None and self.experts.latent:
            found.append("routed experts of a latent width")
        if self.residual_streams > 1:
            found.append(f"{self.residual_streams} residual streams")
        if self.keys_are_values:
            found.append("keys that are values")
        if self.kv_share < 1:
            found.append("layers that take over keys and values")
        if self.predict_layers:
            found.append(FURTHER_TOKENS)
        if self.encoder is not None:
            found.append(ENCODER)
        if self.counted_parameters:
            found.append(self.unnamed_parts)
        return found

    @property
    def unnamed_parts(self) -> str:
        """What `unusual` calls parts that were counted and that no field expresses."""
        return f"parts of {self.family} that have no name here"

    @property
    def kv_share(self) -> float:
        """Share of the layers that project keys and values of their own."""
        return self.kv_owners / self.layers if self.kv_owners else 1.0

    @property
    def indexed_share(self) -> float:
        """Share of the layers with sparse attention that have an indexer of their own."""
        owners = self.indexer.owners if self.indexer else 0
        return owners / self.layers if owners else 1.0

    @property
    def picked_share(self) -> float:
        """Share of the layers with attention to no window that attend to the keys an indexer picks."""
        if self.indexer is None or not self.indexer.layers:
            return float(self.indexer is not None)
        whole = sum(kind.startswith("attention") for kind in self.layer_kinds) or self.layers
        return min(self.indexer.layers / whole, 1.0)

    @property
    def attention_width(self) -> int:
        """Width of the concatenated heads that enter the output projection."""
        if self.latent_attention:
            return self.heads * self.latent_attention.v_head_dim
        return self.heads * self.head_dim

    @property
    def expert_hidden(self) -> int:
        """Width of the tokens that travel to routed experts."""
        return (self.experts.latent if self.experts else 0) or self.hidden

    @property
    def moe_layers(self) -> int:
        """Number of layers whose FFN is a mixture of experts."""
        if self.experts is None:
            return 0
        if self.layer_kinds:
            return sum(kind.endswith("+moe") for kind in self.layer_kinds)
        return (self.layers - self.experts.dense_layers + self.experts.period - 1) // (
            self.experts.period
        )

    @property
    def split_widths(self) -> tuple[int, ...]:
        """Widths that tensor parallelism divides: of dense FFNs where layers have them, of shared experts."""
        dense = self.moe_layers < self.layers
        if self.layer_kinds:
            dense = any(kind.endswith("+dense") for kind in self.layer_kinds)
        shared = self.experts.shared_ffn if self.experts else 0
        return ((self.ffn,) if dense else ()) + ((shared,) if shared else ())

    def is_moe_layer(self, index: int) -> bool:
        """Whether layer `index` (from 0) has experts; beyond the last, one that predicts further."""
        if self.layer_kinds and index >= self.layers:
            return self.experts is not None
        if self.layer_kinds:
            return self.layer_kinds[index].endswith("+moe")
        if self.experts is None or index < self.experts.dense_layers:
            return False
        return (index - self.experts.dense_layers) % self.experts.period == 0

    def has_window(self, index: int) -> bool:
        """Whether softmax attention in layer `index` (from 0) is limited to the window."""
        if not self.window or self.layer_kinds:
            return bool(self.window) and self.layer_kinds[index].startswith("window+")
        return self.window_period <= 1 or (index + 1) % self.window_period != 0
