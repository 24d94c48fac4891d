"""What ends a run in its first minutes: images that are not there, packages of another year, weights that nobody brought."""

import pytest
import yaml
from plans import make_plan

from meshwright.exports.images import image, machine_image, setup
from meshwright.exports.limits import gradient_notes
from meshwright.exports.targets import FRAMEWORKS, STARTED, export
from meshwright.imports.files import import_file
from meshwright.specs.errors import SpecError
from meshwright.specs.finetune import finetune_recipe
from meshwright.specs.frameworks import framework
from meshwright.specs.job import OPTIMIZERS, RECIPES, Job


def tuned(tool, method="lora", cluster=None, **layout):
    recipe = {"method": method, **({"storage": "nf4", "double_quantization": True} if method == "qlora" else {})}  # fmt: skip
    fields = {"framework": tool, "seq_len": 2048, "global_batch": 64, "document_masking": False}
    job = Job(finetune=finetune_recipe(recipe), precision=RECIPES["pure-bf16"],
              optimizer=OPTIMIZERS["adamw-bf16" if method == "full" else "adamw"], **fields)  # fmt: skip
    return make_plan("llama3.1-8b", cluster, job, **layout)


def test_containers_of_pytorch_are_of_a_cuda_that_it_is_built_for():
    made = {image(make_plan(dp=8), name) for name in STARTED if name != "maxtext"}
    torch = {one for one in made if one.startswith("pytorch/")}
    assert torch == {f"pytorch/pytorch:2.13.0-cuda13.0-cudnn9-{kind}" for kind in ("runtime", "devel")}  # fmt: skip
    old = make_plan(cluster="v100:1x8", dp=8)
    assert "cuda12.6" in image(old, "deepspeed")
    assert "whl/cu126" in setup(old, "deepspeed")[0]


@pytest.mark.parametrize("name", ["deepspeed", "fsdp"])
def test_hosts_of_arm_get_a_container_that_is_built_for_them(name):
    plan = make_plan(cluster="gb200-nvl72:16", dp=64)
    text = export(plan, "jobset", launches=name).files["jobset.yaml"]
    assert "image: nvidia/cuda:13.0" in text
    lines = setup(plan, name, container=True)
    assert "python3-pip" in lines[1]
    assert "torch==2.13.0 --index-url https://download.pytorch.org/whl/cu130" in lines[2]


@pytest.mark.parametrize("launcher", ["kubernetes", "jobset", "pytorchjob"])
def test_pip_may_install_into_a_container_s_python(launcher):
    made = export(make_plan(dp=16, cluster="h100:2x8"), launcher, launches="accelerate")
    text = next(text for name, text in made.files.items() if "pip install" in text)
    assert text.index("PIP_BREAK_SYSTEM_PACKAGES=1") < text.index("pip install")


def test_kernels_are_built_in_a_container_with_their_compiler_on_clouds_too():
    for name in ("deepspeed", "axolotl", "verl"):
        assert str(machine_image(make_plan(dp=8), name)).endswith("devel")
    assert machine_image(make_plan(dp=8), "fsdp") is None


@pytest.mark.parametrize("launcher", ["skypilot", "kubernetes", "jobset"])
def test_torchtune_finds_the_torchao_that_it_imports_and_the_weights(launcher):
    made = export(tuned("torchtune", dp=8, zero=3), launcher, launches="torchtune")
    text = next(text for name, text in made.files.items() if name != "torchtune.yaml")
    assert "torchao==0.14.1" in text
    folder = yaml.safe_load(made.files["torchtune.yaml"])["checkpointer"]["checkpoint_dir"]
    assert f"hf download meta-llama/Llama-3.1-8B --exclude '*.pth' --local-dir {folder}" in text.replace('"', "'")  # fmt: skip


def test_a_host_without_a_setup_is_told_to_bring_torchtune_s_weights():
    assert any("hf download" in note for note in export(tuned("torchtune", dp=8, zero=3), "torchtune").notes)  # fmt: skip


def test_packages_beside_a_tool_are_those_that_were_checked():
    text = "\n".join(setup(tuned("axolotl", "qlora", dp=8, zero=2), "axolotl"))
    assert f"deepspeed=={framework('deepspeed').checked}" in text
    assert "bitsandbytes==" in text
    assert "flash-attn" not in "\n".join(setup(tuned("trl", dp=8), "trl"))
    paged = make_plan(job=tuned("trl", dp=8).job.but(optimizer=OPTIMIZERS["paged-adamw"]), dp=8)
    assert "bitsandbytes==" in "\n".join(setup(paged, "trl"))


def test_torchtitan_holds_16_bits_alone_where_nothing_wider_was_priced(tmp_path):
    job = Job(seq_len=4096, global_batch=64, framework="torchtitan", precision=RECIPES["pure-bf16"])
    narrow = make_plan("llama3.1-8b", job=job.but(optimizer=OPTIMIZERS["adamw-bf16"]), dp=8, zero=2)
    made = export(narrow, "torchtitan")
    assert "dtype='bfloat16'," in made.files["recipe.py"]
    assert not any("holds" in note for note in made.notes)
    made.write(tmp_path)
    back = import_file(tmp_path / "recipe.py").job
    assert (back.precision.master_bytes, back.precision.parameter_bytes) == (0, 2)
    assert back.optimizer == OPTIMIZERS["adamw-bf16"]
    wide = make_plan("llama3.1-8b", job=job.but(precision=RECIPES["bf16-fp32-grads"]), dp=8, zero=2)
    assert "dtype='bfloat16'" not in export(wide, "torchtitan").files["recipe.py"].replace("_param=", "")  # fmt: skip
    with pytest.raises(SpecError, match="moments of 16 bits"):
        export(make_plan("llama3.1-8b", job=job, dp=8, zero=2), "torchtitan")


@pytest.mark.parametrize(("name", "zero"), [("accelerate", 3), ("deepspeed", 2)])
def test_layers_are_split_for_models_that_have_a_plan_of_it(name, zero):
    split = {
        "job": Job(seq_len=1024, global_batch=64, framework=name),
        "dp": 4,
        "tp": 2,
        "zero": zero,
    }
    export(make_plan("llama3-8b", **split), name)
    with pytest.raises(SpecError, match="rotary positions"):
        export(make_plan("gpt2-xl", **(split | {"tp": 5, "dp": 8}), cluster="h100:5x8"), name)


def test_axolotl_splits_sequences_as_deepspeed_does_beside_it(tmp_path):
    assert framework("axolotl").context_methods == ("ulysses",)
    made = export(tuned("axolotl", dp=4, cp=2, cp_method="ulysses", zero=3), "axolotl")
    made.write(tmp_path)
    assert import_file(tmp_path / "axolotl.yaml").layout.cp_method == "ulysses"
    (tmp_path / "deepspeed.json").unlink()
    text = (tmp_path / "axolotl.yaml").read_text().replace("deepspeed: deepspeed.json\n", "")
    (tmp_path / "axolotl.yaml").write_text(text)
    assert import_file(tmp_path / "axolotl.yaml").layout.cp_method == "ring"


def test_megatron_bridge_says_that_it_sums_gradients_wider_than_asked():
    job = Job(seq_len=4096, global_batch=64, framework="nemo", precision=RECIPES["bf16"])
    limits = FRAMEWORKS["megatron-bridge"].limits
    notes = gradient_notes(make_plan(job=job, dp=8), limits)
    assert "more memory than priced" in notes[0]
    assert not gradient_notes(make_plan(job=job.but(precision=RECIPES["bf16-fp32-grads"]), dp=8), limits)  # fmt: skip


@pytest.mark.parametrize("name", ["megatron", "deepspeed", "trainer", "fsdp"])
def test_bf16_is_not_exported_for_devices_without_units_for_it(name):
    job = Job(seq_len=1024, global_batch=64, framework=name)
    with pytest.raises(SpecError, match="--precision fp16"):
        export(make_plan(cluster="v100:1x8", job=job, dp=8, zero=0), name)
    if name in ("deepspeed", "trainer"):
        export(make_plan(cluster="v100:1x8", job=job.but(precision=RECIPES["fp16"]), dp=8, zero=0), name)  # fmt: skip
