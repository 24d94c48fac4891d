"""Readers of latent attention whose layers a config lists: indexers of sparse attention, sparse and dense FFNs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.specs.errors import SpecError
from meshwright.specs.hf_config import Config
from meshwright.specs.hf_dense import Fields
from meshwright.specs.hf_kinds import layer_kinds
from meshwright.specs.hf_sparse import deepseek


def sparse_attention(config: Config) -> Fields:
    """DeepSeek-V3.2 and GLM-5: latent attention over the keys that an indexer picks."""
    fields = deepseek(config)
    fields["indexer"] = {
        "heads": config.whole("index_n_heads", default=64),
        "head_dim": config.whole("index_head_dim", default=128),
        "top_k": config.whole("index_topk", default=2048),
        "owners": _indexer_owners(config, fields["layers"]),
    }
    return _listed_ffns(config, fields)


_HEADS = ("index_n_heads", "indexer_n_heads")
_WIDTHS = ("index_head_dim", "indexer_head_dim")
_PICKED = ("index_topk", "indexer_budget")
_POOLS = ("index_kpool", "indexer_compress_ratio")
"""Tokens that one scored key stands for."""


def indexer_of(config: Mapping[str, Any], mixers: Sequence[str]) -> Fields:
    """The indexer of a family without a reader, by the names that transformers' families give its sizes; else nothing.

    `mixers`: transformers' word for each layer; those called sparse or indexed attend to picked keys, or all that
    attend to no window where none is called so.
    """

    def said(names: tuple[str, ...]) -> int:
        found = (config.get(name) for name in names)
        return next((one for one in found if isinstance(one, int) and one > 0), 0)

    blocks = said(("index_topk_blocks",)) + said(("index_local_blocks",))
    top = said(_PICKED) or blocks * said(("index_block_size",))
    heads, width = said(_HEADS), said(_WIDTHS)
    if not (top and heads and width):
        return {}
    shared = [str(one) for one in config.get("indexer_types") or ()]
    return {
        "heads": heads, "head_dim": width, "top_k": top, "compress": said(_POOLS) or 1,
        "owners": shared.count("full") if len(shared) == len(mixers) else 0,
        "layers": sum("index" in one or "sparse" in one for one in mixers),
    }  # fmt: skip


def _indexer_owners(config: Config, layers: int) -> int:
    """Layers with an indexer of their own (GLM-5.2); the others take over what the one before them picked."""
    config.read.add("index_topk_pattern")
    listed = config.layers_named("indexer_types") or list(
        config.data.get("index_topk_pattern") or ()
    )
    step = config.whole("index_topk_freq", default=1)
    skipped = config.whole("index_skip_topk_offset", default=2, least=0)
    if not listed:
        listed = [
            "shared" if max(index - skipped + 1, 0) % step else "full" for index in range(layers)
        ]
    if len(listed) != layers:
        raise SpecError("config.indexer_types", len(listed), f"one for each of the {layers} layers")
    owners = sum(one in ("full", "F") for one in listed)
    return owners if owners < layers else 0


def _listed_ffns(config: Config, fields: Fields) -> Fields:
    """Where `mlp_layer_types` says which layers are sparse."""
    given = [str(one) for one in config.layers_named("mlp_layer_types")]
    if given:
        ffns = ["moe" if one == "sparse" else "dense" for one in given]
        fields["layer_kinds"] = layer_kinds(["attention"] * len(ffns), ffns)
    return fields


def glm4_moe_lite(config: Config) -> Fields:
    """GLM-4.7-Flash: latent attention, sparse FFNs by list or after leading dense ones."""
    leading = config.whole("first_k_dense_replace", default=1, least=0)
    return _listed_ffns(config, deepseek(config.spelt(first_k_dense_replace=leading)))
