"""Parsers that take minutes to install: torchtitan, Lightning, SkyPilot, nanotron, Megatron-Bridge, MaxText.

`make validate-more` installs them and runs this file; the default tests leave it out.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from plans import TITAN, make_plan, plans
from test_execution import LLAMA, tiny_plan
from test_real_parsers import sample

from meshwright.exports import maxtext, megatron_bridge, nanotron, torchtitan
from meshwright.exports.canonical import canonical
from meshwright.exports.targets import export
from meshwright.planner.plan import price_layout
from meshwright.specs import Job, Layout, load_cluster, load_model
from meshwright.specs.finetune import finetune_recipe
from meshwright.specs.job import OPTIMIZERS, RECIPES

pytestmark = pytest.mark.skipif(
    not os.environ.get("MESHWRIGHT_VALIDATE_MORE"), reason="run by make validate-more"
)
ROOT = Path(os.environ.get("MESHWRIGHT_VALIDATE") or Path(sys.prefix) / "validate")


def test_torchtitan_accepts_our_fields():
    """Its configuration dataclasses, loaded from the wheel without the rest of torchtitan."""
    path = ROOT / "torchtitan-0.3.0/torchtitan/config/configs.py"
    spec = importlib.util.spec_from_file_location("torchtitan_configs", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["torchtitan_configs"] = module
    spec.loader.exec_module(module)
    for plan in sample(plans(torchtitan.LIMITS, TITAN), 40):
        split = module.ParallelismConfig(**torchtitan.parallelism(plan))
        train = module.TrainingConfig(**torchtitan.training(plan))
        degrees = (
            split.data_parallel_replicate_degree
            * split.data_parallel_shard_degree
            * split.tensor_parallel_degree
            * split.pipeline_parallel_degree
            * split.context_parallel_degree
        )
        assert degrees == plan.layout.world
        assert train.global_batch_size == plan.job.global_batch
        if split.pipeline_parallel_degree > 1:
            assert train.local_batch_size % split.pipeline_parallel_microbatch_size == 0
    with pytest.raises(TypeError):
        module.ParallelismConfig(tensor_paralel_degree=2)


@pytest.mark.dist
@pytest.mark.parametrize("layout", [{"dp": 2, "zero": 3}, {"dp": 2}], ids=["fsdp2", "ddp"])
def test_the_lightning_export_runs(layout, tmp_path):
    export(tiny_plan(LLAMA, **layout), "lightning").write(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "train_lightning.py", "--data", "mock", "--steps", "3"],
        cwd=tmp_path, capture_output=True, text=True, timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "lightning-2.6.6")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "step 3 loss" in done.stdout


def test_skypilot_accepts_our_tasks(tmp_path):
    texts = [
        export(make_plan("llama3-8b", tp=8, dp=nodes), "skypilot", launches="megatron").files[
            "sky.yaml"
        ]
        for nodes in (1, 4)
    ]
    for number, text in enumerate([*texts, texts[0] + "no_such_key: 1\n"]):
        (tmp_path / f"{number}.yaml").write_text(text)
    program = (
        "import sys, json, sky\nanswers = []\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n        task = sky.Task.from_yaml(path)\n"
        "        answers.append([task.num_nodes, str(task.resources)])\n"
        "    except Exception as error:\n        answers.append(['error', str(error)])\n"
        "print(json.dumps(answers))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *(str(tmp_path / f"{n}.yaml") for n in range(3))],
        capture_output=True, text=True, timeout=200, cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "skypilot-0.14.1"),
             "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    one, four, wrong = json.loads(done.stdout.splitlines()[-1])
    assert one[0] == 1 and "H100" in one[1]
    assert four[0] == 4
    assert wrong[0] == "error" and "no_such_key" in wrong[1]


@pytest.mark.dist
@pytest.mark.parametrize("framework", ["fsdp", "lightning"])
def test_ray_train_runs_our_driver(framework, tmp_path):
    """Ray's own controller and workers on this machine; the program is the exported one."""
    needs = [f"ray-{RAY}"] + ["lightning-2.6.6"] * (framework == "lightning")
    if not all((ROOT / one).is_dir() for one in needs):
        pytest.skip("make validate-more fetches Ray and Lightning")
    bundle = export(tiny_plan(LLAMA, dp=2, zero=3), "ray", launches=framework)
    bundle.write(tmp_path)
    done = subprocess.run(
        [sys.executable, "ray_train.py", "--steps", "3"], cwd=tmp_path, capture_output=True,
        text=True, timeout=300, check=False,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "DATA": "mock",
             "PYTHONPATH": os.pathsep.join(str(ROOT / one) for one in needs)},
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-3000:]
    assert "step 3 loss" in said


RAY = "2.60.0"


def parsed(which, folder, texts, tmp_path):
    """What the package's own configuration code makes of the texts; skipped if not installed."""
    packages = ROOT / folder
    if not packages.is_dir():
        pytest.skip(f"{which} is not installed: make validate-more fetches it")
    files = [tmp_path / f"{number}.txt" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    program = Path(__file__).parent / "cuda_only_parsers.py"
    done = subprocess.run(
        [sys.executable, str(program), which, str(packages), *map(str, files)],
        capture_output=True, text=True, timeout=300, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_nanotron_reads_our_files_as_we_mean_them(tmp_path):
    chosen = sample(plans(nanotron.LIMITS, ("llama3-8b", "llama3-70b")), 30)
    texts = [nanotron.files(plan, "meshwright export")["nanotron.yaml"] for plan in chosen]
    wrong = texts[0].replace("  zero_stage:", "  zero_stagee: 1\n  zero_stage:")
    *answers, refused = parsed("nanotron", "nanotron-2411b02", [*texts, wrong], tmp_path)
    for plan, read in zip(chosen, answers, strict=True):
        layout = canonical(plan.layout, plan.model)
        engine = "OneForwardOneBackward" if layout.schedule == "1f1b" else "AllForwardAllBackward"
        assert read == {
            "dp": layout.dp, "tp": layout.tp, "pp": layout.pp, "zero": layout.zero,
            "sequence_parallel": layout.sequence_parallel,
            "full_recompute": layout.recompute == "full", "engine": f"{engine}PipelineEngine",
            "global_batch": plan.job.global_batch, "layers": plan.model.layers,
        }  # fmt: skip
    assert "zero_stagee" in refused["error"]


NEWER = (
    "model.activation_func=",
    "dataset.seq_length=",
    "validation.eval_iters=",
    "tokenizer.use_tokenizer_vocab_size=",
)
"""Overrides of the repository's main branch that the newest release does not have yet."""


def test_megatron_bridge_reads_our_overrides_as_we_mean_them(tmp_path):
    chosen = [
        make_plan("llama3-8b", tp=2, pp=2, dp=4, zero=1, sequence_parallel=True),
        make_plan("llama3-70b", tp=8, pp=4, dp=2, virtual_stages=2, schedule="interleaved",
                  sequence_parallel=True, recompute="full"),
        make_plan("llama3-8b", tp=2, dp=2, recompute="selective", sequence_parallel=True),
        make_plan("mixtral-8x7b", pp=2, dp=8, ep=8), make_plan("gpt3-175b", tp=8, pp=8, dp=2),
        make_plan("qwen3-30b-a3b", dp=8, ep=8, zero=1), make_plan("llama3-8b", dp=4, cp=2),
        make_plan("deepseek-v3", dp=8, pp=4, ep=8), make_plan("deepseek-v2-lite", dp=8, ep=8),
        make_plan("kimi-k2", dp=8, pp=8, ep=8, zero=1),
    ]  # fmt: skip
    given = [
        [f"{field}={value}" for field, value in megatron_bridge.overrides(plan).items()]
        for plan in chosen
    ]
    texts = [json.dumps([o for o in one if not o.startswith(NEWER)]) for one in given]
    wrong = json.dumps(["model.tensor_model_paralel_size=2"])
    *answers, refused = parsed(
        "megatron-bridge", "megatron-bridge-0.3.1", [*texts, wrong], tmp_path
    )
    for plan, read in zip(chosen, answers, strict=True):
        layout = plan.layout
        assert read == {
            "tp": layout.tp, "pp": layout.pp, "cp": layout.cp, "ep": layout.ep,
            "sequence_parallel": layout.sequence_parallel,
            "recompute": None if layout.recompute == "none" else layout.recompute,
            "virtual": layout.virtual_stages if layout.virtual_stages > 1 else None,
            "layers": plan.model.layers, "distributed_optimizer": layout.zero > 0,
            "micro_batch": layout.micro_batch, "global_batch": plan.job.global_batch,
        }  # fmt: skip
    assert "tensor_model_paralel_size" in refused["error"]


SHAPES = (
    "llama3.1-8b",
    "llama3.1-70b",
    "qwen3-4b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "deepseek-v3",
    "qwen2.5-7b",
)
"""Models of which MaxText counts layers as we do (a pair of Gemma 2 is one of its own)."""


def tuned(name, number):
    """One of eighteen fine-tuning plans: method, sharding, masking and model in turn."""
    method = ("full", "lora", "qlora")[number % 3]
    recipe = {"method": method}
    if method != "full":
        recipe |= {"rank": 16, "alpha": 32, "targets": ["q", "k", "v", "o"]}
    job = Job(
        framework=name, seq_len=4096, global_batch=64, precision=RECIPES["bf16"],
        finetune=finetune_recipe(recipe), optimizer=OPTIMIZERS["adamw"], document_masking=number % 2 == 1,
    )  # fmt: skip
    models = ("llama3.1-8b", "qwen2.5-7b", "gemma2-9b", "mistral-7b", "llama2-13b", "qwen2.5-0.5b")
    zero = 3 if name == "torchtune" else (0, 2, 3)[number // 3 % 3]
    layout = Layout(dp=8, zero=zero, micro_batch=2, recompute="full" if number % 4 else "none")
    cluster = load_cluster("h100:1x8")
    return price_layout(load_model(models[number % 6]), cluster, job, layout)


@pytest.mark.parametrize(
    ("name", "folder", "old", "new"),
    [("trl", "trl-1.16.0", "max_length:", "max_lenght:"),
     ("axolotl", "axolotl-0.21.0", "sequence_len:", "sequence_lenght:"),
     ("llama-factory", "llamafactory-0.9.5", "cutoff_len:", "cutof_len:"),
     ("torchtune", "torchtune-0.6.1", "num_warmup_steps:", "num_warmup_stepss:")],
)  # fmt: skip
def test_a_tuning_tool_s_own_parser_reads_our_file(name, folder, old, new, tmp_path):
    chosen = [tuned(name, number) for number in range(18)]
    texts = [export(plan, name).files[f"{name}.yaml"] for plan in chosen]
    assert old in texts[0]
    *answers, refused = parsed(name, folder, [*texts, texts[0].replace(old, new)], tmp_path)
    for plan, read in zip(chosen, answers, strict=True):
        layout, tune = plan.layout, plan.job.finetune
        always = name in (
            "axolotl",
            "torchtune",
        )  # they pack documents, and keep attention inside each
        assert read == {
            "micro_batch": layout.micro_batch, "accumulation": layout.micro_batches(plan.job.global_batch),
            "seq_len": plan.job.seq_len, "rank": tune.rank if tune.adapts else 0,
            "recompute": layout.recompute == "full", "masked": always or plan.job.document_masking,
        }  # fmt: skip
    assert "error" in refused


def test_maxtext_reads_our_files_as_we_mean_them(tmp_path):
    """MaxText 0.2.5's own configuration, for as many devices as the plan has."""
    chosen = sample(plans(maxtext.LIMITS, SHAPES), 40)
    texts = [
        f"{plan.layout.world}\n{export(plan, 'maxtext').files['maxtext.yml']}" for plan in chosen
    ]
    wrong = texts[0].replace("remat_policy:", "remat_polcy:")
    *answers, refused = parsed("maxtext", "maxtext-0.2.5", [*texts, wrong], tmp_path)
    for plan, read in zip(chosen, answers, strict=True):
        layout = canonical(plan.layout, plan.model)
        axes = maxtext.degrees(layout)
        if layout.zero == 3:
            axes["fsdp"] = -1  # what is left of the slice
        assert read == {
            "axes": axes, "others": [1], "global_batch": plan.job.global_batch,
            "micro_batches": layout.micro_batches(plan.job.global_batch), "zero1": layout.zero == 1,
            "layers": plan.model.layers, "hidden": plan.model.hidden, "seq_len": plan.job.seq_len,
        }  # fmt: skip
    assert "remat_polcy" in refused["error"]
