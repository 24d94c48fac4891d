"""Reader of DeepSeek-V4: windows beside compressed keys, low-rank projections, four residual streams."""

from __future__ import annotations

from meshwright.specs.errors import SpecError
from meshwright.specs.hf_config import Config
from meshwright.specs.hf_dense import Fields, llama
from meshwright.specs.hf_sparse import experts_of

PICKED, POOLED = 4, 128
"""Tokens to a compressed key: of layers whose indexer picks among them, and of those that see all of them."""


def deepseek_v4(config: Config) -> Fields:
    """DeepSeek-V4: one key-value head, windows beside compressed keys, four residual streams.

    A layer sees the last `sliding_window` tokens. By its compression ratio it also sees every 128th of the
    sequence, which is priced as the window alone (n / 128 keys more), or what an indexer picks of every fourth.
    """
    config.read.add(
        "num_hash_layers"
    )  # whose experts the token's number picks: as many of them, no weights less
    width = config.whole("moe_intermediate_size", default=2048)
    fields = llama(config.spelt(**{"intermediate_size": width, **config.data}))
    layers, hidden = fields["layers"], fields["hidden"]
    head = config.whole("head_dim", default=512)
    index_heads = config.whole("index_n_heads", default=64)
    index_width = config.whole("index_head_dim", default=128)
    window = config.whole("sliding_window", default=128)
    q_rank = config.whole("q_lora_rank", default=1024)
    streams = config.whole("hc_mult", default=4)
    ratios = _ratios(config, layers)
    kept = {ratio: ratio * head * (1 + (ratio == PICKED)) for ratio in set(ratios) if ratio}
    compressors = sum(
        2 * hidden * head * (1 + (ratio == PICKED)) + kept[ratio] + head
        for ratio in ratios
        if ratio
    )
    one_indexer = (
        4 * hidden * index_width + 8 * index_width + index_width
        + index_heads * (index_width * q_rank + hidden)
    )  # fmt: skip
    mixes = 2 * streams + streams * streams
    connections = layers * 2 * (mixes * streams * hidden + mixes + 3)
    connections += streams * streams * hidden + streams + 1
    fields.update(
        kv_heads=1, head_dim=head, window=window, window_period=1, keys_are_values=True,
        attention_sinks=True, residual_streams=streams, qkv_bias=False, attention_out_bias=False,
        factored={
            "q_rank": q_rank,
            "out_rank": config.whole("o_lora_rank", default=1024),
            "out_groups": config.whole("o_groups", default=8),
        },
        indexer={
            "heads": index_heads, "head_dim": index_width, "compress": PICKED,
            "top_k": config.whole("index_topk", default=512) + window,
        },
        layer_kinds=tuple(
            "attention+moe" if ratio == PICKED else "window+moe" for ratio in ratios
        ),
        extra_parameters={
            "compressors": compressors,
            "indexers": one_indexer * ratios.count(PICKED),
            "hyper-connections": connections,
        },
        experts=experts_of(
            experts=config.whole("n_routed_experts", default=256),
            top_k=config.whole("num_experts_per_tok", default=6), ffn=width,
            shared_ffn=width * config.whole("n_shared_experts", default=1, least=0),
        ),
    )  # fmt: skip
    return fields


def _ratios(config: Config, layers: int) -> list[int]:
    """Tokens to a compressed key in each layer: 0 (none), 4 or 128; what follows is of other heads."""
    listed = config.data.get("compress_ratios")
    named = {"sliding_attention": 0, "compressed_sparse_attention": PICKED,
             "heavily_compressed_attention": POOLED}  # fmt: skip
    types = [str(one) for one in config.layers_named("layer_types")]
    if types:
        listed = [named.get(one, -1) for one in types]
    if not isinstance(listed, list) or len(listed) < layers:
        raise SpecError("config.compress_ratios", listed, f"one for each of {layers} layers")
    ratios = list(listed[:layers])
    if any(one not in (0, PICKED, POOLED) for one in ratios):
        raise SpecError("config.compress_ratios", ratios, "0, 4 or 128 in each layer is expected")
    return ratios
