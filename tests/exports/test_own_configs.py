"""Models whose fields do not say all that a layer computes: their config.json goes along, and comes out again."""

import importlib.metadata
import json
import os
import subprocess
import sys

import pytest
import test_execution
import yaml
from plans import make_plan

from meshwright.exports.expressible import unwritten
from meshwright.exports.hf import own_config
from meshwright.exports.hf_classes import has_causal, has_images, takes_flash
from meshwright.exports.targets import export
from meshwright.imports.files import import_file
from meshwright.planner.plan import plan
from meshwright.specs import Job
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.hf_carried import carried
from meshwright.specs.huggingface import model_from_config
from meshwright.specs.job import RECIPES
from meshwright.specs.models import load_model
from meshwright.specs.plan import load_plan, save_plan

BASE = {
    "num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 160, "max_position_embeddings": 16,
}  # fmt: skip
AFMOE = {
    "model_type": "afmoe", **BASE, "head_dim": 16, "moe_intermediate_size": 32, "num_experts": 4,
    "num_experts_per_tok": 2, "num_dense_layers": 1, "num_shared_experts": 1, "route_scale": 2.5,
}  # fmt: skip
GEMMA4 = {
    "model_type": "gemma4_text", **BASE, "head_dim": 16, "global_head_dim": 32, "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 160, "num_kv_shared_layers": 2, "final_logit_softcapping": 30.0,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
JOB = Job(seq_len=32, global_batch=8, precision=RECIPES["fp32"], attention_kernel="unfused")


def of(config, target_layout):
    ranks = target_layout.get("dp", 1) * target_layout.get("tp", 1)
    plan = make_plan(cluster=f"cpu:1x{ranks}", job=JOB, micro_batch=2, **target_layout)
    return plan.but(model=model_from_config(config, "tiny").model_dump())


@pytest.mark.parametrize("target", ["accelerate", "trainer", "deepspeed"])
@pytest.mark.parametrize("config", [AFMOE, GEMMA4], ids=["afmoe", "gemma4"])
def test_a_family_s_own_numbers_come_out_and_are_read_back(config, target, tmp_path):
    """Also those that no field holds; without a cache of keys, and with positions for the sequence."""
    weights = {
        "quantization_config": {"quant_method": "fp8"},
        "torch_dtype": "bfloat16",
        "auto_map": {"A": "b.C"},
    }
    plan = of(config | weights, {"dp": 2, "zero": 3})
    export(plan, target).write(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    del written["_meshwright"]
    changed = {"use_cache": False, "attn_implementation": "eager", "max_position_embeddings": 32}
    assert written == config | changed
    back = import_file(tmp_path / "run.sh").model
    assert back.but(name="", source="", config_json="") == plan.model.but(
        name="", source="", config_json=""
    )


def test_the_config_survives_a_plan_s_file_and_is_lost_with_another_shape(tmp_path):
    plan = of(AFMOE, {"dp": 2, "zero": 3})
    save_plan(plan, tmp_path / "plan.toml")
    kept = load_plan(tmp_path / "plan.toml").model
    assert own_config(kept)["route_scale"] == 2.5
    assert own_config(kept.but(name="other")) is not None
    assert kept.but(layers=3, layer_kinds=kept.layer_kinds[:3]).config_json == ""
    edited = kept.model_copy(update={"hidden": 128})  # a line of the file changed by hand
    assert carried(edited) is None
    with pytest.raises(SpecError, match="plain decoders"):
        export(plan.model_copy(update={"model": edited}), "accelerate")


@pytest.mark.parametrize(("added", "said"), [({}, True), ({"rope_theta": 1e6}, False)])
def test_numbers_that_a_configuration_leaves_to_its_class_are_said(added, said):
    notes = export(of(AFMOE | added, {"dp": 2, "zero": 3}), "accelerate").notes
    assert any("states no rotary base" in note for note in notes) is said


def test_a_plan_that_its_framework_cannot_be_told_names_those_that_can():
    plan = of(AFMOE, {"dp": 2, "zero": 3})
    (told,) = unwritten(plan.model, plan.job.but(framework="fsdp"), plan.cluster)
    assert told.endswith("files can with --framework accelerate or deepspeed or trainer")


def test_a_plain_model_carries_nothing():
    assert load_model("llama3-8b").config_json == ""
    assert load_model("mixtral-8x7b").config_json == ""


@pytest.mark.parametrize(("config", "target", "layout", "says"), [
    (AFMOE, "deepspeed", {"tp": 2}, "plain layers"),
    (AFMOE, "fsdp", {"dp": 2, "zero": 3}, "plain decoders"),
])  # fmt: skip
def test_what_builds_layers_of_its_own_or_splits_them_refuses(config, target, layout, says):
    with pytest.raises(SpecError, match=says):
        export(of(config, layout), target)


def test_attention_that_only_keeps_its_scores_is_asked_to_be_priced_so():
    config = {
        "model_type": "codegen",
        "n_layer": 2,
        "n_embd": 64,
        "n_head": 4,
        "vocab_size": 160,
        "rotary_dim": 8,
    }
    plan = of(config, {"dp": 2, "zero": 3})
    assert own_config(plan.model)["rotary_dim"] == 8
    export(plan, "accelerate")
    kernel = plan.but(job=JOB.but(attention_kernel="flash").model_dump())
    with pytest.raises(SpecError, match="keeps all its scores alone"):
        export(kernel, "accelerate")


def test_the_list_of_families_is_transformers_own():
    transformers = pytest.importorskip("transformers")
    from transformers.models.auto import modeling_auto

    if importlib.metadata.version("transformers") != "5.23.0":
        pytest.skip("the list is that of transformers 5.23.0")
    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    images = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    assert all(has_causal(name) for name in causal)
    assert all(has_images(name) for name in images)
    assert not has_causal("chatglm")
    for name in ("afmoe", "gemma4_text", "llama4_text", "mamba2"):
        assert takes_flash(name) == bool(getattr(transformers, causal[name])._supports_flash_attn)


@pytest.mark.dist
@pytest.mark.parametrize("config", [AFMOE, GEMMA4], ids=["afmoe", "gemma4"])
def test_shards_of_a_family_s_own_layers_lose_what_one_process_does(config, tmp_path):
    """The same first numbers, module by module, and the class of layers found in the model itself."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder, layout in ((whole, {}), (cut, {"dp": 2, "zero": 3, "recompute": "full"})):
        export(of(config, layout), "accelerate").write(folder)
    plain = test_execution.run(whole, ["train.py"], ACCELERATE_USE_CPU="true")
    asked = yaml.safe_load((cut / "accelerate.yaml").read_text())
    said = {
        name.upper(): str(value).lower() if isinstance(value, bool) else str(value)
        for table in ("fsdp_config", "parallelism_config")
        for name, value in asked[table].items()
    }
    on = {f"ACCELERATE_USE_{name}": "true" for name in ("CPU", "FSDP", "PARALLELISM_CONFIG")}
    script = [str(test_execution.VALIDATORS / "accelerate_cpu.py"), "train.py"]
    assert test_execution.run(cut, script, 2, **on, **said) == pytest.approx(plain, abs=3e-6)
    assert abs(plain[0] - plain[2]) > 1e-4


def test_a_framework_answers_for_no_family_that_it_does_not_build():
    """By default the plan of one that transformers alone has is one that can be started."""
    model = model_from_config({"model_type": "helium", **BASE}, "tiny")
    made = plan(model, load_cluster("h100:1x8"), Job(seq_len=32, global_batch=8), defend=False)
    assert made.job.framework == "deepspeed"
    assert unwritten(made.model, made.job, made.cluster) == ()
    why = {one.framework: one.why_not for one in made.frameworks}
    assert why["megatron"] == "has no helium among its models"
    known = model.but(config_json=model.config_json.replace("helium", "mimo_v2_flash"))
    made = plan(known, load_cluster("h100:1x8"), Job(seq_len=32, global_batch=8), defend=False)
    lacking = {one.framework for one in made.frameworks if "among its models" in one.why_not}
    assert lacking == {"torchtitan", "nanotron", "maxtext"}


BRIDGED = {**GEMMA4, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}


def test_megatron_bridge_builds_what_flags_do_not_say(tmp_path):
    """Its recipe's model gives way to the bridge's, and overrides leave the shape alone."""
    plan = of(BRIDGED, {"dp": 2, "tp": 2, "zero": 1, "sequence_parallel": True})
    plan = plan.but(job=plan.job.but(precision=RECIPES["bf16-fp32-grads"]).model_dump())
    with pytest.raises(SpecError, match="plain decoders"):
        export(plan, "megatron")
    export(plan, "megatron-bridge").write(tmp_path)
    script = (tmp_path / "run.sh").read_text()
    assert "bridge_model.py" in script
    assert "model.tensor_model_parallel_size=2" in script
    assert f"model.seq_length={JOB.seq_len}" in script
    for shape in (
        "num_layers",
        "hidden_size",
        "activation_func",
        "gated_linear_unit",
        "kv_channels",
    ):
        assert f"model.{shape}" not in script
    # A checkout of which the program asks no more than this.
    checkout = tmp_path / "checkout" / "scripts" / "training"
    checkout.mkdir(parents=True)
    (checkout / "run_recipe.py").write_text(
        "from types import SimpleNamespace as Of\n"
        "def load_recipe(name, peft_scheme=None): return Of(name=name, model='its own')\n"
        "def main():\n    made = load_recipe('vanilla', peft_scheme=None)\n    print(made.name, *made.model)\n"
    )
    library = tmp_path / "library" / "megatron" / "bridge"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text(
        "class AutoBridge:\n"
        "    def from_hf_config(config):\n        bridge = AutoBridge()\n        bridge.config = config\n        return bridge\n"
        "    def to_megatron_provider(self, load_weights): return self.config.architectures, self.config.num_hidden_layers, load_weights\n"
    )
    (library.parent / "__init__.py").touch()
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "bridge_model.py")], capture_output=True, text=True, check=True, cwd=tmp_path,
        env={**os.environ, "MEGATRON_BRIDGE": str(tmp_path / "checkout"), "PYTHONPATH": str(tmp_path / "library")},
    )  # fmt: skip
    assert ran.stdout.split() == ["vanilla", "['Gemma4ForCausalLM']", "4", "False"]


@pytest.mark.parametrize("name", ["gemma4-26b-a4b", "nemotron-h-8b", "glm-5"])
def test_a_bridge_that_took_no_plan_of_ours_is_refused(name):
    model = load_model(name)
    job = Job(framework="nemo")
    assert "no files can be written" in unwritten(model, job, load_cluster("h100:1x8"))[0]
    assert unwritten(load_model("gemma4-31b"), job, load_cluster("h100:1x8")) == ()
