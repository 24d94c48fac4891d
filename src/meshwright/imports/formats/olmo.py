"""OLMo's YAML."""

from __future__ import annotations

import re
from typing import Any

from meshwright.imports.formats.accelerate import STRATEGY_ZERO
from meshwright.imports.interpolate import resolved
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_named
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES
from meshwright.specs.model import Model

EDITS = {"micro_batch": "device_train_microbatch_size", "batch": "global_train_batch_size"}


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is OLMo's."""
    model = data.get("model")
    return (
        isinstance(model, dict)
        and "d_model" in model
        and "n_layers" in model
        and "train_loader" not in data
        and bool(set(model) & _OF_MODELS or set(data) & _OF_RUNS)
    )


_OF_MODELS = {"mlp_ratio", "mlp_hidden_size", "embedding_size", "max_sequence_length", "activation_type", "layer_norm_type"}  # fmt: skip
_OF_RUNS = {"global_train_batch_size", "device_train_microbatch_size", "max_duration", "distributed_strategy"}  # fmt: skip
"""Words that OLMo's configurations have and other programs' lack."""


def read(data: dict[str, Any], given: Given) -> Reading:
    """Return what an OLMo YAML runs.

    Raises:
        SpecError: a value that cannot be.
    """
    options = Options(flattened(resolved(data, dict(given.variables))))
    reading = Reading("OLMo YAML", options=dict(EDITS))
    reading.model = given.model or _model(options, reading)
    reading.seq_len = options.whole("model.max_sequence_length", default=2048)
    reading.global_batch = options.whole("global_train_batch_size")
    micro = options.raw("device_train_microbatch_size")
    reading.micro_batch = int(micro) if isinstance(micro, int) else 0
    strategy = options.text("fsdp.sharding_strategy", default="").upper().lstrip("_")
    there = any(name.startswith("fsdp.") for name in options.values)
    if strategy and strategy not in STRATEGY_ZERO:
        raise SpecError("fsdp.sharding_strategy", strategy, f"one of {', '.join(STRATEGY_ZERO)}")
    single = options.word("distributed_strategy") in ("ddp", "single")
    reading.layout["zero"] = 0 if single else STRATEGY_ZERO.get(strategy, 3 if there else 0)
    reading.job["document_masking"] = options.flag("data.generate_doc_lengths")
    reading.replicate = options.whole("fsdp.hybrid_sharding_num_model_replicas")
    again = options.word("activation_checkpointing", default="")
    some = re.match(r"(?:one|two|three)_in_", again) is not None
    reading.layout["recompute"] = "full" if some or again == "whole_layer" else "selective" if again == "fine_grained" else "none"  # fmt: skip
    if some:
        reading.unmodelled(
            "activation_checkpointing",
            f"{again}: only some layers are recomputed; all are priced so",
        )
    precision = options.word("precision", default="amp_bf16")
    inner = options.word("fsdp.precision", default="pure")
    recipe = (
        RECIPES["fp32"]
        if "32" in precision
        else RECIPES["bf16"].but(
            gradient_bytes=4, gradient_reduce_bytes=4 if inner == "mixed" else 2
        )
    )
    name = options.text("optimizer.name", default="adamw")
    reading.job |= {
        "framework": "fsdp",
        "precision": recipe.model_dump(),
        "optimizer": optimizer_named(name, "optimizer.name").model_dump(),
    }
    options.finish(reading, "olmo", "common", strict=given.strict)
    return reading


def _model(options: Options, reading: Reading) -> Model:
    layers, hidden, heads = (
        options.whole(f"model.{n}") for n in ("n_layers", "d_model", "n_heads")
    )
    if not (layers and hidden and heads):
        raise SpecError("model", None, "n_layers, d_model and n_heads are needed (or give --model)")
    activation = options.word("model.activation_type", default="swiglu")
    gated = activation in ("swiglu", "geglu")
    stated = options.whole("model.mlp_hidden_size") or int(
        options.number("model.mlp_ratio", default=4) * hidden
    )
    kv = options.whole("model.n_kv_heads") or (
        1 if options.flag("model.multi_query_attention") else heads
    )
    norm = options.word("model.layer_norm_type", default="default")
    affine = options.flag("model.layer_norm_with_affine", default=True)
    alibi, rope = options.flag("model.alibi"), options.flag("model.rope")
    bias = options.flag("model.include_bias", default=True)
    normed = options.flag("model.attention_layer_norm")
    flash = options.flag("model.flash_attention")
    dropout = options.number("model.residual_dropout", default=0.1)
    if not flash:
        reading.job["attention_kernel"] = "memory-efficient"
        reading.note(
            "flash_attention is off: PyTorch's own kernel is priced", "model.flash_attention"
        )
    reading.job["dropout"] = dropout
    return Model.parse(
        {
            "name": "imported", "family": "olmo", "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv,
            "head_dim": hidden // heads,
            # Its gated activations halve the width that the configuration names.
            "ffn": stated // 2 if gated else stated,
            "vocab": options.whole("model.embedding_size") or options.whole("model.vocab_size", default=50_304),
            "gated": gated, "tied_embeddings": options.flag("model.weight_tying", default=True),
            "norm": "rmsnorm" if norm == "rms" else "layernorm", "norm_weight": affine,
            "norm_bias": affine and options.flag("model.bias_for_layer_norm", default=bias) and norm != "rms",
            "qk_norm": "full" if normed else "none", "qkv_bias": bias, "attention_out_bias": bias, "ffn_bias": bias,
            "positions": "alibi" if alibi else "rope" if rope else "learned",
            "max_positions": 0 if alibi or rope else options.whole("model.max_sequence_length", default=2048),
            "parallel_block": options.word("model.block_type") == "parallel",
            "experts": _mixture(options, reading, stated // 2 if gated else stated),
        },
        "model",
    )  # fmt: skip


def _mixture(options: Options, reading: Reading, ffn: int) -> dict[str, Any] | None:
    """The experts of OLMoE's blocks, each as wide as a dense block's FFN would be."""
    count = options.whole("model.moe_num_experts")
    if options.word("model.block_type") != "moe" or count < 2:
        return None
    if not options.flag("model.moe_dropless", default=True):
        reading.unmodelled("model.moe_dropless", "tokens over the capacity are dropped; the estimate drops none")  # fmt: skip
    shared = options.flag("model.moe_shared_expert")
    return {
        "experts": count,
        "top_k": options.whole("model.moe_top_k", default=2, least=1),
        "ffn": ffn,
        "shared_ffn": ffn if shared else 0,
    }
