"""What Megatron-LM is told beyond the layout: masks, kernels, positions, routers, the optimizer."""

import pytest
from plans import make_plan

from meshwright.exports import megatron
from meshwright.exports.targets import export
from meshwright.specs import Job, SpecError
from meshwright.specs.huggingface import model_from_config
from meshwright.specs.models import load_model
from meshwright.specs.numerics import numerics_of


def flags(model="llama3-8b", **layout):
    return megatron.all_flags(make_plan(model, **layout))


def test_no_mask_is_built_where_the_kernel_knows_the_causal_one():
    assert flags(dp=8)["no-create-attention-mask-in-dataloader"] is True
    job = Job(seq_len=2048, global_batch=64, attention_kernel="unfused")
    unfused = megatron.all_flags(make_plan(job=job, dp=8))
    assert "no-create-attention-mask-in-dataloader" not in unfused


def test_attention_without_scores_is_left_to_transformer_engine_s_choice():
    """It is priced as cuDNN's or the third FlashAttention on Hopper; told `flash`, it would be the second."""
    assert flags("deepseek-v3", dp=8, pp=2)["attention-backend"] == "auto"
    assert flags(dp=8)["attention-backend"] == "auto"
    job = Job(seq_len=2048, global_batch=64, attention_kernel="unfused")
    assert megatron.all_flags(make_plan(job=job, dp=8))["attention-backend"] == "unfused"


def test_rotary_positions_follow_the_model():
    assert flags("llama3-8b", dp=8)["rotary-base"] == "500000"
    assert "use-rope-scaling" not in flags("llama3-8b", dp=8)
    scaled = flags("llama3.1-8b", dp=8)
    assert scaled["use-rope-scaling"] is True and scaled["rope-scaling-factor"] == "8"
    assert flags("qwen2.5-7b", dp=8)["rotary-base"] == "1000000"
    deep = flags("deepseek-v3", dp=8, pp=2)
    assert (deep["rope-type"], deep["rotary-scaling-factor"], deep["mscale"]) == ("yarn", "40", "1")


def test_deepseek_routes_by_sigmoid_in_groups_with_a_moving_bias():
    deep = flags("deepseek-v3", dp=8, pp=2)
    assert deep["moe-router-score-function"] == "sigmoid"
    assert deep["moe-router-enable-expert-bias"] is True
    assert (deep["moe-router-num-groups"], deep["moe-router-group-topk"]) == ("8", "4")
    assert deep["moe-router-topk-scaling-factor"] == "2.5"
    assert deep["qk-layernorm"] is True
    assert "moe-router-num-groups" not in flags("mixtral-8x7b", dp=8)


def test_a_gated_gelu_is_refused_not_trained_as_swiglu():
    with pytest.raises(SpecError, match="activation"):
        export(make_plan("gemma-2b", dp=8), "megatron")


def test_a_config_of_ones_own_brings_its_numbers():
    config = {
        "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 256, "vocab_size": 512,
        "num_attention_heads": 4, "intermediate_size": 512, "rope_theta": 123456.0,
        "rms_norm_eps": 1e-6, "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    }  # fmt: skip
    own = make_plan(dp=8).but(model=model_from_config(config, "mine").model_dump())
    told = megatron.all_flags(own)
    assert told["rotary-base"] == "123456"
    assert told["norm-epsilon"] == "1e-06"
    assert told["rotary-seq-len-interpolation-factor"] == "4"


def test_the_longest_name_wins_and_shape_decides_the_rest():
    assert numerics_of(load_model("mistral-7b-v0.3")).rope_theta == 1e6
    assert numerics_of(load_model("mistral-7b")).rope_theta == 1e4
    assert numerics_of(load_model("30B")).activation == "silu"


def test_the_optimizer_is_the_one_of_the_plan_not_of_the_defaults():
    told = flags(dp=8)
    assert (told["adam-beta1"], told["adam-beta2"], told["adam-eps"]) == ("0.9", "0.95", "1e-8")
