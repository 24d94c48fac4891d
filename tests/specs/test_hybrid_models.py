"""Families whose layers differ: counts against transformers, fall-back, unread keys, refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.costs.flops import attention_flops_per_token, matmul_parameters
from meshwright.costs.layer import mean_keys
from meshwright.costs.mixers import window_share
from meshwright.costs.parameters import count_parameters
from meshwright.costs.step import estimate
from meshwright.engine.model.traced import stated, tally
from meshwright.engine.parallel.guards import check_model
from meshwright.specs import load_cluster, load_model, presets
from meshwright.specs.errors import SpecError
from meshwright.specs.huggingface import model_from_config
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import TABLES, Model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

BASE: dict[str, Any] = {
    "hidden_size": 96, "num_hidden_layers": 8, "num_attention_heads": 6, "num_key_value_heads": 3,
    "intermediate_size": 200, "vocab_size": 331, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
LATENT = {"q_lora_rank": 30, "kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
          "v_head_dim": 10, "num_key_value_heads": 6}  # fmt: skip
ROUTED = {"moe_intermediate_size": 40, "n_routed_experts": 7, "num_experts_per_tok": 2,
          "n_group": 1, "topk_group": 1}  # fmt: skip
MAMBA = {"mamba_n_heads": 12, "mamba_d_head": 16, "mamba_d_state": 24, "mamba_n_groups": 2,
         "mamba_d_conv": 3}  # fmt: skip
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 20,
         "linear_value_head_dim": 28, "linear_conv_kernel_dim": 3, "head_dim": 24}  # fmt: skip
EXPERTS = {"num_experts": 7, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
           "shared_expert_intermediate_size": 56}  # fmt: skip
V4 = {"q_lora_rank": 30, "o_lora_rank": 14, "o_groups": 2, "head_dim": 20, "num_key_value_heads": 1,
      "qk_rope_head_dim": 8, "index_n_heads": 3, "index_head_dim": 16, "index_topk": 64, "sliding_window": 32,
      "hc_mult": 4, "moe_intermediate_size": 200, "n_routed_experts": 7, "n_shared_experts": 1,
      "num_experts_per_tok": 2}  # fmt: skip
INDEX = {"index_n_heads": 3, "index_head_dim": 16, "index_topk": 64}
SLIDING = ["sliding_attention", "full_attention"] * 4
KINDS = ["linear_attention", "linear_attention", "full_attention", "linear_attention"] * 2


def built(config: dict[str, Any]) -> int:
    keys = {key: value for key, value in config.items() if key != "model_type"}
    made = transformers.AutoConfig.for_model(config["model_type"], **keys)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(made)
    return sum(weight.numel() for weight in model.parameters())


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("qwen3_next", {**DELTA, **EXPERTS}),
    ("qwen3_next", {**DELTA, **EXPERTS, "layer_types": KINDS, "mlp_only_layers": [0, 3]}),
    ("qwen3_next", {**DELTA, **EXPERTS, "decoder_sparse_step": 2, "attention_bias": True}),
    ("qwen3_5_text", DELTA),
    ("qwen3_5_text", {**DELTA, "layer_types": KINDS, "tie_word_embeddings": True}),
    ("qwen3_5_moe_text", {**DELTA, **EXPERTS}),
    ("granitemoehybrid", {**MAMBA, "num_local_experts": 5, "shared_intermediate_size": 72,
                          "layer_types": ["mamba", "attention"] * 4}),
    ("granitemoehybrid", {**MAMBA, "num_local_experts": 0, "shared_intermediate_size": 72,
                          "layer_types": ["mamba"] * 6 + ["attention"] * 2}),
    ("granitemoeshared", {"num_local_experts": 5, "shared_intermediate_size": 72}),
    ("bamba", {**MAMBA, "attn_layer_indices": [3, 5]}),
    ("jamba", {"num_experts": 4, "mamba_dt_rank": 11, "mamba_d_state": 9}),
    ("jamba", {"num_experts": 4, "expert_layer_period": 3, "expert_layer_offset": 2,
               "attn_layer_period": 4, "attn_layer_offset": 1, "mamba_dt_rank": "auto"}),
    ("falcon_h1", {**MAMBA, "mamba_d_ssm": 192}),
    ("falcon_h1", {**MAMBA, "mamba_d_ssm": 192, "mamba_rms_norm": True}),
    ("minimax", {"num_local_experts": 5, "head_dim": 20}),
    ("minimax", {"num_local_experts": 5, "layer_types": KINDS}),
    ("deepseek_v32", {**LATENT, **ROUTED, **INDEX, "first_k_dense_replace": 2}),
    ("deepseek_v32", {**LATENT, **ROUTED, **INDEX}),
    ("glm_moe_dsa", {**LATENT, **ROUTED, **INDEX, "first_k_dense_replace": 1}),
    ("glm_moe_dsa", {**LATENT, **ROUTED, **INDEX, "index_topk_freq": 3, "index_skip_topk_offset": 3}),
    ("glm_moe_dsa", {**LATENT, **ROUTED, **INDEX, "indexer_types": ["full", "shared"] * 4,
                     "mlp_layer_types": ["dense"] + ["sparse"] * 7}),
    ("glm4_moe_lite", {**LATENT, **ROUTED}),
    ("ernie4_5_moe", {"moe_num_experts": 5, "moe_k": 2, "moe_intermediate_size": 40,
                      "moe_num_shared_experts": 1, "moe_layer_start_index": 2,
                      "moe_layer_end_index": 6}),
    ("ernie4_5_moe", {"moe_num_experts": 5, "moe_k": 2, "moe_intermediate_size": 40,
                      "moe_layer_interval": 2, "use_bias": True}),
    ("ministral3", {"head_dim": 20}),
    ("lfm2", {"layer_types": ["conv", "conv", "full_attention", "conv"] * 2, "conv_L_cache": 4}),
    ("lfm2", {"full_attn_idxs": [2, 5], "block_ff_dim": 300, "block_multiple_of": 32, "conv_bias": True,
              "block_ffn_dim_multiplier": 1.5}),
    ("lfm2", {"block_auto_adjust_ff_dim": False, "tie_embedding": False}),
    ("lfm2_moe", {"layer_types": ["conv", "full_attention"] * 4, "num_experts": 5, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 40, "num_dense_layers": 1}),
    ("gemma4_text", {"head_dim": 16, "global_head_dim": 32, "hidden_size_per_layer_input": 12,
                     "num_kv_shared_layers": 3, "use_double_wide_mlp": True, "layer_types": SLIDING}),
    ("gemma4_text", {"head_dim": 16, "global_head_dim": 32, "hidden_size_per_layer_input": 0,
                     "attention_k_eq_v": True, "num_global_key_value_heads": 1, "attention_bias": True,
                     "enable_moe_block": True, "num_experts": 5, "top_k_experts": 2,
                     "moe_intermediate_size": 40, "tie_word_embeddings": False}),
    ("gemma4_unified_text", {"head_dim": 16, "global_head_dim": 32}),
    ("afmoe", {"head_dim": 20, "moe_intermediate_size": 40, "num_experts": 7, "num_experts_per_tok": 2,
               "num_dense_layers": 3, "num_shared_experts": 1}),
    ("mamba", {"state_size": 9, "conv_kernel": 3}),
    ("falcon_mamba", {"time_step_rank": 5, "tie_word_embeddings": False}),
    ("mamba2", {"num_heads": 12, "head_dim": 16, "n_groups": 2, "use_bias": True}),
    ("falcon_h1", {**MAMBA, "mamba_d_ssm": 192, "mamba_proj_bias": True, "projectors_bias": True}),
    ("qwen2_moe", {**EXPERTS, "qkv_bias": False}),
    ("deepseek_v4", {**V4, "compress_ratios": [0, 128, 4, 4, 128, 4, 0, 4]}),
    ("deepseek_v4", {**V4, "hc_mult": 2, "o_groups": 3, "layer_types": [
        "heavily_compressed_attention", "compressed_sparse_attention"] * 4}),
]  # fmt: skip


@pytest.mark.parametrize(("family", "change"), VARIANTS)
def test_counts_equal_what_transformers_builds(family: str, change: dict[str, Any]) -> None:
    config = {"model_type": family, **BASE, **change}
    assert count_parameters(model_from_config(config)).total == built(config)


@pytest.mark.parametrize("change", [
    {"layers_block_type": ["mamba", "moe", "attention", "mlp", "mamba", "mlp"]},
    {"layers_block_type": ["mamba", "mlp"] * 3, "use_bias": False, "use_conv_bias": False},
    {"layers_block_type": ["mamba", "moe"] * 3, "moe_latent_size": 24},
    {"layers_block_type": ["attention", "moe"] * 3, "moe_latent_size": 24, "mlp_bias": True},
])  # fmt: skip
def test_nemotron_counts(change: dict[str, Any]) -> None:
    config = {
        "model_type": "nemotron_h", **BASE, "head_dim": 20, "mamba_num_heads": 12,
        "mamba_head_dim": 16, "ssm_state_size": 24, "n_groups": 2, "conv_kernel": 3,
        "n_routed_experts": 5, "moe_intermediate_size": 40,
        "moe_shared_expert_intermediate_size": 56, **change,
    }  # fmt: skip
    del config["num_hidden_layers"]
    assert count_parameters(model_from_config(config)).total == built(config)


NAS = [(True, 5.25)] * 48 + [(True, 2.625)] + [(False, width) for width, count in (
    (1.3125, 10), (1.0, 8), (0.5, 6), (2.625, 5), (3.28125, 1), (5.25, 1)) for _ in range(count)]  # fmt: skip
"""Whether a layer of Llama-3.3-Nemotron-Super-49B attends, and its FFN's multiple."""


def searched(blocks: list[tuple[bool, float]]) -> dict[str, Any]:
    return {
        "model_type": "nemotron-nas", "hidden_size": 8192, "num_attention_heads": 64, "vocab_size": 128256,
        "num_hidden_layers": len(blocks), "intermediate_size": None, "num_key_value_heads": None,
        "tie_word_embeddings": False, "block_configs": [
            {"attention": {"n_heads_in_group": 8 if attends else None, "no_op": not attends},
             "ffn": {"ffn_mult": width, "no_op": False}} for attends, width in blocks],
    }  # fmt: skip


def test_a_searched_shape_counts_what_its_card_says() -> None:
    model = model_from_config(searched(NAS))
    assert count_parameters(model).total == 49_867_145_216  # nvidia/Llama-3_3-Nemotron-Super-49B-v1
    assert sum(kind.startswith("attention") for kind in model.layer_kinds) == 49
    assert model.ffn % 256 == 0  # as each block's is: the mean splits by tensors like them
    with pytest.raises(SpecError, match="block_configs"):
        model_from_config({**searched(NAS), "block_configs": [{"attention": {}}]})


def test_experts_of_a_latent_width_take_less_of_everything() -> None:
    wide = {
        "model_type": "nemotron_h", **BASE, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "n_routed_experts": 64, "num_experts_per_tok": 8,
        "moe_intermediate_size": 2688, "moe_shared_expert_intermediate_size": 5376,
        "hybrid_override_pattern": "*E" * 4,
    }  # fmt: skip
    del wide["num_hidden_layers"]
    layout = Layout(dp=8, ep=8, zero=1)
    job = Job(seq_len=4096, global_batch=8, framework="megatron")
    made = []
    for change in ({}, {"moe_latent_size": 1024}):
        model = model_from_config({**wide, **change})
        made.append(estimate(model, load_cluster("h100:1x8"), job, layout))
    plain, latent = made
    assert latent.time_parts["matmul"] < plain.time_parts["matmul"]
    # Four times narrower copies travel in a fourth of the time but for latency.
    assert 0.2 < latent.time_parts["expert_parallel"] / plain.time_parts["expert_parallel"] < 0.3
    assert latent.memory_parts["activations"] < plain.memory_parts["activations"]
    assert latent.memory_parts["parameters"] < 0.6 * plain.memory_parts["parameters"]


def test_a_class_says_the_family_of_a_model_type_that_nobody_knows() -> None:
    known = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99,
             "intermediate_size": 128, "num_key_value_heads": 2}  # fmt: skip
    named = {**known, "model_type": "somebodys", "architectures": ["Qwen3ForCausalLM"]}
    plain = model_from_config({**known, "model_type": "qwen3"})
    assert model_from_config(named).but(name=plain.name) == plain
    mimo = {**known, "model_type": "mimo", "attention_bias": True, "num_nextn_predict_layers": 1}
    read = model_from_config(mimo)
    assert read.qkv_bias
    assert read.source.endswith("its multi-token-prediction layers are not counted")


@settings(max_examples=12, deadline=None)
@given(
    heads=st.integers(1, 4), ratio=st.integers(1, 3), key=st.integers(2, 24),
    value=st.integers(2, 24), taps=st.integers(2, 5), hidden=st.integers(3, 12),
    kinds=st.lists(st.sampled_from(["linear_attention", "full_attention"]), min_size=1, max_size=6),
)  # fmt: skip
def test_any_gated_delta_net_counts(
    heads: int, ratio: int, key: int, value: int, taps: int, hidden: int, kinds: list[str]
) -> None:
    config = {
        "model_type": "qwen3_5_text", **BASE, "hidden_size": 8 * hidden, "head_dim": 16,
        "num_hidden_layers": len(kinds), "layer_types": kinds, "linear_num_key_heads": heads,
        "linear_num_value_heads": heads * ratio, "linear_key_head_dim": key,
        "linear_value_head_dim": value, "linear_conv_kernel_dim": taps,
    }  # fmt: skip
    assert count_parameters(model_from_config(config)).total == built(config)


PRESETS = ["qwen3-next-80b-a3b", "nemotron-h-8b", "granite-4.0-h-small", "jamba-v0.1", "nemotron-h-56b",
           "kimi-linear-48b-a3b", "minimax-text-01", "deepseek-v3.2", "ernie-4.5-21b-a3b",
           "nemotron-3-nano-30b-a3b", "nemotron-3-super-120b-a12b", "nemotron-3-ultra-550b-a55b", "glm-5.2",
           "qwen3.5-27b", "qwen3.5-122b-a10b", "qwen3.5-397b-a17b"]  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_priced_and_refused_by_the_engine(name: str) -> None:
    model, cluster = load_model(name), load_cluster("h100:8x8")
    priced = estimate(model, cluster, Job(global_batch=64), Layout(dp=64, zero=3, recompute="full"))
    assert 0.005 < priced.mfu < 0.8
    assert sum(priced.time_parts.values()) == pytest.approx(priced.step_time_s)
    if model.unusual():
        with pytest.raises(SpecError, match="decoder computes plain layers"):
            check_model(model, 128)


def test_sparse_attention_counts_the_keys_it_meets() -> None:
    """At 128k the indexer leaves a few percent of them; its own scores are counted beside."""
    sparse, full = load_model("deepseek-v3.2"), load_model("deepseek-v3")
    assert sparse.indexer is not None
    at = 131072
    share = attention_flops_per_token(sparse, at) / attention_flops_per_token(full, at)
    scores = 2 * at * sparse.indexer.heads * sparse.indexer.head_dim * sparse.layers
    assert scores < attention_flops_per_token(sparse, at) < 1.5 * scores
    assert share < 0.3
    short = attention_flops_per_token(sparse, 1024) / attention_flops_per_token(full, 1024)
    assert short > 1


def test_linear_layers_do_not_grow_with_the_square_of_the_length() -> None:
    hybrid, plain = load_model("nemotron-h-8b"), load_model("llama3-8b")
    growth = [
        attention_flops_per_token(model, 65536) / attention_flops_per_token(model, 4096)
        for model in (plain, hybrid)
    ]
    assert growth[0] == pytest.approx(16)
    assert growth[1] < 12


def test_windows_follow_layer_types() -> None:
    types = ["sliding_attention"] * 5 + ["full_attention"] * 3
    config = {"model_type": "qwen3", **BASE, "layer_types": types, "use_sliding_window": True,
              "sliding_window": 16, "max_window_layers": 3}  # fmt: skip
    model = model_from_config(config)
    assert window_share(model) == pytest.approx(5 / 8)
    whole = model.but(layer_kinds=(), window=0)
    assert mean_keys(model, 1024) < mean_keys(whole, 1024)


def test_sparse_attention_meets_top_k_keys() -> None:
    sparse = load_model("deepseek-v3.2")
    assert mean_keys(sparse, 65536) < 2048 < mean_keys(sparse.but(indexer=None), 65536)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count modules in this process: another would import torch once more."""
    monkeypatch.setattr("meshwright.specs.huggingface.trace", tally)


@pytest.mark.usefixtures("in_process")
def test_a_family_without_a_reader_is_built_and_counted() -> None:
    config = {
        "model_type": "lfm3",
        **BASE,
        "num_hidden_layers": 4,
        "layer_types": ["conv", "conv", "full_attention", "conv"],
    }
    model = model_from_config(config)
    assert "no reader for lfm3" in model.source
    assert count_parameters(model).total == built(config)
    assert sum(count_parameters(model).parts().values()) == count_parameters(model).total


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(("family", "change"), [
    ("opt", {"word_embed_proj_dim": 64, "do_layer_norm_before": False, "ffn_dim": 200}),
    ("cohere", {"use_qk_norm": True}),
    ("jamba", {"num_experts": 4, "mamba_proj_bias": True}),
    ("mamba", {"use_bias": True}),
    ("afmoe", {"head_dim": 20, "moe_intermediate_size": 40, "num_experts": 7, "num_experts_per_tok": 2, "attention_bias": True}),
])  # fmt: skip
def test_a_variant_that_a_reader_does_not_describe_is_counted(
    family: str, change: dict[str, Any]
) -> None:
    config = {"model_type": family, **BASE, **change}
    model = model_from_config(config)
    assert "no reader for this variant" in model.source
    assert count_parameters(model).total == built(config)


def test_experts_that_a_config_groups_are_counted(in_process) -> None:
    config = {
        "model_type": "dbrx", "d_model": 96, "n_layers": 2, "n_heads": 6, "vocab_size": 331, "max_seq_len": 64,
        "attn_config": {"kv_n_heads": 3, "rope_theta": 500000},
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 5, "moe_top_k": 2},
    }  # fmt: skip
    experts = model_from_config(config).experts
    assert experts is not None
    assert (experts.experts, experts.top_k, experts.ffn) == (5, 2, 64)


@pytest.mark.parametrize(("family", "change", "same"), [
    ("internlm2", {"bias": True}, {"model_type": "llama"}),
    ("baichuan", {"num_key_value_heads": None}, {"model_type": "llama", "num_key_value_heads": 6}),
    ("minicpm", {}, {"model_type": "llama", "tie_word_embeddings": True}),
    ("chatglm", {"num_hidden_layers": None, "num_layers": 8, "multi_query_attention": True,
                 "multi_query_group_num": 3, "kv_channels": 16, "ffn_hidden_size": 200, "add_qkv_bias": True},
     {"model_type": "glm", "head_dim": 16, "attention_bias": True}),
])  # fmt: skip
def test_families_of_llama_s_kind_that_only_their_publisher_has(
    family: str, change: dict[str, Any], same: dict[str, Any]
) -> None:
    found = count_parameters(model_from_config({"model_type": family, **BASE, **change})).total
    # InternLM's bias stands on all four projections, which no Llama of transformers has without its FFN's.
    bias = 8 * (96 + 2 * 48 + 96) if family == "internlm2" else 0
    assert found == built({**BASE, **same}) + bias


def test_wrappers_give_their_language_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: object) -> None:
        raise SpecError("config.model_type", None, "no class")

    monkeypatch.setattr("meshwright.specs.huggingface.trace", unknown)
    inner = {"model_type": "qwen2_5_omni_text", **BASE, "head_dim": 16}
    thinker = {"thinker_config": {"text_config": inner}}
    omni = model_from_config({"model_type": "qwen2_5_omni", **thinker})
    assert "parts that speak are not counted" in omni.source
    assert (omni.layers, omni.qkv_bias) == (8, True)
    wrapped = {"model_type": "nobody_vl", "language_config": {"model_type": "llama", **BASE}}
    assert model_from_config(wrapped).layers == 8


def test_a_class_alone_says_the_family_and_an_unknown_one_its_shape() -> None:
    assert model_from_config({"architectures": ["LlamaForCausalLM"], **BASE}).family == "llama"
    with pytest.raises(SpecError, match=r"as layers=8,hidden=96,heads=6,kv_heads=3"):
        model_from_config({"model_type": "rwkv7", **BASE})


def test_as_many_ffns_as_layers_are_expected() -> None:
    config = {"model_type": "kimi_linear", **BASE, **LATENT, "mlp_layer_types": ["sparse"] * 3}
    with pytest.raises(SpecError, match="one for each of the 8 layers"):
        model_from_config({**config, "moe_intermediate_size": 40, "num_experts": 9})


class Uneven:
    """As transformers' configurations whose layers differ in a number: reading one number of all is an error."""

    hidden_size = 64

    @property
    def num_attention_heads(self) -> int:
        raise RuntimeError("may vary across layers")


def test_a_number_in_which_layers_differ_is_left_to_the_file() -> None:
    assert stated(Uneven(), "num_attention_heads") is None
    assert stated(Uneven(), "hidden_size") == 64


DELTA = {"linear_num_value_heads": 6, "linear_value_head_dim": 32, "linear_num_key_heads": 6,
         "linear_key_head_dim": 16, "linear_conv_kernel_dim": 4}  # fmt: skip


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("config", "mixes"),
    [
        ({"model_type": "youtu", **BASE, **LATENT}, "latent attention"),
        (
            {"model_type": "olmo_hybrid", **BASE, **DELTA, "num_key_value_heads": 6,
             "layer_types": ["linear_attention", "full_attention"] * 4},
            "a gated delta net",
        ),
    ],
)  # fmt: skip
def test_what_mixes_tokens_is_read_without_a_reader(config: dict[str, Any], mixes: str) -> None:
    """Names that other families' readers know say the same here: no product is left unexplained."""
    model = model_from_config(config)
    assert "no reader for" in model.source
    assert model.latent_attention if mixes == "latent attention" else model.mixer
    counts = count_parameters(model)
    assert counts.total == built(config)
    assert abs(counts.extra) < counts.total / 1000  # norms of queries and keys, at most


@pytest.mark.usefixtures("in_process")
def test_tables_that_layers_look_up_are_no_products() -> None:
    config = {"model_type": "gemma4_text", **BASE, "head_dim": 16, "global_head_dim": 16,
              "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 331,
              "num_global_key_value_heads": None, "num_kv_shared_layers": 0}  # fmt: skip
    model = model_from_config(config)
    tables = 331 * 16 * BASE["num_hidden_layers"]
    assert model.extra_parameters == {TABLES: tables}
    counts = count_parameters(model)
    assert counts.total == built(config)
    # The head is tied: its product is the embedding's only one.
    assert model.tied_embeddings
    assert matmul_parameters(model) == counts.active - tables


@pytest.mark.usefixtures("in_process")
def test_an_encoder_is_counted_and_placed() -> None:
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
              "num_attention_heads": 2, "image_size": 28, "patch_size": 14}  # fmt: skip
    config = {
        "model_type": "llava",
        "text_config": {"model_type": "llama", **BASE},
        "vision_config": {"model_type": "clip_vision_model", **vision, "projection_dim": 32},
    }
    model = model_from_config(config)
    made = transformers.AutoConfig.for_model(
        "llava", **{key: value for key, value in config.items() if key != "model_type"}
    )
    with torch.device("meta"):
        real = transformers.AutoModelForImageTextToText.from_config(made)
    assert count_parameters(model).total == sum(weight.numel() for weight in real.parameters())
    assert model.encoder is not None and model.encoder.parameters > 0


def test_a_family_that_nobody_knows_is_one_sentence() -> None:
    with pytest.raises(SpecError, match="describe the model by its shape"):
        model_from_config({"model_type": "no_such_family", **BASE})


def test_keys_that_no_reader_asked_for_are_said() -> None:
    model = model_from_config({"model_type": "llama", **BASE, "num_experts": 8, "rope_theta": 1e4})
    assert "not read: num_experts" in model.source
    assert "not read" not in model_from_config({"model_type": "llama", **BASE}).source


@pytest.mark.parametrize("change", [
    {"layer_kinds": ("attention+dense",)},
    {"layer_kinds": ("linear+dense", "attention+dense")},
    {"layer_kinds": ("attention+moe", "attention+dense")},
    {"layer_kinds": ("attn+dense", "attention+dense")},
])  # fmt: skip
def test_impossible_layers_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        Model(layers=2, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=128, vocab=96).but(
            **change
        )


def test_published_configs_of_presets_leave_no_key_unread() -> None:
    for name, entry in presets.table("models").items():
        if "config" in entry:
            assert "not read" not in load_model(name).source, name


@pytest.mark.parametrize("family", ["mamba2", "nemotron_h"])
@pytest.mark.parametrize("word", ["Infinity", '{"__float__": "Infinity"}'])
def test_a_published_infinity_is_read_as_transformers_reads_it(family, word, tmp_path):
    """State-space models bound their time step by infinity, in JSON of either spelling."""
    shape: dict[str, Any] = {
        "mamba2": {"num_heads": 12, "head_dim": 16, "state_size": 24, "n_groups": 2, "expand": 2},
        "nemotron_h": {"hybrid_override_pattern": "M-M*-M-M", "mamba_num_heads": 12,
                       "mamba_head_dim": 16, "ssm_state_size": 24, "n_groups": 2, "head_dim": 16},
    }[family]  # fmt: skip
    config = {**BASE, **shape, "model_type": family}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config)[:-1] + f', "time_step_limit": [0.0, {word}]}}')
    assert count_parameters(load_model(str(path))).total == built(config)


@pytest.mark.parametrize("value", ["Infinity", "NaN", '{"__float__": "-Infinity"}'])
def test_a_size_that_is_no_number_is_refused(value, tmp_path):
    path = tmp_path / "config.json"
    config = json.dumps({**BASE, "model_type": "llama"})
    path.write_text(config.replace('"intermediate_size": 200', f'"intermediate_size": {value}'))
    with pytest.raises(SpecError, match="intermediate_size"):
        load_model(str(path))
    path.write_text('{"name": "own", "layers": 2, "hidden": Infinity}')
    with pytest.raises(SpecError, match="not finite"):
        load_model(str(path))


def test_a_list_of_kinds_that_is_too_short_is_refused():
    with pytest.raises(SpecError, match="one kind for each of 8 layers"):
        model_from_config({**BASE, "model_type": "minimax", "attn_type_list": [1]})


def test_longcat_s_layer_is_two_of_which_one_has_experts():
    """Two attentions and FFNs a layer; a router's choices fall on half as many experts more, which pass tokens on."""
    shape = {
        "num_layers": 3,
        "hidden_size": 256,
        "ffn_hidden_size": 512,
        "vocab_size": 512,
        "num_attention_heads": 4,
    }
    experts = {"n_routed_experts": 16, "zero_expert_num": 8, "expert_ffn_hidden_size": 64}
    latent = {"q_lora_rank": 32, "kv_lora_rank": 16}
    config = transformers.LongcatFlashConfig(**shape, **experts, **latent, moe_topk=12)
    model = model_from_config(config.to_dict())
    assert (model.family, model.experts is not None) == ("longcat_flash", True)
    assert (model.layers, model.experts.experts, model.experts.top_k) == (6, 16, 8)
    assert [model.is_moe_layer(layer) for layer in range(6)] == [True, False] * 3
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(config)
    total = sum(one.numel() for one in theirs.parameters())
    # transformers holds matrices for the experts that compute nothing; published checkpoints do not.
    assert count_parameters(model).total == total - 3 * 8 * 2 * 64 * 256


@pytest.mark.parametrize("family", ["bailing_moe", "bailing_moe_v2"])
def test_ling_counts_as_the_family_that_it_is_spelt_after(family):
    """transformers has no class of inclusionAI's; GLM-4.5's holds the same matrices and norms."""
    second = family == "bailing_moe_v2"
    own = {**BASE, "model_type": family, "head_dim": 24, "moe_intermediate_size": 40, "num_experts": 7,
           "num_experts_per_tok": 2, "num_shared_experts": 2, "use_bias": False,
           "first_k_dense_replace": 2, "moe_router_enable_expert_bias": True}  # fmt: skip
    model = model_from_config(own)
    theirs = {**BASE, **ROUTED, "model_type": "glm4_moe", "head_dim": 24, "n_shared_experts": 2,
              "first_k_dense_replace": 2, "use_qk_norm": second}  # fmt: skip
    assert count_parameters(model).total == built(theirs)
    assert "not read" not in model.source
    assert [model.is_moe_layer(layer) for layer in range(8)] == [False] * 2 + [True] * 6


def test_a_head_of_no_width_is_one_that_is_not_stated():
    stated = {**BASE, "model_type": "glm4", "num_key_value_heads": 2}
    assert model_from_config({**stated, "head_dim": 0}) == model_from_config(stated)


def test_delta_attention_and_heads_without_rotary_dimensions_of_an_unknown_family(monkeypatch):
    """GLM-5 Next, which has no reader: most layers are delta attention, the others latent without a rotary part."""
    config = {**BASE, "kv_lora_rank": 20, "q_lora_rank": 30, "qk_nope_head_dim": 12, "qk_rope_head_dim": 0,
              "v_head_dim": 10, "head_dim": 0, "linear_num_heads": 4, "linear_head_dim": 24,
              "linear_conv_kernel_dim": 4, "layer_types": KINDS}  # fmt: skip
    answer = {
        "layers": [{"mixer": 1000, "ffn": 3 * 96 * 200, "norms": 192}] * 8, "outside": {"lm_head.weight": 1},
        "config": config, "encoder": 0, "tables": 0, "total": 800_000, "class": "Glm5", "transformers": "5",
    }  # fmt: skip
    monkeypatch.setattr("meshwright.specs.huggingface.trace", lambda _: answer)
    model = model_from_config({**config, "model_type": "glm5_next"})
    assert model.latent_attention is not None
    assert model.latent_attention.rope_head_dim == 0
    assert model.mixer is not None
    assert (model.mixer.kind, model.mixer.heads, model.mixer.key_dim) == ("kda", 4, 24)
    assert sum(kind.startswith("linear") for kind in model.layer_kinds) == 6
    assert "gated delta nets" in model.source
