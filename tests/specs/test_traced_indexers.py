"""Sparse attention of families without a reader: the keys that an indexer picks are what is priced."""

import pytest

from meshwright.costs.flops import attention_flops_per_token
from meshwright.costs.layer import mean_keys
from meshwright.specs.hf_indexed import indexer_of
from meshwright.specs.models import load_model


@pytest.mark.parametrize(
    ("config", "mixers", "wanted"),
    [
        ({"index_topk": 2048, "index_n_heads": 32, "index_head_dim": 128, "indexer_types": ["full", "shared"]},
         ["indexed_attention"] * 2, (2048, 1, 1, 2)),
        ({"index_topk_blocks": 16, "index_local_blocks": 1, "index_block_size": 128, "index_n_heads": 4, "index_head_dim": 64},
         ["full_attention", "sparse_attention"], (2176, 1, 0, 1)),
        ({"indexer_budget": 512, "indexer_n_heads": 4, "indexer_head_dim": 64, "indexer_compress_ratio": 4},
         ["linear_attention", "indexed_attention"], (512, 4, 0, 1)),
    ],
)  # fmt: skip
def test_sizes_are_read_by_the_names_that_families_give_them(config, mixers, wanted):
    found = indexer_of(config, mixers)
    assert tuple(found[name] for name in ("top_k", "compress", "owners", "layers")) == wanted


def test_a_config_without_an_indexer_has_none():
    assert indexer_of({"index_head_dim": 128, "index_topk": None}, ["full_attention"]) == {}


def test_layers_that_see_everything_beside_picking_ones_cost_what_they_see():
    whole = load_model("llama3-8b").but(layer_kinds=["attention+dense"] * 32)
    indexer = {"heads": 4, "head_dim": 64, "top_k": 1024}
    every, half = (whole.but(indexer=indexer | {"layers": layers}) for layers in (32, 16))
    seq = 65536
    assert mean_keys(half, seq) == pytest.approx(
        (mean_keys(every, seq) + mean_keys(whole, seq)) / 2
    )
    assert mean_keys(every, seq) < 1024
    costs = [attention_flops_per_token(one, seq) for one in (every, half, whole)]
    assert costs[1] == pytest.approx((costs[0] + costs[2]) / 2)
