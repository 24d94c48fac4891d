"""How TrainingArguments shard: DeepSpeed's file, FSDP's words and tables, degrees of their own."""

from __future__ import annotations

import math
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.imports.beside import beside
from meshwright.imports.formats import accelerate, deepspeed
from meshwright.imports.interpolate import LIMITS
from meshwright.imports.options import Options
from meshwright.imports.reading import Given, Reading, Remark
from meshwright.imports.tasks import name_task
from meshwright.specs.foreign import read_text

if TYPE_CHECKING:
    from meshwright.imports.shell.state import Script


def sharding(
    options: Options, reading: Reading, given: Given, folder: Path | None, script: Script | None
) -> None:
    """Add what is sharded, offloaded and split to a reading.

    Raises:
        SpecError: a value that cannot be.
    """
    _deepspeed(options, reading, given, folder, script)
    _fsdp_table(options)
    _fsdp_words(options, reading, folder, script)
    if isinstance(options.values.get("fsdp_config"), (str, dict)):
        _fsdp_file(options, reading, folder)
    if options.flag("fsdp_config.activation_checkpointing"):
        reading.layout["recompute"] = "full"
    _second_version(options, reading)
    if options.flag("activation_offloading"):  # SFTConfig's
        reading.offload.add("activations")
    reading.layout.setdefault("zero", 0)
    _degrees(options, reading, given)


_STRATEGIES = {"full_shard": "full_shard", "shard_grad_op": "shard_grad_op", "no_shard": "", "hybrid_shard": "hybrid_shard"}  # fmt: skip


def _fsdp_table(options: Options) -> None:
    """A table of one's own called `fsdp` as the words that TrainingArguments have for it."""
    if "fsdp.sharding_strategy" not in options:
        return
    words = _STRATEGIES.get(options.word("fsdp.sharding_strategy"), "full_shard")
    if options.flag("fsdp.enabled", default=True) and words:
        offloads = " offload" if options.flag("fsdp.cpu_offload", "fsdp.offload_params") else ""
        options.values.setdefault("fsdp", f"{words} auto_wrap{offloads}")
        if options.flag("fsdp.activation_checkpointing"):
            options.values.setdefault("fsdp_config.activation_checkpointing", True)
    options.read |= {"fsdp.auto_wrap_policy", "fsdp.backward_prefetch", "fsdp.mixed_precision"} & set(options.values)  # fmt: skip


def _deepspeed(
    options: Options, reading: Reading, given: Given, folder: Path | None, script: Script | None
) -> None:
    """DeepSpeed's file, or its stage and offload as options of their own."""
    named = options.raw(
        "deepspeed",
        "deepspeed_config",
        "deepspeed_config_file",
        "deepspeed_config_path",
        "ds_config",
        "ds_config_path",
    )
    if isinstance(named, str) and named not in ("", "none", "null"):
        deepspeed_named(named, reading, given, folder, script)
    elif isinstance(named, dict) and named:  # a program's own table
        reading.job["framework"] = "deepspeed"
        deepspeed.apply(named, reading, given)
    stage = options.whole("deepspeed_stage", default=-1, least=-1)
    if stage < 0 and options.has("zero_stage"):
        stage = options.whole("zero_stage")
        reading.offload |= _offloaded(options, stage)
    if stage >= 0:
        reading.layout["zero"] = min(stage, 3)
        reading.job["framework"] = "deepspeed"
    if options.flag("deepspeed_offload_param"):
        reading.offload.add("parameters")
    if options.flag("deepspeed_offload_optimizer"):
        reading.offload.add("optimizer")


def _offloaded(options: Options, stage: int) -> set[str]:
    """What `offload` moves to host memory: a switch, or the word of what (safe-rlhf's `none, parameter, optimizer, all`)."""
    word = options.word("offload", default="false")
    if word in ("parameter", "param", "optimizer", "all"):
        parts = {"parameters"} if word.startswith("param") else {"optimizer"}
        return {"optimizer", "parameters"} if word == "all" else parts
    if not options.flag("offload"):
        return set()
    return {"optimizer", "parameters"} if stage == 3 else {"optimizer"}


_FSDP_WORDS = {*accelerate.STRATEGY_ZERO, "FSDP2", "FSDP", "OFFLOAD", "TRUE", "AUTO_WRAP", "CONFIG"}


def _fsdp_words(
    options: Options, reading: Reading, folder: Path | None, script: Script | None
) -> None:
    """What `--fsdp` says: words of transformers, or a preset of ms-swift."""
    fsdp = options.raw("fsdp")
    if fsdp is None or fsdp is False or fsdp == "":
        return
    words = re.findall(r"\w+", " ".join(map(str, fsdp)) if isinstance(fsdp, list) else str(fsdp))
    words = _fsdp_named(str(fsdp), options, folder, script) or words
    for word in words:
        name = word.upper()
        if name in ("FSDP2", "FSDP"):  # ms-swift's presets: full shards, recomputed
            reading.layout["zero"], reading.job["framework"] = 3, "trl"
            options.values.setdefault("fsdp_config.activation_checkpointing", True)
        if name in accelerate.STRATEGY_ZERO:
            reading.layout["zero"] = accelerate.STRATEGY_ZERO[name]
            reading.job["framework"] = "trl"
        if name == "OFFLOAD":
            reading.offload |= {"optimizer", "parameters"}
        if name not in _FSDP_WORDS:
            reading.remarks.append(Remark("unread", "fsdp", f"{word[:40]} is none of transformers' words; it is left out"))  # fmt: skip
        if name in ("TRUE", "AUTO_WRAP"):  # unless a strategy stands beside, or in the environment
            reading.layout.setdefault("zero", _strategy_of(script))


def _strategy_of(script: Script | None) -> int:
    """The stage that accelerate's FSDP takes where no option says one: its environment's, else full shards."""
    named = script.value("FSDP_SHARDING_STRATEGY").upper() if script is not None else ""
    return accelerate.STRATEGY_ZERO.get(accelerate.STRATEGIES.get(named, named), 3)


_SEQUENCE = (
    "sequence_parallel_size", "sp_size", "context_parallel_size", "sequence_parallel_degree", "cp_size",
)  # fmt: skip


def _rollouts(options: Options, reading: Reading) -> None:
    """The answers that a step of open-instruct's GRPO trains on (open_instruct/grpo_utils.py)."""
    names = ("num_unique_prompts_rollout", "num_samples_per_prompt_rollout")
    if not all(name in options for name in names):
        return
    answers = math.prod(options.whole(name, least=1) for name in names)
    batch = max(1, answers // (options.whole("num_mini_batches", default=1) or 1))
    each = max(reading.devices, 1) * max(reading.micro_batch, 1)
    reading.global_batch = -(-batch // each) * each  # learners that have fewer wait for the others
    taken = "each is taken to fill a row"
    if reading.global_batch != batch:
        taken = f"{taken}, and {reading.global_batch} for the same number on every learner"
    reading.guess("--global-batch", f"{answers} answers are packed; {taken}")
    name_task(reading, "grpo")


def _degrees(options: Options, reading: Reading, given: Given) -> None:
    tp = options.whole("tensor_parallel_size", "tp_size", "tp", "deepspeed_autotp_size", default=1)
    shared = {name: options.whole(name, default=1) for name in _SEQUENCE if options.has(name)}
    sp = max(shared.values(), default=1)
    if options.has("num_learners_per_node"):
        counts = [int(n) for n in re.findall(r"\d+", options.loose("num_learners_per_node"))]
        # The hosts that a launcher asks for hold the engines that generate, too.
        reading.devices, reading.counts_itself = sum(counts), True
        if len(set(counts)) == 1:
            reading.hosts, reading.per_host = len(counts), counts[0]
        options.raw("vllm_tensor_parallel_size")
        reading.note("only the learners are priced, not the rollouts", "--num_learners_per_node")
        _rollouts(options, reading)
    if sp > 1:
        reading.layout["cp"] = sp
        ring = (
            any(shared.get(name, 1) > 1 for name in ("context_parallel_size", "cp_size"))
            or reading.layout.get("cp_method") == "ring"
        )
        reading.layout["cp_method"] = "ring" if ring else "ulysses"
    if reading.layout.get("cp", 1) > 1:
        options.read.add("pad_to_multiple_of")  # as whole pieces of sequences need
    options.read.add("tp_plan")
    planned = str(options.values.get("tp_plan") or "none").lower() != "none"
    if planned and max(tp, int(reading.layout.get("tp", 1))) <= 1:
        # transformers cuts the model over every process of its launcher where no size stands beside.
        tp = reading.world() or (given.cluster.gpus if given.cluster else 1)
        if tp > 1:
            reading.guess(
                "tp_plan", f"is set without a size: the model is cut over all {tp} devices"
            )
    if options.whole("dp_shard_size", default=1) > 1:  # accelerate's ParallelismConfig
        reading.layout["zero"] = reading.layout.get("zero") or 3
    if tp > 1 and not options.has("vllm_num_engines"):
        reading.layout["tp"] = tp


def _second_version(options: Options, reading: Reading) -> None:
    """What FSDP2 keeps of the weights after a layer and on the device, in transformers' own words."""
    kept = options.raw(
        "fsdp_config.reshard_after_forward", "fsdp_config.fsdp_reshard_after_forward"
    )
    if reading.layout.get("zero") == 3 and kept is not None:
        word = str(kept).upper()
        # FSDP1 says the same by the name of a strategy.
        reading.layout["zero"] = (
            2 if word in ("FALSE", "NO") else accelerate.STRATEGY_ZERO.get(word, 3)
        )
    if options.flag("fsdp_config.cpu_offload", "fsdp_config.fsdp_cpu_offload"):
        reading.offload |= {"optimizer", "parameters"}
    unheard = options.flag("fsdp_config.offload_params", "fsdp_config.fsdp_offload_params")
    if unheard and "parameters" not in reading.offload:
        reading.unmodelled("fsdp_config.offload_params", "transformers' Trainer does not hear it (`offload` in fsdp or cpu_offload would count); nothing is offloaded")  # fmt: skip


def _fsdp_named(
    named: str, options: Options, folder: Path | None, script: Script | None
) -> list[str]:
    """The words of `fsdp` in a JSON that ms-swift's `--fsdp FILE` names, its `fsdp_config` added."""
    if not named.endswith(".json"):
        return []
    from meshwright.imports.script_files import json_named
    from meshwright.specs.foreign import parse_json

    data: Any = None
    if script is not None:
        data = json_named(script, folder, named)
    elif (path := beside(folder, named)) is not None:
        data = parse_json(read_text(path, "fsdp"), "fsdp", named, LIMITS)
    if not isinstance(data, dict):
        return ["full_shard"]
    inner = data.get("fsdp_config")
    for key, value in (inner if isinstance(inner, dict) else {}).items():
        options.values.setdefault(f"fsdp_config.{key}", value)
    return re.findall(r"\w+", str(data.get("fsdp", "full_shard")))


def _fsdp_file(options: Options, reading: Reading, folder: Path | None) -> None:
    """The JSON that `--fsdp_config` names, or is; a program's own table."""
    from meshwright.specs.foreign import parse_json

    data = options.raw("fsdp_config")
    if not isinstance(data, dict):
        named = options.loose("fsdp_config")
        text = named
        if not named.lstrip().startswith("{"):
            path = beside(folder, named)
            if path is None:
                reading.guess("fsdp_config", f"{named[-60:]} is not here; what it says is left out")
                return
            text = read_text(path, "fsdp_config")
        data = parse_json(text, "fsdp_config", named, LIMITS)
    if isinstance(data, dict):
        fields = Options({str(key).removeprefix("fsdp_"): value for key, value in data.items()})
        options.values |= {
            f"fsdp_config.{key}": value for key, value in fields.values.items() if key != "version"
        }
        if fields.flag("cpu_offload"):
            reading.offload |= {"optimizer", "parameters"}


def agrees(reading: Reading, micro: int, steps: int) -> None:
    """Name a batch of the command that DeepSpeed's file says otherwise (transformers/integrations/deepspeed.py)."""
    for said, taken, name in (
        (micro, reading.micro_batch, "micro-batch"),
        (steps, reading.accumulation, "gradient accumulation"),
    ):
        if said and taken and said != taken:
            reading.unmodelled(
                name,
                f"{said} by the command, {taken} by DeepSpeed's file, which is priced (transformers' Trainer starts with no such pair)",
            )


def deepspeed_named(
    named: str, reading: Reading, given: Given, folder: Path | None, script: Script | None
) -> None:
    """Add what the DeepSpeed file of that name says, or what its name says where it is not here.

    Raises:
        SpecError: a value that cannot be.
    """
    from meshwright.imports.document_text import without_comments
    from meshwright.imports.script_files import json_named
    from meshwright.specs.foreign import parse_json

    reading.job["framework"] = "deepspeed"
    data: dict[str, Any] | None = None
    if script is not None:
        data = json_named(script, folder, named)
    else:
        path = beside(folder, named)
        if path is not None:
            found = parse_json(
                without_comments(read_text(path, "deepspeed")), "deepspeed", str(path), LIMITS
            )
            data = found if isinstance(found, dict) else None
    if data is not None:
        deepspeed.apply(data, reading, given)
        return
    base = posixpath.basename(named)
    stage = deepspeed.stage_in_name(base)
    reading.layout["zero"] = reading.layout.get("zero", 2) if stage is None else stage
    if "offload" in base and "no_offload" not in base:
        reading.offload |= (
            {"optimizer", "parameters"} if reading.layout["zero"] == 3 else {"optimizer"}
        )
    reading.guess(
        "deepspeed",
        f"{base[-60:]} is not here; ZeRO-{reading.layout['zero']}{'' if stage is None else ', by its name,'} is taken",
    )
