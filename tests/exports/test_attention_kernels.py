"""Each target is told the attention that a plan prices, or refuses it; and what CUDA graphs need beside it."""

import json

import pytest
import yaml
from plans import make_plan
from test_real_parsers import ask_megatron, question

from meshwright.cli.inputs import read_question
from meshwright.cli.options import QuestionOptions
from meshwright.exports import megatron
from meshwright.exports.canonical import canonical
from meshwright.exports.expressible import why_unwritten
from meshwright.exports.targets import FINETUNERS, STARTED, export
from meshwright.planner.stacks import under
from meshwright.specs import Job, Layout, load_cluster, load_model
from meshwright.specs.errors import SpecError
from meshwright.specs.finetune import finetune_recipe
from meshwright.specs.job import OPTIMIZERS, RECIPES
from meshwright.specs.routing import Routing

SAID = {
    # Target: what its files hold where a plan keeps all scores.
    "megatron": "--attention-backend unfused", "megatron-bridge": "model.attention_backend=unfused",
    "primus": "attention_backend: unfused", "deepspeed": '"attn_implementation": "eager"',
    "accelerate": '"attn_implementation": "eager"', "trainer": '"attn_implementation": "eager"',
    "fsdp": "'scores_kept': True", "lightning": "'scores_kept': True", "maxtext": "attention: dot_product",
    "trl": "attn_implementation: eager", "axolotl": "attn_implementation: eager", "llama-factory": "flash_attn: disabled",
    "verl": "attn_implementation=eager",
}  # fmt: skip


def kept(target, kernel="unfused", **more):
    limits = STARTED[target].limits
    recipe = {"finetune": finetune_recipe({"method": "full"})} if target in FINETUNERS else {}
    job = Job(seq_len=2048, global_batch=64, attention_kernel=kernel, **recipe, **more)
    job = under(job, limits.framework)
    cluster = "tpu-v5p:2x4" if target == "maxtext" else "h100:1x8"
    zero = {"zero": 3} if target in ("verl", "torchtune") else {}
    return make_plan("llama3.1-8b", cluster, job, dp=8, **zero)


@pytest.mark.parametrize("target", STARTED)
def test_a_target_keeps_scores_where_the_plan_does_or_refuses(target):
    if target in SAID:
        assert SAID[target] in "\n".join(export(kept(target), target).files.values())
        assert SAID[target] not in "\n".join(export(kept(target, "flash"), target).files.values())
    else:
        with pytest.raises(SpecError, match="computes attention flash here"):
            export(kept(target), target)


@pytest.mark.parametrize("target", STARTED)
def test_a_kernel_that_no_file_names_is_refused_everywhere(target):
    with pytest.raises(SpecError, match="computes attention flash") as caught:
        export(kept(target, "memory-efficient"), target)
    assert caught.value.field == "job.attention_kernel"


@pytest.mark.parametrize("tool", ["trl", "verl"])
def test_packed_documents_are_kept_apart_by_flash_attention_alone(tool):
    with pytest.raises(SpecError, match="apart by FlashAttention alone"):
        export(kept(tool, document_masking=True), tool)


def tuned(tool, model="llama3.1-8b", kernel="flash", **recipe):
    job = Job(seq_len=2048, global_batch=64, framework=tool, precision=RECIPES["bf16"], attention_kernel=kernel,
              finetune=finetune_recipe({"method": "lora", "rank": 8, "targets": ["q", "v"], **recipe}))  # fmt: skip
    return make_plan(model, "h100:1x8", job, dp=8, zero=3)


def test_published_weights_of_4_bits_are_widened_where_a_tool_can_be_told():
    axolotl = yaml.safe_load(
        export(tuned("axolotl", "gpt-oss-20b"), "axolotl").files["axolotl.yaml"]
    )
    assert axolotl["model_quantization_config"] == "Mxfp4Config"
    assert axolotl["model_quantization_config_kwargs"] == {"dequantize": True}
    with pytest.raises(SpecError, match="keeping all its scores"):
        export(tuned("trl", "gpt-oss-20b"), "trl")
    kept_scores = export(tuned("trl", "gpt-oss-20b", "unfused"), "trl").files["trl.yaml"]
    assert yaml.safe_load(kept_scores)["attn_implementation"] == "eager"
    with pytest.raises(SpecError, match="MXFP4"):
        export(tuned("verl", "gpt-oss-20b"), "verl")


def test_weights_of_4_bits_are_stored_as_shards_can_be_cut():
    told = yaml.safe_load(export(tuned("trl", method="qlora"), "trl").files["trl.yaml"])
    assert told["bnb_4bit_quant_storage"] == told["dtype"] == "bfloat16"
    whole = tuned("trl", method="qlora")
    whole = whole.but(layout=whole.layout.but(zero=0).model_dump())
    assert "bnb_4bit_quant_storage" not in yaml.safe_load(export(whole, "trl").files["trl.yaml"])


def test_megatron_takes_graphs_with_the_variables_of_their_run():
    job = Job(
        seq_len=2048, global_batch=64, framework="megatron", precision=RECIPES["bf16-fp32-grads"]
    )
    layout = {"dp": 8, "ep": 8, "zero": 1, "offload": ("activations",)}
    chosen = [
        make_plan("qwen3-30b-a3b", job=job.but(framework_options={"graphs": kind}, routing=routing.model_dump()), **layout)
        for kind in ("layers", "all")
        for routing in (Routing(), Routing(capacity=1.25))
    ]  # fmt: skip
    asked = [question(plan) for plan in chosen]
    bare = asked[0] | {"variables": asked[0]["variables"] | {"NCCL_GRAPH_REGISTER": "1"}}
    _flags, *answers, refused = ask_megatron([*asked, bare])
    assert [answer["error"] for answer in answers] == [None] * 4
    assert "NCCL_GRAPH_REGISTER" in refused["error"]


def test_modules_that_a_model_does_not_have_are_not_recomputed():
    several = Layout(
        dp=8, recompute="selective", recompute_modules=("layernorm", "mla_up_proj", "moe_act")
    )
    alone = several.but(recompute_modules=("moe_act",))
    dense = load_model("llama3-8b")
    assert canonical(several, dense).recompute_modules == ("layernorm",)
    assert canonical(alone, dense).recompute == "none"
    assert (
        canonical(several, load_model("deepseek-v3")).recompute_modules == several.recompute_modules
    )
    plan = make_plan("llama3-8b", dp=8, recompute="selective", recompute_modules=("mla_up_proj",))
    assert "recompute-modules" not in megatron.all_flags(plan)


def test_every_script_of_transformers_reads_its_kernel_from_its_config():
    for target in ("deepspeed", "accelerate", "trainer"):
        config = json.loads(export(kept(target), target).files["config.json"])
        assert config["attn_implementation"] == "eager"


def test_maxtext_is_told_what_its_own_configuration_takes_on_tpus():
    """Its ring and Ulysses run on another kernel, and Muon's dimensions are known for some decoders alone."""
    for method in ("ring", "ulysses"):
        with pytest.raises(SpecError, match="by all-gather"):
            export(
                make_plan("deepseek-v2-lite", "tpu-v5p:2x4", dp=4, cp=2, cp_method=method),
                "maxtext",
            )
    job = Job(
        seq_len=2048, global_batch=64, optimizer=OPTIMIZERS["muon"], precision=RECIPES["pure-bf16"]
    )
    for model, refused in (("olmo3-7b", True), ("qwen3-8b", False)):
        plan = make_plan(model, "tpu-v5p:2x4", under(job, "maxtext"), dp=8, zero=3)
        if refused:
            with pytest.raises(SpecError, match="with Muon"):
                export(plan, "maxtext")
        else:
            assert "opt_type: muon" in export(plan, "maxtext").files["maxtext.yml"]


def test_torchtitan_s_rotary_tables_reach_so_far():
    for model, length, reaches in (
        ("deepseek-v3", 16_384, True),
        ("deepseek-v3", 32_768, False),
        ("llama3.1-8b", 131_072, True),
    ):
        job = under(Job(seq_len=length, global_batch=64), "torchtitan")
        plan = make_plan(model, job=job, dp=8, zero=2)
        if reaches:
            assert f"seq_len={length}" in export(plan, "torchtitan").files["recipe.py"]
        else:
            with pytest.raises(SpecError, match="for 16,384 tokens"):
                export(plan, "torchtitan")


@pytest.mark.parametrize(
    ("name", "cluster", "kernel"),
    [("deepspeed", "h100:1x8", "unfused"), ("trainer", "h100:1x8", "unfused"), ("trl", "h100:1x8", "unfused"),
     ("axolotl", "h100:1x8", "flash"), ("axolotl", "a100:1x8", "unfused"), ("llama-factory", "mi300x:1x8", "unfused"),
     ("megatron", "h100:1x8", "flash"), ("torchtitan", "h100:1x8", "flash")],
)  # fmt: skip
def test_sinks_are_planned_with_a_kernel_that_can_be_written(name, cluster, kernel, tmp_path):
    """A default plan of GPT-OSS was refused where a framework's FlashAttention knows no sinks."""
    model, where = load_model("gpt-oss-20b"), load_cluster(cluster)
    assert under(Job(), name, where.device, where.gpus, model).attention_kernel == kernel
    options = QuestionOptions(model="gpt-oss-20b", cluster=cluster, framework=name)
    job = read_question(options)[2]
    assert job.attention_kernel == kernel
    assert not [one for one in why_unwritten(model, job, where).split() if one == "sinks"]
    told = tmp_path / "job.toml"
    told.write_text('attention_kernel = "flash"\n')
    options = QuestionOptions(model="gpt-oss-20b", cluster=cluster, framework=name, job=str(told))
    assert read_question(options)[2].attention_kernel == "flash"
