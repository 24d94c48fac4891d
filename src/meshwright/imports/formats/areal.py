"""AReaL's YAML: the actor of a reinforcement-learning run, its degrees in one short text."""

from __future__ import annotations

import re
from math import prod
from typing import Any

from meshwright.imports.interpolate import resolved
from meshwright.imports.names import PLANNED, refuse_other
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_named, torch_moments
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES

EDITS = {"micro_batch": "actor.mb_spec.max_tokens_per_mb"}
_AXES = {"d": "dp", "t": "tp", "p": "pp", "c": "cp", "e": "ep"}


_SEEN = re.compile(r"(?i)clevr_count|geometry3k|virl39k|longvideo|multimodal")
"""Data sets with pictures that AReaL knows by name (areal/dataset/)."""


_ENGINES = re.compile(r"(?:fsdp|megatron|archon):")


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is AReaL's."""
    actor = data.get("actor", data.get("model"))
    return (
        isinstance(actor, dict)
        and ("backend" in actor or "allocation_mode" in data)
        and ("mb_spec" in actor or _ENGINES.match(str(actor.get("backend"))) is not None)
    )


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what the actor of an AReaL run trains.

    Raises:
        SpecError: the degrees are not written as AReaL writes them, or a value cannot be.
    """
    data = resolved(data, dict(given.variables))
    options = Options(flattened(data))
    options.guessing = given.guess
    reading = Reading("AReaL YAML", options=dict(EDITS))
    at = "actor." if isinstance(data.get("actor"), dict) else "model."
    reading.model = given.model
    reading.model_name = options.loose(f"{at}path")
    if reading.model is None:
        refuse_other(reading.model_name)
        asked = options.loose("train_dataset.path")
        if _SEEN.search(asked):  # whatever the path of the model is called
            raise SpecError("train_dataset.path", asked, f"trains a vision-language model: {PLANNED}")  # fmt: skip
    text, allocated = options.loose(f"{at}backend"), options.loose("allocation_mode").rsplit("+", 1)[-1]  # fmt: skip
    if (
        text and allocated and re.fullmatch(r"[a-z_]+", text)
    ):  # the engine alone; its degrees stand in the allocation
        text = f"{text}:{re.sub(r'^[a-z_]+[:.]', '', allocated)}"
    text = text or allocated
    if re.fullmatch(r"\s*(?:[dtpce]\d+)+\s*", text):
        # Only Megatron splits stages or experts here.
        named = "megatron" if re.search(r"[pe](?:[2-9]|1\d)", text) else "fsdp"
        reading.guess(f"{at}backend", f"no engine is named before {text.strip()}; {named} is taken")
        text = f"{named}:{text.strip()}"
    engine, degrees = _degrees(text, f"{at}backend")
    reading.dp = degrees.pop("dp", 1)
    _batches(options, reading, at)
    _layout(options, reading, at, engine, degrees)
    # Its launcher asks for these and the servers', whatever a batch system gives.
    reading.devices = reading.dp * prod(reading.layout.get(axis, 1) for axis in ("tp", "pp", "cp"))
    reading.counts_itself = True
    _job(options, reading, at, mega=engine == "megatron")
    if options.flag(f"{at}use_lora"):
        adapters(
            reading,
            rank=options.whole(f"{at}lora_rank", default=32),
            alpha=options.number(f"{at}lora_alpha", default=16),
            targets=options.raw(f"{at}target_modules"),
            method=options.word(f"{at}peft_type", default="lora"),
        )
    else:
        # Written beside `use_lora: false`, they say nothing.
        options.raw(f"{at}lora_rank", f"{at}target_modules", f"{at}peft_type")
    reading.note("the actor's training is priced, not rollouts or reference")
    for role in ("critic", "teacher"):
        beside = {name for name in options.values if name.startswith(f"{role}.")}
        options.read |= beside
        if beside and at != f"{role}.":
            reading.unmodelled(role, "trains or runs beside the actor, which alone is priced")
    if engine != "megatron":
        options.read |= {name for name in options.values if name.startswith(f"{at}megatron.")}
    if engine != "archon":
        options.read |= {name for name in options.values if name.startswith(f"{at}archon.")}
    options.within = (f"{at}megatron.",)
    options.finish(reading, "areal", "megatron", "common", strict=given.strict)
    return reading


def _batches(options: Options, reading: Reading, at: str) -> None:
    reinforced = any(name.startswith("gconfig.") for name in options.values)
    prompts = options.whole("train_dataset.batch_size", default=1)
    samples = (options.whole("gconfig.n_samples", default=1) or 1) if reinforced else 1
    # AReaL takes four optimizer steps a batch of answers where nothing says otherwise.
    parts = options.whole(f"{at}ppo_n_minibatches", default=4 if reinforced else 1) or 1
    reading.global_batch = max(1, prompts * samples // parts)
    answer = options.whole("gconfig.max_new_tokens", default=16384) if reinforced else 0
    longest = (
        options.whole("gconfig.max_tokens") or options.whole("train_dataset.max_length") + answer
    )
    reading.seq_len = longest
    if longest:
        reading.guess("--seq", f"sequences have at most {longest} tokens; that is taken for all")
    tokens = options.whole(f"{at}mb_spec.max_tokens_per_mb")
    if tokens and longest:
        reading.micro_batch = max(1, tokens // longest)
        reading.guess(
            "--micro-batch",
            f"micro-batches are filled to {tokens} tokens; {reading.micro_batch} sequences are taken",
        )
    elif not tokens:
        cut = options.whole(f"{at}mb_spec.n_mbs", default=1) or 1
        reading.micro_batch = max(1, reading.global_batch // (reading.dp * cut))


def _layout(
    options: Options, reading: Reading, at: str, engine: str, degrees: dict[str, int]
) -> None:
    again = options.flag(f"{at}gradient_checkpointing")
    mega = engine == "megatron"
    kind = "full"
    if mega:
        kind = options.word(f"{at}megatron.recompute_granularity", default="full")
        options.raw(f"{at}megatron.recompute_method", f"{at}megatron.recompute_num_layers")
        virtual = options.whole(f"{at}megatron.virtual_pipeline_parallel_size", default=1) or 1
        if virtual > 1 and degrees.get("pp", 1) > 1:
            degrees |= {"virtual_stages": virtual}
    elif engine == "archon":
        kind = options.word(f"{at}archon.ac_mode", default="selective")
        options.raw(f"{at}archon.selective_ac_option", f"{at}archon.pp_schedule")
    reading.layout = {
        **degrees, "zero": 1 if mega else 3, "recompute": kind if again and kind in ("full", "selective") else "none",
        "sequence_parallel": degrees.get("tp", 1) > 1, "cp_method": "ring" if mega else "ulysses",
    }  # fmt: skip
    if "virtual_stages" in degrees:
        reading.layout["schedule"] = "interleaved"
    modules = options.raw(f"{at}megatron.recompute_modules")
    if isinstance(modules, list) and reading.layout["recompute"] == "selective":
        reading.layout["recompute_modules"] = [str(one) for one in modules]
    if degrees.get("cp", 1) == 1:
        reading.layout.pop("cp_method")
    if options.flag(f"{at}fsdp.offload_params", f"{at}archon.offload_params"):
        reading.offload |= {"optimizer", "parameters"}
    if options.flag(f"{at}fsdp.per_layer_optim_step"):
        reading.offload.add("optimizer")


def _job(options: Options, reading: Reading, at: str, *, mega: bool) -> None:
    dtype = options.word(f"{at}dtype", default="bfloat16")
    wide = "32" in options.word(f"{at}grad_reduce_dtype", default="float32")
    if mega:
        summed = options.flag(f"{at}megatron.ddp.grad_reduce_in_fp32", default=True)
        recipe = RECIPES["bf16-fp32-grads" if summed else "bf16"]
        if options.has(f"{at}megatron.fp8_config.mode"):
            recipe = RECIPES["fp8"]
    else:
        # Weights are loaded and stepped in `dtype`; only what is summed has a width of its own.
        recipe = RECIPES["fp32" if "32" in dtype else "pure-bf16"]
        recipe = recipe.but(gradient_reduce_bytes=4 if wide else 2)
    name = options.word(f"{at}optimizer.type", default="adam")
    optimizer = optimizer_named(name.removesuffix("_bf16"), f"{at}optimizer.type")
    if name == "adam_bf16":
        optimizer = optimizer.but(state_bytes=4.0)
    reading.job = {
        "framework": "megatron" if mega else "fsdp",
        "precision": recipe.model_dump(),
        "optimizer": torch_moments(optimizer, recipe).model_dump(),
        "document_masking": True,
    }


def _degrees(text: str, option: str) -> tuple[str, dict[str, int]]:
    """(engine, degrees) of `fsdp:d4c2`, `megatron.d2p2t2` and `megatron:(attn:d4p4t2|ffn:d2p4e4)`."""
    match = re.match(r"\s*([a-z]+)[:.]", text)
    attention = re.search(r"attn:((?:[a-z]\d+)+)", text)
    experts = re.search(r"ffn:((?:[a-z]\d+)+)", text)
    plain = re.search(r"[:.]((?:[dtpce]\d+)+)\s*$", text)
    first = attention or plain
    if match is None or first is None:
        raise SpecError(
            option,
            text or None,
            "an engine and its degrees, as fsdp:d8 or megatron:d2p2t2, are expected",
        )
    found = {_AXES[a]: int(n) for a, n in re.findall(r"([dtpce])(\d+)", first.group(1))}
    if experts is not None:
        inner = {_AXES[a]: int(n) for a, n in re.findall(r"([dtpce])(\d+)", experts.group(1))}
        found |= {"ep": inner.get("ep", 1), "etp": inner.get("tp", 1)}
    return match.group(1), found
