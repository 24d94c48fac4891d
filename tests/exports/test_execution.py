"""Exported scripts run on CPU for three steps, and lose exactly what one process loses."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from plans import make_plan

from meshwright.exports.targets import export
from meshwright.specs import Job, Model
from meshwright.specs.job import RECIPES

pytestmark = pytest.mark.dist
VALIDATORS = Path(__file__).parent / "validators"
LLAMA = Model(name="tiny", layers=2, hidden=64, heads=8, kv_heads=4, head_dim=8, ffn=96, vocab=160)
GPT = Model(
    name="tiny-gpt", layers=2, hidden=64, heads=8, kv_heads=8, head_dim=8, ffn=128, vocab=96,
    gated=False, norm="layernorm", norm_bias=True, qkv_bias=True, attention_out_bias=True,
    ffn_bias=True, positions="learned", max_positions=64, tied_embeddings=True,
)  # fmt: skip


def tiny_plan(model, **layout):
    world = layout.get("dp", 1) * layout.get("tp", 1) * layout.get("pp", 1) * layout.get("cp", 1)
    job = Job(seq_len=32, global_batch=8, precision=RECIPES["fp32"])
    plan = make_plan(cluster=f"cpu:1x{world}", job=job, micro_batch=2, **layout)
    return plan.but(model=model.model_dump())


def run(folder, words, world=0, data="mock", **environment):
    """The losses that a script writes; `world` ranks under torchrun, or one plain process."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    losses = folder / f"losses-{world}.json"
    done = subprocess.run(
        [sys.executable, *(launcher if world else []), *words, "--data", data, "--steps", "3", "--losses", losses],
        cwd=folder, capture_output=True, text=True, timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return json.loads(losses.read_text())


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        (LLAMA, {"dp": 2, "tp": 2, "zero": 2, "sequence_parallel": True, "recompute": "full"}),
        (GPT, {"dp": 2, "zero": 3}),
        (LLAMA, {"cp": 2, "tp": 2, "zero": 3, "sequence_parallel": True, "recompute": "full"}),
        (GPT, {"dp": 2, "cp": 2, "shard": 2, "zero": 2}),
    ],
    ids=["fsdp2-tp2-sp", "zero3-gpt-tied", "fsdp2-cp2-tp2-sp", "hsdp-cp2"],
)
def test_the_pytorch_script_runs_and_equals_one_process(model, layout, tmp_path):
    plan = tiny_plan(model, **layout)
    export(plan, "fsdp").write(tmp_path)
    np.save(tmp_path / "train.npy", np.arange(4000, dtype=np.uint16) % 11)
    kept = ["--checkpoints", "kept", "--save-every", "2"]
    split = run(tmp_path, ["train_fsdp.py", *kept], plan.layout.world, "train.npy")
    single = run(tmp_path, ["train_fsdp.py", "--single"], data="train.npy")
    assert split == pytest.approx(single, abs=3e-6)
    assert single[2] < single[0] - 0.01  # it does learn
    if "cp" not in layout:
        shutil.rmtree(tmp_path / "kept" / "step-3")
        again = run(tmp_path, ["train_fsdp.py", "--single", *kept], data="train.npy")
        # One process goes on where several ranks were stopped, with the same rows, rate and moments.
        assert again == pytest.approx(single[2:], abs=3e-6)


def by_place(model):
    """First numbers that depend on a parameter's place alone, as the DeepSpeed scripts say theirs do."""
    import torch

    with torch.no_grad():
        for place, (name, parameter) in enumerate(model.named_parameters()):
            if parameter.dim() > 1:
                parameter.normal_(
                    0.0,
                    model.config.initializer_range,
                    generator=torch.Generator().manual_seed(place),
                )
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)


def plain_losses(folder, *, seeded=None):
    """Three steps of the same model and data in plain transformers, in this process."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = json.loads((folder / "config.json").read_text())
    config.pop("_meshwright")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    if seeded is not None:
        seeded(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    for step in range(3):
        seeds = [torch.Generator().manual_seed(1234 + 8 * step + row) for row in range(8)]
        rows = torch.stack([torch.randint(160, (32,), generator=seed) for seed in seeds])
        optimizer.param_groups[0]["lr"] = (
            3e-4 * (1.0, 1.0, 0.1 + 0.45 * (1 + math.cos(math.pi / 2)))[step]
        )
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    "layout",
    [
        {"dp": 2, "zero": 3},
        {"dp": 2, "zero": 1},
        {"pp": 2},
        {"cp": 2, "cp_method": "ulysses", "zero": 3},
    ],
    ids=["zero3", "zero1", "pipeline", "ulysses"],
)
def test_the_deepspeed_export_runs_and_equals_plain_training(layout, tmp_path):
    plan = tiny_plan(LLAMA, recompute="full", **layout)
    export(plan, "deepspeed").write(tmp_path)
    words = [str(VALIDATORS / "deepspeed_cpu.py"), "train.py", "--backend", "gloo"]
    losses = run(tmp_path, words, 2, DS_ACCELERATOR="cpu")
    plain = plain_losses(tmp_path, seeded=by_place)
    assert losses == pytest.approx(plain, abs=3e-6)


def test_the_deepspeed_export_trains_a_checkpoint_further(tmp_path):
    """Under ZeRO-3, where transformers cuts shards while it reads."""
    from transformers import AutoConfig, AutoModelForCausalLM

    export(tiny_plan(LLAMA, dp=2, zero=3), "deepspeed").write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("_meshwright")
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    model.save_pretrained(tmp_path / "weights")
    words = [
        str(VALIDATORS / "deepspeed_cpu.py"),
        "train.py",
        "--backend",
        "gloo",
        "--weights",
        "weights",
    ]
    losses = run(tmp_path, words, 2, DS_ACCELERATOR="cpu")
    plain = plain_losses(tmp_path, seeded=lambda other: other.load_state_dict(model.state_dict()))
    assert losses == pytest.approx(plain, abs=3e-6)


def test_the_accelerate_export_runs_and_equals_plain_training(tmp_path):
    export(tiny_plan(LLAMA, dp=2), "accelerate").write(tmp_path)
    losses = run(tmp_path, ["train.py"], 2, ACCELERATE_USE_CPU="true")
    assert losses == pytest.approx(plain_losses(tmp_path, seeded=by_place), abs=3e-6)


def under_accelerate(folder, **layout):
    """The losses of an export whose ranks accelerate's own launcher would give these variables."""
    plan = tiny_plan(LLAMA, **layout)
    bundle = export(plan, "accelerate")
    bundle.write(folder)
    asked = yaml.safe_load(bundle.files["accelerate.yaml"])
    said = {
        name.upper(): str(value).lower() if isinstance(value, bool) else str(value)
        for table in ("fsdp_config", "parallelism_config")
        for name, value in asked[table].items()
    }
    script = [str(VALIDATORS / "accelerate_cpu.py"), "train.py"]
    switches = {f"ACCELERATE_USE_{name}": "true" for name in ("CPU", "FSDP", "PARALLELISM_CONFIG")}
    return run(folder, script, plan.layout.world, **switches, **said)


def test_the_accelerate_export_splits_and_shards(tmp_path):
    from transformers import AutoModelForCausalLM

    losses = under_accelerate(tmp_path, dp=2, tp=2, zero=3, recompute="full")
    first = AutoModelForCausalLM.from_pretrained(tmp_path / "initial").state_dict()
    plain = plain_losses(tmp_path, seeded=lambda other: other.load_state_dict(first))
    assert losses == pytest.approx(plain, abs=3e-6)
    assert abs(losses[0] - losses[2]) > 1e-3


OVERFLOW = """
import runpy, torch, torch.distributed as dist, torch.nn as nn
from accelerate import Accelerator
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
made, accelerator = runpy.run_path("train.py", run_name="x"), Accelerator(cpu=True)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tensor"))
torch.manual_seed(0)
model = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16))
parallelize_module(model, mesh["tensor"], {"1": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(model, mesh=mesh["shard"])
optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-3), torch.amp.GradScaler("cpu")
moved = []
for step in range(2):
    scaler.scale(model(torch.randn(4, 16)).pow(2).mean()).backward()
    if step == 1 and dist.get_rank() == 3:
        model[1].weight.grad.to_local().fill_(float("inf"))
    made["agree"](accelerator, model)
    before = [one.to_local().clone() for one in model.parameters()]
    scaler.step(optimizer), scaler.update(), optimizer.zero_grad()
    moved.append(any(not torch.equal(a, b.to_local()) for a, b in zip(before, model.parameters())))
told = [None] * 4
dist.all_gather_object(told, (moved, scaler.get_scale()))
if dist.get_rank() == 0:
    print(told)
dist.destroy_process_group()
"""


def test_an_overflow_of_one_rank_is_one_of_all_where_layers_are_split(tmp_path):
    export(tiny_plan(LLAMA, dp=2, tp=2, zero=3), "accelerate").write(tmp_path)
    (tmp_path / "overflow.py").write_text(OVERFLOW)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    done = subprocess.run(
        [sys.executable, *launcher, "overflow.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(
        done.stdout.strip().splitlines()[-1].lower().replace("(", "[").replace(")", "]")
    )
    assert told == [[[True, False], 2.0**15]] * 4


@pytest.mark.parametrize("zero", [2, 3])
def test_the_accelerate_export_shards_weights_that_no_host_has_held(zero, tmp_path):
    losses = under_accelerate(tmp_path, dp=2, zero=zero, recompute="full")
    assert losses == pytest.approx(plain_losses(tmp_path, seeded=by_place), abs=3e-6)
    assert abs(losses[0] - losses[2]) > 1e-3


def test_blank_weights_take_no_host_memory(tmp_path):
    plan = tiny_plan(LLAMA.but(hidden=4096, head_dim=512, ffn=16384, vocab=64000), dp=2, zero=3)
    export(plan, "accelerate").write(tmp_path)
    probe = (
        "import json, resource, runpy; from transformers import AutoConfig\n"
        "made = runpy.run_path('train.py', run_name='x')\n"
        "config = json.load(open('config.json')); config.pop('_meshwright')\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "model = made['blank'](AutoConfig.for_model(**config))\n"
        "after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(sum(4 * p.numel() for p in model.parameters()), 1024 * (after - before))\n"
        "assert all(p.device.type == 'cpu' for p in model.parameters())\n"
        "assert float(model.model.rotary_emb.inv_freq[0]) == 1.0\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    weights, grown = map(int, done.stdout.split())
    assert weights > 3e9
    assert grown < 0.05 * weights
