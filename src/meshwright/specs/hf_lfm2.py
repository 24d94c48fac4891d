"""Readers of LFM2: gated short convolutions between layers of grouped attention, dense or with experts."""

from __future__ import annotations

from meshwright.specs.hf_config import Config
from meshwright.specs.hf_dense import Fields, llama
from meshwright.specs.hf_kinds import layer_kinds, mixers_of
from meshwright.specs.hf_sparse import experts_of


def lfm2(config: Config) -> Fields:
    """LFM2: every layer has an FFN whose stated width is cut to two thirds and rounded up, unless told not to."""
    given = config.whole("block_ff_dim", "intermediate_size", default=12288)
    width = given
    if config.flag("block_auto_adjust_ff_dim", default=True):
        share = config.data.get("block_ffn_dim_multiplier", 1.0)
        config.read.add("block_ffn_dim_multiplier")
        step = config.whole("block_multiple_of", default=256)
        width = int(2 * given / 3)
        if isinstance(share, int | float) and not isinstance(share, bool):
            width = -(-int(share * width) // step) * step
    fields = _shared(config, width)
    mixers = fields.pop("_mixers")
    return {**fields, "layer_kinds": layer_kinds(mixers, ["dense"] * len(mixers))}


def lfm2_moe(config: Config) -> Fields:
    """LFM2 with experts after some dense layers."""
    fields = _shared(config, config.whole("intermediate_size", default=7168))
    mixers = fields.pop("_mixers")
    dense = config.whole("num_dense_layers", default=2, least=0)
    ffns = ["dense" if index < dense else "moe" for index in range(len(mixers))]
    if "moe" in ffns:
        fields["experts"] = experts_of(
            experts=config.whole("num_experts", default=32),
            top_k=config.whole("num_experts_per_tok", default=4),
            ffn=config.whole("moe_intermediate_size", default=1792),
        )
    return {**fields, "layer_kinds": layer_kinds(mixers, ffns)}


def _shared(config: Config, width: int) -> Fields:
    fields = llama(config.spelt(intermediate_size=width))
    layers, hidden = fields["layers"], fields["hidden"]
    # Channels are independent: any split of them will do.
    heads = fields["heads"] if hidden % fields["heads"] == 0 else 1
    full = config.layers_named("full_attn_idxs")
    mixers = mixers_of(
        config, layers, lambda index: "full_attention" if not full or index in full else "conv"
    )
    bias, taps = config.flag("conv_bias", default=False), config.whole("conv_L_cache", default=3)
    fields.update(
        kv_heads=config.whole("num_key_value_heads", default=8), qk_norm="head", qkv_bias=False,
        attention_out_bias=False, ffn_bias=False, _mixers=mixers,
        tied_embeddings=config.flag("tie_embedding", "tie_word_embeddings", default=True),
        mixer={
            "kind": "short-conv", "heads": heads, "head_dim": hidden // heads, "conv": taps,
            "bias": bias, "conv_bias": bias, "norm": False,
        } if "conv" in mixers else None,
    )  # fmt: skip
    return fields
