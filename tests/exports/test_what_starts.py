"""Exports that a launching engineer would have lost a day to: each would have died, or trained something else."""

import json
import re

import pytest
import yaml
from plans import make_plan

from meshwright.exports.expressible import require_expressible, unwritten
from meshwright.exports.fabric import environment
from meshwright.exports.images import image
from meshwright.exports.model_names import repository
from meshwright.exports.targets import export
from meshwright.imports.files import import_file
from meshwright.imports.reading import Given
from meshwright.planner.legality import Question, why_illegal
from meshwright.planner.stacks import under
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.finetune import finetune_recipe
from meshwright.specs.frameworks import framework
from meshwright.specs.job import OPTIMIZERS, RECIPES, Job
from meshwright.specs.models import load_model


@pytest.mark.parametrize("name", ["accelerate", "deepspeed", "trainer"])
def test_a_model_s_numbers_reach_transformers(name):
    transformers = pytest.importorskip("transformers")
    config = json.loads(export(make_plan("llama3.1-8b", dp=8), name).files["config.json"])
    config.pop("_meshwright", None)
    made = transformers.AutoConfig.for_model(**config)
    assert made.rope_parameters["rope_theta"] == 500_000
    assert made.rope_parameters["rope_type"] == "llama3"
    assert made.rope_parameters["original_max_position_embeddings"] == 8192
    other = json.loads(export(make_plan("qwen3-8b", dp=8), name).files["config.json"])
    assert other["rope_parameters"] == {"rope_type": "default", "rope_theta": 1_000_000}
    assert other["rms_norm_eps"] == 1e-6


def test_the_script_turns_positions_by_the_model_s_base_and_says_what_it_leaves_out():
    made = export(make_plan("llama3.1-8b", dp=8), "fsdp")
    assert "THETA, EPSILON = 500000.0, 1e-05" in made.files["train_fsdp.py"]
    assert any("stretching" in note for note in made.notes)
    plain = export(make_plan("llama3-8b", dp=8), "fsdp")
    assert not any("stretching" in note for note in plain.notes)


@pytest.mark.parametrize("name", ["accelerate", "deepspeed"])
def test_windows_are_not_split_where_their_mask_is_taken_away(name):
    method = framework(name).context_methods[0]
    job = Job(seq_len=4096, global_batch=64, framework=name)
    split = {"job": job, "dp": 4, "cp": 2, "cp_method": method, "zero": 3}
    export(make_plan("llama3-8b", **split), name)
    with pytest.raises(SpecError, match="no context parallelism for this attention"):
        export(make_plan("mistral-7b", **split), name)


def test_windows_keep_the_methods_that_transformer_engine_has_for_them():
    megatron, windows = framework("megatron"), load_model("mistral-7b")
    assert megatron.context_methods_of(windows) == ("all-gather", "ulysses")
    assert "ring" in megatron.context_methods_of(load_model("llama3-8b"))


def test_a_torchtitan_recipe_finds_the_model_s_tokenizer_whatever_starts_it():
    plan = make_plan("qwen3-8b", dp=16, cluster="h100:2x8", job=Job(
        seq_len=4096, global_batch=64, framework="torchtitan", precision=RECIPES["bf16-fp32-grads"]))  # fmt: skip
    recipe = export(plan, "ray", launches="torchtitan").files["recipe.py"]
    assert "snapshot_download('Qwen/Qwen3-8B'" in recipe
    assert "hf_assets_path=tokenizer()" in recipe


def test_gpt_oss_goes_to_torchtitan_with_attention_that_splits():
    job = Job(
        seq_len=4096, global_batch=64, framework="torchtitan", precision=RECIPES["bf16-fp32-grads"]
    )
    plain = make_plan("gpt-oss-20b", dp=8, zero=3, job=job)
    assert 'model_registry("20b")' in export(plain, "torchtitan").files["recipe.py"]
    split = make_plan("gpt-oss-20b", dp=4, cp=2, zero=3, cp_method="all-gather", job=job)
    assert 'attn_backend="flex"' in export(split, "torchtitan").files["recipe.py"]
    assert (
        'CompileConfig(enable=True, components=["loss"])'
        in export(plain, "torchtitan").files["recipe.py"]
    )


def test_what_torchtitan_runs_is_compiled_as_it_was_priced():
    """A bf16 recipe left it to the default, which compiles nothing: 12 bytes a logit where 4 were priced."""
    for name in ("bf16-fp32-grads", "fp8"):
        job = Job(seq_len=4096, global_batch=64, framework="torchtitan", precision=RECIPES[name])
        plan = make_plan("llama-3.1-8b", dp=8, zero=3, job=job)
        assert "CompileConfig(enable=True)" in export(plan, "torchtitan").files["recipe.py"]


def test_a_clone_of_megatron_bridge_brings_its_own_packages():
    plan = make_plan("llama3-8b", dp=16, cluster="h100:2x8")
    text = export(plan, "jobset", launches="megatron-bridge").files["jobset.yaml"]
    assert "$MEGATRON_BRIDGE/src:$MEGATRON_BRIDGE/3rdparty/Megatron-LM" in text


def test_a_published_name_is_no_sentence():
    assert repository(load_model("deepseek-v3")) == "deepseek-ai/DeepSeek-V3"
    assert repository(load_model("llama3.1-8b").but(source="")) is None


def low(**fields):
    job = Job(seq_len=4096, global_batch=64, framework="deepspeed", precision=RECIPES["pure-bf16"],
              optimizer=OPTIMIZERS["adamw-bf16"])  # fmt: skip
    return make_plan("llama3-8b", job=job, **({"dp": 8, "zero": 3} | fields))


def test_deepspeed_keeps_16_bits_alone_where_nothing_wider_was_priced():
    made = json.loads(export(low(), "deepspeed").files["ds_config.json"])
    assert made["bf16"] == {
        "enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True,
    }  # fmt: skip
    usual = json.loads(
        export(make_plan("llama3-8b", dp=8, zero=3), "deepspeed").files["ds_config.json"]
    )
    assert usual["bf16"] == {"enabled": True}


@pytest.mark.parametrize(
    ("fields", "says"), [({"zero": 2}, "ZeRO stage 3"), ({"dp": 1, "zero": 0}, "several replicas"),
                         ({"offload": ("optimizer",)}, "host memory")],
)  # fmt: skip
def test_deepspeed_refuses_16_bits_where_it_would_keep_more(fields, says):
    with pytest.raises(SpecError, match=says):
        export(low(**fields), "deepspeed")
    plan = low()
    with pytest.raises(SpecError, match="adamw-bf16"):
        export(plan.but(job=plan.job.but(optimizer=OPTIMIZERS["adamw"])), "deepspeed")


def test_nanotron_reads_text_by_the_model_s_own_tokenizer():
    """GPT-2's tokens beyond a smaller vocabulary end in a device-side assert of the embedding."""
    made = yaml.safe_load(export(make_plan("llama2-13b", dp=8), "nanotron").files["nanotron.yaml"])
    assert made["tokenizer"]["tokenizer_name_or_path"] == repository(load_model("llama2-13b"))
    assert made["tokenizer"]["tokenizer_name_or_path"].startswith("meta-llama/")
    other = export(make_plan("llama3.1-8b", dp=8), "nanotron")
    assert (
        yaml.safe_load(other.files["nanotron.yaml"])["model"]["model_config"]["rope_theta"]
        == 500_000
    )
    assert any("stretching" in note for note in other.notes)


def test_torchtitan_has_experts_only_on_ranks_that_shard_or_split():
    """Its sparse mesh has shards * tp // ep ranks: with replicas alone that is none."""
    job = Job(
        seq_len=4096, global_batch=64, framework="torchtitan", precision=RECIPES["bf16-fp32-grads"]
    )
    with pytest.raises(SpecError, match="ep must divide 1"):
        export(make_plan("qwen3-30b-a3b", dp=8, ep=8, job=job), "torchtitan")
    export(make_plan("qwen3-30b-a3b", dp=8, ep=8, zero=3, job=job), "torchtitan")
    export(
        make_plan("qwen3-30b-a3b", dp=4, tp=2, ep=2, sequence_parallel=True, job=job), "torchtitan"
    )


@pytest.mark.parametrize("name", ["deepspeed", "fsdp", "megatron", "torchtitan"])
@pytest.mark.parametrize("cluster", ["tpu-v5p:2x4", "gaudi3:1x8", "aws-trn2:1"])
def test_files_are_written_for_devices_that_their_images_and_packages_are_for(name, cluster):
    world = load_cluster(cluster).gpus
    plan = make_plan("llama3.1-8b", cluster, dp=world, zero=3 if name != "megatron" else 1)
    with pytest.raises(SpecError, match="exported for devices of nvidia, amd, cpu") as caught:
        export(plan, name)
    assert caught.value.field == "cluster"
    with pytest.raises(SpecError, match="exported for devices"):
        require_expressible(plan.model, plan.job.but(framework=name), plan.cluster)


def test_attention_with_sinks_has_a_kernel_under_megatron():
    plan = make_plan("gpt-oss-20b", dp=8)
    assert "--attention-backend auto" in export(plan, "megatron").files["run.sh"]
    gathered = make_plan("gpt-oss-20b", dp=4, cp=2, cp_method="all-gather")
    with pytest.raises(SpecError, match="by ulysses"):
        export(gathered, "megatron")


def tuned(model, cluster, tool, recipe, **layout):
    job = Job(seq_len=2048, global_batch=64, framework=tool, precision=RECIPES["bf16"],
              finetune=finetune_recipe({"method": "lora", "rank": 8, **recipe}))  # fmt: skip
    world = load_cluster(cluster).gpus
    return make_plan(model, cluster, job, **{"dp": world, **layout})


@pytest.mark.parametrize("tool", ["trl", "axolotl", "llama-factory", "verl"])
@pytest.mark.parametrize(("model", "targets", "says"), [
    ("qwen3-30b-a3b", "all-linear", "experts' matrices as one parameter"),
    ("phi-3-mini", ["q", "v"], "no layer of its own for q, v in phi3"),
])  # fmt: skip
def test_adapters_that_a_model_has_no_layer_for_are_refused(tool, model, targets, says):
    zero = {"zero": 3} if tool == "verl" else {}
    plan = tuned(model, "h100:1x8", tool, {"targets": targets}, **zero)
    with pytest.raises(SpecError, match=says):
        export(plan, tool)


@pytest.mark.parametrize("tool", ["trl", "axolotl", "llama-factory", "verl"])
@pytest.mark.parametrize(("model", "queries"), [
    ("deepseek-v2-lite", ["q_proj"]), ("deepseek-v3", ["q_a_proj", "q_b_proj"]),
])  # fmt: skip
def test_adapters_on_latent_attention_have_its_layers_names(tool, model, queries):
    zero = {"zero": 3} if tool == "verl" else {}
    plan = tuned(model, "h200:1x8", tool, {"targets": ["q", "v"]}, **zero)
    written = "\n".join(export(plan, tool).files.values())
    assert all(name in written for name in [*queries, "kv_b_proj"])
    assert "v_proj" not in written.replace("kv_b_proj", "")


@pytest.mark.parametrize(("cluster", "refused"), [
    ("h100:1x8", ()), ("a100:1x8", ("llama-factory", "axolotl")), ("mi300x:1x8", ("llama-factory", "axolotl")),
])  # fmt: skip
def test_attention_with_sinks_is_tuned_where_its_flash_attention_runs(cluster, refused):
    for tool in ("axolotl", "llama-factory"):
        plan = tuned("gpt-oss-20b", cluster, tool, {"targets": ["q", "k", "v", "o"]})
        if tool in refused:
            with pytest.raises(SpecError, match=r"runs on Hopper|exported for devices"):
                export(plan, tool)
        else:
            export(plan, tool)


@pytest.mark.parametrize("tool", ["trl", "axolotl", "llama-factory"])
def test_tools_that_shard_by_deepspeed_have_no_groups_of_fewer_ranks(tool):
    plan = tuned("llama3.1-8b", "h100:2x8", tool, {}, zero=3, shard=8)
    with pytest.raises(SpecError, match="all data-parallel ranks or none"):
        export(plan, tool)


def test_sequences_are_split_for_models_whose_attention_is_told_no_bias():
    split = {"dp": 4, "cp": 2, "zero": 3, "cp_method": "ring"}
    with pytest.raises(SpecError, match="models with rotary positions"):
        export(tuned("mpt-7b", "h100:1x8", "trl", {}, **split), "trl")
    # A family that no config.json is written for keeps accelerate's own unit of sharding.
    gemma = export(tuned("command-r-35b", "h100:1x8", "trl", {}, **split), "trl")
    assert "layer_cls_to_wrap" not in gemma.files["accelerate.yaml"]


def test_the_script_computes_the_model_s_own_activation_and_positions():
    job = Job(seq_len=4096, global_batch=64, framework="fsdp", precision=RECIPES["bf16"])
    squared = export(make_plan("nemotron-4-15b", job=job, dp=8, zero=3), "fsdp").files[
        "train_fsdp.py"
    ]
    assert "F.relu(x).square()" in squared and "TURNED = 0.5" in squared
    assert "F.silu(x)" in export(make_plan(job=job, dp=8, zero=3), "fsdp").files["train_fsdp.py"]
    learned = export(make_plan("megatron-1.7b", job=job, dp=8, zero=3), "fsdp").files[
        "train_fsdp.py"
    ]
    assert "'max_positions': 4096" in learned


def test_nanotron_makes_its_own_tokens_where_no_data_set_is_named():
    job = Job(seq_len=4096, global_batch=64, framework="nanotron", precision=RECIPES["bf16"])
    bundle = export(make_plan(job=job, dp=8), "nanotron")
    (stage,) = yaml.safe_load(bundle.files["nanotron.yaml"])["data_stages"]
    assert stage["data"]["dataset"] is None
    assert any("random tokens" in note for note in bundle.notes)


@pytest.mark.parametrize(("tool", "asked", "says"), [
    ("torchtune", {"model": "gemma3-27b"}, "builds presets of llama2"),
    ("torchtune", {"optimizer": OPTIMIZERS["adam8bit"]}, "adam8bit"),
    ("trl", {"optimizer": OPTIMIZERS["adamw-bf16"]}, "as wide as the weights that it updates"),
    ("axolotl", {"optimizer": OPTIMIZERS["sgd-momentum"]}, "has the optimizer"),
    ("verl", {"model": "qwen3-next-80b-a3b"}, "attention in every layer"),
    ("torchtune", {"precision": RECIPES["fp16"]}, "trains in bf16"),
    ("verl", {"method": "dora"}, "trains lora"),
    ("axolotl", {"finetune": None}, "plan with --finetune"),
    ("megatron", {"model": "jamba-v0.1", "finetune": None}, "mamba layers"),
    ("nanotron", {"model": "mistral-small-24b", "finetune": None}, "heads of hidden / heads = 160"),
])  # fmt: skip
def test_what_no_layout_mends_is_refused_while_planning_and_while_exporting(tool, asked, says):
    recipe = finetune_recipe(
        {"method": asked.get("method", "lora"), "targets": ["q", "k", "v", "o"]}
    )
    fields = {
        "precision": RECIPES["bf16-fp32-grads" if tool == "nanotron" else "bf16"],
        "finetune": recipe,
    }
    fields |= {k: v for k, v in asked.items() if k not in ("model", "method")}
    job = Job(seq_len=2048, global_batch=64, framework=tool, **fields)
    plan = make_plan(
        asked.get("model", "llama3.1-8b"),
        "h100:1x8",
        job,
        dp=8,
        zero=3 if tool in ("torchtune", "verl") else 0,
    )
    with pytest.raises(SpecError, match=says):
        export(plan, tool)
    if "model" in asked and tool != "nanotron":  # whose heads are a limit of its own
        require_expressible(plan.model, job, plan.cluster)  # planned all the same, and said
        assert re.search(says, " ".join(unwritten(plan.model, job, plan.cluster)))
    elif job.optimizer.name != "adam8bit":  # one device takes it
        with pytest.raises(SpecError, match=says):
            require_expressible(plan.model, job, plan.cluster)


@pytest.mark.parametrize(("tool", "layout", "says"), [
    ("torchtune", {"cp": 2, "dp": 4}, "no context parallelism"),
    ("trl", {"zero": 1, "offload": ("optimizer", "parameters")}, "under ZeRO stage 3"),
    ("torchtune", {"offload": ("optimizer",)}, "together"),
    ("torchtune", {"offload": ("activations",)}, "full recomputation"),
])  # fmt: skip
def test_the_planner_and_the_exporter_refuse_the_same_layouts(tool, layout, says):
    plan = tuned("llama3.1-8b", "h100:1x8", tool, {}, **{"zero": 3} | layout)
    with pytest.raises(SpecError, match=says):
        export(plan, tool)
    assert why_illegal(Question(plan.model, plan.cluster, plan.job), plan.layout)


def test_a_container_that_builds_kernels_has_their_compiler():
    for name, kind in (("trl", "-devel"), ("torchtitan", "-runtime")):
        assert image(make_plan(dp=8), name).endswith(kind)


def test_shards_of_gradients_are_summed_as_wide_as_planned_under_accelerate():
    for recipe, said in (("bf16", "False"), ("bf16-fp32-grads", "True")):
        job = Job(seq_len=2048, global_batch=64, precision=RECIPES[recipe], framework="accelerate")
        script = export(make_plan(job=job, dp=8, zero=3), "accelerate").files["train.py"]
        assert f"REDUCE_FP32 = {said}" in script


def test_a_budget_of_tokens_comes_back_from_the_pytorch_script(tmp_path):
    job = Job(
        seq_len=4096,
        global_batch=64,
        framework="fsdp",
        token_budget=2**31,
        precision=RECIPES["bf16"],
    )
    export(make_plan(job=job, dp=8, zero=3), "fsdp").write(tmp_path)
    assert import_file(tmp_path / "train_fsdp.py", Given()).job.token_budget == 2**31


def test_biases_of_a_model_are_no_unknown_word_of_primus(tmp_path):
    export(make_plan("megatron-1.7b", "mi300x:1x8", dp=8), "primus").write(tmp_path)
    assert [
        one
        for one in import_file(tmp_path / "primus.yaml", Given()).remarks
        if one.kind == "unread"
    ] == []


@pytest.mark.parametrize("launcher", ["kubernetes", "pytorchjob"])
def test_one_group_of_hosts_is_not_spread_over_racks(launcher):
    rack = make_plan(tp=4, dp=18, cluster="gb200:18x4")
    export(rack, launcher, launches="megatron")
    racks = make_plan(tp=4, dp=36, cluster="gb200:36x4")
    with pytest.raises(SpecError, match="--to jobset"):
        export(racks, launcher, launches="megatron")
    export(racks, "jobset", launches="megatron")


def test_one_rack_has_no_ethernet_between_its_hosts():
    said = environment(make_plan(tp=4, dp=18, cluster="gb200:18x4"))
    assert "NCCL_SOCKET_IFNAME" in said and "NCCL_SOCKET_NTHREADS" not in said
    assert "NCCL_IB_HCA" not in said
    several = environment(make_plan(tp=4, dp=36, cluster="gb200:36x4"))
    assert "NCCL_IB_HCA" in several


def test_dropout_of_adapters_reaches_torchtune_and_comes_back_and_is_refused_where_nothing_says_it(
    tmp_path,
):
    plan = tuned("llama3.1-8b", "h100:1x8", "torchtune", {"dropout": 0.05}, zero=3)
    export(plan, "torchtune").write(tmp_path)
    assert (
        import_file(tmp_path / "torchtune.yaml", Given(cluster=plan.cluster)).job.finetune.dropout
        == 0.05
    )
    with pytest.raises(SpecError, match="no dropout before its adapters"):
        export(tuned("llama3.1-8b", "h100:1x8", "verl", {"dropout": 0.05}, zero=3), "verl")


def test_nanotron_keeps_gradients_and_weights_of_32_bits_or_neither(tmp_path):
    def planned(recipe):
        job = Job(seq_len=4096, global_batch=64, framework="nanotron", precision=RECIPES[recipe])
        return make_plan(job=job, dp=8)

    assert any("nanotron's have 32" in note for note in export(planned("bf16"), "nanotron").notes)
    export(planned("pure-bf16"), "nanotron").write(tmp_path)
    assert import_file(tmp_path / "nanotron.yaml", Given()).job.precision.master_bytes == 0


def test_shards_beside_copies_on_chips_of_two_devices_come_back(tmp_path):
    job = Job(
        seq_len=8192,
        global_batch=96,
        framework="maxtext",
        precision=under(Job(), "maxtext").precision,
    )
    plan = make_plan(
        "llama2-70b", "tpu-v7:8x4", job, dp=8, tp=2, cp=2, cp_method="all-gather", zero=3, shard=8
    )
    export(plan, "maxtext").write(tmp_path)
    back = import_file(tmp_path / "maxtext.yml", Given())
    assert (back.layout.shard, back.layout.micro_batch, back.job.global_batch) == (8, 1, 96)
