"""Parameter counts: parts, shares of ranks, columns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costs import parameters
from meshwright.specs.errors import SpecError
from meshwright.specs.models import load_model, model_names, typical_model

SIZES = [1e7, 3e7, 1.25e8, 3.5e8, 7.6e8, 1e9, 1.3e9, 2e9, 3e9, 7e9, 8e9, 13e9, 20e9, 30e9, 34e9,
         70e9, 100e9, 175e9, 200e9, 405e9, 530e9, 1e12, 3e12, 1e13, 1e14]  # fmt: skip


@pytest.mark.parametrize("size", SIZES)
def test_typical_shapes_are_within_two_percent(size):
    held = parameters.count_parameters(typical_model(round(size))).total
    assert abs(held / size - 1) < 0.02


@given(st.floats(7.1, 13.9))
def test_typical_shapes_of_any_size(exponent):
    size = round(10**exponent)
    assert abs(parameters.count_parameters(typical_model(size)).total / size - 1) < 0.02


@pytest.mark.parametrize("name", model_names())
def test_parts_sum_to_the_total(name):
    counted = parameters.count_parameters(load_model(name))
    assert sum(counted.parts().values()) == counted.total
    assert counted.active <= counted.total


def test_known_totals():
    """Published counts that do not come from any code here."""
    assert parameters.count_parameters(load_model("llama2-7b")).total == 6_738_415_616
    assert parameters.count_parameters(load_model("llama3-70b")).total == 70_553_706_496
    assert parameters.count_parameters(load_model("mixtral-8x7b")).total == 46_702_792_704
    assert round(parameters.count_parameters(load_model("mixtral-8x7b")).active / 1e9, 1) == 12.9
    assert round(parameters.count_parameters(load_model("deepseek-v3")).total / 1e9) == 671
    assert round(parameters.count_parameters(load_model("deepseek-v3")).active / 1e9) == 38


def test_megatron_table_1_of_sc21():
    """The paper's own formula, P = 12 l h² (1 + 13/(12h) + (V+s)/(12 l h)), equation 2."""
    for name in (name for name in model_names() if name.startswith("megatron")):
        model = load_model(name)
        hidden, layers = model.hidden, model.layers
        paper = 12 * layers * hidden**2 * (
            1 + 13 / (12 * hidden) + (model.vocab + 2048) / (12 * layers * hidden)
        )  # fmt: skip
        # The formula leaves out the final norm.
        assert round(paper) + 2 * hidden == parameters.count_parameters(model).total


@pytest.mark.parametrize("name", ["llama3-70b", "gpt2-xl", "deepseek-v3", "gpt-oss-120b", "phi-2"])
@pytest.mark.parametrize("moe", [False, True])
def test_ranks_hold_the_layer_and_replicas(name, moe):
    """X25: what all ranks hold together is the layer plus replicas, never less."""
    model = load_model(name)
    if moe and model.experts is None:
        with pytest.raises(SpecError):
            parameters.layer_parameters(model, moe=True)
        return
    whole = parameters.layer_parameters(model, moe=moe)
    tp = np.array([1, 2, 4, 8])
    held = parameters.layer_parameters(model, moe=moe, tp=tp)
    assert np.array_equal(held.norms, np.full(4, whole.norms))
    assert (tp * held.dense >= whole.dense).all()
    assert (np.diff(held.dense) < 0).all()
    assert int(held.total[0]) == int(whole.total)


def test_kv_heads_are_replicated_beyond_their_number():
    model = load_model("llama3-70b")  # 8 kv heads
    eight, sixteen = parameters.layer_parameters(model, False, tp=np.array([8, 16])).attention
    queries_and_out = 2 * 8192 * 8192
    assert int(eight) == queries_and_out // 8 + 2 * 8192 * 128
    assert int(sixteen) == queries_and_out // 16 + 2 * 8192 * 128


def test_experts_are_dealt_out_whole():
    model = load_model("deepseek-v3")
    one = 3 * 7168 * 2048
    ep = np.array([1, 8, 64, 256])
    assert np.array_equal(
        parameters.layer_parameters(model, True, ep=ep).experts, one * (256 // ep)
    )
    halved = parameters.layer_parameters(model, True, ep=8, etp=2).experts
    assert int(halved) == one * 32 // 2


def test_one_layout_and_a_million_agree():
    model = load_model("mixtral-8x22b")
    tp = np.tile(np.array([1, 2, 4, 8]), 250_000)
    ep = np.repeat(np.array([1, 2, 4, 8]), 250_000)
    many = parameters.layer_parameters(model, True, tp=tp, ep=ep).total
    for index in (0, 250_001, 777_777, 999_999):
        one = parameters.layer_parameters(model, True, tp=int(tp[index]), ep=int(ep[index])).total
        assert int(one) == int(many[index])


def test_padded_vocabulary():
    assert int(parameters.padded_vocab(50257)) == 50304
    assert parameters.padded_vocab(50257, np.array([1, 8])).tolist() == [50304, 51200]
    model = load_model("gpt3-175b")
    assert int(parameters.embedding_parameters(model, 8, 128)) == 51200 // 8 * 12288
    assert int(parameters.embedding_parameters(model)) == 50257 * 12288
    with pytest.raises(SpecError):
        parameters.padded_vocab(100, 1, 0)


PUBLISHED_BILLIONS = {
    # As printed on model cards and in papers, which round or cut; hence 2 %.
    "llama3-8b": 8.03, "llama3.1-405b": 405, "llama3.2-1b": 1.23, "llama3.2-3b": 3.21,
    "mistral-7b": 7.24, "mistral-nemo-12b": 12.2, "mistral-small-24b": 23.6,
    "mistral-large-123b": 123, "mixtral-8x22b": 141, "qwen2.5-0.5b": 0.49, "qwen2.5-1.5b": 1.54,
    "qwen2.5-3b": 3.09, "qwen2.5-7b": 7.61, "qwen2.5-14b": 14.7, "qwen2.5-32b": 32.5,
    "qwen2.5-72b": 72.7, "qwen1.5-moe-a2.7b": 14.3, "qwen2-57b-a14b": 57.4, "qwen3-0.6b": 0.6,
    "qwen3-1.7b": 1.7, "qwen3-4b": 4.0, "qwen3-8b": 8.2, "qwen3-14b": 14.8, "qwen3-32b": 32.8,
    "qwen3-30b-a3b": 30.5, "qwen3-235b-a22b": 235, "gemma-2b": 2.51, "gemma-7b": 8.54,
    "gemma2-2b": 2.61, "gemma2-9b": 9.24, "gemma2-27b": 27.2, "gemma3-1b": 1.0,
    "deepseek-llm-7b": 6.91, "deepseek-llm-67b": 67.4, "deepseek-v4-flash": 284, "gpt-j-6b": 6.05,
    "deepseek-v2": 236, "deepseek-v2-lite": 15.7, "deepseek-v3": 671, "kimi-k2": 1026,
    "glm-4.5-air": 106, "gpt-oss-20b": 20.9, "gpt-oss-120b": 116.8, "grok-1": 314, "olmo-7b": 6.89,
    "olmoe-1b-7b": 6.92, "olmo2-7b": 7.3, "olmo2-13b": 13.7, "olmo2-32b": 32.2, "olmo3-7b": 7.3,
    "phi-1.5": 1.42, "phi-2": 2.78, "phi-3-mini": 3.82, "phi-3-medium": 14, "phi-3.5-moe": 41.9,
    "phi-4": 14.7, "phi-4-mini": 3.84, "gpt-neox-20b": 20.6, "pythia-6.9b": 6.86,
    "pythia-12b": 11.8, "bloom-176b": 176.2, "bloom-7b1": 7.07, "bloom-560m": 0.559, "mpt-7b": 6.65,
    "mpt-30b": 30, "nemotron-4-15b": 15.6, "nemotron-4-340b": 341, "opt-66b": 65.7, "gpt2-xl": 1.56,
    "gpt3-175b": 174.6, "starcoder2-15b": 15.96, "smollm2-135m": 0.135, "smollm3-3b": 3.08, "granite-3.3-8b": 8.17,
    "smollm2-360m": 0.362, "smollm2-1.7b": 1.71, "qwen1.5-1.8b": 1.84, "qwen1.5-4b": 3.95, "qwen1.5-7b": 7.72,
    "qwen1.5-14b": 14.2, "qwen1.5-32b": 32.5, "qwen1.5-72b": 72.3, "qwen1.5-110b": 111,
    "tinyllama-1.1b": 1.10, "open-llama-3b": 3.43, "sheared-llama-1.3b": 1.35, "sheared-llama-2.7b": 2.70,
    "yi-6b": 6.06, "yi-9b": 8.83, "yi-34b": 34.4, "deepseek-coder-1.3b": 1.35, "deepseek-coder-6.7b": 6.74,
    "deepseek-coder-33b": 33.3, "internlm2-1.8b": 1.89, "internlm2-7b": 7.74, "internlm2-20b": 19.86, "baichuan2-7b": 7.51,
    "codellama-7b": 6.74, "codellama-13b": 13.0, "command-r-35b": 35, "seed-oss-36b": 36.2, "minimax-m2": 229,
    "ling-mini-2.0": 16.26, "ling-flash-2.0": 103, "ling-1t": 1000, "exaone-4.0-32b": 32.0,
    "stablelm-2-1.6b": 1.64, "gemma4-e2b": 4.65, "gemma4-e4b": 7.5, "gemma4-12b": 11.9, "gemma4-26b-a4b": 25.2,
    "gemma4-31b": 30.7, "trinity-nano": 6.12, "trinity-mini": 26.1, "trinity-large": 398, "tiny-aya": 3.35,
    "qwen3.5-4b": 4.2, "qwen3.5-0.8b": 0.75, "qwen3-coder-480b-a35b": 480,
}  # fmt: skip


# From papers' tables (GPT-3 table 2.1, Megatron table 1, Llama 2.1, OPT table 1) and model cards that
# print a rounded size; multimodal models are checked by the exact size of their text part below.
PUBLISHED_BILLIONS |= {
    "gpt3-125m": 0.125, "gpt3-350m": 0.35, "gpt3-760m": 0.76, "gpt3-2.7b": 2.65, "gpt3-6.7b": 6.7,
    "gpt3-13b": 13.0, "megatron-22b": 22, "megatron-175b": 175, "megatron-39.1b": 39.1,
    "megatron-76.1b": 76.1, "megatron-145.6b": 145.6, "megatron-310.1b": 310.1,
    "megatron-529.6b": 529.6, "megatron-1t": 1008, "megatron-3.6b": 3.6, "megatron-7.5b": 7.5,
    "megatron-18.4b": 18.4, "llama2-7b": 6.74, "llama2-13b": 13.0, "llama2-70b": 69.0,
    "llama3.3-70b": 70.6, "llama4-scout": 109, "glm-4.5": 355, "opt-125m": 0.125, "opt-1.3b": 1.3,
    "opt-6.7b": 6.7, "opt-13b": 13, "opt-30b": 30, "opt-175b": 175, "starcoder2-3b": 3.03,
    "starcoder2-7b": 7.17, "nemotron-h-47b": 47, "nemotron-h-56b": 56,
}  # fmt: skip

PUBLISHED_EXACTLY = {
    # Totals that Hugging Face reports for the checkpoints, or that model cards and runs print.
    "gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080,
    "llama1-7b": 6_738_415_616, "llama1-13b": 13_015_864_320, "llama1-30b": 32_528_943_616,
    "llama1-65b": 65_285_660_672, "codellama-34b": 33_743_970_304, "llama3-70b": 70_553_706_496,
    "llama3.1-8b": 8_030_261_248, "llama3.1-70b": 70_553_706_496, "mistral-7b-v0.3": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704, "gemma3-4b": 3_880_263_168, "gemma3-12b": 11_766_034_176,
    "gemma3-27b": 27_009_346_304, "llama4-maverick": 400_711_848_960, "olmo-1b": 1_176_764_416,
    "olmo2-1b": 1_484_916_736, "olmo3-32b": 32_233_522_176, "bloom-1b1": 1_065_314_304,
    "bloom-1b7": 1_722_408_960, "bloom-3b": 3_002_557_440, "bloom-7b1": 7_069_016_064,
    "opt-2.7b": 2_651_596_800, "pythia-70m": 70_426_624, "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016, "pythia-1b": 1_011_781_632, "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960, "olmo3-7b": 7_298_011_136, "smollm3-3b": 3_075_098_624,
    "ministral-8b": 8_019_808_256,
}  # fmt: skip

PUBLISHED_SHAPES = {
    "mimo-7b": (4096, 32, 36),  # arXiv 2505.07608; its card counts a further layer, too
    # d_model, n_heads, n_layers of llm-foundry's scripts/train/yamls/pretrain, which print no size;
    # Megatron's smallest is named 1.7B in its table 1 and has 1.65.
    "mpt-125m": (768, 12, 12), "mpt-350m": (1024, 16, 24), "mpt-760m": (1536, 12, 24),
    "mpt-1b": (2048, 16, 24), "mpt-3b": (2560, 20, 32), "mpt-13b": (5120, 40, 40),
    "mpt-70b": (8192, 64, 80), "megatron-1.7b": (2304, 24, 24),
}  # fmt: skip


@pytest.mark.parametrize(("name", "total"), PUBLISHED_EXACTLY.items())
def test_presets_have_exactly_their_published_parameters(name, total):
    assert parameters.count_parameters(load_model(name)).total == total


@pytest.mark.parametrize(("name", "shape"), PUBLISHED_SHAPES.items())
def test_presets_without_a_published_size_have_their_published_shape(name, shape):
    model = load_model(name)
    assert (model.hidden, model.heads, model.layers) == shape


COUNTED_BY_TRANSFORMERS = frozenset(
    [
        "deepseek-v3.2",
        "deepseek-v4-pro",
        "ernie-4.5-21b-a3b",
        "glm-4.7-flash",
        "glm-5",
        "glm-5.2",
        "granite-4.0-h-small",
        "jamba-v0.1",
        "kimi-linear-48b-a3b",
        "ling-2.5-1t",
        "minimax-text-01",
        "minimax-m2",
        "ministral-3-8b",
        "mistral-small-3.1-24b",
        "nemotron-3-nano-30b-a3b",
        "nemotron-3-super-120b-a12b",
        "nemotron-3-ultra-550b-a55b",
        "nemotron-h-8b",
        "qwen3-next-80b-a3b",
        "qwen3.5-9b",
        "qwen3.5-27b",
        "qwen3.5-122b-a10b",
        "qwen3.5-397b-a17b",
        "qwen3.5-35b-a3b",
    ]
)
"""Presets of hybrid families: tests/specs/test_hybrid_models.py counts them against transformers."""


def test_every_preset_is_checked_against_what_is_published():
    held = {*PUBLISHED_BILLIONS, *PUBLISHED_EXACTLY, *PUBLISHED_SHAPES}
    assert held | COUNTED_BY_TRANSFORMERS >= set(model_names())
    assert held <= set(model_names())


@pytest.mark.parametrize(("name", "billions"), PUBLISHED_BILLIONS.items())
def test_presets_have_their_published_size(name, billions):
    held = parameters.count_parameters(load_model(name)).total / 1e9
    assert held == pytest.approx(billions, rel=0.02)
