"""A DeepSpeed configuration, alone or as part of a run that names it."""

from __future__ import annotations

import re
from typing import Any

from meshwright.exports.bundle import STAMP_KEY
from meshwright.imports.options import Options, flattened
from meshwright.imports.own.option_names import NAMES
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw
from meshwright.specs.errors import SpecError
from meshwright.specs.job import OPTIMIZERS, RECIPES, OptimizerRecipe, PrecisionRecipe

EDITS = {
    "micro_batch": "train_micro_batch_size_per_gpu",
    "zero": "zero_optimization.stage",
    "accumulation": "gradient_accumulation_steps",
}
_OWN = frozenset({
    "zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps", "fp16",
    "bf16", "optimizer", "scheduler", "gradient_clipping", "steps_per_print", "wall_clock_breakdown",
    "prescale_gradients", "zero_allow_untested_optimizer", "activation_checkpointing", "communication_data_type",
    "data_types", "pipeline", "tensor_parallel", "flops_profiler", "comms_logger",
})  # fmt: skip
_KEYS = (
    "zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps",
)  # fmt: skip


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is a DeepSpeed configuration."""
    keys = {str(key).replace("-", "_") for key in data}
    others = {
        "model_name_or_path",
        "base_model",
        "num_layers",
        "model",
        "parallelism",
        "pipe_parallel_size",
        "finetuning_type",
        "tokenizer",
        "policy_model",
        "dataset",
        "datasets",
        *(name for name in NAMES if name != "config_name"),
    }
    if keys & others or not keys & set(_KEYS):
        return False
    # Trainers of their own have a batch, too: a file with little else of DeepSpeed's is theirs.
    certain = keys & {"zero_optimization", "train_micro_batch_size_per_gpu"}
    return bool(certain) or len(keys & _OWN) * 2 >= len(keys)


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what a DeepSpeed configuration alone says.

    Raises:
        SpecError: a value that cannot be.
    """
    reading = Reading("DeepSpeed JSON", options=dict(EDITS))
    reading.job = {"framework": "deepspeed", "optimizer": {"name": "adamw"}}
    reading.model = given.model
    ours = STAMP_KEY in data or "pipeline" in data
    apply({k: v for k, v in data.items() if k != STAMP_KEY}, reading, given, exported=ours)
    if "precision" not in reading.job:
        tables = [data.get(name) for name in ("bf16", "bfloat16", "fp16")]
        if any(
            one == "auto" or (isinstance(one, dict) and one.get("enabled") == "auto")
            for one in tables
        ):
            reading.guess(
                "bf16", 'the precision is left to the training script ("auto"); bf16 is taken'
            )
            reading.job["precision"] = RECIPES["bf16"].model_dump()
        else:
            reading.job["precision"] = RECIPES["fp32"].model_dump()
    return reading


def apply(
    data: dict[str, Any],
    reading: Reading,
    given: Given,
    *,
    exported: bool = False,
    prefix: str = "",
) -> None:
    """Add what a DeepSpeed configuration says to a reading; `"auto"` is what others fill in.

    Raises:
        SpecError: a value that cannot be.
    """
    options = Options(flattened(_spelled_out(data)), prefix)
    options.read |= {name for name in options.values if name.startswith(STAMP_KEY)}
    fields = reading.layout
    tp = options.whole("tensor_parallel.autotp_size", "autotp_size", "tensor_parallel.tp_size")
    pp = options.whole("pipeline.stages", default=1) or 1
    cp = options.whole("sequence_parallel_size", default=1, least=1)
    if tp > 1:
        fields["tp"] = tp
    if pp > 1:
        fields["pp"] = pp
    if cp > 1:
        fields |= {"cp": cp, "cp_method": "ulysses"}
    _zero(options, reading)
    _batches(options, reading)
    _precision(options, reading)
    _checkpointing(options, reading, exported)
    kind = options.text("optimizer.type")
    if kind:
        found = optimizer_or_adamw(reading, kind, f"{prefix}optimizer.type")
        reading.job["optimizer"] = found.model_dump()
    _low_master(options, reading)
    reading.job.setdefault("framework", "deepspeed")
    options.finish(reading, "deepspeed", strict=given.strict)


_STAGE = re.compile(r"(?:zero|stage|(?<![a-z])[zs])[-_]?(?:stage)?[-_]?([0-3])(?!\d)", re.IGNORECASE)  # fmt: skip


def stage_in_name(named: str) -> int | None:
    """The stage that the name of a configuration speaks of (`ds_z3_config.json`, `zero-stage3.json`); None where it does not."""
    found = _STAGE.search(named.rsplit("/", 1)[-1])
    return None if found is None else int(found[1])


def shards_itself(reading: Reading, option: str) -> int:
    """The stage that DeepSpeed's pipeline engine comes to in bf16 without ZeRO, by the optimizer that it takes then (runtime/bf16_optimizer.py)."""
    reading.note("none, but DeepSpeed's optimizer for bf16 in pipelines shards its states over the copies; ZeRO-1 is priced", option)  # fmt: skip
    return 1


_STAGES = ("stage", "zero_stage")


def _spelled_out(data: dict[str, Any]) -> dict[str, Any]:
    """A table of one's own that says DeepSpeed's stage and offload in short words, as DeepSpeed's own has them."""
    stage = next((name for name in _STAGES if isinstance(data.get(name), int)), "")
    if not stage or "zero_optimization" in data:
        return data
    rest = {name: one for name, one in data.items() if name not in (*_STAGES, "enabled")}
    if data.get("enabled") is False:
        return {}
    zero: dict[str, Any] = {"stage": data[stage]}
    for part in ("offload_optimizer", "offload_param"):
        said = rest.pop(part, rest.pop(f"{part}_device", None))
        device = "cpu" if said is True else str(said) if said else "none"
        zero[part] = said if isinstance(said, dict) else {"device": device}
    return {**rest, "zero_optimization": zero}


def _zero(options: Options, reading: Reading) -> None:
    name = "zero_optimization.stage"
    if options.values.get("zero_optimization") is True:
        options.read.add("zero_optimization")
        reading.layout["zero"] = 1
        return
    if "zero_optimization" in options and isinstance(
        options.values["zero_optimization"], (str, list)
    ):
        raise SpecError(
            "zero_optimization", options.values["zero_optimization"], "a table is expected"
        )
    stage = options.whole(name)
    if stage > 3:
        raise SpecError(name, stage, "a stage from 0 to 3 is expected")
    reading.layout["zero"] = stage
    hpz = options.whole("zero_optimization.zero_hpz_partition_size", default=1)
    mics = options.whole("zero_optimization.mics_shard_size", default=0)
    if stage == 3 and hpz > 1:
        reading.shard = hpz
        reading.unmodelled(
            "zero_optimization.zero_hpz_partition_size",
            f"a second copy of the weights is sharded over each {hpz} ranks; all is priced as sharded over {hpz}",
        )
    elif stage == 3 and mics > 0:
        reading.shard = mics
    for part, what in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
        device = options.word(f"zero_optimization.{part}.device")
        if device not in ("", "none") and what == "parameters" and stage < 3:
            reading.note(
                "is for stage 3 alone: parameters stay on the device", f"zero_optimization.{part}"
            )
        elif device not in ("", "none"):
            reading.offload.add(what)
            if device == "nvme":
                reading.note("goes to NVMe", f"zero_optimization.{part}")
        _offloaded(options, reading, f"zero_optimization.{part}")
    if options.flag("zero_optimization.cpu_offload"):
        reading.offload.add("optimizer")
    older = ("zero_optimization.cpu_offload_param", "zero_optimization.cpu_offload_params")
    if options.flag(*older):
        if stage == 3:
            reading.offload.add("parameters")
        else:
            reading.note("is for stage 3 alone: parameters stay on the device", next(one for one in older if one in options))  # fmt: skip


_OFFLOADED = ("device", "nvme_path", "buffer_count", "buffer_size", "pin_memory", "fast_init", "pipeline", "pipeline_read", "pipeline_write",
              "max_in_cpu", "cpuadam_cores_perc")  # fmt: skip
"""Fields of an offload table that change neither what leaves the device nor what is priced of it."""


def _offloaded(options: Options, reading: Reading, table: str) -> None:
    """What an offload table says beside the place (deepspeed/runtime/zero/offload_config.py)."""
    share = options.number(f"{table}.ratio", default=1.0)
    if share < 1.0 and options.word(f"{table}.device") not in ("", "none"):
        reading.unmodelled(
            f"{table}.ratio",
            f"{share:g} of the optimizer's steps are taken on the host, the rest stay on the device; all of it is priced as there",
        )
    options.read |= {f"{table}.{name}" for name in _OFFLOADED}


def _batches(options: Options, reading: Reading) -> None:
    batch = options.whole("train_batch_size")
    micro = options.whole("train_micro_batch_size_per_gpu", "train_micro_batch_size_per_chip")
    steps = options.whole("gradient_accumulation_steps")
    reading.micro_batch = micro or reading.micro_batch
    reading.accumulation = steps or reading.accumulation
    if batch:
        reading.global_batch = batch
        if not micro and steps:
            _micro_of(batch, steps, reading)
        elif micro and steps and not reading.world() and batch % (micro * steps) == 0:
            reading.dp = reading.dp or batch // (micro * steps)
    elif micro and not steps and not reading.accumulation and not reading.global_batch:
        reading.accumulation = 1


def _micro_of(batch: int, steps: int, reading: Reading) -> None:
    """The micro-batch that follows from batch, accumulation and the devices, where those are known."""
    inner = 1
    for axis in ("tp", "pp", "cp"):
        inner *= int(reading.layout.get(axis, 1))
    dp = reading.world() // inner
    if dp and batch % (dp * steps) == 0:
        reading.micro_batch = batch // (dp * steps)


def _precision(options: Options, reading: Reading) -> None:
    wide = options.word("data_types.grad_accum_dtype") in ("fp32", "float32")
    sent = options.word("communication_data_type") in ("fp32", "float32")
    for name in ("bf16", "bfloat16", "fp16"):
        raw = options.values.get(f"{name}.enabled")
        on = options.flag(f"{name}.enabled") if raw != "auto" else False
        if not on:
            continue
        compute = "fp16" if name == "fp16" else "bf16"
        recipe = RECIPES["bf16-fp32-grads" if wide and sent and compute == "bf16" else compute]
        reading.job["precision"] = recipe.but(
            gradient_bytes=4 if wide else 2, gradient_reduce_bytes=4 if sent else 2
        ).model_dump()
    if options.has("amp.enabled") and options.flag("amp.enabled"):
        reading.job["precision"] = RECIPES["fp16"].model_dump()
    if options.flag("torch_autocast.enabled"):
        reading.unmodelled(
            "torch_autocast", "weights stay in 32 bits and are cast; 16-bit weights are priced"
        )


def _low_master(options: Options, reading: Reading) -> None:
    """Master weights, gradients and states in 16 bits (deepspeed/runtime/base_optimizer.py, `_configure_master_weights`).

    ZeRO-3 on the device updates its shard of the weights itself (runtime/zero/stage3.py); stages 1 and 2,
    and a host's optimizer, hold a 16-bit copy of it. Moments have that width where `bf16_optimizer_states` is on.
    """
    low = [f"{kind}.{kind}_master_weights_and_grads" for kind in ("bf16", "fp16")]
    if not options.flag(*low):
        return
    stage, there = reading.layout.get("zero", 0), "optimizer" not in reading.offload
    if not stage:
        raise SpecError(next(one for one in low if one in options), True, "a ZeRO stage from 1 to 3 is expected")  # fmt: skip
    recipe = PrecisionRecipe.model_validate(
        reading.job.get("precision", RECIPES["bf16"].model_dump())
    )
    alone = stage == 3 and there
    if alone and recipe == RECIPES["bf16"]:
        recipe = RECIPES["pure-bf16"]
    reading.job["precision"] = recipe.but(
        master_bytes=0 if alone else 2, gradient_bytes=2
    ).model_dump()
    if options.flag("bf16.bf16_optimizer_states"):
        optimizer = OptimizerRecipe.model_validate(reading.job.get("optimizer", {}))
        if optimizer.name == "adamw":
            reading.job["optimizer"] = OPTIMIZERS["adamw-bf16"].model_dump()


def _checkpointing(options: Options, reading: Reading, exported: bool) -> None:
    there = any(name.split(".")[0] == "activation_checkpointing" for name in options.values)
    interval = options.whole("pipeline.activation_checkpoint_interval")
    if (there and exported) or interval:
        reading.layout["recompute"] = "full"
    elif there and "recompute" not in reading.layout:
        reading.guess(
            "activation_checkpointing",
            "the table only configures what the model's code may switch on; "
            "no recomputation is taken",
        )
