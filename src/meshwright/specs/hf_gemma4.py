"""Reads Gemma 4: two kinds of attention, keys that later layers take over, embeddings for each layer."""

from __future__ import annotations

from meshwright.specs.errors import SpecError
from meshwright.specs.hf_config import Config
from meshwright.specs.hf_dense import Fields, llama
from meshwright.specs.hf_kinds import WINDOW, layer_kinds, mixers_of
from meshwright.specs.hf_sparse import experts_of
from meshwright.specs.model import TABLES


def gemma4(config: Config) -> Fields:
    """Gemma 4's language model, counted as modeling_gemma4.py of transformers builds it.

    Layers with a window have `head_dim` and `num_key_value_heads`; the others `global_head_dim` and, with
    `attention_k_eq_v`, heads of keys of their own number that are values, too. The last
    `num_kv_shared_layers` project no keys; their FFN is twice as wide with `use_double_wide_mlp`. With
    `enable_moe_block`, experts stand beside each layer's FFN. Where `hidden_size_per_layer_input` is not 0,
    every layer adds a vector that it looks up for each token.

    Raises:
        SpecError: a key is absent or impossible.
    """
    fields = llama(config)
    layers = fields["layers"]
    fields.update(
        kv_heads=config.whole("num_key_value_heads", default=4),
        head_dim=config.whole("head_dim", default=256),
        tied_embeddings=config.flag("tie_word_embeddings", default=True),
        window=config.whole("sliding_window", default=512),
        norms_per_layer=4, qk_norm="head", ffn_bias=False,
    )  # fmt: skip
    mixers = mixers_of(
        config, layers, lambda index: "sliding_attention" if (index + 1) % 6 else "full_attention"
    )
    mixers[-1] = "full_attention"  # transformers makes it so, whatever is listed
    shared = config.whole("num_kv_shared_layers", default=0, least=0)
    if shared >= layers:
        raise SpecError("config.num_kv_shared_layers", shared, f"fewer than the {layers} layers")
    if shared:
        fields["kv_owners"] = layers - shared
    experts = config.flag("enable_moe_block", default=False)
    fields["layer_kinds"] = layer_kinds(mixers, ["moe" if experts else "dense"] * layers)
    counted = _attention(config, fields, mixers, shared) + _ffn(config, fields, shared)
    if experts:
        fields["experts"] = experts_of(
            experts=config.whole("num_experts"),
            top_k=config.whole("top_k_experts"),
            ffn=config.whole("moe_intermediate_size"),
            shared_ffn=fields["ffn"],
        )
        counted += _experts(fields)
    counted += layers * 4 * fields["hidden"] + fields["hidden"]  # norms
    counted += fields["vocab"] * fields["hidden"] * (1 if fields["tied_embeddings"] else 2)
    tables, further = _looked_up(config, fields)
    if tables:
        fields["extra_parameters"] = {TABLES: tables}
    return {**fields, "counted_parameters": counted + tables + further}


def _attention(config: Config, fields: Fields, mixers: list[str], shared: int) -> int:
    """Parameters of all layers' projections and of the norms on queries and keys."""
    wide = config.whole("global_head_dim", default=512)
    one = config.flag("attention_k_eq_v", default=False)
    few = config.whole("num_global_key_value_heads", default=fields["kv_heads"])
    total = 0
    for index, mixer in enumerate(mixers):
        whole = mixer not in WINDOW
        width = wide if whole else fields["head_dim"]
        kv_heads = few if whole and one else fields["kv_heads"]
        rows = 2 * fields["heads"] * width
        biases = fields["heads"] * width + fields["hidden"]
        norms = width
        if index < fields["layers"] - shared:
            taken = kv_heads * width * (1 if whole and one else 2)
            rows, biases, norms = rows + taken, biases + taken, 2 * width
        total += rows * fields["hidden"] + norms + (biases if fields["qkv_bias"] else 0)
    return total


def _ffn(config: Config, fields: Fields, shared: int) -> int:
    """Parameters of all layers' dense FFNs."""
    wider = shared if config.flag("use_double_wide_mlp", default=False) else 0
    return 3 * int(fields["hidden"]) * int(fields["ffn"]) * (int(fields["layers"]) + wider)


def _experts(fields: Fields) -> int:
    """Parameters of all layers' experts, routers with their scales, and three further norms."""
    hidden, count = fields["hidden"], fields["experts"].experts
    each = 3 * hidden * fields["experts"].ffn + hidden + 1
    return int(fields["layers"] * (count * each + hidden + 3 * hidden))


def _looked_up(config: Config, fields: Fields) -> tuple[int, int]:
    """Parameters of the table of each layer's own embeddings, and of what brings them in."""
    width = config.whole("hidden_size_per_layer_input", default=256, least=0)
    rows = config.whole("vocab_size_per_layer_input", default=262_144)
    if config.data.get("model_type") == "gemma4_unified_text":
        width = 0  # this variant has none
    if not width:
        return 0, 0
    hidden, layers = fields["hidden"], fields["layers"]
    further = hidden * layers * width + width + layers * (2 * hidden * width + hidden)
    return rows * layers * width, further
