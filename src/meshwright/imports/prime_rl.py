"""prime-rl's TOML: its trainer alone, supervised runs, and runs with inference and an orchestrator beside it."""

from __future__ import annotations

from typing import Any

from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_named
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES

EDITS = {"micro_batch": "data.micro_batch_size", "batch": "data.batch_size"}
_TABLES = ("orchestrator", "trainer", "inference")
_OWN = ("data", "optim", "max_steps", "deployment", "monitors", "ckpt")


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is prime-rl's: its parts by name, or a model and an optimizer beside its own words."""
    if isinstance(data.get("orchestrator"), dict) and any(name in data for name in _TABLES[1:]):
        return True
    model, rows = data.get("model"), data.get("data")
    named = isinstance(model, dict) and "name" in model and "flavor" not in model
    mine = isinstance(rows, dict) and ("type" in rows or "name" in rows) and "batch_size" in rows
    return named and (mine or ("max_steps" in data and {"optim", "ckpt"} <= set(data)))


def read(data: dict[str, Any], given: Given) -> Reading:
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
    _model_parts(options, reading, at)
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
    if options.has("deployment.num_train_gpus"):
        reading.devices = options.whole("deployment.num_train_gpus")
    elif options.has("deployment.num_train_nodes", "deployment.num_nodes"):
        reading.hosts = options.whole(
            "deployment.num_train_nodes", "deployment.num_nodes", default=1
        )
        reading.per_host = options.whole("deployment.gpus_per_node", default=8)
    _job(options, reading, at)
    aside = ("monitors", "orchestrator", "inference", "ckpt", "data", "log", "scheduler", "deployment", "slurm",
             "optim", "trainer.optim", "trainer.scheduler", "trainer.monitors", "env", "val", "weight_broadcast")  # fmt: skip
    options.read |= {n for n in options.values if n.startswith(aside)}
    options.finish(reading, "common", strict=given.strict)
    return reading


def _model_parts(options: Options, reading: Reading, at: str) -> None:
    def name(field: str) -> tuple[str, str]:
        return f"{at}model.{field}", f"model.{field}"

    mode = options.word(*name("ac.mode"), default="full")
    off = options.loose(*name("ac")).lower() == "none"
    reading.layout = {
        "zero": 3 if options.flag(*name("reshard_after_forward"), default=True) else 2,
        "cp": options.whole(*name("cp"), default=1) or 1,
        "ep": options.whole(*name("ep"), default=1) or 1,
        "recompute": "none" if off else "selective" if mode == "selective" else "full",
    }
    if reading.layout["cp"] > 1:
        reading.layout["cp_method"] = options.word(*name("cp_style"), default="ring")
    if options.whole(*name("ac.freq"), default=1) > 1:
        reading.unmodelled("model.ac.freq", "only some layers are recomputed; all are priced so")
    reading.replicate = options.whole(*name("dp_replicate"), default=1)
    if options.flag(*name("fsdp_cpu_offload")):
        reading.offload |= {"optimizer", "parameters"}
    elif options.flag(*name("optim_cpu_offload"), default=True) or options.has(
        *name("full_offload")
    ):
        reading.offload.add("optimizer")
        if not options.has(*name("optim_cpu_offload")):
            reading.note("the optimizer's state is in host memory, prime-rl's default", "model.optim_cpu_offload")  # fmt: skip
    away = options.loose(*name("ac_offloading")).lower() == "none"
    if not off and not away:
        reading.offload.add("activations")
        if not any(n.startswith(name("ac_offloading")) for n in options.values):
            reading.note("checkpointed activations go to host memory, prime-rl's default", "model.ac_offloading")  # fmt: skip
    if options.has(*name("lora.rank"), *name("lora.alpha")):
        adapters(
            reading, rank=options.whole(*name("lora.rank"), default=16), alpha=options.number(*name("lora.alpha"), default=32),
            targets=options.raw(*name("lora.target_modules")), dropout=options.number(*name("lora.dropout")),
        )  # fmt: skip
    quant = options.word(*name("quantization.type"), default="")
    reading.job["precision"] = RECIPES["fp8" if quant else "bf16-fp32-grads"].model_dump()
    if options.word(*name("optimization_dtype"), default="float32") == "bfloat16":
        reading.job["precision"] = RECIPES["pure-bf16"].model_dump()
    options.read |= {n for n in options.values if n.endswith(("compile", "attn", "impl", "ac_offloading.pin_memory"))}  # fmt: skip


def _job(options: Options, reading: Reading, at: str) -> None:
    kind = options.word(f"{at}optim.type", "optim.type", default="adamw")
    reading.job["framework"] = "fsdp"
    try:
        reading.job["optimizer"] = optimizer_named(kind, "optim.type").model_dump()
    except SpecError:
        reading.unmodelled(
            "optim.type", f"{kind} keeps no state that is known here; SGD's is priced"
        )
        reading.job["optimizer"] = optimizer_named("sgd", "optim.type").model_dump()
