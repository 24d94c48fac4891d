"""MindFormers' YAML (MindSpore on Ascend NPUs): a model by its sizes, degrees in `parallel_config`."""

from __future__ import annotations

from typing import Any

from meshwright.imports.interpolate import resolved
from meshwright.imports.names import model_named
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES
from meshwright.specs.model import Model

_GET = "parallel_config."
EDITS = {"tp": f"{_GET}model_parallel", "pp": f"{_GET}pipeline_stage", "micro_batch": "runner_config.batch_size"}  # fmt: skip


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is MindFormers'."""
    degrees = data.get("parallel_config")
    return (
        isinstance(degrees, dict)
        and bool({"data_parallel", "model_parallel", "pipeline_stage"} & set(degrees))
        and ("runner_config" in data or "run_mode" in data)
    )


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what such a YAML trains.

    Raises:
        SpecError: it does not train, or a value that cannot be.
    """
    mode = str(data.get("run_mode", "train"))
    if mode not in ("train", "finetune"):
        raise SpecError("run_mode", mode, "an inference run; a training run is expected")
    options = Options(flattened(resolved(data, dict(given.variables))))
    options.guessing = given.guess
    reading = Reading("MindFormers YAML", options=dict(EDITS))
    reading.likely = "ascend-910b"
    named = options.loose("trainer.model_name", "pretrained_model_dir")
    reading.model = given.model or _model(options, reading)
    if reading.model is None:
        reading.model_name = named
    reading.seq_len = options.whole("model.model_config.seq_length", "train_dataset.data_loader.seq_length")  # fmt: skip
    _layout(options, reading)
    _job(options, reading)
    options.finish(reading, "mindformers", "common", strict=given.strict)
    return reading


def _model(options: Options, reading: Reading) -> Model | None:
    get = "model.model_config."
    layers, hidden, heads = (options.whole(*(f"{get}{one}" for one in names)) for names in (
        ("num_layers", "num_hidden_layers"), ("hidden_size",), ("num_heads", "num_attention_heads")))  # fmt: skip
    if not (layers and hidden and heads):
        return None
    kind = options.word(f"{get}type", default="llamaconfig")
    ffn = options.whole(f"{get}intermediate_size")
    if not ffn:
        multiple = options.whole(f"{get}multiple_of", default=256, least=1)
        wide = int(hidden * 8 / 3 * options.number(f"{get}ffn_dim_multiplier", default=1.0))
        ffn = -(-wide // multiple) * multiple
    gpt = kind.startswith(("gpt2", "bloom", "pangu"))
    alike = model_named(options.loose("trainer.model_name"))
    experts = options.whole("moe_config.expert_num")
    fields: dict[str, Any] = {
        "name": "imported", "layers": layers, "hidden": hidden, "heads": heads,
        "kv_heads": options.whole(f"{get}n_kv_heads", f"{get}num_key_value_heads") or heads, "head_dim": options.whole(f"{get}head_dim") or hidden // heads,
        "ffn": 4 * hidden if gpt and not options.has(f"{get}intermediate_size") else ffn, "vocab": options.whole(f"{get}vocab_size", default=32_000),
        "gated": not gpt, "norm": "layernorm" if gpt else "rmsnorm", "tied_embeddings": options.flag(f"{get}tie_word_embeddings"),
        "qkv_bias": options.flag(f"{get}qkv_has_bias") or gpt,
    }  # fmt: skip
    if experts > 1:
        fields["experts"] = _experts(options, experts, ffn)
    if alike is not None and alike.latent_attention:
        reading.unmodelled("model.model_config.type", f"{alike.name}'s latent attention; plain attention is priced (--model {alike.name} says otherwise)")  # fmt: skip
    options.raw(*(f"{get}{one}" for one in ("rms_norm_eps", "theta", "multiple_of", "batch_size")))
    return Model.parse(fields, "model")


def _experts(options: Options, experts: int, ffn: int) -> dict[str, Any]:
    get = "moe_config."
    width = options.whole(f"{get}moe_intermediate_size", default=ffn)
    return {
        "experts": experts,
        "top_k": options.whole(f"{get}num_experts_chosen", default=1, least=1),
        "ffn": width,
        "shared_ffn": options.whole(f"{get}shared_expert_num") * width,
        "dense_layers": options.whole(f"{get}first_k_dense_replace"),
    }


def _layout(options: Options, reading: Reading) -> None:
    pp = options.whole(f"{_GET}pipeline_stage", default=1, least=1)
    micros = options.whole(f"{_GET}micro_batch_num", default=1, least=1)
    chunks = options.whole("parallel.pipeline_config.pipeline_interleave_num", "model.model_config.pp_interleave_num", default=1, least=1)  # fmt: skip
    interleaved = pp > 1 and chunks > 1
    tp = options.whole(f"{_GET}model_parallel", default=1, least=1)
    reading.layout = {
        "tp": tp,
        "pp": pp,
        "cp": options.whole(f"{_GET}context_parallel", default=1, least=1),
        "cp_method": "ulysses"
        if "ulysses" in options.word(f"{_GET}context_parallel_algo")
        else "ring",
        "sequence_parallel": options.flag(f"{_GET}use_seq_parallel"),
        "zero": 1 if options.flag("parallel.enable_parallel_optimizer") else 0,
        "virtual_stages": chunks if interleaved else 1,
        "schedule": "interleaved" if interleaved else "1f1b",
    }
    experts = options.whole(f"{_GET}expert_parallel", default=1, least=1)
    if reading.model is not None and reading.model.experts:
        reading.layout |= {"ep": experts, "etp": 1 if experts > 1 else tp}
    reading.dp = options.whole(f"{_GET}data_parallel", default=0)
    reading.micro_batch = options.whole("runner_config.batch_size", default=1, least=1)
    # Micro-batches of a pipeline; without one, steps that accumulate.
    steps = options.whole("runner_config.gradient_accumulation_steps", default=1, least=1)
    reading.accumulation = steps * (micros if pp > 1 else 1)
    shard = options.whole("parallel.parallel_optimizer_config.optimizer_weight_shard_size", least=-1)  # fmt: skip
    reading.shard = shard if shard > 1 else 0
    again = options.raw("recompute_config.recompute")
    partly = options.raw("recompute_config.select_recompute")
    if isinstance(again, list) or isinstance(partly, list):
        reading.unmodelled("recompute_config", "other layers recompute in each stage; full recomputation is priced for all")  # fmt: skip
    whole = isinstance(again, list) or str(again).lower() == "true"
    reading.layout["recompute"] = "full" if whole or isinstance(partly, list) else "selective" if str(partly).lower() == "true" else "none"  # fmt: skip


def _job(options: Options, reading: Reading) -> None:
    kind = options.word("model.model_config.compute_dtype", default="bfloat16")
    recipe = RECIPES["fp16" if kind == "float16" else "fp32" if "32" in kind else "bf16"]
    wide = options.word("model.model_config.param_init_type", "model.model_config.params_dtype")
    if wide == "float32" and recipe.name != "fp32":
        # 32-bit weights are the only ones; they are cast where they are used.
        recipe = RECIPES["fp32"].but(name=recipe.name, compute=recipe.compute, activation_bytes=2)
    reading.job = {
        "precision": recipe.model_dump(),
        "framework": "megatron",
        "attention_kernel": "flash"
        if options.flag("model.model_config.use_flash_attention", default=True)
        else "unfused",
    }
    reading.note("MindFormers is priced as Megatron-LM, whose parallelism it has", "framework")
    name = options.loose("optimizer.type") or "adamw"
    found = optimizer_or_adamw(
        reading,
        name.lower().removeprefix("fusedcast").removeprefix("pm"),
        "optimizer.type",
        shown=name,
    )
    reading.job["optimizer"] = found.model_dump()
    rank = options.whole("model.model_config.pet_config.lora_rank")
    if rank:
        adapters(
            reading,
            rank=rank,
            alpha=options.number("model.model_config.pet_config.lora_alpha"),
            option="model.model_config.pet_config.target_modules",
        )
