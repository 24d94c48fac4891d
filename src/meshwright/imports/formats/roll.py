"""ROLL's YAML: the actor's training of a reinforcement-learning pipeline, or a supervised one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.formats import mcore_adapter
from meshwright.imports.interpolate import merged, read_table, resolved
from meshwright.imports.names import PLANNED, refuse_other
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_named, torch_moments
from meshwright.imports.tasks import name_task
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES

EDITS = {"micro_batch": "per_device_train_batch_size", "tp": "tensor_model_parallel_size"}
_WORKERS = ("actor_train", "sft_train", "student_train", "student", "critic")


def with_parts(data: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """A configuration with the files at hand that its `defaults` put beside its own words (`../config/deepspeed_zero2@_here_`).

    Raises:
        SpecError: one of them cannot be parsed.
    """
    listed = data.get("defaults")
    if not is_config(data) or not isinstance(listed, list):
        return data
    below: dict[str, Any] = {}
    for one in listed:
        named, at, _package = one.partition("@_here_") if isinstance(one, str) else ("", "", "")
        path = beside(folder, f"{named.removesuffix('.yaml')}.yaml") if at else None
        below = merged(below, read_table(path)) if path is not None else below
    return merged(below, {key: value for key, value in data.items() if key != "defaults"})


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is ROLL's: workers with a strategy of training."""
    return any(
        isinstance(data.get(name), dict) and isinstance(data[name].get("strategy_args"), dict)
        for name in _WORKERS[:-1]
    )


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what the actor of a ROLL pipeline trains.

    Raises:
        SpecError: a value that cannot be, or a strategy that does not train.
    """
    data = resolved(data, dict(given.variables))
    worker = next(name for name in _WORKERS if isinstance(data.get(name), dict))
    options = Options(flattened(data), absent=("auto", "~"))
    options.guessing = given.guess
    reading = Reading("ROLL YAML", options=dict(EDITS))
    get = f"{worker}."
    strategy = options.word(f"{get}strategy_args.strategy_name")
    if "train" not in strategy:
        raise SpecError(f"{get}strategy_args.strategy_name", strategy, "does not train; a training strategy is expected")  # fmt: skip
    reading.model = given.model
    reading.model_name = options.loose(
        f"{get}model_args.model_name_or_path", "pretrain", "student_pretrain"
    )
    if reading.model is None:
        refuse_other(reading.model_name)
    reading.devices = _devices(str(options.raw(f"{get}device_mapping") or ""))
    reading.per_host = options.whole("num_gpus_per_node")
    reading.counts_itself = reading.devices > 0
    reading.micro_batch = options.whole(
        f"{get}training_args.per_device_train_batch_size", default=1
    )
    reading.accumulation = (
        options.whole(f"{get}training_args.gradient_accumulation_steps", default=1) or 1
    )
    reading.seq_len = options.whole("sequence_length") or options.whole(
        "prompt_length"
    ) + options.whole("response_length")
    if reading.seq_len and not options.has("sequence_length"):
        reading.guess(
            "--seq", f"sequences have at most {reading.seq_len} tokens; that is taken for all"
        )
    _layout(options, reading, f"{get}strategy_args.strategy_config.", strategy)
    seen = options.loose(f"{get}model_args.freeze_module_prefix")
    if re.search(r"vision|visual", seen):
        raise SpecError(f"{get}model_args.freeze_module_prefix", seen, f"trains a vision-language model: {PLANNED}")  # fmt: skip
    if options.word(f"{get}model_args.dtype", default="bf16") in ("fp16", "float16"):
        reading.unmodelled(f"{get}model_args.dtype", "weights in fp16; bf16, as wide, is priced")
    if "32" in options.word(f"{get}model_args.dtype", default="bf16"):
        reading.unmodelled(f"{get}model_args.dtype", "weights in 32 bits; 16 are priced")
    _without_effect(options, get)
    again = not options.flag(f"{get}model_args.disable_gradient_checkpointing")
    if again and not strategy.startswith("megatron"):
        # Models of transformers are recomputed unless the switch says not to.
        reading.layout["recompute"] = "full"
    _adapters(options, reading, get)
    reading.note("the actor's training is priced, not rollouts, reference or rewards")
    name_task(reading, "dpo" if options.has("chosen_key", "rejected_key") else "")
    _beside(options, reading, worker)
    options.within = (f"{get}strategy_args.strategy_config.",)
    options.finish(reading, "roll", "megatron", "common", strict=given.strict)
    return reading


def _without_effect(options: Options, get: str) -> None:
    """What a configuration written out in full holds, and changes nothing as it stands."""
    kernel = f"{get}model_args.attn_implementation"
    if options.word(kernel) not in ("", "auto", "fa2", "flash_attention_2", "sdpa"):
        options.read.discard(kernel)
    if not options.flag(f"{get}use_dynamic_batching_in_train"):
        options.read.add(f"{get}max_tokens_per_microbatch_in_train")


def _adapters(options: Options, reading: Reading, get: str) -> None:
    """LoRA by its targets: a rank alone makes none."""
    options.read |= {f"{get}model_args.lora_{one}" for one in ("rank", "alpha", "dropout")}
    if options.loose(f"{get}model_args.lora_target").lower() not in ("", "none", "null"):
        adapters(reading, rank=options.whole(f"{get}model_args.lora_rank", default=8) or 8,
                 alpha=options.number(f"{get}model_args.lora_alpha"), targets=options.raw(f"{get}model_args.lora_target"),
                 dropout=options.number(f"{get}model_args.lora_dropout"), option="lora_target")  # fmt: skip


def _beside(options: Options, reading: Reading, worker: str) -> None:
    """Roles that train or run beside the one that is priced; a critic, with advantages by GAE alone."""
    critic = options.word("adv_estimator", default="gae") == "gae"
    for role in (
        "critic",
        "teacher",
        "reference",
        "actor_infer",
        "student_infer",
        "rewards",
        "reward",
    ):
        beside = {name for name in options.values if name.startswith(f"{role}.")}
        options.read |= beside
        if beside and (role == "teacher" or (role == "critic" and critic)):
            reading.unmodelled(role, f"runs beside {worker}, which alone is priced")


def _devices(text: str) -> int:
    """How many devices `list(range(0,32))`, or a list of them, are."""
    spans = re.findall(r"range\((?:(\d+),\s*)?(\d+)\)", text)
    if spans:
        return sum(int(end) - int(start or 0) for start, end in spans)
    return len(re.findall(r"\d+", text))


def _fsdp_job(options: Options, reading: Reading, get: str) -> None:
    """FSDP2's widths: `param_dtype` is what the weights are loaded and stepped in, where it stands."""
    width = options.word(f"{get}param_dtype")
    summed = 2 if options.word(f"{get}reduce_dtype", default="fp32").startswith("b") else 4
    recipe = RECIPES["pure-bf16"] if "16" in width else RECIPES["bf16"].but(gradient_bytes=4)
    if "32" in width:
        recipe = RECIPES["fp32"]
    recipe = recipe.but(gradient_reduce_bytes=summed)
    optimizer = torch_moments(optimizer_named("adamw", "optimizer"), recipe)
    reading.job = {
        "framework": "verl",
        "precision": recipe.model_dump(),
        "optimizer": optimizer.model_dump(),
    }


def _layout(options: Options, reading: Reading, get: str, strategy: str) -> None:
    worker = get.split("strategy_args.", 1)[0]
    if strategy.startswith("megatron"):
        # ROLL sums gradients in 32 bits wherever it trains in bf16.
        mcore_adapter.layout(options, reading, get, sharded=True, parts=True, wide=True)
        return
    _fsdp_job(options, reading, get)
    sp = (
        options.whole(
            f"{worker}model_args.ulysses_size",
            f"{get}ulysses_size",
            f"{get}sequence_parallel_size",
            default=1,
        )
        or 1
    )
    reading.layout = {"cp": sp, "recompute": "none", "zero": 3}
    if sp > 1:
        reading.layout["cp_method"] = "ulysses"
    if strategy.startswith("deepspeed"):
        recipe = RECIPES["bf16"].but(gradient_bytes=4, gradient_reduce_bytes=4)
        reading.job = {"framework": "deepspeed", "precision": recipe.model_dump()}
        stage = options.whole(f"{get}zero_optimization.stage", default=-1, least=-1)
        if stage < 0:
            reading.guess(
                "strategy_config", "DeepSpeed's configuration is in another file; ZeRO-3 is taken"
            )
        reading.layout["zero"] = stage if 0 <= stage <= 3 else 3
        for part, what in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
            if options.word(f"{get}zero_optimization.{part}.device") not in ("", "none"):
                reading.offload.add(what)
        return
    reading.shard = options.whole(f"{get}fsdp_size")
    if options.raw(f"{get}reshard_after_forward") is False:
        reading.layout["zero"] = 2
    if options.flag(f"{get}offload_policy"):
        reading.offload |= {"optimizer", "parameters"}
    ep = options.whole(f"{get}ep_size", default=1) or 1
    if ep > 1:
        reading.layout["ep"] = ep
