"""What would have died before its first step, or trained another model, on plans read as whoever launches them."""

import pytest
import yaml
from plans import make_plan

from meshwright.cli.inputs import read_question
from meshwright.cli.options import QuestionOptions
from meshwright.exports import fabric, megatron, megatron_bridge
from meshwright.exports.expressible import require_expressible
from meshwright.exports.images import image, setup
from meshwright.exports.targets import export
from meshwright.imports.critique import price
from meshwright.imports.files import import_file
from meshwright.imports.reading import Given
from meshwright.planner.legality import Question, why_illegal
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.finetune import finetune_recipe
from meshwright.specs.frameworks import framework
from meshwright.specs.job import RECIPES, Job
from meshwright.specs.layout import Layout
from meshwright.specs.models import load_model
from meshwright.specs.numerics import numerics_of, renormalizes_routing


def words(model, **layout):
    return megatron.all_flags(make_plan(model, **layout))


def test_experts_keep_their_shares_of_all_where_the_model_does_not_scale_them():
    for name in ("deepseek-v2", "qwen2-57b-a14b", "olmoe-1b-7b"):
        assert not renormalizes_routing(load_model(name))
        assert words(name, dp=8)["moe-router-pre-softmax"] is True
    for name in ("mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b"):
        assert "moe-router-pre-softmax" not in words(name, dp=8)


def test_routers_of_glm_and_minimax_score_by_sigmoid_with_a_moving_bias():
    for name, scaling in (("glm-4.5", 2.5), ("glm-4.5-air", 1.0), ("minimax-m2", 1.0)):
        numbers = numerics_of(load_model(name))
        assert (numbers.router, numbers.router_balances) == ("sigmoid", True)
        assert numbers.router_scaling == scaling
    assert words("glm-4.5-air", dp=8)["moe-router-score-function"] == "sigmoid"


def test_bridge_leaves_nothing_of_the_recipe_that_latent_attention_comes_with():
    said = megatron_bridge.overrides(make_plan("deepseek-v2-lite", dp=8))
    for field in ("q_lora_rank", "moe_router_num_groups", "moe_router_topk_scaling_factor"):
        assert said[f"model.{field}"] == "null"
    assert said["model.moe_router_score_function"] == "softmax"
    assert said["model.moe_router_enable_expert_bias"] == "false"
    assert said["model.sequence_parallel"] == "false"
    assert said["ddp.overlap_param_gather"] == "false"
    kimi = megatron_bridge.overrides(make_plan("kimi-k2", dp=8, pp=8, zero=1))
    assert (kimi["model.beta_fast"], kimi["model.moe_router_num_groups"]) == ("1", "null")
    assert kimi["ddp.overlap_param_gather"] == "true"


def test_a_band_of_yarn_without_a_flag_is_said():
    notes = export(make_plan("kimi-k2", dp=8, pp=8), "megatron").notes
    assert any("beta_fast 1" in note for note in notes)
    (asked,) = export(make_plan("deepseek-v3", dp=8, pp=8), "megatron").notes
    assert "yours to fill in" in asked


def test_bridge_warms_up_by_a_share_of_the_run():
    short = make_plan("llama3-8b", dp=8)
    said = megatron_bridge.overrides(short)
    assert (said["scheduler.lr_warmup_iters"], said["scheduler.lr_warmup_fraction"]) == (
        "0",
        "0.01",
    )
    wide = Job(seq_len=2048, global_batch=64, precision=RECIPES["fp32"])
    piped = megatron_bridge.overrides(make_plan("llama3-8b", job=wide, dp=4, pp=2))
    assert piped["model.pipeline_dtype"] == "torch.float32"


def test_what_leaves_for_host_memory_is_what_megatron_lets_go():
    plan = make_plan("mixtral-8x7b", dp=8, zero=1, offload=("activations",))
    for started in ("megatron", "megatron-bridge"):
        assert fabric.environment(plan, started)["NVTE_CPU_OFFLOAD_V1"][0] == "1"
    assert "NVTE_CPU_OFFLOAD_V1" not in fabric.environment(make_plan(dp=8), "megatron")
    assert "expert_fc1" in megatron.all_flags(plan)["offload-modules"]
    again = {"recompute": "selective", "recompute_modules": ("moe",)}
    inside = make_plan("mixtral-8x7b", dp=8, zero=1, offload=("activations",), **again)
    assert "expert_fc1" not in megatron.all_flags(inside)["offload-modules"]


def test_megatron_fsdp_keeps_its_optimizer_on_the_device():
    assert framework("megatron-fsdp").offload_optimizer_zero == (1,)
    export(make_plan(dp=8, zero=1, offload=("optimizer",)), "megatron")
    with pytest.raises(SpecError, match="under ZeRO stage 1"):
        export(make_plan(dp=8, zero=3, offload=("optimizer",)), "megatron")


def test_a_package_for_cuda_cannot_replace_rocms_pytorch():
    plan = make_plan(cluster="mi300x:1x8", dp=8, zero=2)
    lines = setup(plan, "deepspeed", container=True)
    assert any("PIP_CONSTRAINT" in line for line in lines)
    assert not any("PIP_CONSTRAINT" in line for line in setup(make_plan(dp=8), "deepspeed"))


@pytest.mark.parametrize("launcher", ["torchrun", "slurm", "ray"])
def test_a_script_that_brings_nothing_says_what_it_needs(launcher):
    plan = make_plan(dp=8, zero=2)
    text = next(iter(export(plan, launcher, launches="deepspeed").files.values()))
    assert f"deepspeed=={framework('deepspeed').checked}" in text
    assert image(plan, "deepspeed") in text


def test_a_token_of_the_hub_reaches_pods_machines_and_workers():
    plan = make_plan("llama3.1-8b", dp=8, zero=2)
    made = export(plan, "jobset", launches="torchtitan")
    job = list(yaml.safe_load_all(made.files["jobset.yaml"]))[-1]
    pod = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    token = next(one for one in pod["containers"][0]["env"] if one["name"] == "HF_TOKEN")
    assert token["valueFrom"]["secretKeyRef"]["optional"] is True
    assert any(token["valueFrom"]["secretKeyRef"]["name"] in note for note in made.notes)
    sky = yaml.safe_load(export(plan, "skypilot", launches="torchtitan").files["sky.yaml"])
    assert sky["envs"]["HF_TOKEN"] == ""
    assert "'HF_TOKEN'" in export(plan, "ray", launches="torchtitan").files["ray_train.py"]
    clone = export(make_plan(dp=8), "ray", launches="megatron").files["ray_train.py"]
    assert "'MEGATRON'" in clone


def test_files_that_lie_on_the_cluster_are_replaced():
    start = export(make_plan(dp=8, zero=2), "jobset", launches="fsdp").start
    assert "--dry-run=client -o yaml | kubectl apply -f -" in start


def test_scores_that_pytorch_cannot_bend_are_given_to_flash_attention(tmp_path):
    job = Job(seq_len=4096, global_batch=64, framework="trl", precision=RECIPES["bf16"],
              finetune=finetune_recipe({"method": "full"}))  # fmt: skip
    for name, kernel in (("gemma2-9b", "flash_attention_2"), ("qwen3-8b", None)):
        plan = make_plan(name, job=job, dp=8, zero=3, micro_batch=2)
        made = export(plan, "trl")
        assert yaml.safe_load(made.files["trl.yaml"]).get("attn_implementation") == kernel
        assert ("flash-attn" in made.files["run.sh"]) == (kernel is not None)
        made.write(tmp_path)
        back = import_file(tmp_path / "trl.yaml", Given(cluster=plan.cluster))
        assert not back.job.document_masking


@pytest.mark.parametrize(
    ("loss", "package"),
    [("liger", "liger-kernel"), ("cut", "ml-cross-entropy.git@"), ("framework", "")],
)
def test_a_loss_comes_with_the_package_that_makes_it(loss, package):
    job = Job(seq_len=4096, global_batch=64, framework="axolotl", precision=RECIPES["bf16"], loss=loss,
              finetune=finetune_recipe({"method": "full"}))  # fmt: skip
    made = export(make_plan("qwen3-8b", job=job, dp=8, zero=3), "jobset", launches="axolotl").files[
        "jobset.yaml"
    ]
    for name in ("liger-kernel", "ml-cross-entropy.git@"):
        assert (name in made) == (name == package)


def test_torchtitan_in_8_bits_comes_with_torchao():
    for name, has in (("fp8", True), ("bf16-fp32-grads", False)):
        job = Job(seq_len=8192, global_batch=64, framework="torchtitan", precision=RECIPES[name])
        made = export(
            make_plan("llama3.1-8b", job=job, dp=8, zero=2), "jobset", launches="torchtitan"
        )
        assert ("torchao==" in made.files["jobset.yaml"]) is has


@pytest.mark.parametrize("name", ["trainer", "accelerate", "fsdp", "lightning", "megatron", "deepspeed"])  # fmt: skip
def test_all_weights_train_further_in_the_precision_that_a_framework_has(name):
    options = QuestionOptions(
        model="llama3.1-8b", cluster="h100:1x8", finetune="full", framework=name
    )
    model, cluster, job = read_question(options)
    require_expressible(model, job, cluster)
    assert job.precision.master_bytes in framework(name).master_bytes


def test_what_shards_in_megatron_s_place_is_read_and_priced_under_its_own_name(tmp_path):
    job = Job(seq_len=4096, global_batch=64, framework="megatron-fsdp")
    made = make_plan("llama3.1-8b", job=job, dp=8, zero=3)
    for target, read in (("megatron", "megatron-fsdp"), ("primus", "primus")):
        export(made, target).write(tmp_path)
        back = import_file(tmp_path / ("run.sh" if target == "megatron" else "primus.yaml"))
        assert back.job.framework == read
        assert price(back).fits


@pytest.mark.parametrize("name", ["megatron", "deepspeed", "accelerate", "nemo", "verl"])
def test_sequences_are_split_under_kernels_that_can(name):
    """Transformer Engine's attention with scores, and transformers' eager, know nothing of other ranks' keys."""
    method = framework(name).context_methods[0]
    layout = Layout(dp=4, cp=2, zero=3 if name != "megatron" else 1, cp_method=method)
    asked = [
        Job(seq_len=4096, global_batch=64, framework=name, attention_kernel=one)
        for one in ("flash", "unfused")
    ]
    told = [
        why_illegal(Question(load_model("llama3-8b"), load_cluster("h100:1x8"), job), layout)
        for job in asked
    ]
    assert told[0] is None
    assert "context" in told[1]


def test_a_plan_that_splits_sequences_with_all_scores_is_not_written():
    job = Job(seq_len=4096, global_batch=64, attention_kernel="unfused", framework="megatron")
    with pytest.raises(
        SpecError, match="splits sequences under flash attention alone, not unfused"
    ):
        export(make_plan("llama3-8b", job=job, dp=4, cp=2, zero=1, cp_method="ring"), "megatron")


def test_cards_that_a_container_has_no_kernels_for_are_named():
    job = Job(
        seq_len=1024,
        global_batch=64,
        framework="megatron",
        precision=RECIPES["fp16"],
        attention_kernel="unfused",
    )
    plan = make_plan("gpt2-xl", "v100-32g:1x8", job, dp=8, zero=1)
    assert any("CUDA 13" in one for one in export(plan, "megatron").notes)
    assert not any("CUDA 13" in one for one in export(make_plan("gpt2-xl", dp=8), "megatron").notes)


def test_megatron_fsdp_is_told_to_gather_beside_the_forward():
    """It does so by itself where it shards weights; where it shards gradients alone it gathers them all at once."""
    job = Job(seq_len=4096, global_batch=64, framework="megatron-fsdp")
    for zero in (2, 3):
        plan = make_plan("llama3.1-8b", job=job, dp=8, zero=zero)
        assert "--overlap-param-gather" in export(plan, "megatron").files["run.sh"]
        assert "ddp.overlap_param_gather=true" in export(plan, "megatron-bridge").files["run.sh"]


def test_products_in_8_bits_are_scaled_by_their_own_tensors():
    """Megatron-Core refuses norms and activations that run again under delayed scaling, its default."""
    job = Job(seq_len=4096, global_batch=64, framework="megatron", precision=RECIPES["fp8"])
    flags = megatron.all_flags(make_plan("llama3-8b", job=job, dp=8, zero=1))
    assert flags["fp8-recipe"] == "tensorwise"
    assert "fp8-recipe" not in words("llama3-8b", dp=8)


@pytest.mark.parametrize(
    ("target", "layout", "says"),
    [
        ("torchtitan", {"dp": 8, "zero": 3}, "attention stays inside each document"),
        ("deepspeed", {"dp": 8, "zero": 3, "offload": ("optimizer",)}, "cpu_adam/lock"),
    ],
)
def test_what_a_framework_does_otherwise_is_said(target, layout, says):
    assert any(says in note for note in export(make_plan("llama3.1-8b", **layout), target).notes)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("accelerate", ("fsdp_offload_params: true", "fsdp_offload_params: false")),
        ("trainer", ("cpu_offload: true", "")),
        ("torchtitan", ("enable_cpu_offload=True", "")),
        ("megatron-bridge", ("model.fine_grained_activation_offloading=true", "")),
    ],
)
def test_what_lives_in_host_memory_is_written(target, words):
    """FSDP2 keeps weights and optimizer there together, Megatron-Core what layers keep for their backward."""
    there = ("core_attn",) if target == "megatron-bridge" else ("optimizer", "parameters")
    sharded = {"dp": 8, "zero": 1 if target == "megatron-bridge" else 3}
    for offload, word in zip((there, ()), words, strict=True):
        plan = make_plan("llama3.1-8b", offload=offload, **sharded)
        text = "\n".join(export(plan, target).files.values())
        assert word in text
        assert offload or words[0] not in text


def test_a_bridge_that_captures_the_iteration_says_how_many_copies_leave_at_once():
    job = Job(seq_len=4096, global_batch=64, framework_options={"graphs": "all"})
    plan = make_plan("llama3.1-8b", job=job, dp=8, zero=1, offload=("core_attn",))
    found = megatron_bridge.overrides(plan)
    assert found["model.fine_grained_offloading_max_inflight_offloads"] == "1"
