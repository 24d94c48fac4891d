"""llm-foundry's YAML (Composer), also inside an mcli run."""

from __future__ import annotations

import re
from typing import Any

from meshwright.imports.interpolate import resolved
from meshwright.imports.names import PLANNED
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_named
from meshwright.imports.shell.words import unmarked
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES
from meshwright.specs.model import Model

EDITS = {
    "micro_batch": "device_train_microbatch_size",
    "recompute": "fsdp_config.activation_checkpointing",
    "batch": "global_train_batch_size",
}


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is llm-foundry's."""
    inner = data.get("parameters") if isinstance(data.get("parameters"), dict) else data
    return (
        isinstance(inner, dict)
        and "model" in inner
        and not {"batch_size", "lr", "learning_rate"} & set(inner)  # of a program of one's own
        and bool(
            {
                "train_loader",
                "global_train_batch_size",
                "device_train_microbatch_size",
                "max_seq_len",
                "eval_loader",
            }
            & set(inner)
        )
    )


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what an llm-foundry configuration runs.

    Raises:
        SpecError: it does not train, or a value cannot be.
    """
    inner = data.get("parameters") if isinstance(data.get("parameters"), dict) else data
    assert isinstance(inner, dict)
    if "train_loader" not in inner and "global_train_batch_size" not in inner:
        raise SpecError(
            "train_loader", None, "no training data or batch: this configuration does not train"
        )
    flat = flattened(resolved(inner, dict(given.variables)))
    kind = str(flat.get("model.name", ""))
    if "mlm_probability" in flat or re.search(r"bert", kind):
        raise SpecError("model.name", kind or None, f"trains an encoder: {PLANNED}")
    # An algorithm without settings is on, with its own.
    options = Options({name: "on" if name.startswith("algorithms.") and one == {} else one for name, one in flat.items()})  # fmt: skip
    reading = Reading("llm-foundry YAML", options=dict(EDITS))
    compute = data.get("compute")
    gpus = compute.get("gpus") or compute.get("instance") if isinstance(compute, dict) else 0
    reading.devices = gpus if isinstance(gpus, int) else 0
    reading.seq_len = options.whole("max_seq_len")
    reading.model = given.model or _model(options, reading)
    if reading.model is None:
        reading.model_name = unmarked(
            options.loose("model.pretrained_model_name_or_path", "tokenizer.name")
        )
    reading.global_batch = options.whole("global_train_batch_size")
    if isinstance(inner.get("knowledge_distillation"), dict):
        reading.unmodelled("knowledge_distillation", "a frozen teacher is held and run, too; not priced")  # fmt: skip
    micro = options.raw("device_train_microbatch_size")
    steps = options.raw("device_train_grad_accum", "grad_accum")
    if isinstance(micro, (int, float)):
        reading.micro_batch = max(1, int(micro))
    elif isinstance(steps, int) and steps > 0:
        reading.accumulation = steps  # of Composer before 0.13: micro-batches, not their size
    else:
        reading.guess("--micro-batch", 'the micro-batch is "auto"; 1 is taken')
        reading.micro_batch = 1
    if options.has("model.pretrained_model_name_or_path"):
        _overridden(options, reading)
    _changes(options, reading)
    _sharding(options, reading)
    _job(options, reading)
    options.finish(reading, "llm_foundry", "common", strict=given.strict)
    return reading


_FFNS = ("mptmlp", "mptglu", "mptgeglu", "mb_moe", "mb_dmoe", "torch_dmoe")


def _changes(options: Options, reading: Reading) -> None:
    """Name what makes another run of the model than the one that is priced."""
    if any(name.startswith("callbacks.layer_freezing") for name in options.values):
        reading.unmodelled("callbacks.layer_freezing", "layers that it freezes are priced as training")  # fmt: skip
    if options.flag("model.attn_config.prefix_lm"):
        reading.unmodelled("model.attn_config.prefix_lm", "a prefix sees itself in both directions; causal attention is priced")  # fmt: skip
    inner = options.word("model.ffn_config.ffn_type", default="mptmlp")
    if inner not in _FFNS:
        reading.unmodelled("model.ffn_config.ffn_type", f"{inner}, another library's kernel; the usual FFN is priced")  # fmt: skip


def _model(options: Options, reading: Reading) -> Model | None:
    if options.has("model.pretrained_model_name_or_path"):
        return None
    layers, hidden = options.whole("model.n_layers"), options.whole("model.d_model")
    heads = options.whole("model.n_heads")
    if not (layers and hidden and heads):
        return None
    if "llama" in options.word("model.name") and options.has("model.intermediate_size"):
        return _sheared(options, reading, layers, hidden, heads)
    get = "model.attn_config."
    kind = options.word(f"{get}attn_type", default="multihead_attention")
    groups = options.whole(f"{get}kv_n_heads")
    kv = 1 if kind == "multiquery_attention" else groups or heads
    ratio = options.number("model.expansion_ratio", default=4.0)
    inner = options.word("model.ffn_config.ffn_type", default="mptmlp")
    gated = inner in ("mptglu", "mptgeglu")
    ffn = options.whole("model.ffn_config.ffn_hidden_size") or int(ratio * hidden)
    alibi, rope = options.flag(f"{get}alibi"), options.flag(f"{get}rope")
    learned = options.flag("model.learned_pos_emb", default=True) and not alibi and not rope
    norm = options.word("model.norm_type", default="low_precision_layernorm")
    rms = "rms" in norm
    bias = not options.flag("model.no_bias")
    positions = "alibi" if alibi else "rope" if rope else "learned" if learned else "none"
    experts = options.whole("model.ffn_config.moe_num_experts")
    kernel = options.word(f"{get}attn_impl", default="flash")
    reading.job["attention_kernel"] = "unfused" if kernel == "torch" else "flash"
    if options.flag(f"{get}attn_uses_sequence_id"):
        reading.job["document_masking"] = True
    dropout = options.number("model.resid_pdrop") or options.number("model.emb_pdrop")
    reading.job["dropout"] = dropout
    return Model.parse(
        {
            "name": "imported", "family": "mpt", "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv,
            "head_dim": hidden // heads, "ffn": ffn, "vocab": options.whole("model.vocab_size", default=50_368), "gated": gated,
            "tied_embeddings": options.flag("model.tie_word_embeddings", default=True),
            "norm": "rmsnorm" if rms else "layernorm", "norm_bias": not rms and bias,
            "qk_norm": "full" if options.flag(f"{get}qk_ln") else "head" if options.flag(f"{get}qk_gn") else "none",
            "qkv_bias": bias, "attention_out_bias": bias, "ffn_bias": bias, "positions": positions,
            "max_positions": options.whole("model.max_seq_len", default=2048) if positions == "learned" else 0,
            "window": max(0, int(options.number(f"{get}sliding_window_size", default=0))),
            "experts": {"experts": experts, "top_k": options.whole("model.ffn_config.moe_top_k", default=1), "ffn": ffn}
            if experts > 1 else None,
        },
        "model",
    )  # fmt: skip


def _sheared(options: Options, reading: Reading, layers: int, hidden: int, heads: int) -> Model:
    """LLM-Shearing's LLaMA (`mosaic_llama2_7b`), which it prunes by masks that train beside the weights."""
    if any(name.startswith("model.l0_module.") for name in options.values):
        reading.unmodelled("model.l0_module", "masks over heads and FFNs train beside the weights (pruning); the whole model is priced")  # fmt: skip
    options.read |= {name for name in options.values if name.startswith("model.l0_module")}
    options.read |= {"model.path", "model.rms_norm_eps", "optimizer.lag_lr", "model.attn_impl"}
    kernel = options.word("model.attn_impl", default="flash")
    reading.job["attention_kernel"] = "unfused" if kernel == "torch" else "flash"
    return Model.parse(
        {
            "name": "imported", "family": "llama", "layers": layers, "hidden": hidden, "heads": heads,
            "kv_heads": options.whole("model.n_kv_heads") or heads, "head_dim": hidden // heads,
            "ffn": options.whole("model.intermediate_size", least=1), "vocab": options.whole("model.vocab_size", default=32_000),
            "tied_embeddings": False,
        },
        "model",
    )  # fmt: skip


def _overridden(options: Options, reading: Reading) -> None:
    """What `config_overrides` changes of the attention of a model that is taken by its name."""
    get = "model.config_overrides.attn_config."
    if (
        options.word(f"{get}attn_impl") == "torch"
        or options.word("model.attn_implementation") == "eager"
    ):
        reading.job["attention_kernel"] = "unfused"
    if options.flag(f"{get}attn_uses_sequence_id"):
        reading.job["document_masking"] = True


def _sharding(options: Options, reading: Reading) -> None:
    from meshwright.imports.formats.accelerate import STRATEGY_ZERO

    strategy = options.text("fsdp_config.sharding_strategy", default="").upper()
    there = any(name.startswith(("fsdp_config", "parallelism_config")) for name in options.values)
    if there and not strategy:
        strategy = "FULL_SHARD"
    if strategy and strategy not in STRATEGY_ZERO:
        raise SpecError(
            "fsdp_config.sharding_strategy", strategy, f"one of {', '.join(STRATEGY_ZERO)}"
        )
    reading.layout = {
        "zero": STRATEGY_ZERO.get(strategy, 0),
        "recompute": "full" if options.flag("fsdp_config.activation_checkpointing") else "none",
        "tp": options.whole("tp_config.tensor_parallel_degree", "tp_config.degree", default=1) or 1,
    }
    reading.replicate = options.whole("fsdp_config.data_parallel_replicate_degree")
    shard = options.whole("fsdp_config.data_parallel_shard_degree", default=-1, least=-1)
    if shard > 0 and not reading.replicate:
        reading.shard = shard
    if options.flag("fsdp_config.activation_cpu_offload"):
        reading.offload.add("activations")
    if options.flag("fsdp_config.cpu_offload"):
        reading.offload |= {"optimizer", "parameters"}
    mixed = options.word("fsdp_config.mixed_precision", default="pure")
    if mixed == "full":
        reading.unmodelled("fsdp_config.mixed_precision", "weights are gathered in 32 bits; 16 are priced")  # fmt: skip
    reading.job["_mixed"] = mixed


def _job(options: Options, reading: Reading) -> None:
    precision = options.word("precision", default="amp_bf16")
    mixed = reading.job.pop("_mixed", "pure")
    if "fp8" in precision:
        recipe = RECIPES["fp8"]
    elif "bf16" in precision:
        recipe = RECIPES["bf16"].but(
            gradient_bytes=4, gradient_reduce_bytes=4 if mixed in ("default", "full") else 2
        )
    elif "fp16" in precision:
        recipe = RECIPES["fp16"]
    else:
        recipe = RECIPES["fp32"]
    name = options.text("optimizer.name", default="decoupled_adamw")
    reading.job |= {
        "framework": "llm-foundry",
        "precision": recipe.model_dump(),
        "optimizer": optimizer_named(name, "optimizer.name").model_dump(),
    }
    if options.has("model.peft_config.r", "model.peft_config.peft_type"):
        adapters(reading, rank=options.whole("model.peft_config.r", default=16), alpha=options.number("model.peft_config.lora_alpha"),
                 targets=options.raw("model.peft_config.target_modules"), option="model.peft_config.target_modules")  # fmt: skip
