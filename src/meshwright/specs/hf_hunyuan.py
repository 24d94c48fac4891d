"""Reads Hunyuan-Large (Tencent's Hunyuan-A52B), whose code comes with its checkpoints and not with transformers."""

from __future__ import annotations

from meshwright.specs.hf_config import Config
from meshwright.specs.hf_dense import Fields, llama
from meshwright.specs.hf_sparse import experts_of


def hunyuan(config: Config) -> Fields:
    """Experts beside a shared one, and keys and values that neighbouring layers share.

    With `use_cla`, layer 0 and every `cla_share_factor`-th after it project keys and values, and the
    layers between attend to those with queries of their own (its modeling_hunyuan.py, HunYuanAttention;
    cross-layer attention, arXiv 2405.12981). Routed and shared experts are all of `intermediate_size`.

    Raises:
        SpecError: a key is absent or impossible; lists with a number a layer are not read.
    """
    fields = llama(config)
    count = config.whole("num_experts", default=1)
    top_k = config.whole("moe_topk", default=1)
    shared = config.whole("num_shared_expert", default=1)
    mixed = config.flag("use_mixed_mlp_moe", default=False)
    if count > 1:
        fields["experts"] = experts_of(
            experts=count,
            top_k=top_k,
            ffn=fields["ffn"],
            shared_ffn=shared * fields["ffn"] if mixed else 0,
        )
    every = config.whole("cla_share_factor", default=1)
    if config.flag("use_cla", default=False) and every > 1:
        fields["kv_owners"] = -(-fields["layers"] // every)
    qk_norm = "head" if config.flag("use_qk_norm", default=False) else "none"
    return {**fields, "ffn_bias": False, "qk_norm": qk_norm}
