"""nanotron's YAML, experts included."""

from __future__ import annotations

from typing import Any

from meshwright.exports.nanotron import ENGINES
from meshwright.imports.names import PLANNED
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_named
from meshwright.imports.shapes import llama_like
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES
from meshwright.specs.model import Model

EDITS = {
    "tp": "parallelism.tp", "pp": "parallelism.pp", "dp": "parallelism.dp", "micro_batch": "tokens.micro_batch_size",
    "accumulation": "tokens.batch_accumulation_per_replica", "zero": "optimizer.zero_stage",
    "recompute": "parallelism.recompute_layer",
}  # fmt: skip
_BUCKET_MIB = 25
_SHAPE = {
    "layers": ("model.model_config.num_hidden_layers",), "hidden": ("model.model_config.hidden_size",),
    "heads": ("model.model_config.num_attention_heads",), "kv_heads": ("model.model_config.num_key_value_heads", "model.model_config.num_kv_heads"),
    "head_dim": ("model.model_config.head_dim",), "ffn": ("model.model_config.intermediate_size",),
    "vocab": ("model.model_config.vocab_size",),
}  # fmt: skip

_USUAL = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 11_008, "vocab_size": 32_000,
}  # fmt: skip
"""Sizes of LlamaConfig and Qwen2Config where nothing is said (nanotron/config/models_config.py)."""


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is nanotron's."""
    named = sum(one in data for one in ("parallelism", "model", "tokens"))
    tables = any(isinstance(data.get(one), dict) for one in ("parallelism", "model", "tokens"))
    return "tokens" in data and named > 1 and tables  # axolotl's `tokens` stands alone


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what a nanotron configuration runs.

    Raises:
        SpecError: a missing table, or a value that cannot be.
    """
    for table in ("parallelism", "tokens", "model"):
        if not isinstance(data.get(table), dict):
            raise SpecError(table, data.get(table), "nanotron needs this table")
    options = Options(flattened(data))
    reading = Reading("nanotron YAML", options=dict(EDITS))
    engines = {ours: theirs for theirs, ours in ENGINES.items()}
    engine = options.word("parallelism.pp_engine", default="1f1b")
    if engine not in engines:
        raise SpecError("parallelism.pp_engine", engine, "1f1b or afab is expected")
    reading.model = given.model or _model(options, reading)
    reading.dp = options.whole("parallelism.dp", default=1, least=1)
    ep = options.whole("parallelism.expert_parallel_size", default=1, least=1)
    tp = options.whole("parallelism.tp", default=1, least=1)
    linear = options.word("parallelism.tp_mode")
    reading.layout = {
        "tp": tp,
        "pp": options.whole("parallelism.pp", default=1, least=1),
        "cp": options.whole("parallelism.context_parallel_size", default=1, least=1),
        "ep": ep if reading.model is not None and reading.model.experts else 1,
        "schedule": engines[engine],
        "sequence_parallel": linear == "reduce_scatter",
        "recompute": "full" if options.flag("parallelism.recompute_layer") else "none",
        "zero": options.whole("optimizer.zero_stage"),
    }
    if options.flag("parallelism.moe_layer_recompute") and reading.layout["recompute"] == "none":
        reading.layout |= {"recompute": "selective", "recompute_modules": ["moe"]}
    if ep > 1:
        reading.unmodelled(
            "parallelism.expert_parallel_size",
            f"is an axis of its own in nanotron's older releases ({ep} times the devices of tp, pp and dp, with the same samples; "
            "newer ones start with 1 alone): experts are priced as spread over the devices of the other axes",
        )
    reading.micro_batch = options.whole("tokens.micro_batch_size", default=1, least=1)
    reading.accumulation = options.whole(
        "tokens.batch_accumulation_per_replica", default=1, least=1
    )
    reading.seq_len = options.whole("tokens.sequence_length")
    wide = options.flag("optimizer.accumulate_grad_in_fp32", default=True)
    dtype = options.word("model.dtype", default="bfloat16")
    recipe = RECIPES[
        "fp32"
        if dtype in ("float32", "fp32")
        else "fp16"
        if dtype == "float16"
        else "bf16-fp32-grads"
        if wide
        else "pure-bf16"
    ]
    name = options.text("optimizer.optimizer_factory.name", default="adamW")
    reading.job = {
        "framework": "nanotron",
        "precision": recipe.model_dump(),
        "optimizer": optimizer_named(name, "optimizer.optimizer_factory.name").model_dump(),
    }
    own = _behaviour(options)
    if own:
        reading.job["framework_options"] = own
    _stages(data, reading)
    reading.count_steps(options, "tokens.train_steps")
    if options.flag("model.model_config._use_doc_masking"):
        reading.job["document_masking"] = True
    kernel = options.word("model.model_config._attn_implementation", default="flash_attention_2")
    if kernel == "eager":
        reading.job["attention_kernel"] = "unfused"
    elif not kernel.startswith(("flash_attention", "llama3_ring", "ring")):
        reading.unmodelled("model.model_config._attn_implementation", f"{kernel[:40]} in place of FlashAttention, which is priced")  # fmt: skip
    if dtype not in ("bfloat16", "bf16", "float32", "fp32", "float16"):
        raise SpecError("model.dtype", dtype, "bfloat16, float16 or float32 can be priced")
    options.finish(reading, "nanotron", "common", strict=given.strict)
    return reading


def _behaviour(options: Options) -> dict[str, bool | int | float | str]:
    """Deviations from what `framework: nanotron` assumes: buckets of 25 MiB, a fused AdamW, no padding."""
    found: dict[str, bool | int | float | str] = {}
    bucket = options.number("model.ddp_bucket_cap_mb", default=_BUCKET_MIB)
    if bucket not in (0, _BUCKET_MIB):
        found["bucket_parameters"] = bucket * 2**20 / 2.0
    if not options.flag(
        "optimizer.optimizer_factory.torch_adam_is_fused",
        "optimizer.torch_adam_is_fused",
        default=True,
    ):
        found["optimizer_fused"] = False
    multiple = options.whole("model.make_vocab_size_divisible_by", default=1)
    if multiple > 1:
        found["vocab_multiple"] = multiple
    return found


def _stages(data: dict[str, Any], reading: Reading) -> None:
    """Name stages of the data that train on sequences of another length."""
    stages = data.get("data_stages")
    for stage in stages if isinstance(stages, list) else []:
        length = stage.get("sequence_length") if isinstance(stage, dict) else None
        if isinstance(length, int) and length != reading.seq_len:
            reading.unmodelled("data_stages.sequence_length", f"a stage trains on sequences of {length}; {reading.seq_len} is priced")  # fmt: skip


def _model(options: Options, reading: Reading) -> Model:
    get = "model.model_config."
    if options.flag(f"{get}is_mamba_config") or options.has(f"{get}ssm_cfg", f"{get}d_model"):
        raise SpecError("model.model_config", "mamba", f"a state-space model is not modelled: {PLANNED}")  # fmt: skip
    if any(options.flag(f"{get}is_{kind}_config") for kind in ("llama", "qwen2")):
        for name, usual in _USUAL.items():
            if f"{get}{name}" not in options:
                options.values[f"{get}{name}"] = usual
                reading.note(f"is nanotron's own, {usual:,}", f"{get}{name}")
    hidden, heads = (
        options.values.get(f"{get}hidden_size"),
        options.values.get(f"{get}num_attention_heads"),
    )
    if (
        isinstance(hidden, int)
        and isinstance(heads, int)
        and heads
        and hidden % heads
        and not options.has(f"{get}head_dim")
    ):
        raise SpecError(
            "num_attention_heads", heads, f"a divisor of hidden_size = {hidden} is expected"
        )
    bias = options.flag(f"{get}attention_bias")
    fixed: dict[str, Any] = {
        "tied_embeddings": options.flag(f"{get}tie_word_embeddings"),
        "qkv_bias": bias,
        "qk_norm": "head" if options.flag(f"{get}use_qk_norm", f"{get}qk_norm") else "none",
    }
    window = options.whole(f"{get}sliding_window_size", f"{get}sliding_window")
    if window:
        fixed["window"] = window
    if options.flag(f"{get}is_starcoder2_config"):
        biased = {"qkv_bias": True, "attention_out_bias": True, "ffn_bias": True}
        fixed |= {"gated": False, "norm": "layernorm", "norm_bias": True, **biased}
    ffn = options.whole(f"{get}intermediate_size")
    for places in ("moe_config.", ""):
        experts = options.whole(
            f"{get}{places}num_experts",
            f"{get}{places}moe_num_experts",
            f"{get}{places}num_local_experts",
        )
        if experts > 1:
            fixed["experts"] = _experts(options, f"{get}{places}", experts, ffn)
            break
    if options.raw(f"{get}no_rope_layer"):
        reading.note("some layers have no rotary embedding", "no_rope_layer")
    return llama_like(options, _SHAPE, **fixed)


def _experts(options: Options, get: str, experts: int, ffn: int) -> dict[str, Any]:
    width = options.whole(
        f"{get}moe_intermediate_size", f"{get}expert_intermediate_size", default=ffn
    )
    shared = options.flag(f"{get}enable_shared_expert")
    return {
        "experts": experts,
        "top_k": options.whole(
            f"{get}top_k", f"{get}num_experts_per_tok", f"{get}num_experts_per_token", default=2
        ),
        "ffn": width,
        "shared_ffn": options.whole(f"{get}shared_expert_intermediate_size", default=width)
        if shared
        else 0,
    }
