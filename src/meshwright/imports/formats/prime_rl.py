"""prime-rl's TOML: its trainer alone, supervised runs, and runs with inference and an orchestrator beside it."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.code.syntax import parse_python
from meshwright.imports.names import model_named
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_named, torch_moments
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_text
from meshwright.specs.job import RECIPES, PrecisionRecipe

EDITS = {"micro_batch": "data.micro_batch_size", "batch": "data.batch_size"}
_TABLES = ("orchestrator", "trainer", "inference")


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is prime-rl's: its parts by name, or a model and an optimizer beside its own words."""
    if isinstance(data.get("orchestrator"), dict) and any(name in data for name in _TABLES[1:]):
        return True
    model, rows = data.get("model"), data.get("data")
    named = isinstance(model, dict) and "name" in model and "flavor" not in model
    mine = isinstance(rows, dict) and ("type" in rows or "name" in rows) and "batch_size" in rows
    return named and (mine or ("max_steps" in data and {"optim", "ckpt"} <= set(data)))


_CLASSES = (
    "packages/prime-rl-configs/src/prime_rl/configs/trainer.py",
    "src/prime_rl/configs/trainer.py",
    "src/prime_rl/trainer/config.py",
)
"""Where its releases keep the class of the model's settings, the newest first."""
_ON = frozenset({"ac", "ac_offloading", "optim_cpu_offload"})
"""What the newest release does where nothing is said."""


_FUSED = ("fused_lm_head_token_chunk_size", "fused_lm_head_chunk_size")
"""How releases call the tokens that the head takes at once: in reinforcement alone, and by itself."""


def _by_itself(folder: Path | None) -> frozenset[str]:
    """Settings of the model that are on where nothing is said: as the checkout at hand has them, else the newest release."""
    for place in _CLASSES:
        path = beside(folder, place)
        text = read_text(path, "file") if path is not None and path.parts[-2:] == Path(place).parts[-2:] else ""  # fmt: skip
        tree = parse_python(text) if "class ModelConfig" in text else None
        for node in tree.body if tree is not None else []:
            if isinstance(node, ast.ClassDef) and node.name == "ModelConfig":
                fields = {one.target.id: one.value for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}  # fmt: skip
                off = {name for name, value in fields.items() if value is None or (isinstance(value, ast.Constant) and not value.value)}  # fmt: skip
                return _ON & (fields.keys() - off) | (fields.keys() & set(_FUSED))
    return _ON | set(_FUSED)


def read(data: dict[str, Any], given: Given, folder: Path | None = None) -> Reading:
    """Return what a prime-rl configuration trains; what it does not set is as prime-rl sets it.

    Raises:
        SpecError: a value that cannot be.
    """
    trainer = data.get("trainer")
    options = Options(flattened(data), absent=("auto", "None"))
    at = "trainer." if isinstance(trainer, dict) else ""
    reading = Reading("prime-rl TOML", options=dict(EDITS))
    reading.model = given.model
    reading.model_name = options.loose(f"{at}model.name", "model.name")
    _model_parts(options, reading, at, _by_itself(folder))
    if options.has("data.batch_size", "data.seq_len"):
        reading.seq_len = options.whole("data.seq_len", default=128)
        reading.global_batch = options.whole("data.batch_size", default=128)
        reading.micro_batch = options.whole("data.micro_batch_size", default=1)
    else:
        reading.seq_len = options.whole(
            f"{at}model.seq_len", "seq_len", "model.seq_len", default=2048
        )
        reading.global_batch = options.whole("orchestrator.batch_size")
        reading.micro_batch = 1
        reading.note("the trainer is priced, not inference or the orchestrator")
        reading.guess("--seq", f"rows are packed to {reading.seq_len} tokens; full ones are priced")
        reading.job["document_masking"] = True
        _head(options, reading, at, _by_itself(folder))
    reading.counts_itself = any(name.startswith("deployment.num_") for name in options.values)
    if options.has("deployment.num_train_gpus", "deployment.num_gpus"):
        reading.devices = options.whole("deployment.num_train_gpus", "deployment.num_gpus")
    elif options.has("deployment.num_train_nodes", "deployment.num_nodes"):
        reading.hosts = options.whole(
            "deployment.num_train_nodes", "deployment.num_nodes", default=1
        )
        reading.per_host = options.whole("deployment.gpus_per_node", default=8)
        island = options.whole("deployment.nodes_per_fsdp_group")
        if island and reading.hosts % island == 0:
            reading.replicate = reading.hosts // island
    elif options.has("trainer_gpu_ids"):  # releases before `deployment`
        reading.devices = len(re.findall(r"\d+", str(options.raw("trainer_gpu_ids")))) or 1
    elif any(name.startswith("orchestrator.") for name in options.values) and not given.cluster:
        reading.devices = 1
        reading.note("deployment.num_train_gpus: one device trains, prime-rl's default; another stands in its own file or in the command")  # fmt: skip
    _job(options, reading, at)
    options.finish(reading, "prime_rl", "common", strict=given.strict)
    return reading


def _model_parts(options: Options, reading: Reading, at: str, on: frozenset[str]) -> None:
    def name(field: str) -> tuple[str, str]:
        return f"{at}model.{field}", f"model.{field}"

    mode = options.word(*name("ac.mode"), default="full")
    inside = {one for one in _ON if any(n.startswith(tuple(f"{said}." for said in name(one))) for n in options.values)}  # fmt: skip
    spoken = options.loose(*name("ac")).lower()
    offloads = "ac_offloading" in inside | on or options.has(*name("ac_offloading"))
    away = options.loose(*name("ac_offloading")).lower() == "none" or not offloads
    # Keeping inputs on the host recomputes layers, whatever else is said.
    off = spoken == "none" or not ({"ac"} & (inside | on) or spoken or not away)
    reading.layout = {
        "zero": 3 if options.flag(*name("reshard_after_forward"), default=True) else 2,
        "cp": options.whole(*name("cp"), default=1) or 1,
        "ep": _experts(options, reading, name("ep")),
        "recompute": "none" if off else "selective" if mode == "selective" else "full",
    }
    if reading.layout["cp"] > 1:
        reading.layout["cp_method"] = options.word(*name("cp_style"), default="ring")
    if options.whole(*name("ac.freq"), default=1) > 1:
        reading.unmodelled("model.ac.freq", "only some layers are recomputed; all are priced so")
    layers = options.whole(*name("debug.num_layers"))
    if layers:
        reading.unmodelled("model.debug.num_layers", f"only {layers} layers run; all are priced")
    reading.replicate = options.whole(*name("dp_replicate"), default=1)
    if options.flag(*name("fsdp_cpu_offload")):
        reading.offload |= {"optimizer", "parameters"}
    elif _full_offload(options, name("full_offload")):
        options.raw(*name("optim_cpu_offload"))
        reading.offload.add("optimizer")
        reading.unmodelled("model.full_offload", "gradients wait in host memory, too; the optimizer's state alone is priced there")  # fmt: skip
    elif options.flag(*name("optim_cpu_offload"), default="optim_cpu_offload" in on):
        reading.offload.add("optimizer")
        if not options.has(*name("optim_cpu_offload")):
            reading.note("the optimizer's state is in host memory, prime-rl's default", "model.optim_cpu_offload")  # fmt: skip
    if not off and not away:
        reading.offload.add("activations")
        if not any(n.startswith(name("ac_offloading")) for n in options.values):
            reading.note("checkpointed activations go to host memory, prime-rl's default", "model.ac_offloading")  # fmt: skip
    if options.has(*name("lora.rank"), *name("lora.alpha")):
        adapters(
            reading, rank=options.whole(*name("lora.rank"), default=16), alpha=options.number(*name("lora.alpha"), default=32),
            targets=options.raw(*name("lora.target_modules")), dropout=options.number(*name("lora.dropout")),
        )  # fmt: skip
    if options.loose(*name("compile")).lower() == "none":
        options.read |= {one for one in options.values if one in name("compile")}
    quant = options.word(*name("quantization.type"), default="")
    summed = 2 if options.word(*name("reduce_dtype"), default="float32") == "bfloat16" else 4
    recipe = RECIPES["fp8" if quant else "bf16-fp32-grads"]
    if options.word(*name("optimization_dtype"), default="float32") == "bfloat16":
        recipe = RECIPES["pure-bf16"]
    reading.job["precision"] = recipe.but(gradient_reduce_bytes=summed).model_dump()


def _head(options: Options, reading: Reading, at: str, on: frozenset[str]) -> None:
    """The head and its loss, which reinforcement takes in chunks of tokens: no whole logits."""
    names = [f"{place}{field}" for field in _FUSED for place in (f"{at}model.", "model.")]
    said = str(options.raw(*names) or "").lower()
    if said != "disabled" and (said or on & set(_FUSED)):
        reading.job["loss"] = "chunked"


def _full_offload(options: Options, names: tuple[str, str]) -> bool:
    """Whether the whole optimizer runs on the host, by a switch or a table of its own."""
    inside = any(n.startswith(tuple(f"{name}." for name in names)) for n in options.values)
    said = options.raw(*names)
    return inside or str(said).lower() == "true"


def _experts(options: Options, reading: Reading, names: tuple[str, str]) -> int:
    """Expert parallelism; where nothing is said prime-rl takes up to eight ranks of a mixture of experts."""
    said = options.whole(*names)
    if said:
        return said
    model = reading.model or model_named(reading.model_name)
    if model is None or model.experts is None:
        return 1
    reading.guess(names[0], "left to prime-rl, which takes the ranks that share weights, at most 8")
    return 8


def _job(options: Options, reading: Reading, at: str) -> None:
    kind = options.word(f"{at}optim.type", "optim.type", default="adamw")
    reading.job["framework"] = "fsdp"
    try:
        found = optimizer_named(kind, "optim.type")
    except SpecError:
        reading.unmodelled(
            "optim.type", f"{kind} keeps no state that is known here; SGD's is priced"
        )
        found = optimizer_named("sgd", "optim.type", 0.0)
    precision = PrecisionRecipe.model_validate(reading.job["precision"])
    reading.job["optimizer"] = torch_moments(found, precision).model_dump()
