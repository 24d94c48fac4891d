"""EasyLM: LLaMA on a mesh of data, sharded and tensor-parallel ranks, by the options of its JAX trainer."""

from __future__ import annotations

import re

from meshwright.imports.launch import Launch
from meshwright.imports.names import model_named
from meshwright.imports.options import Options, flags_of
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import cast_where_used, optimizer_or_adamw
from meshwright.imports.script_devices import take_tpus
from meshwright.imports.shell.state import Script
from meshwright.imports.tasks import name_task
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES
from meshwright.specs.model import Model

EDITS = {"batch": "--train_dataset.json_dataset.batch_size"}
_OFFERED = 8
"""Devices that are taken where neither the mesh nor the user says any."""
_PROGRAM = re.compile(r"(?:^|[./])EasyLM[./]models[./](\w+)[./]\w+_train(?:_\w+)?(?:\.py)?$")
"""The trainer of a family of models, and those of its copies for preferences and rewards (`llama_train_dpo`)."""
_SIZES = {
    # llama_model.py's own: layers, hidden, FFN, heads.
    "debug": (2, 128, 256, 4), "1b": (22, 2048, 5504, 16), "3b": (26, 3200, 8640, 32),
}  # fmt: skip
_GENERATION = re.compile(r"^llama(\d)(\d)_")
_SLICES = ("TPU_NAME", "TPU_TYPE", "ACCELERATOR_TYPE")
"""Variables that name the slice which a script starts its hosts on."""
_USUAL = {"gemma": "gemma-7b", "llama": "llama1-7b"}
"""What a family's trainer makes where it is told no size."""


def reads(launch: Launch) -> bool:
    """Whether a command starts EasyLM's trainer."""
    return _PROGRAM.search(launch.program) is not None


def read_words(launch: Launch, given: Given, script: Script) -> Reading:
    """Return what such a command trains.

    Raises:
        SpecError: a mesh or another value that cannot be.
    """
    options = Options(
        {name.replace("-", "_"): value for name, value in flags_of(launch.words).items()}, "--"
    )
    options.guessing = given.guess
    reading = Reading("EasyLM command", options=dict(EDITS))
    reading.jax, reading.likely = True, "tpu-v4"
    take_tpus(" ".join(map(script.value, _SLICES)), reading)
    found = _PROGRAM.search(launch.program)
    family = found.group(1) if found else "llama"
    _model(options, reading, given, family)
    name_task(reading, launch.program.rpartition("_")[2])
    if reading.reference and options.flag("precalculate_reference_logps"):
        reading.reference = False  # its answers are known before the first step
    kind = options.word("train_dataset.type", default="huggingface")
    get = f"train_dataset.{kind}_dataset."
    if not options.has(f"{get}seq_length", f"{get}batch_size"):
        # A reader of preferences is called otherwise than its table.
        told = next((name for name in options.values if re.fullmatch(r"train_dataset\.\w+_dataset\.\w+", name)), "")  # fmt: skip
        get = f"{told.rpartition('.')[0]}." if told else get
    reading.seq_len = options.whole(f"{get}seq_length", default=1024, least=2)
    batch = options.whole(f"{get}batch_size", default=8, least=1)
    steps = options.whole("optimizer.accumulate_gradient_steps", default=1, least=1)
    reading.global_batch = batch * steps
    reading.note("one process's batch; hosts that read their own data multiply it", "--train_dataset")  # fmt: skip
    _mesh(options, reading, given, steps)
    wide = options.word("dtype", default="fp32")
    recipe = RECIPES["bf16" if wide.startswith("bf") else "fp16" if "16" in wide else "fp32"]
    kept = options.word("param_dtype", default="fp32")
    if recipe.name != "fp32" and "32" in kept:
        recipe = cast_where_used(wide=True)
    reading.job = {"precision": recipe.model_dump(), "framework": "maxtext"}
    reading.note("EasyLM is priced as MaxText, the JAX trainer that has been measured", "framework")
    kind = options.word("optimizer.type", default="adamw")
    reading.job["optimizer"] = optimizer_or_adamw(reading, kind, "--optimizer.type").model_dump()
    policy = options.word(f"{family}.remat_policy", default="nothing_saveable")
    reading.layout["recompute"] = "none" if policy in ("everything_saveable", "none") else "full"
    options.finish(reading, "easylm", "common", strict=given.strict)
    return reading


def _model(options: Options, reading: Reading, given: Given, family: str) -> None:
    size = options.word(
        f"load_{family}_config",
        f"load_{family}_config_policy",
        "load_model_config",
        f"{family}.base_model",
        default="",
    )
    size = _GENERATION.sub(r"llama\1.\2-", size).removeprefix(f"{family}_")  # of `base_model`
    usual = "llama1" if family == "llama" else family
    named = f"{usual}-{size}" if re.fullmatch(r"\d+b", size) else size or _USUAL.get(family, "")
    reading.model = given.model or model_named(named)
    if reading.model is None and family == "llama" and size in _SIZES:
        layers, hidden, ffn, heads = _SIZES[size]
        reading.model = Model.parse(
            {"name": f"easylm-{size}", "layers": layers, "hidden": hidden, "ffn": ffn, "heads": heads, "kv_heads": heads,
             "head_dim": hidden // heads, "vocab": 32_000, "tied_embeddings": False},
            "model",
        )  # fmt: skip
    if reading.model is None:
        reading.model_name = named
    elif not size and given.model is None:
        reading.guess("--model", f"the command names no size: {named} is taken")
    if options.loose(f"update_{family}_config"):
        reading.unmodelled(f"--update_{family}_config", "changes the model's sizes; the named one is priced")  # fmt: skip


def _mesh(options: Options, reading: Reading, given: Given, steps: int) -> None:
    """Data, sharded and tensor-parallel ranks (`-1,64,1`, `dp:1,fsdp:-1,mp:8`); -1 is what the devices leave."""
    text = options.word("mesh_dim", default="1,-1,1").lstrip("!")
    sizes = [int(one) for one in re.findall(r"-?\d+", re.sub(r"[a-z]+:", "", text))]
    if len(sizes) == 4:  # newer versions split sequences, too
        reading.layout["cp"] = max(sizes.pop(2), 1)
    if len(sizes) != 3 or sum(one < 0 for one in sizes) > 1:
        raise SpecError("--mesh_dim", text, "three sizes, one of them -1 at most, are expected")
    copies, shards, tp = sizes
    reading.layout |= {"tp": max(tp, 1), "zero": 3 if shards != 1 else 0}
    inner = max(tp, 1) * reading.layout.get("cp", 1)
    if shards > 0 and tp > 0:
        reading.devices = max(copies, 1) * shards * inner
    if copies < 0:
        reading.guess("--mesh_dim", f"the devices are a multiple of {shards * inner}; so many are taken")  # fmt: skip
    if copies != 1 and shards > 1:
        reading.shard = shards
    devices = reading.world() or (given.cluster.gpus if given.cluster is not None else _OFFERED)
    # Without accumulation every rank takes its share of the batch at once.
    reading.each = reading.micro_batch = max(reading.global_batch // steps // max(devices // inner, 1), 1)  # fmt: skip
