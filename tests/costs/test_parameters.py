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
    "deepseek-v2": 236, "deepseek-v2-lite": 15.7, "deepseek-v3": 671, "kimi-k2": 1026,
    "glm-4.5-air": 106, "gpt-oss-20b": 20.9, "gpt-oss-120b": 116.8, "grok-1": 314, "olmo-7b": 6.89,
    "olmoe-1b-7b": 6.92, "olmo2-7b": 7.3, "olmo2-13b": 13.7, "olmo2-32b": 32.2, "olmo3-7b": 7.3,
    "phi-1.5": 1.42, "phi-2": 2.78, "phi-3-mini": 3.82, "phi-3-medium": 14, "phi-3.5-moe": 41.9,
    "phi-4": 14.7, "phi-4-mini": 3.84, "gpt-neox-20b": 20.6, "pythia-6.9b": 6.86,
    "pythia-12b": 11.8, "bloom-176b": 176.2, "bloom-7b1": 7.07, "bloom-560m": 0.559, "mpt-7b": 6.65,
    "mpt-30b": 30, "nemotron-4-15b": 15.6, "nemotron-4-340b": 341, "opt-66b": 65.7, "gpt2-xl": 1.56,
    "gpt3-175b": 174.6, "starcoder2-15b": 15.96, "smollm3-3b": 3.08, "granite-3.3-8b": 8.17,
    "command-r-35b": 35, "seed-oss-36b": 36.2, "minimax-m2": 229,
}  # fmt: skip


@pytest.mark.parametrize(("name", "billions"), PUBLISHED_BILLIONS.items())
def test_presets_have_their_published_size(name, billions):
    held = parameters.count_parameters(load_model(name)).total / 1e9
    assert held == pytest.approx(billions, rel=0.02)
