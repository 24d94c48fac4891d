"""Parameter counts against transformers' own models on the meta device: equal to the last one."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.costs import parameters
from meshwright.specs import presets
from meshwright.specs.huggingface import families, model_from_config
from meshwright.specs.models import load_model, model_names

UNTESTED = frozenset(
    [
        "MiniMaxText01",
        "bailing_hybrid",
        "deepseek_v3_2",
        "glm4v_text",
        "hunyuan",  # transformers has no such family: tests/specs/test_hunyuan.py sums its modules
        "kimi_linear",
        "minimax_text_01",
        "mistral3_text",
        "qwen2_5_vl_text",
        "qwen2_vl_text",
        "qwen3_omni_moe_text",
        "qwen3_vl_moe_text",
        "qwen3_vl_text",
    ]
)
"""Names of families that no test gives a shape of its own: another name for one that is tested, or a
language model inside a multimodal one."""

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

WITH_CONFIG = [name for name in model_names() if "config" in presets.table("models")[name]]
SAME = {"kimi_k2": "deepseek_v3", "ministral": "mistral", "phi4": "phi3", "mimo": "qwen2"}


def built(config):
    """Parameters of the model that transformers builds for a config (nothing is allocated)."""
    keys = {key: value for key, value in config.items() if key != "model_type"}
    if keys.get("q_lora_rank") == 0:  # TOML has no null
        keys["q_lora_rank"] = None
    family = SAME.get(config["model_type"], config["model_type"])
    made = transformers.AutoConfig.for_model(family, **keys)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(made)
    return sum(parameter.numel() for parameter in model.parameters())


OTHERWISE = {
    "kimi-linear-48b-a3b": "the preset's config names no layer kinds; transformers' default differs",
    "ling-mini-2.0": "transformers has no class of this family",
    "ling-flash-2.0": "transformers has no class of this family",
    "ling-1t": "transformers has no class of this family",
    "minimax-text-01": "transformers takes layer_types and not the published attn_type_list",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xfail(strict=True, reason=OTHERWISE[name]))
        if name in OTHERWISE
        else name
        for name in WITH_CONFIG
    ],
)
def test_every_preset_counts_as_transformers_does(name):
    model = load_model(name)
    assert parameters.count_parameters(model).total == built(
        presets.table("models")[name]["config"]
    )


# Small shapes with the numbers made unlike each other, so that a swapped dimension shows.
BASE = {
    "hidden_size": 96, "num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 3,
    "intermediate_size": 200, "vocab_size": 331, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
LATENT = {"kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10}
ROUTED = {"moe_intermediate_size": 40, "n_routed_experts": 7, "num_experts_per_tok": 2,
          "n_group": 1, "topk_group": 1}  # fmt: skip
QWEN = {"moe_intermediate_size": 40, "num_experts": 7, "num_experts_per_tok": 2}
VARIANTS = [
    ("llama", {}),
    ("llama", {"num_key_value_heads": None}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("llama", {"head_dim": 20}),
    ("mistral", {"sliding_window": 128}),
    ("ministral", {}),
    ("mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    ("phimoe", {"num_local_experts": 5, "attention_bias": True, "lm_head_bias": True}),
    ("phimoe", {"num_local_experts": 5}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen2_moe", {**QWEN, "shared_expert_intermediate_size": 56}),
    ("qwen2_moe", {**QWEN, "shared_expert_intermediate_size": 56, "decoder_sparse_step": 2}),
    ("qwen2_moe", {**QWEN, "shared_expert_intermediate_size": 56, "mlp_only_layers": [0, 1]}),
    ("qwen3", {}),
    ("qwen3", {"attention_bias": True, "head_dim": 24}),
    ("qwen3_moe", {**QWEN, "head_dim": 24}),
    ("qwen3_moe", {**QWEN, "attention_bias": True, "mlp_only_layers": [0]}),
    ("gemma", {"head_dim": 24}),
    ("gemma2", {"head_dim": 24, "attention_bias": True}),
    ("gemma3_text", {"head_dim": 24}),
    ("deepseek_v2", {**LATENT, **ROUTED, "q_lora_rank": 30, "first_k_dense_replace": 2}),
    ("deepseek_v2", {**LATENT, **ROUTED, "q_lora_rank": 0, "n_shared_experts": 3}),
    ("deepseek_v3", {**LATENT, **ROUTED, "q_lora_rank": 30, "first_k_dense_replace": 1}),
    ("kimi_k2", {**LATENT, **ROUTED, "q_lora_rank": 30, "first_k_dense_replace": 1}),
    ("glm4_moe", {**ROUTED, "attention_bias": True, "use_qk_norm": True, "head_dim": 24}),
    ("glm4_moe", {**ROUTED, "first_k_dense_replace": 3}),
    ("gpt_oss", {"num_local_experts": 5, "head_dim": 24}),
    ("llama4_text", {"num_local_experts": 5, "intermediate_size_mlp": 88, "head_dim": 24}),
    ("llama4_text", {"num_local_experts": 5, "interleave_moe_layer_step": 2}),
    ("olmo", {"tie_word_embeddings": True}),
    ("olmo2", {}),
    ("olmo3", {}),
    ("olmoe", {"num_experts": 6, "num_experts_per_tok": 2}),
    ("phi", {}),
    ("phi3", {}),
    ("phi4", {"tie_word_embeddings": True}),
    ("gpt_neox", {}),
    ("gpt_neox", {"attention_bias": False, "tie_word_embeddings": True}),
    ("granite", {"attention_bias": True, "mlp_bias": True}),
    ("smollm3", {}),
    ("seed_oss", {"attention_out_bias": True}),
    ("seed_oss", {"mlp_bias": True, "head_dim": 24}),
    ("arcee", {}),
    ("ernie4_5", {"use_bias": True}),
    ("glm4", {}),
    ("exaone4", {"sliding_window": 64}),
    ("starcoder2", {}),
    ("starcoder2", {"use_bias": False}),
    ("stablelm", {"use_qkv_bias": True}),
    ("stablelm", {"use_parallel_residual": True}),
    ("cohere", {"attention_bias": True}),
    ("cohere2", {}),
    ("granitemoe", {"num_local_experts": 5}),
    ("dots1", {**ROUTED, "n_shared_experts": 2, "first_k_dense_replace": 2}),
    ("minimax_m2", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    ("nemotron", {}),
    ("nemotron", {"attention_bias": True, "mlp_bias": True}),
]


@pytest.mark.parametrize(("family", "change"), VARIANTS)
def test_families_in_their_variants(family, change):
    config = {"model_type": family, **BASE, **change}
    assert parameters.count_parameters(model_from_config(config)).total == built(config)


OWN_KEYS = [
    {"model_type": "gpt2", "n_embd": 96, "n_layer": 3, "n_head": 6, "vocab_size": 331},
    {"model_type": "gpt2", "n_embd": 96, "n_layer": 3, "n_head": 6, "vocab_size": 331,
     "n_inner": 100, "n_positions": 77, "tie_word_embeddings": False},
    {"model_type": "opt", "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6,
     "ffn_dim": 100, "vocab_size": 331, "max_position_embeddings": 77, "word_embed_proj_dim": 96},
    {"model_type": "bloom", "hidden_size": 96, "n_layer": 3, "n_head": 6, "vocab_size": 331},
    {"model_type": "mpt", "d_model": 96, "n_layers": 3, "n_heads": 6, "vocab_size": 331,
     "expansion_ratio": 4},
    {"model_type": "gptj", "n_embd": 96, "n_layer": 3, "n_head": 6, "vocab_size": 331,
     "rotary_dim": 8, "tie_word_embeddings": False},
    {"model_type": "gptj", "n_embd": 96, "n_layer": 3, "n_head": 6, "vocab_size": 331,
     "n_inner": 100, "rotary_dim": 8, "tie_word_embeddings": False},
]  # fmt: skip


@pytest.mark.parametrize("config", OWN_KEYS, ids=lambda config: config["model_type"])
def test_families_with_their_own_keys(config):
    assert parameters.count_parameters(model_from_config(config)).total == built(config)


def test_every_supported_family_is_tested():
    tested = {family for family, _ in VARIANTS} | {config["model_type"] for config in OWN_KEYS}
    assert tested <= set(families())
    # Hybrid families and their like are counted in tests/specs/test_hybrid_models.py.
    elsewhere = (Path(__file__).parents[1] / "specs" / "test_hybrid_models.py").read_text("utf-8")
    untested = {f for f in set(families()) - tested if f'"{f}"' not in elsewhere}
    assert untested <= UNTESTED


@settings(max_examples=60)
@given(data=st.data())
def test_random_shapes_of_random_families(data):
    """Any sound shape of any family that shares Llama's keys, with optional keys left out."""
    family, change = data.draw(st.sampled_from(VARIANTS))
    kv_heads = data.draw(st.integers(1, 3))
    heads = kv_heads * data.draw(st.integers(1, 3))
    shape = {
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": heads * 2 * data.draw(st.integers(4, 12)),
        "intermediate_size": data.draw(st.integers(1, 300)),
        "num_hidden_layers": data.draw(st.integers(4, 6)),
        "vocab_size": data.draw(st.integers(10, 999)),
        "tie_word_embeddings": data.draw(st.booleans()),
    }
    if data.draw(st.booleans()):
        del shape["tie_word_embeddings"]
    config = {"model_type": family, **BASE, **change, **shape}
    assert parameters.count_parameters(model_from_config(config)).total == built(config)
