"""Reads families of Llama's kind whose code comes with their checkpoints and not with transformers."""

from __future__ import annotations

from meshwright.specs.hf_config import Config
from meshwright.specs.hf_dense import Fields, llama


def internlm2(config: Config) -> Fields:
    """InternLM 2 and 2.5: Llama with one `bias` for attention and FFN alike (modeling_internlm2.py)."""
    bias = config.flag("bias", default=False)
    return {**llama(config), "qkv_bias": bias, "attention_out_bias": bias, "ffn_bias": False}


def baichuan(config: Config) -> Fields:
    """Baichuan 1 and 2: one projection for queries, keys and values, as large as Llama's three; the larger by ALiBi."""
    fields = llama(config)
    return {**fields, "positions": "alibi" if fields["hidden"] > 4096 else "rope"}


def minicpm(config: Config) -> Fields:
    """MiniCPM 1 to 4, dense: Llama with scales on embeddings, residuals and logits, its head tied."""
    config.read |= {"dim_model_base"}  # of the scale of logits; no size
    tied = config.flag("tie_word_embeddings", default=True)
    return {**llama(config), "tied_embeddings": tied}


def chatglm(config: Config) -> Fields:
    """ChatGLM 2 and 3 and GLM-4-9B, in the spelling of their own modeling_chatglm.py."""
    heads = config.whole("num_attention_heads")
    few = config.flag("multi_query_attention", default=False)
    groups = config.whole("multi_query_group_num", default=1)
    fields = llama(
        config.spelt(
            num_key_value_heads=groups if few else heads,
            head_dim=config.whole("kv_channels", default=128),
            intermediate_size=config.whole("ffn_hidden_size"),
            vocab_size=config.whole("padded_vocab_size", "vocab_size"),
        )
    )
    every = config.flag("add_bias_linear", default=False)
    return {
        **fields, "qkv_bias": config.flag("add_qkv_bias", default=False) or every,
        "attention_out_bias": every, "ffn_bias": every,
    }  # fmt: skip


PUBLISHED = {"internlm2": internlm2, "baichuan": baichuan, "minicpm": minicpm, "chatglm": chatglm}
"""Reader of each of these `model_type`s."""
