"""An accelerate configuration of any age, alone or as the launcher of a training command."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside, switched_on
from meshwright.imports.formats import deepspeed
from meshwright.imports.interpolate import LIMITS
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import parse_json, read_text
from meshwright.specs.job import RECIPES

EDITS = {"zero": "fsdp_config.fsdp_reshard_after_forward"}
STRATEGIES = {
    "1": "FULL_SHARD", "2": "SHARD_GRAD_OP", "3": "NO_SHARD", "4": "HYBRID_SHARD", "5": "HYBRID_SHARD_ZERO2",
}  # fmt: skip
"""torch's strategies by the numbers that accelerate takes for them, also in FSDP_SHARDING_STRATEGY."""
STRATEGY_ZERO = {
    "FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2,
}  # fmt: skip


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is an accelerate configuration."""
    return (
        "distributed_type" in data
        or "compute_environment" in data
        or ("num_processes" in data and "mixed_precision" in data)
    )


def read(data: dict[str, Any], given: Given, folder: Path | None) -> Reading:
    """Return what an accelerate configuration alone says.

    Raises:
        SpecError: a value that cannot be, or sizes whose product is not `num_processes`.
    """
    reading = Reading("accelerate YAML", options=dict(EDITS))
    reading.model = given.model
    apply(data, reading, given, folder)
    if str(data.get("distributed_type")).upper() not in ("DEEPSPEED", "MEGATRON_LM"):
        gradients_of_32_bits(reading, 4 if switched_on(folder, "REDUCE_FP32") else 2)
    if switched_on(folder, "LIGER"):
        reading.job["loss"] = "liger"
    return reading


def gradients_of_32_bits(reading: Reading, reduced: float = 2) -> None:
    """Gradients as wide as the 32-bit weights that autocast and FSDP's shards leave with the optimizer.

    FSDP sums them in the width that its products have (accelerate's MixedPrecisionPolicy) unless a script says
    otherwise, DDP in their own.
    """
    recipe = reading.job.get("precision", {})
    if recipe.get("compute") in ("bf16", "fp16") and recipe.get("master_bytes") == 4:
        wire = reduced if reading.layout.get("zero") else 4.0
        reading.job["precision"] = recipe | {"gradient_bytes": 4.0, "gradient_reduce_bytes": wire}


def apply(data: dict[str, Any], reading: Reading, given: Given, folder: Path | None) -> None:
    """Add what an accelerate configuration says to a reading.

    Raises:
        SpecError: as `read`.
    """
    options = Options(flattened(data))
    _tables(data)
    environment = options.word("compute_environment", default="local_machine")
    if environment == "amazon_sagemaker":
        options.raw(
            "ec2_instance_type", "iam_role_name", "profile", "region", "sagemaker_inputs_file"
        )
        reading.note(
            f"runs on SageMaker: {options.loose('ec2_instance_type')}", "compute_environment"
        )
    kind = str(options.raw("distributed_type") or "NO").upper().rsplit(".", 1)[-1]
    if kind == "MULTI_CPU" or options.flag("use_cpu"):
        reading.unmodelled("use_cpu", "the run is on processors; the cluster's devices are priced")
    processes = options.whole("num_processes")
    hosts = options.whole("num_machines", default=1) or 1
    reading.devices, reading.hosts = processes, hosts
    reading.per_host = processes // hosts if processes and processes % hosts == 0 else 0
    if kind == "NO" and not processes:
        reading.devices = reading.per_host = 1
    precision = options.word("mixed_precision", default="")
    fallback = "fp16" if options.flag("fp16") else "no"
    precision = {"": fallback, "false": "no"}.get(precision, precision)  # YAML's bare `no`
    if precision not in ("no", "bf16", "fp16", "fp8"):
        raise SpecError("mixed_precision", precision, "no, bf16, fp16 or fp8 is expected")
    reading.job["precision"] = RECIPES["fp32" if precision == "no" else precision].model_dump()
    reading.job.setdefault("framework", "accelerate")
    sizes = _sizes(options, reading)
    if sizes.get("sp", 1) > 1 and kind != "DEEPSPEED":
        raise SpecError("parallelism_config.sp_size", sizes["sp"], f"distributed_type DEEPSPEED is expected beside it, not {kind}: no other engine splits sequences so")  # fmt: skip
    if kind == "FSDP" or options.has("fsdp_config.fsdp_version"):
        _fsdp(options, reading, sizes)
    elif kind == "DEEPSPEED":
        _deepspeed(data, options, reading, given, folder)
    elif kind == "MEGATRON_LM":
        _megatron(options, reading)
    elif sizes:
        reading.replicate = sizes["dp_replicate"]
    if sizes and processes:
        _counted(sizes, processes)
    if str(options.values.get("dynamo_backend", "no")).lower() in ("no", "none", "", "false"):
        options.read.add("dynamo_backend")
    options.finish(reading, "accelerate", "fsdp", strict=given.strict)


def _tables(data: dict[str, Any]) -> None:
    for key in ("fsdp_config", "deepspeed_config", "megatron_lm_config", "parallelism_config"):
        if data.get(key) is not None and not isinstance(data[key], dict):
            raise SpecError(key, data[key], "a table is expected")


def _counted(sizes: dict[str, int], processes: int) -> None:
    """Hold the degrees against the processes, as accelerate's `ParallelismConfig._validate_accelerator` does.

    Where DeepSpeed splits sequences it makes the groups itself, and only whole groups are needed.
    """
    shared = sizes["sp"]
    if shared > 1:
        if processes % shared:
            raise SpecError(
                "num_processes", processes, f"a multiple of sp_size, {shared}, is expected"
            )
        return
    if math.prod(sizes.values()) != processes:
        raise SpecError(
            "num_processes",
            processes,
            "dp_replicate · dp_shard · tp · cp = "
            f"{' · '.join(str(size) for size in sizes.values())} is expected",
        )


def _sizes(options: Options, reading: Reading) -> dict[str, int]:
    where = "parallelism_config.parallelism_config_"
    if not any(name.startswith("parallelism_config.") for name in options.values):
        return {}
    sizes = {
        name: options.whole(f"{where}{name}_size", default=1, least=1)
        for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")
    }
    comm = options.word(f"{where}cp_comm_strategy", default="allgather")
    fields = reading.layout
    fields["tp"] = sizes["tp"]
    fields["cp"] = sizes["cp"] * sizes["sp"]
    if comm not in ("allgather", "all-gather"):
        fields["cp_method"] = "ring"
    if sizes["sp"] > 1:
        if sizes["cp"] > 1:
            raise SpecError("parallelism_config.sp_size", sizes["sp"], f"1 is expected beside cp_size {sizes['cp']}: accelerate takes one of the two")  # fmt: skip
        fields["cp_method"] = "ulysses"
        # How sequences are split, padded and attended to while DeepSpeed computes; none changes what is priced.
        options.raw(*(f"{where}sp_{name}" for name in ("backend", "seq_length", "seq_length_is_variable", "attn_implementation")))  # fmt: skip
    return sizes


def _fsdp(options: Options, reading: Reading, sizes: dict[str, int]) -> None:
    get = "fsdp_config.fsdp_"
    strategy = (
        options.text(f"{get}sharding_strategy", "fsdp_config.sharding_strategy")
        .upper()
        .rsplit(".", 1)[-1]
    )
    strategy = STRATEGIES.get(strategy, strategy)
    reshard = options.text(f"{get}reshard_after_forward", default="").upper()
    reshard = STRATEGIES.get(reshard, reshard)
    if reshard in STRATEGY_ZERO:
        strategy = reshard
    elif reshard in ("TRUE", "FALSE", "YES", "NO"):
        strategy = "FULL_SHARD" if reshard in ("TRUE", "YES") else "SHARD_GRAD_OP"
    strategy = strategy or "FULL_SHARD"
    if strategy not in STRATEGY_ZERO:
        raise SpecError("fsdp_sharding_strategy", strategy, f"one of {', '.join(STRATEGY_ZERO)}")
    reading.layout["zero"] = STRATEGY_ZERO[strategy]
    if strategy.startswith("HYBRID") and not sizes:
        reading.replicate = reading.hosts if reading.hosts > 1 else 0
        if not reading.replicate:
            reading.note(
                "shards inside a host and copies between hosts; one host is all there is", strategy
            )
    if sizes:
        reading.replicate = sizes["dp_replicate"]
    if options.flag(f"{get}offload_params", "fsdp_config.offload_params"):
        reading.offload |= {"optimizer", "parameters"}
    again = options.flag(f"{get}activation_checkpointing", "fsdp_config.activation_checkpointing")
    if again or "recompute" not in reading.layout:
        reading.layout["recompute"] = "full" if again else "none"


def _deepspeed(
    data: dict[str, Any], options: Options, reading: Reading, given: Given, folder: Path | None
) -> None:
    table = data.get("deepspeed_config") or {}
    reading.job["framework"] = "deepspeed"
    named = options.loose("deepspeed_config.deepspeed_config_file")
    if named:
        path = beside(folder, named)
        if path is None:
            whole = options.flag("deepspeed_config.zero3_init_flag")
            said = deepspeed.stage_in_name(named)
            stage = (3 if whole else 2) if said is None else said
            why = (
                ", by its name" if said is not None else " (zero3_init_flag is on)" if whole else ""
            )
            reading.layout["zero"] = stage
            unsaid = "" if options.has("mixed_precision") else " and bf16"
            if unsaid:
                reading.job["precision"] = RECIPES["bf16"].model_dump()
            reading.guess(
                "deepspeed_config_file",
                f"{named[-60:]} is not here; ZeRO-{stage}{why}{unsaid} is taken",
            )
        else:
            from meshwright.imports.document_text import without_comments

            inner = parse_json(
                without_comments(read_text(path)), "deepspeed_config_file", str(path), LIMITS
            )
            if isinstance(inner, dict):
                deepspeed.apply(inner, reading, given)
    stage = options.whole("deepspeed_config.zero_stage", default=reading.layout.get("zero", 2))
    if stage > 3:
        raise SpecError("deepspeed_config.zero_stage", stage, "a stage from 0 to 3 is expected")
    reading.layout["zero"] = stage
    steps = options.whole("deepspeed_config.gradient_accumulation_steps")
    reading.accumulation = steps or reading.accumulation
    for key, what in (
        ("offload_optimizer_device", "optimizer"),
        ("offload_param_device", "parameters"),
    ):
        device = options.word(f"deepspeed_config.{key}")
        if device not in ("", "none"):
            reading.offload.add(what)
            if device == "nvme":
                reading.note("goes to NVMe", f"deepspeed_config.{key}")
    ignored = [key for key in table if key in ("zero_optimization", "fp16", "bf16", "optimizer")]
    if ignored:
        reading.unmodelled(
            ", ".join(f"deepspeed_config.{key}" for key in ignored),
            "accelerate takes no such table here, only fields of its own and deepspeed_config_file",
        )
    if "zero_stage" not in table and not named:
        reading.guess("deepspeed_config.zero_stage", "not set; accelerate's own, 2, is taken")


def _megatron(options: Options, reading: Reading) -> None:
    get = "megatron_lm_config.megatron_lm_"
    reading.job["framework"] = "megatron"
    reading.layout |= {
        "tp": options.whole(f"{get}tp_degree", default=1, least=1),
        "pp": options.whole(f"{get}pp_degree", default=1, least=1),
        "sequence_parallel": options.flag(f"{get}sequence_parallelism"),
        "zero": 1 if options.flag(f"{get}use_distributed_optimizer") else 0,
        "recompute": "selective" if options.flag(f"{get}recompute_activations") else "none",
        "ep": options.whole(f"{get}expert_model_parallel_size", default=1, least=1),
        "cp": options.whole(f"{get}context_parallel_size", default=1, least=1),
    }
    granularity = options.word(f"{get}recompute_granularity")
    if granularity in ("full", "selective"):
        reading.layout["recompute"] = granularity
    etp = options.whole(f"{get}expert_tensor_parallel_size")
    if etp:
        reading.layout["etp"] = etp
    if options.flag(f"{get}optimizer_cpu_offload"):
        reading.offload.add("optimizer")
    reading.accumulation = options.whole(f"{get}num_micro_batches")
