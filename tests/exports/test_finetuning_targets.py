"""Fine-tuning plans in the tools' own files, which `fits` reads back as what was planned."""

import json
import re
import subprocess

import pytest
import torch
import yaml
from plans import make_plan

from meshwright.cli.inputs import read_question
from meshwright.cli.options import QuestionOptions
from meshwright.costs.step import estimate
from meshwright.exports import torchtune
from meshwright.exports.targets import FINETUNERS, LAUNCHERS, export, export_all
from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given
from meshwright.planner.plan import price_layout
from meshwright.specs.clusters import load_cluster
from meshwright.specs.encoders import Encoder
from meshwright.specs.errors import SpecError
from meshwright.specs.finetune import finetune_recipe
from meshwright.specs.huggingface import model_from_config
from meshwright.specs.job import OPTIMIZERS, RECIPES, Job
from meshwright.specs.layout import Layout
from meshwright.specs.models import load_model

METHODS = {
    "full": "full",
    "lora": {"method": "lora", "rank": 32, "alpha": 64, "targets": ["q", "v"]},
    "dora": {"method": "dora", "rank": 8, "targets": ["q", "k", "v", "o"]},
    "qlora": "qlora",
}
LAYOUTS = {
    "alone": (Layout(micro_batch=2), "rtx4090:1x1"),
    "sharded": (Layout(dp=4, zero=3, recompute="full"), "rtx4090:1x4"),
    "hosted": (Layout(dp=8, zero=3, offload=("optimizer", "parameters")), "h100:1x8"),
    "zero2": (Layout(dp=8, zero=2, micro_batch=2, recompute="full"), "h100:1x8"),
}


def planned(method, name, framework, **job):
    layout, cluster = LAYOUTS[name]
    asked = Job(
        seq_len=2048, global_batch=16, framework=framework, precision=RECIPES["pure-bf16"],
        optimizer=OPTIMIZERS["adamw"], finetune=finetune_recipe(METHODS[method]), **job,
    )  # fmt: skip
    return price_layout(load_model("llama3.1-8b"), load_cluster(cluster), asked, layout)


@pytest.mark.parametrize("target", ["trl", "axolotl", "llama-factory"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_written_is_read_back(tmp_path, target, method, name):
    plan = planned(method, name, target)
    export(plan, target).write(tmp_path)
    back = import_file(tmp_path / f"{target}.yaml", Given(cluster=plan.cluster))
    layout, tune = plan.layout, plan.job.finetune
    assert back.model.name == "llama3.1-8b"
    assert (back.layout.micro_batch, back.layout.zero) == (layout.micro_batch, layout.zero)
    assert back.layout.recompute == layout.recompute
    assert set(back.layout.offload) == set(layout.offload)
    assert (back.job.seq_len, back.job.global_batch) == (2048, 16)
    assert back.job.optimizer.name.removesuffix("-bf16") == "adamw"
    if tune.adapts:
        read = back.job.finetune
        assert (read.method, read.storage) == (tune.method, tune.storage)
        assert (read.rank, read.alpha, set(read.targets)) == (
            tune.rank,
            tune.alpha,
            set(tune.targets),
        )
        assert read.double_quantization == tune.double_quantization
    else:
        assert back.job.finetune is None
    assert [one for one in back.remarks if one.kind == "unread"] == []


@pytest.mark.parametrize("target", FINETUNERS)
def test_a_plan_from_scratch_is_refused(target):
    plan = planned("full", "alone", target)
    plan = plan.but(job=plan.job.but(finetune=None))
    with pytest.raises(SpecError, match="--finetune"):
        export(plan, target)


def test_a_split_goes_through_accelerate_for_trl_and_is_read_back(tmp_path):
    plan = planned("lora", "sharded", "trl")
    layout = plan.layout.but(sequence_parallel=False, cp_method="ring", dp=2, cp=2)
    bundle = export(plan.but(layout=layout), "trl")
    bundle.write(tmp_path)
    ours = yaml.safe_load(bundle.files["trl.yaml"])
    assert "deepspeed" not in ours and not ours["gradient_checkpointing"]
    assert "accelerate launch --config_file accelerate.yaml" in bundle.files["run.sh"]
    back = import_file(tmp_path / "run.sh", Given(cluster=plan.cluster, model=plan.model))
    assert (back.layout.cp, back.layout.zero) == (2, 3)
    # One process of a host reads the checkpoint; every one of eight would hold a 70B model eight times.
    assert "fsdp_cpu_ram_efficient_loading: true" in bundle.files["accelerate.yaml"]
    assert back.layout.recompute == "full"
    with pytest.raises(SpecError, match="stage"):
        export(plan.but(layout=layout.but(zero=1)), "trl")
    with pytest.raises(SpecError, match="no tensor parallelism"):
        # Its script loads every layer whole, and accelerate leaves it so with no more than a warning.
        export(plan.but(layout=plan.layout.but(dp=2, tp=2)), "trl")


@pytest.mark.parametrize("offload", [(), ("optimizer", "parameters")])
def test_ulysses_goes_through_accelerate_to_deepspeed_for_trl_and_is_read_back(tmp_path, offload):
    plan = planned("full", "sharded", "trl")
    layout = plan.layout.but(cp_method="ulysses", dp=2, cp=2, offload=offload)
    bundle = export(plan.but(layout=layout), "trl")
    bundle.write(tmp_path)
    launcher = yaml.safe_load(bundle.files["accelerate.yaml"])
    assert launcher["distributed_type"] == "DEEPSPEED"
    sizes = launcher["parallelism_config"]
    # accelerate checks the batch by the replicas that these say.
    assert (sizes["parallelism_config_sp_size"], sizes["parallelism_config_dp_shard_size"]) == (
        2,
        2,
    )
    ours = yaml.safe_load(bundle.files["trl.yaml"])
    assert ours["packing"] and ours["gradient_checkpointing"] and ours["pad_to_multiple_of"] == 2
    back = import_file(tmp_path / "run.sh", Given(cluster=plan.cluster, model=plan.model))
    fields = ("dp", "cp", "cp_method", "zero", "recompute", "offload")
    assert [getattr(back.layout, name) for name in fields] == [getattr(layout, name) for name in fields]  # fmt: skip
    assert [one for one in back.remarks if one.kind == "unread"] == []
    ring = layout.but(cp_method="ring", offload=("optimizer",))
    with pytest.raises(SpecError, match="other than by ulysses"):
        export(plan.but(layout=ring), "trl")


def test_axolotl_splits_sequences_by_its_own_word_and_no_layers_beside_deepspeed():
    plan = planned("lora", "sharded", "axolotl")
    layout = plan.layout.but(dp=2, cp=2, cp_method="ulysses")
    text = export(plan.but(layout=layout), "axolotl").files["axolotl.yaml"]
    assert yaml.safe_load(text)["context_parallel_size"] == 2
    with pytest.raises(SpecError, match="no tensor parallelism"):
        export(plan.but(layout=plan.layout.but(dp=2, tp=2)), "axolotl")


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_torchtune_is_read_back(tmp_path, method, recompute):
    plan = planned(method, "sharded", "torchtune")
    layout = plan.layout.but(recompute=recompute, offload=("optimizer", "parameters"))
    plan = plan.but(layout=layout)
    export(plan, "torchtune").write(tmp_path)
    for name in ("torchtune.yaml", "run.sh"):
        back = import_file(tmp_path / name, Given(cluster=plan.cluster))
        assert back.model.name == "llama3.1-8b"
        assert (back.layout.dp, back.layout.zero, back.layout.recompute) == (4, 3, recompute)
        assert (back.layout.micro_batch, back.layout.offload) == (
            layout.micro_batch,
            layout.offload,
        )
        assert (back.job.seq_len, back.job.global_batch) == (2048, 16)
        if plan.job.finetune.adapts:
            asked, read = plan.job.finetune, back.job.finetune
            assert (read.rank, read.storage, set(read.targets)) == (
                asked.rank,
                asked.storage,
                set(asked.targets),
            )
        else:
            assert back.job.finetune is None
        assert [one for one in back.remarks if one.kind == "unread"] == []


def test_torchtune_refuses_what_its_recipes_have_no_words_for():
    plan = planned("lora", "sharded", "torchtune")
    with pytest.raises(SpecError, match="no tensor parallelism beside adapters"):
        export(plan.but(layout=plan.layout.but(tp=2, dp=2)), "torchtune")
    with pytest.raises(SpecError, match="together"):
        export(plan.but(layout=plan.layout.but(offload=("parameters",))), "torchtune")
    with pytest.raises(SpecError, match=r"0\.6\.1 builds"):
        export(plan.but(model=load_model("gpt2-xl").model_dump()), "torchtune")


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize(
    "changed",
    [{}, {"zero": 2, "recompute": "none"}, {"offload": ("optimizer", "parameters")}, {"offload": ("activations",)},
     {"cp": 2, "dp": 2, "cp_method": "ulysses"}, {"shard": 2}],
    ids=["zero3", "zero2", "hosted", "activations", "ulysses", "hybrid"],
)  # fmt: skip
def test_verl_is_read_back(tmp_path, method, changed):
    plan = planned(method, "sharded", "verl")
    layout = plan.layout.but(**changed)
    plan = plan.but(layout=layout, job=plan.job.but(document_masking=layout.cp > 1))
    export(plan, "verl").write(tmp_path)
    back = import_file(tmp_path / "run.sh", Given(cluster=plan.cluster))
    assert back.model.name == "llama3.1-8b"
    fields = ("dp", "cp", "zero", "recompute", "micro_batch", "offload", "shard_degree")
    assert {name: getattr(back.layout, name) for name in fields} == {
        name: getattr(layout, name) for name in fields
    }
    assert (back.job.seq_len, back.job.global_batch, back.job.precision.name) == (
        2048,
        16,
        "pure-bf16",
    )
    if plan.job.finetune.adapts:
        read, asked = back.job.finetune, plan.job.finetune
        assert (read.rank, read.alpha, set(read.targets)) == (
            asked.rank,
            asked.alpha,
            set(asked.targets),
        )
    assert [one for one in back.remarks if one.kind == "unread"] == []


def test_verl_refuses_quantised_weights_and_part_of_an_offload():
    plan = planned("qlora", "sharded", "verl")
    with pytest.raises(SpecError, match="16-bit"):
        export(plan, "verl")
    plain = planned("full", "sharded", "verl")
    with pytest.raises(SpecError, match="together"):
        export(plain.but(layout=plain.layout.but(offload=("optimizer",))), "verl")


@pytest.mark.parametrize(
    ("model", "tokenizer", "weights"),
    [("qwen2.5-7b", {"path": "vocab.json", "merges_file": "merges.txt"}, "00004"),
     ("llama3.1-8b", {"path": "original/tokenizer.model"}, "00004"),
     ("gemma2-27b", {"path": "tokenizer.model"}, "00024"),
     ("qwen2.5-0.5b", {"path": "vocab.json", "merges_file": "merges.txt"}, ["model.safetensors"])],
)  # fmt: skip
def test_torchtune_names_the_files_that_a_model_is_published_in(model, tokenizer, weights):
    folder = "/somewhere"
    component = torchtune.BUILDERS[model][1]
    read = torchtune._tokens(model, component, folder)
    assert {name: path.removeprefix(f"{folder}/") for name, path in read.items()} == tokenizer
    files = torchtune._weights(model)
    assert (files if isinstance(files, list) else files["max_filename"]) == weights


def test_every_model_that_torchtune_builds_has_its_files():
    assert set(torchtune.SHARDS) == set(torchtune.BUILDERS)


@pytest.mark.parametrize("tool", FINETUNERS)
@pytest.mark.parametrize("launcher", [name for name in LAUNCHERS if name != "torchrun"])
def test_every_launcher_starts_a_tool_for_fine_tuning(tool, launcher):
    """The plan's own tool, with its files beside and its packages named where a machine comes bare."""
    plan = planned("full", "sharded", tool)
    bundle = export(plan, launcher)
    alone = export(plan, tool).files
    own = {name: text for name, text in alone.items() if name != "run.sh"}
    assert {name: bundle.files[name] for name in own} == own
    text = bundle.files[LAUNCHERS[launcher].file]
    module = {"trl": "trl.scripts.sft", "axolotl": "axolotl.cli.train", "llama-factory": "llamafactory.launcher",
              "torchtune": "full_finetune_distributed.py", "verl": "verl.trainer.sft_trainer"}[tool]  # fmt: skip
    assert module in text
    if launcher not in ("slurm", "ray"):
        assert {"llama-factory": "llamafactory"}.get(tool, tool) + "==" in text.replace("[peft]", "").replace("[verl-core]", "")  # fmt: skip


def test_a_plan_of_tools_alone_is_written_for_all_that_can(tmp_path):
    bundles, _ = export_all(planned("qlora", "sharded", "trl"))
    assert {"trl", "axolotl", "llama-factory", "slurm", "skypilot"} <= set(bundles)


@pytest.mark.parametrize(("still", "patches"), [(True, None), (False, 729)])
def test_a_model_that_sees_goes_to_llama_factory_with_what_trains_of_it(still, patches):
    """And comes back; what has no words for an encoder refuses it."""
    encoder = Encoder(
        parameters=676_550_144, family="qwen2_5_vl", layers=32, hidden=1280, heads=16, ffn=3420, gated=True,
        patches=2916, joined=4,
    )  # fmt: skip
    model = load_model("qwen2.5-7b").but(encoder=encoder, name="Qwen/Qwen2.5-VL-7B-Instruct")
    tune = finetune_recipe({"method": "full", "freeze": ["vision"] if still else []})
    job = Job(
        framework="llama-factory",
        seq_len=4096,
        global_batch=64,
        finetune=tune,
        image_patches=patches,
    )
    plan = make_plan(model, job=job, dp=8, zero=3, recompute="full")
    files = export(plan, "llama-factory")
    data = yaml.safe_load(files.files["llama-factory.yaml"])
    assert data["template"] == "qwen2_vl"
    assert data["freeze_vision_tower"] is data["freeze_multi_modal_projector"] is still
    assert data["image_max_pixels"] == 768**2 * (patches or 2916) // 2916
    assert any("rows hold images" in note for note in files.notes)
    back = import_text(
        files.files["llama-factory.yaml"], "run.yaml", Given(model=model, guess=True)
    ).job
    assert (back.finetune.freeze if back.finetune else ()) == tune.freeze
    assert (back.image_patches or 2916) == (patches or 2916)
    with pytest.raises(SpecError, match="encoder of images"):
        export(plan.but(job=job.but(framework="verl").model_dump()), "verl")


QWEN_VL = {
    "model_type": "qwen2_5_vl", "tie_word_embeddings": False,
    "text_config": {"model_type": "qwen2_5_vl_text", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96,
                    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 160},
    "vision_config": {"depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "out_hidden_size": 64,
                      "fullatt_block_indexes": [1]},
}  # fmt: skip


def seeing(tool, method, freeze=(), patches=None):
    tune = finetune_recipe({"method": method, "freeze": list(freeze)})
    job = Job(framework=tool, seq_len=4096, global_batch=64, finetune=tune, image_patches=patches)
    plan = make_plan(job=job, dp=8, zero=3, recompute="full")
    return plan.but(model=model_from_config(QWEN_VL, "Qwen2.5-VL-tiny").model_dump())


def test_trl_is_told_a_multimodal_model_by_rows_that_are_not_packed_and_a_pattern():
    """A real encoder's matrices are called as the language model's: the pattern leaves them out."""
    transformers = pytest.importorskip("transformers")
    made = export(seeing("trl", "lora"), "trl")
    data = yaml.safe_load(made.files["trl.yaml"])
    assert data["packing"] is False and not {"padding_free", "packing_strategy"} & set(data)
    (pattern,) = data["lora_target_modules"]
    config = transformers.AutoConfig.for_model(**QWEN_VL)
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(config)
    found = [name for name, _ in model.named_modules() if re.fullmatch(pattern, name)]
    assert len(found) == 2 * 7
    assert not any("visual" in name for name in found)
    assert any("rows hold images" in note for note in made.notes)
    assert (
        yaml.safe_load(export(seeing("trl", "full"), "trl").files["trl.yaml"])["packing"] is False
    )
    with pytest.raises(SpecError, match="trains all of a multimodal model"):
        export(seeing("trl", "full", ["vision"]), "trl")


@pytest.mark.parametrize(("method", "freeze", "still"), [("full", [], False), ("full", ["vision"], True), ("lora", [], True)])  # fmt: skip
def test_axolotl_is_told_a_multimodal_model_by_its_processor(method, freeze, still):
    patches = {"patches": 2916 // 4} if method == "full" else {}
    data = yaml.safe_load(
        export(seeing("axolotl", method, freeze, **patches), "axolotl").files["axolotl.yaml"]
    )
    told = (
        "processor_type",
        "skip_prepare_dataset",
        "remove_unused_columns",
        "sample_packing",
        "chat_template",
    )
    assert [data[name] for name in told] == ["AutoProcessor", True, False, False, "qwen2_vl"]
    assert data.get("freeze_mm_modules", False) is still
    assert data["image_size"] == (384 if patches else 768)
    assert data["datasets"][0]["type"] == "chat_template"
    if method == "lora":
        assert data["lora_target_modules"].startswith(".*language_model.*")


def test_what_a_tool_has_no_template_for_is_refused():
    plan = seeing("axolotl", "full")
    odd = plan.model.encoder.but(family="aria").model_dump()
    with pytest.raises(SpecError, match="encoder of images"):
        export(
            plan.model_copy(
                update={"model": plan.model.model_copy(update={"encoder": Encoder(**odd)})}
            ),
            "axolotl",
        )


@pytest.mark.parametrize("tool", ["trl", "axolotl", "llama-factory"])
def test_what_the_third_stage_saves_are_whole_weights(tool):
    """Unsaid, transformers writes DeepSpeed's shards, which a script of its own has to join."""
    for name, whole in (("sharded", True), ("zero2", False)):
        zero = json.loads(export(planned("full", name, tool), tool).files["deepspeed.json"])
        found = zero["zero_optimization"].get("stage3_gather_16bit_weights_on_model_save", False)
        assert found is whole


def test_what_deepspeed_keeps_beyond_the_plan_is_said():
    def said(method, **precision):
        plan = planned(method, "sharded", "llama-factory")
        plan = plan.but(job=plan.job.but(precision=RECIPES["bf16"])) if precision else plan
        return any("32-bit weights" in note for note in export(plan, "llama-factory").notes)

    assert said("full") and not said("lora") and not said("full", master=True)


def test_verl_s_words_reach_hydra_as_they_are_meant():
    """A shell fills the data's path in; lists stay lists."""
    script = export(planned("lora", "sharded", "verl"), "verl").files["run.sh"]
    words = script.replace("exec torchrun", "printf '%s\\n'", 1)
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=True,
                          env={"PATH": "/usr/bin:/bin", "DATA": "/d/x.parquet"})  # fmt: skip
    said = done.stdout.splitlines()
    assert "data.train_files=/d/x.parquet" in said
    assert "trainer.logger=[console]" in said


def test_layers_of_a_published_model_are_named_by_itself():
    """SmolLM3 is shaped like Llama, and its class is not `LlamaDecoderLayer`: accelerate ends where none is found."""
    job = Job(seq_len=8192, global_batch=64, framework="trl", finetune=finetune_recipe({"method": "lora"}),
              precision=RECIPES["pure-bf16"])  # fmt: skip
    plan = make_plan("smollm3-3b", job=job, dp=4, cp=2, cp_method="ring", zero=2)
    given = yaml.safe_load(export(plan, "trl").files["accelerate.yaml"])["fsdp_config"]
    assert given["fsdp_auto_wrap_policy"] == "TRANSFORMER_BASED_WRAP"
    assert "fsdp_transformer_layer_cls_to_wrap" not in given


def quantised(model, tool, cluster="h100:1x8", zero=0):
    tune = finetune_recipe(
        {"method": "qlora", "storage": "nf4", "double_quantization": True, "targets": "attention"}
    )
    job = Job(
        seq_len=1024, global_batch=64, framework=tool, finetune=tune, precision=RECIPES["pure-bf16"]
    )
    return make_plan(model, cluster, job, dp=8, zero=zero)


def test_experts_in_one_parameter_are_quantised_by_axolotl_alone(tmp_path):
    """bitsandbytes takes linear layers: under TRL and LLaMA-Factory the experts of a mixture would keep 16 bits."""
    for tool in ("trl", "llama-factory"):
        with pytest.raises(SpecError, match="stays in 16 bits: plan with --framework axolotl"):
            export(quantised("qwen3-30b-a3b", tool), tool)
        export(quantised("qwen3-8b", tool), tool)
    made = export(quantised("qwen3-30b-a3b", "axolotl"), "axolotl")
    assert yaml.safe_load(made.files["axolotl.yaml"])["quantize_moe_experts"] is True
    made.write(tmp_path)
    back = import_file(tmp_path / "axolotl.yaml")
    assert back.job.finetune.storage == "nf4"
    assert not [one for one in back.remarks if "quantize_moe" in one.option]
    assert (
        "quantize_moe_experts"
        not in export(quantised("qwen3-8b", "axolotl"), "axolotl").files["axolotl.yaml"]
    )
    with pytest.raises(SpecError, match="ZeRO stage 0, 1, 2"):
        export(quantised("qwen3-30b-a3b", "axolotl", zero=3), "axolotl")
    asked = {"model": "qwen3-30b-a3b", "finetune": "qlora"}
    assert read_question(QuestionOptions(cluster="h100:1x8", **asked))[2].framework == "axolotl"
    assert read_question(QuestionOptions(cluster="mi300x:1x8", **asked))[2].framework == "trl"


def test_published_weights_do_not_become_what_they_are_not():
    """FP8 is not quantised again and does not train; a table of positions ends."""
    with pytest.raises(SpecError, match="published in FP8, of which no nf4 is made"):
        export(quantised("kimi-k2", "axolotl"), "axolotl")
    whole = Job(seq_len=1024, global_batch=64, framework="trl", finetune=finetune_recipe("full"),
                precision=RECIPES["pure-bf16"])  # fmt: skip
    with pytest.raises(SpecError, match="published in FP8, which do not train"):
        export(make_plan("minimax-m2", job=whole, dp=8, zero=3), "trl")
    with pytest.raises(SpecError, match="whose table has 1,024 positions"):
        export(make_plan("gpt2-xl", job=whole.but(seq_len=2048), dp=8), "trl")
    export(make_plan("gpt2-xl", job=whole, dp=8), "trl")


@pytest.mark.parametrize("target", ["trl", "axolotl", "llama-factory", "torchtune", "verl"])
def test_adapters_start_with_ten_times_the_rate_of_whole_weights(target):
    for method, rate in (("full", 1e-5), ("lora", 1e-4)):
        texts = "\n".join(export(planned(method, "sharded", target), target).files.values())
        found = re.findall(r"(?:learning_rate|optim\.lr|\blr)\W{1,3}(\d[\d.]*e-\d+|0\.\d+)", texts)
        assert found and {float(one) for one in found} == {rate}, (method, found)


def _adapters(tool, storage="16-bit", **job):
    tune = finetune_recipe(
        {
            "method": "lora" if storage in ("16-bit", "fp8") else "qlora",
            "storage": storage,
            "targets": ["attention"],
        }
    )
    return Job(
        seq_len=2048,
        global_batch=64,
        framework=tool,
        precision=RECIPES["bf16"],
        finetune=tune,
        **job,
    )


def test_deepspeed_is_installed_where_it_shards_alone():
    """TRL leaves split sequences to accelerate's FSDP2, unless Ulysses splits them."""
    split = make_plan("llama3.1-8b", dp=4, cp=2, zero=3, job=_adapters("trl"), cp_method="ring")
    assert "deepspeed==" not in export(split, "trl").files["run.sh"]
    whole = make_plan("llama3.1-8b", dp=8, zero=3, job=_adapters("trl"))
    assert "deepspeed==" in export(whole, "trl").files["run.sh"]


def test_weights_published_in_fp8_are_priced_so_where_the_devices_keep_them():
    kept = make_plan("deepseek-v3", dp=8, job=_adapters("trl"))
    assert any("half of what the plan priced" in note for note in export(kept, "trl").notes)
    widened = make_plan("deepseek-v3", "a100:1x8", dp=8, job=_adapters("trl"))
    assert not any("half of" in note for note in export(widened, "trl").notes)
    assert " kernels" in export(kept, "trl").files["run.sh"]
    eight = make_plan("deepseek-v3", dp=8, job=_adapters("trl", "fp8"))
    assert not any("half of" in note for note in export(eight, "trl").notes)
    held = [
        estimate(one.model, one.cluster, one.job, one.layout).memory_parts["parameters"]
        for one in (eight, kept)
    ]
    assert held[0] < 0.6 * held[1]
    with pytest.raises(SpecError, match="or as they are published"):
        export(make_plan("llama3.1-8b", dp=8, job=_adapters("trl", "fp8")), "trl")


def test_llama_factory_shards_no_weights_of_8_bits():
    eight = _adapters("llama-factory", "int8")
    with pytest.raises(SpecError, match=r"layout\.zero"):
        export(make_plan("llama3.1-8b", dp=8, zero=3, job=eight), "llama-factory")
    export(make_plan("llama3.1-8b", dp=8, zero=2, job=eight), "llama-factory")
    export(
        make_plan("llama3.1-8b", dp=8, zero=3, job=_adapters("llama-factory", "nf4")),
        "llama-factory",
    )


@pytest.mark.parametrize("offload", [(), ("optimizer", "parameters")])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_axolotl_shards_16_bit_weights_by_its_own_fsdp2_and_is_read_back(
    tmp_path, offload, recompute
):
    """DeepSpeed would keep 32-bit copies that the plan did not price."""
    plan = planned("full", "sharded", "axolotl").but(
        layout=Layout(dp=4, zero=3, recompute=recompute, offload=offload)
    )
    plan = plan.but(job=plan.job.but(optimizer=OPTIMIZERS["adamw-bf16"]))
    bundle = export(plan, "axolotl")
    assert "deepspeed.json" not in bundle.files
    ours = yaml.safe_load(bundle.files["axolotl.yaml"])
    assert "deepspeed" not in ours and not ours["gradient_checkpointing"]
    assert (ours["fsdp_version"], ours["fsdp_config"]["reshard_after_forward"]) == (2, True)
    assert ours["fsdp_config"]["final_state_dict_type"] == "FULL_STATE_DICT"
    assert not [note for note in bundle.notes if "32-bit" in note]
    bundle.write(tmp_path)
    back = import_file(tmp_path / "run.sh", Given(cluster=plan.cluster))
    assert (back.layout.dp, back.layout.zero, back.layout.recompute) == (4, 3, recompute)
    assert set(back.layout.offload) == set(offload)
    assert back.job.precision.name == "pure-bf16"
    assert back.job.optimizer.state_bytes == plan.job.optimizer.state_bytes
    assert [one for one in back.remarks if one.kind == "unread"] == []
    # Only DeepSpeed has the second stage's words here, and copies of 32 bits.
    for other in (
        plan.but(layout=plan.layout.but(zero=2, offload=())),
        planned("full", "sharded", "axolotl"),
    ):
        assert "deepspeed.json" in export(other, "axolotl").files
