"""Exports that would have trained another model than the plan's, or kept something else in host memory."""

import json

import pytest
import yaml
from plans import make_plan

from meshwright.exports.limits import problems
from meshwright.exports.megatron_bridge import overrides
from meshwright.exports.megatron_model import model_flags
from meshwright.exports.megatron_read import known_flags
from meshwright.exports.model_names import repository
from meshwright.exports.targets import FRAMEWORKS, STARTED, export
from meshwright.imports.files import import_file
from meshwright.imports.reading import Given
from meshwright.planner.legality import Question, why_illegal
from meshwright.planner.stacks import under
from meshwright.specs import load_cluster, load_model
from meshwright.specs.errors import SpecError
from meshwright.specs.finetune import finetune_recipe
from meshwright.specs.frameworks import framework
from meshwright.specs.job import OPTIMIZERS, RECIPES, Job


@pytest.mark.parametrize(
    ("model", "targets"),
    [("granite-3.3-8b", ("megatron", "nanotron", "fsdp")), ("gemma-2b", ("nanotron", "fsdp")),
     ("smollm3-3b", ("fsdp", "megatron-bridge")), ("ministral-3-8b", ("fsdp", "primus")), ("olmo-7b", ("megatron", "lightning")),
     ("llama4-scout", ("megatron",)), ("phi-4-mini", ("nanotron",)), ("exaone-4.0-32b", ("megatron", "primus"))],
)  # fmt: skip
def test_a_family_that_computes_otherwise_is_not_written_as_its_shape(model, targets):
    for name in targets:
        limits = FRAMEWORKS[name].limits
        assert any(found.field == "model.family" for found in limits.extra(load_model(model))), name


def test_granite_and_gemma_have_what_the_refusal_says():
    auto = pytest.importorskip("transformers").models.auto.configuration_auto
    granite = auto.CONFIG_MAPPING["granite"]()
    assert {"embedding_multiplier", "residual_multiplier", "logits_scaling"} <= set(vars(granite))
    assert auto.CONFIG_MAPPING["smollm3"]().no_rope_layer_interval == 4


def test_a_rotary_base_that_nobody_looked_up_is_said():
    known = export(make_plan("smollm2-135m", dp=8), "nanotron")
    assert (
        yaml.safe_load(known.files["nanotron.yaml"])["model"]["model_config"]["rope_theta"]
        == 100_000
    )
    assert not any("rotary base" in note for note in known.notes)
    assert any("rotary base" in note for note in export(make_plan("yi-9b", dp=8), "deepspeed").notes)  # fmt: skip
    size = make_plan("llama3-8b", dp=8).but(model=load_model("7B").model_dump())
    assert not any("rotary base" in note for note in export(size, "deepspeed").notes)


def test_a_router_is_its_family_s_where_no_numbers_of_a_model_are_known():
    ling = load_model("ling-mini-2.0")
    for known in (ling, ling.model_copy(update={"numerics": None})):
        flags = model_flags(known, 4096)
        assert flags["moe-router-score-function"] == "sigmoid" and flags["rotary-percent"] == "0.5"
    own = model_flags(ling, 4096)
    assert (own["moe-router-num-groups"], own["moe-router-group-topk"]) == ("8", "4")
    assert "moe-router-score-function" not in model_flags(load_model("qwen3-30b-a3b"), 4096)


@pytest.mark.parametrize("name", ["trl", "axolotl", "llama-factory", "verl"])
def test_a_checkpoint_that_comes_with_code_of_its_own_is_not_loaded_by_a_tool(name):
    job = Job(seq_len=2048, global_batch=64, framework=name, finetune=finetune_recipe("full"))
    limits = STARTED[name].limits
    found = [one.lacks for one in problems(make_plan("internlm2-7b", job=job, dp=8, zero=3), limits)]  # fmt: skip
    assert any("code of its own" in one for one in found)
    other = problems(make_plan("qwen2.5-7b", job=job, dp=8, zero=3), limits)
    assert not any("code of its own" in one.lacks for one in other)


def test_files_that_begin_with_new_weights_say_so_where_a_plan_trains_further():
    job = Job(seq_len=4096, global_batch=64, finetune=finetune_recipe("full"))
    for target in ("megatron", "deepspeed"):
        assert any("new weights" in note for note in export(make_plan(job=job, dp=8), target).notes)
    assert not any("new weights" in note for note in export(make_plan(dp=8), "megatron").notes)


def test_maxtext_holds_16_bits_where_nothing_wider_was_priced(tmp_path):
    job = Job(seq_len=4096, global_batch=64, framework="maxtext", precision=RECIPES["pure-bf16"])
    narrow = make_plan("llama3-8b", "tpu-v5p:2x4", job.but(optimizer=OPTIMIZERS["adamw-bf16"]), dp=8, zero=3)  # fmt: skip
    export(narrow, "maxtext").write(tmp_path)
    data = yaml.safe_load((tmp_path / "maxtext.yml").read_text())
    assert (data["weight_dtype"], data["grad_dtype"]) == ("bfloat16", "bfloat16")
    back = import_file(tmp_path / "maxtext.yml").job
    assert back.precision == narrow.job.precision
    assert back.optimizer == narrow.job.optimizer
    with pytest.raises(SpecError, match="moments of 16 bits"):
        export(make_plan("llama3-8b", "tpu-v5p:2x4", job, dp=8, zero=3), "maxtext")


TUNED = {"precision": RECIPES["pure-bf16"], "seq_len": 4096, "global_batch": 64}


@pytest.mark.parametrize(
    ("tool", "layout", "field"),
    [("trl", {"dp": 4, "cp": 2, "zero": 3, "cp_method": "ring", "offload": ("optimizer",)}, "offload"),
     ("axolotl", {"dp": 8, "offload": ("optimizer",)}, "offload"), ("llama-factory", {"dp": 8, "offload": ("optimizer",)}, "offload"),
     ("maxtext", {"dp": 8, "zero": 1, "shard": 2}, "layout.shard")],
)  # fmt: skip
def test_planner_and_exporter_refuse_what_no_file_says(tool, layout, field):
    tuned = {} if tool == "maxtext" else {**TUNED, "finetune": finetune_recipe("lora")}
    job = Job(framework=tool, **{"seq_len": 4096, "global_batch": 64, **tuned})
    plan = make_plan("llama3-8b", "tpu-v5p:2x4" if tool == "maxtext" else None, job, **layout)
    assert field in {found.field for found in problems(plan, STARTED[tool].limits)}
    question = Question(plan.model, load_cluster(plan.cluster.name), job)
    assert "framework" in str(why_illegal(question, plan.layout))


def test_one_device_offloads_by_deepspeed_too(tmp_path):
    job = Job(framework="llama-factory", **TUNED, finetune=finetune_recipe("lora"))
    plan = make_plan("llama3-8b", "h100:1x1", job, dp=1, offload=("optimizer",))
    made = export(plan, "llama-factory")
    zero = json.loads(made.files["deepspeed.json"])["zero_optimization"]
    assert (zero["stage"], zero["offload_optimizer"]["device"]) == (2, "cpu")
    made.write(tmp_path)
    assert import_file(tmp_path / "llama-factory.yaml").layout.offload == ("optimizer",)
    assert framework("llama-factory").offload_optimizer_zero == (1, 2, 3)


@pytest.mark.parametrize(
    ("target", "file", "zero", "recipe", "widths"),
    [("accelerate", "accelerate.yaml", 2, "bf16-fp32-grads", (4, 4)), ("accelerate", "accelerate.yaml", 3, "bf16", (4, 2)),
     ("accelerate", "accelerate.yaml", 0, "bf16", (4, 4)), ("trainer", "trainer.yaml", 2, "bf16", (4, 2)),
     ("trainer", "trainer.yaml", 0, "bf16-fp32-grads", (4, 4))],
)  # fmt: skip
def test_gradients_come_back_as_wide_as_the_framework_holds_them(
    tmp_path, target, file, zero, recipe, widths
):
    job = Job(framework=target, global_batch=64, precision=RECIPES[recipe])
    export(make_plan(job=job, dp=8, zero=zero), target).write(tmp_path)
    back = import_file(tmp_path / file).job.precision
    assert (back.gradient_bytes, back.gradient_reduce_bytes) == widths


@pytest.mark.parametrize("tool", ["trl", "axolotl", "llama-factory"])
def test_adapters_and_weights_train_in_fp16_with_a_scaler(tmp_path, tool):
    lora = Job(framework=tool, seq_len=2048, global_batch=64, precision=RECIPES["fp16"],
               finetune=finetune_recipe("lora"), document_masking=tool == "axolotl")  # fmt: skip
    plan = make_plan("llama3-8b", job=lora, dp=8)
    export(plan, tool).write(tmp_path)
    data = yaml.safe_load((tmp_path / f"{tool}.yaml").read_text())
    assert (data["fp16"], data.get("bf16", False)) == (True, False)
    assert import_file(tmp_path / f"{tool}.yaml").job.precision.compute == "fp16"
    whole = lora.but(finetune=finetune_recipe("full").model_dump())
    made = export(make_plan("llama3-8b", job=whole, dp=8, zero=2), tool).files["deepspeed.json"]
    assert json.loads(made)["fp16"] == {"enabled": "auto"}
    alone = make_plan("llama3-8b", job=whole, dp=8)
    with pytest.raises(SpecError, match="ZeRO stage 1, 2, 3"):
        export(alone, tool)
    assert why_illegal(Question(alone.model, alone.cluster, whole), alone.layout) is not None


def test_torchtune_and_verl_say_that_they_do_not_train_in_fp16():
    for tool in ("torchtune", "verl"):
        job = Job(framework=tool, precision=RECIPES["fp16"], finetune=finetune_recipe("lora"))
        with pytest.raises(SpecError, match="trains in bf16"):
            export(make_plan("llama3.1-8b", job=job, dp=8, zero=3), tool)


@pytest.mark.parametrize(
    ("target", "file", "loss"),
    [("deepspeed", "ds_config.json", "liger"), ("accelerate", "accelerate.yaml", "liger"), ("torchtitan", "recipe.py", "chunked")],
)  # fmt: skip
def test_how_the_loss_is_made_comes_back(tmp_path, target, file, loss):
    job = Job(framework=target, seq_len=4096, global_batch=64, precision=RECIPES["bf16-fp32-grads"])
    for asked in (loss, "framework"):
        plan = make_plan("llama3.1-8b", job=job.but(loss=asked), dp=8, zero=2)
        export(plan, target).write(tmp_path)
        assert import_file(tmp_path / file).job.loss == asked
    recipe = export(plan, "torchtitan").files["recipe.py"]
    assert "ChunkedLossWrapper.Config(" not in recipe


@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_megatron_moves_adam_alone_to_host_memory(optimizer):
    job = Job(seq_len=4096, global_batch=64, framework="megatron", precision=RECIPES["bf16"])
    away = {"dp": 8, "zero": 1, "offload": ("optimizer",)}
    words = export(make_plan(job=job, **away), "megatron").files["run.sh"]
    assert "--main-grads-dtype bf16" in words
    wide = job.but(precision=RECIPES["bf16-fp32-grads"].model_dump())
    assert (
        "--main-grads-dtype" not in export(make_plan(job=wide, **away), "megatron").files["run.sh"]
    )
    other = job.but(optimizer=OPTIMIZERS[optimizer].model_dump())
    plan = make_plan(job=other, **away)
    assert any(found.field == "offload" for found in problems(plan, FRAMEWORKS["megatron"].limits))
    assert why_illegal(Question(plan.model, plan.cluster, other), plan.layout) is not None


def test_torchtune_splits_no_layers_beside_the_optimizers_of_bitsandbytes():
    job = Job(
        framework="torchtune",
        **TUNED,
        finetune=finetune_recipe("full"),
        optimizer=OPTIMIZERS["paged-adam8bit"],
    )
    plan = make_plan("llama3-70b", job=job, dp=1, tp=8)
    with pytest.raises(SpecError, match="no tensor parallelism beside paged-adam8bit"):
        export(plan, "torchtune")
    assert why_illegal(Question(plan.model, plan.cluster, job), plan.layout) is not None


@pytest.mark.parametrize("name", ["megatron", "primus"])
def test_every_chunk_of_a_rank_recomputes_as_many_layers_in_the_planner_too(name):
    job = Job(seq_len=4096, global_batch=512, framework=name)
    layout = {
        "pp": 4,
        "dp": 8,
        "virtual_stages": 20,
        "schedule": "interleaved",
        "recompute": "full",
    }
    for layers, legal in ((10, False), (20, True)):
        plan = make_plan("llama3-70b", job=job, recompute_layers=layers, **layout)
        assert (not problems(plan, FRAMEWORKS[name].limits)) == legal
        why = why_illegal(Question(plan.model, plan.cluster, job), plan.layout)
        assert (why is None) == legal, why


@pytest.mark.parametrize("tool", ["torchtune", "verl"])
def test_moments_as_narrow_as_the_weights_are_said(tool):
    job = Job(framework=tool, **TUNED, finetune=finetune_recipe("full"))
    for optimizer, said in (("adamw", True), ("adamw-bf16", False)):
        plan = make_plan(
            "llama3.1-8b", job=job.but(optimizer=OPTIMIZERS[optimizer].model_dump()), dp=8, zero=3
        )
        assert any("moments" in note for note in export(plan, tool).notes) == said


def test_16_bits_alone_leave_for_host_memory_where_no_copy_stays_there():
    job = Job(
        framework="maxtext",
        seq_len=4096,
        global_batch=64,
        precision=RECIPES["pure-bf16"],
        optimizer=OPTIMIZERS["adamw-bf16"],
    )
    export(
        make_plan("llama3-8b", "tpu-v5p:2x4", job, dp=8, zero=3, offload=("optimizer",)), "maxtext"
    )


@pytest.mark.parametrize("tool", ["trl", "axolotl", "llama-factory", "verl"])
def test_checkpoints_that_hold_more_than_the_model_are_not_tuned_as_if_they_did_not(tool):
    job = Job(framework=tool, **TUNED, finetune=finetune_recipe("lora"))
    for name in ("gemma3-12b", "ministral-3-8b"):
        with pytest.raises(SpecError, match="image encoder"):
            export(make_plan(name, job=job, dp=8, zero=2 if tool == "verl" else 0), tool)


def test_attention_without_flash_is_not_told_to_use_it():
    job = Job(framework="axolotl", **TUNED, finetune=finetune_recipe("lora"))
    with pytest.raises(SpecError, match="does not take"):
        export(make_plan("mpt-7b", job=job, dp=8), "axolotl")
    plain = job.but(
        framework="trl",
        finetune=finetune_recipe({"method": "lora", "targets": "all-linear"}).model_dump(),
    )
    export(make_plan("mpt-7b", job=plain, dp=8), "trl")


def test_families_without_flash_are_those_of_transformers():
    modeling = pytest.importorskip("transformers.models.mpt.modeling_mpt")
    assert not modeling.MptForCausalLM._supports_flash_attn
    from transformers.models.opt.modeling_opt import OPTForCausalLM

    assert OPTForCausalLM._supports_flash_attn


def test_a_published_name_is_read_before_what_is_said_of_it():
    assert repository(load_model("qwen3-next-80b-a3b")) == "Qwen/Qwen3-Next-80B-A3B-Instruct"
    assert repository(load_model("deepseek-v4-flash")) == "deepseek-ai/DeepSeek-V4-Flash"
    assert repository(load_model("gpt3-13b")) is None


def test_opt_is_activated_as_transformers_has_it():
    config = pytest.importorskip("transformers").OPTConfig()
    made = json.loads(export(make_plan("opt-1.3b", dp=8), "deepspeed").files["config.json"])
    assert made["activation_function"] == config.activation_function == "relu"


@pytest.mark.parametrize("name", ["nemo", "trainer", "verl", "torchtitan", "deepspeed"])
def test_a_framework_s_usual_precision_is_one_that_it_runs(name):
    precision = under(Job(), name).precision
    assert (precision.gradient_bytes, precision.gradient_reduce_bytes) in framework(name).gradients


def test_nanotron_has_words_for_layers_without_positions():
    job = Job(seq_len=4096, global_batch=64, framework="nanotron", precision=RECIPES["bf16-fp32-grads"])  # fmt: skip
    text = export(make_plan("smollm3-3b", job=job, dp=8, zero=1), "nanotron").files["nanotron.yaml"]
    shape = yaml.safe_load(text)["model"]["model_config"]
    assert shape["no_rope_layer"] == 4 and shape["is_qwen2_config"]
    assert "is_llama_config" not in shape


def test_maxtext_is_written_for_gpus_with_one_process_a_host(tmp_path):
    job = Job(seq_len=4096, global_batch=64, framework="maxtext", precision=under(Job(), "maxtext").precision)  # fmt: skip
    plan = make_plan("llama3-8b", "h100:2x8", job, dp=16, zero=3)
    export(plan, "maxtext").write(tmp_path)
    data = yaml.safe_load((tmp_path / "maxtext.yml").read_text())
    assert (data["hardware"], data["attention"], data["num_slices"]) == ("gpu", "cudnn_flash_te", 1)
    script = (tmp_path / "run.sh").read_text()
    assert 'JAX_COORDINATOR_IP="${MASTER_ADDR' in script and "NNODES=2" in script
    assert "maxtext[cuda12]" in script and "XLA_PYTHON_CLIENT_MEM_FRACTION" in script
    assert import_file(tmp_path / "maxtext.yml", Given(cluster=plan.cluster)).layout == plan.layout
    for other, layout, says in (
        ("mixtral-8x7b", {"dp": 16, "zero": 3}, "experts on TPUs alone"),
        ("gemma2-9b", {"dp": 8, "cp": 2, "zero": 3, "cp_method": "all-gather"}, "splits neither"),
    ):
        with pytest.raises(SpecError, match=says):
            export(make_plan(other, "h100:2x8", job, **layout), "maxtext")


def test_latent_attention_turns_in_one_kernel_by_yarn_alone():
    stretched, plain = load_model("deepseek-v3"), load_model("glm-4.7-flash")
    assert "no-rope-fusion" not in model_flags(stretched, 4096)
    assert model_flags(plain, 4096)["no-rope-fusion"] is True


def test_heads_that_do_not_divide_the_width_have_a_width_of_their_own():
    assert "kv-channels" in model_flags(load_model("glm-4.7-flash"), 4096)  # 2,048 over 20
    assert "kv-channels" not in model_flags(load_model("deepseek-v3"), 4096)


def test_megatron_is_told_yarn_by_flags_that_it_has():
    flags = model_flags(load_model("gpt-oss-20b"), 4096)
    assert set(flags) <= set(known_flags())
    assert flags["rotary-scaling-factor"] == "32" and flags["no-yarn-correction-range-round-to-int"]


def test_megatron_bridge_has_the_kernels_of_megatron_and_no_masks():
    def told(model, **layout):
        return overrides(make_plan(model, job=Job(seq_len=131072, global_batch=64), **layout))

    dense, latent = told("llama3-8b", dp=8), told("deepseek-v3", dp=8, ep=8)
    for found in (dense, latent):
        assert found["dataset.create_attention_mask"] == "false"
        assert found["model.bias_activation_fusion"] == found["model.apply_rope_fusion"] == "true"
    assert latent["model.cuda_graph_scope"] == "null"  # the recipe's own, refused beside modules
    assert "model.apply_rope_fusion" not in told("gpt3-6.7b", dp=8)
    assert "model.bias_activation_fusion" not in told("nemotron-4-15b", dp=8)
    assert told("deepseek-coder-6.7b", dp=8)["model.seq_len_interpolation_factor"] == "4"
    sinks = told("gpt-oss-20b", dp=8)
    assert sinks["model.yarn_rotary_scaling_factor"] == "32"
    assert sinks["model.yarn_correction_range_round_to_int"] == "false"


@pytest.mark.parametrize(("precision", "said"), [("fp8", True), ("bf16-fp32-grads", False)])
def test_megatron_bridge_s_fp8_keeps_less_than_was_priced(precision, said):
    job = Job(seq_len=4096, global_batch=64, framework="nemo", precision=RECIPES[precision])
    made = export(make_plan("llama3-8b", job=job, dp=8), "megatron-bridge")
    assert any("in 8 bits" in note for note in made.notes) == said


def test_a_bare_recipe_of_megatron_bridge_without_fused_kernels_says_so(tmp_path):
    plan = make_plan("llama3-8b", job=Job(seq_len=4096, global_batch=64, framework="nemo"), dp=8)
    export(plan, "megatron-bridge").write(tmp_path)
    script = tmp_path / "run.sh"
    assert not any("fusion" in note for note in import_file(script).notes)
    script.write_text(script.read_text().replace("  model.bias_activation_fusion=true \\\n", ""))
    assert any("bias_activation_fusion" in note for note in import_file(script).notes)
