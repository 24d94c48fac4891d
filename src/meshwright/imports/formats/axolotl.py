"""axolotl's YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshwright.imports.formats import deepspeed
from meshwright.imports.formats.accelerate import STRATEGY_ZERO
from meshwright.imports.formats.hf_optimizers import low_rank, updates_in_backward
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw, weights_alone
from meshwright.imports.tasks import name_generation, name_task
from meshwright.imports.tuning import adapters, evaluation, frozen_part
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES

EDITS = {
    "micro_batch": "micro_batch_size",
    "accumulation": "gradient_accumulation_steps",
    "recompute": "gradient_checkpointing",
}


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is axolotl's: a base model by name, and what only its runs have."""
    others = {
        "datasets",
        "pretraining_dataset",
        "adapter",
        "sequence_len",
        "val_set_size",
        "num_epochs",
        "rl",
    }
    named = isinstance(data.get("base_model"), str)
    left = "base_model" in data and data["base_model"] is None and set(data) >= _TEMPLATE
    return (named or left) and bool(others & set(data))


_TEMPLATE = {"micro_batch_size", "sequence_len", "datasets"}
"""What a file has whose model is left for whoever fills it in."""


def read(data: dict[str, Any], given: Given, folder: Path | None) -> Reading:
    """Return what an axolotl configuration runs.

    Raises:
        SpecError: a value that cannot be.
    """
    from meshwright.imports.formats.hf_sharding import deepspeed_named

    options = Options(flattened(data))
    options.guessing = given.guess
    reading = Reading("axolotl YAML", options=dict(EDITS))
    reading.model, reading.model_name = given.model, options.loose("base_model")
    reading.micro_batch = options.whole("micro_batch_size", default=1) or 1
    reading.accumulation = options.whole("gradient_accumulation_steps", default=1) or 1
    reading.global_batch = 0
    _whole_batch(options, reading)
    reading.seq_len = _length(options, reading)
    reading.job["framework"] = "axolotl"
    _precision(options, reading)
    named = options.raw("deepspeed")
    reading.layout["zero"] = 0
    if isinstance(named, str) and named:
        deepspeed_named(named, reading, given, folder, None)
    elif isinstance(data.get("deepspeed"), dict):
        deepspeed.apply(data["deepspeed"], reading, given)
        options.read |= {n for n in options.values if n.startswith("deepspeed.")}
    _fsdp(options, reading)
    _degrees(options, reading)
    again = options.text("gradient_checkpointing", "activation_checkpointing").lower()
    moved = options.word("activation_offloading")
    if again.startswith("offload") or moved in ("true", "legacy", "disk", "hidden_states"):
        reading.offload.add("activations")
        again = "true" if again.startswith("offload") else again
        if "disk" in (moved, again.rpartition("_")[2]):
            reading.unmodelled("activation_offloading", "activations go to a disk; host memory is priced")  # fmt: skip
    if again in ("true", "unsloth") or "recompute" not in reading.layout:
        reading.layout["recompute"] = "full" if again in ("true", "unsloth") else "none"
    _optimizer(options, reading)
    _whole_weights(options, reading)
    weights_alone(reading.job, sharded=bool(reading.layout.get("zero")))
    _adapters(options, reading)
    _task(options, reading)
    _plugins(data, reading)
    if options.flag("sample_packing"):
        reading.job["document_masking"] = True
    if options.flag("eager_attention") or options.word("attn_implementation") == "eager":
        reading.job["attention_kernel"] = "unfused"
    if options.flag("gptq") and not options.flag("load_in_4bit", "load_in_8bit"):
        reading.unmodelled("gptq", "the frozen weights come in GPTQ's 4 bits; 16 are priced")
    if options.has("unfrozen_parameters"):
        frozen_part(reading, "unfrozen_parameters")
    if options.flag("liger_fused_linear_cross_entropy"):
        reading.job["loss"] = "liger"
    elif (
        "CutCrossEntropy" in str(data.get("plugins", ""))
        and data.get("cut_cross_entropy") is not False
    ):
        reading.job["loss"] = "cut"
    options.finish(reading, "axolotl", "fsdp", "hf", "common", strict=given.strict)
    return reading


def _whole_batch(options: Options, reading: Reading) -> None:
    total = options.whole("batch_size")
    if not total or "gradient_accumulation_steps" in options:
        return
    reading.accumulation = max(1, total // reading.micro_batch)
    if reading.accumulation > 1:
        reading.guess("batch_size", f"{total} in parts of {reading.micro_batch}, as axolotl took it before its options had defaults of their own: now gradient_accumulation_steps is 1 where nothing is said")  # fmt: skip


def _length(options: Options, reading: Reading) -> int:
    stated = options.whole("sequence_len", "sequence_length")
    if not stated:
        reading.guess("--seq", "sequence_len is not set; axolotl's own, 512 tokens, is taken")
    return stated or 512


def _task(options: Options, reading: Reading) -> None:
    """What is trained on, and what generates or is evaluated beside it."""
    if options.number("val_set_size") or options.has("test_datasets"):
        evaluation(reading, options.whole("eval_batch_size"), "eval_batch_size")
    name_task(reading, options.loose("rl") + (" reward" if options.flag("reward_model") else ""))
    if options.flag("precompute_ref_log_probs"):
        reading.reference = False
    if reading.task == "grpo":
        reading.reference = bool(options.number("trl.beta"))
    inner = {
        name.removeprefix("trl."): value
        for name, value in options.values.items()
        if name.startswith("trl.")
    }
    share = options.raw("vllm.gpu_memory_utilization", "trl.vllm_gpu_memory_utilization")
    if share is not None:
        inner["vllm_gpu_memory_utilization"] = share
    options.read |= {name for name in options.values if name.startswith(("trl.use_vllm", "trl.vllm_"))}  # fmt: skip
    name_generation(reading, Options(inner))


_PLUGINS = {
    "Liger": "", "CutCrossEntropy": "", "LMEval": "", "SwanLab": "",
    "Spectrum": "only the layers that it chooses train; the estimate trains all",
    "KD": "a teacher's probabilities are learnt; not priced",
    "Grokfast": "a running average of the gradients is held, too; not priced",
    "LLMCompressor": "weights are sparse or quantised in training; dense 16-bit ones are priced",
    "Diffusion": "the model learns to fill masks in; the usual loss is priced",
    "Kernels": "other kernels; the estimate takes the framework's usual ones",
}  # fmt: skip
"""axolotl's own plugins (axolotl/integrations) and what each changes; empty: what is priced as its options say."""


def _plugins(data: dict[str, Any], reading: Reading) -> None:
    """Name the plugins that change the step."""
    for plugin in data.get("plugins") or []:
        title = str(plugin).rpartition(".")[2].removesuffix("Plugin")
        effect = _PLUGINS.get(title, "a plugin's own change of model or training; not priced")
        if effect:
            reading.unmodelled(f"plugins: {title[:40]}", effect)


def _precision(options: Options, reading: Reading) -> None:
    said = any(options.values.get(name) not in (None, False, "false", "") for name in ("fp16", "float16", "bfloat16", "float32"))  # fmt: skip
    bf16, fp16 = options.values.get("bf16", None if said else "auto"), options.values.get("fp16")
    options.raw("bf16", "fp16", "tf32", "float16", "bfloat16")
    pure = options.values.get("bfloat16") in (True, "true") or options.values.get("float16") in (
        True,
        "true",
    )
    if options.flag("fp8"):
        recipe = "fp8"
    elif bf16 in (True, "auto", "true", "full"):
        recipe = "bf16"
        if bf16 == "auto":
            where = "" if "bf16" in options.values else 'is not set: axolotl\'s own is "auto"; '
            reading.guess("bf16", f'{where}"auto" is bf16 on devices that have it; it is taken')
        if bf16 == "full":
            recipe = "pure-bf16"
    elif fp16 in (True, "true", "auto"):
        recipe = "fp16"
    else:
        recipe = "pure-bf16" if pure else "fp32"
    reading.job["precision"] = RECIPES[recipe].model_dump()


def _whole_weights(options: Options, reading: Reading) -> None:
    """Settle weights that train whole: loaded in `torch_dtype`, bf16 where `bf16` is on, they stay so.

    axolotl sets that width (utils/config/__init__.py, `resolve_dtype`; loaders/model.py); accelerate makes
    32-bit weights of them for FSDP's first version alone (axolotl/monkeypatch/accelerate/fsdp2.py replaces what
    would for the second), DeepSpeed keeps 32-bit copies of its own.
    """
    kept = _version(options) == 2 or not reading.layout.get("zero")
    alone = kept and reading.job.get("framework") != "deepspeed"
    adapted = options.word("adapter") not in ("", "none", "null")
    if alone and not adapted and reading.job["precision"]["name"] == "bf16":
        reading.job["precision"] = RECIPES["pure-bf16"].model_dump()
        reading.note("weights are loaded in bf16: neither they nor AdamW's state have a 32-bit copy", "bf16")  # fmt: skip


def _version(options: Options) -> int:
    """FSDP's version, where one is said."""
    return options.whole("fsdp_version", "fsdp_config.fsdp_version", default=1)


def _fsdp(options: Options, reading: Reading) -> None:
    fsdp = options.raw("fsdp")
    words = (
        [str(w).upper() for w in fsdp]
        if isinstance(fsdp, list)
        else str(fsdp or "").upper().split()
    )
    there = bool(words) or any(name.startswith("fsdp_config.") for name in options.values)
    version = _version(options)
    if not there:
        return
    strategy = options.text(
        "fsdp_config.fsdp_sharding_strategy", "fsdp_config.sharding_strategy", default="FULL_SHARD"
    ).upper()
    for word in words:
        strategy = word if word in STRATEGY_ZERO else strategy
    reshard = options.flag(
        "fsdp_config.reshard_after_forward", "fsdp_config.fsdp_reshard_after_forward", default=True
    )
    zero = STRATEGY_ZERO.get(strategy)
    if zero is None:
        raise SpecError(
            "fsdp_config.fsdp_sharding_strategy", strategy, f"one of {', '.join(STRATEGY_ZERO)}"
        )
    reading.layout["zero"] = 2 if version == 2 and not reshard else zero
    if (
        options.flag("fsdp_config.fsdp_offload_params", "fsdp_config.offload_params")
        or "OFFLOAD" in words
    ):
        reading.offload |= {"optimizer", "parameters"}
    if options.flag(
        "fsdp_config.activation_checkpointing", "fsdp_config.fsdp_activation_checkpointing"
    ):
        reading.layout["recompute"] = "full"
        reading.options["recompute"] = "fsdp_config.activation_checkpointing"


def _degrees(options: Options, reading: Reading) -> None:
    reading.count_steps(options, "max_steps")
    tp = options.whole("tensor_parallel_size", default=1) or 1
    cp = options.whole("context_parallel_size", "sequence_parallel_degree", default=1) or 1
    replicate, shard = options.whole("dp_replicate_size"), options.whole("dp_shard_size")
    if options.flag("use_ray"):
        reading.devices = options.whole("ray_num_workers", default=1)
    if options.flag("accelerator_config.gradient_accumulation_kwargs.sync_each_batch"):
        reading.reduces_each = True
    if shard > 1 and not reading.world():
        reading.devices = shard * max(replicate, 1) * tp * cp  # what axolotl asks of its launcher
    if tp > 1:
        reading.layout["tp"] = tp
    if cp > 1:
        # Beside DeepSpeed it is DeepSpeed's Ulysses (utils/distributed.py of 0.21.0).
        ulysses = options.has("deepspeed")
        reading.layout |= {"cp": cp, "cp_method": "ulysses" if ulysses else "ring"}
    reading.replicate = replicate


def _optimizer(options: Options, reading: Reading) -> None:
    name = options.text("optimizer", default="adamw_torch_fused")
    found = low_rank(options, reading, optimizer_or_adamw(reading, name, "optimizer"))
    reading.job["optimizer"] = found.model_dump()
    updates_in_backward(options, reading, name, found)


def _adapters(options: Options, reading: Reading) -> None:
    kind = options.word("adapter")
    rank = options.whole("lora_r", default=16) or 16
    four, eight = options.flag("load_in_4bit"), options.flag("load_in_8bit")
    storage = options.word(
        "bnb_4bit_quant_type", "bnb_config_kwargs.bnb_4bit_quant_type", default="nf4"
    )
    nested = options.raw("bnb_config_kwargs.bnb_4bit_use_double_quant")
    dora = options.flag("peft_use_dora")
    if four or eight or kind == "qlora":
        options.flag(
            "quantize_moe_experts"
        )  # priced so: the frozen weights are, whatever holds them
    linear = options.flag("lora_target_linear")
    targets = None if linear else options.raw("lora_target_modules")
    if kind in ("lora", "qlora", "dora"):
        adapters(
            reading, method="dora" if dora else kind, rank=rank, alpha=options.number("lora_alpha"), targets=targets,
            bits=4 if four or kind == "qlora" else 8 if eight else 0, dropout=options.number("lora_dropout"),
            option="lora_target_modules", twice=nested if isinstance(nested, bool) else None,
            storage=storage if (four or kind == "qlora") and storage in ("nf4", "fp4") else "",
            whole=options.raw("lora_modules_to_save"),
        )  # fmt: skip
    elif four or eight:
        reading.unmodelled("load_in_4bit" if four else "load_in_8bit", "quantised weights do not train without an adapter, and none is named; all weights are priced in 16 bits as trained")  # fmt: skip
    elif kind:
        reading.unmodelled(
            "adapter", f"{kind} adapters are not modelled; all weights are priced as trained"
        )
    options.raw("quantization")
