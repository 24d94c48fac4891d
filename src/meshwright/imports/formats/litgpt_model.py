"""The model that a LitGPT configuration describes under `model_config`: its class's defaults below what it says."""

from __future__ import annotations

from typing import Any

from meshwright.imports.options import Options
from meshwright.specs.errors import SpecError
from meshwright.specs.model import Model

_PREFIX = "model_config."
_SIZES = ("n_layer", "n_embd", "n_head", "n_query_groups", "head_size", "intermediate_size", "vocab_size", "padded_vocab_size", "mlp_class_name", "n_expert")  # fmt: skip
_GATED = ("LLaMAMLP", "GemmaMLP", "LLaMAMoE")


def described(options: Options) -> Model | None:
    """The model by litgpt.Config's fields (litgpt/config.py); None where the table only names one.

    Raises:
        SpecError: a shape that cannot be.
    """
    if not any(options.values.get(f"{_PREFIX}{name}") is not None for name in _SIZES):
        return None
    layers, hidden, heads = (_whole(options, name, usual) for name, usual in (("n_layer", 16), ("n_embd", 4096), ("n_head", 32)))  # fmt: skip
    unit = options.text(f"{_PREFIX}mlp_class_name", default="GptNeoxMLP")
    gated = unit in _GATED
    ffn = _whole(options, "intermediate_size", 0 if gated else 4 * hidden)
    if not ffn:
        raise SpecError(f"{_PREFIX}intermediate_size", None, f"the width of its FFNs is expected beside {unit}")  # fmt: skip
    multiple = _whole(options, "padding_multiple", 512)
    rows = -(-_whole(options, "vocab_size", 50_254) // multiple) * multiple
    bias = options.flag(f"{_PREFIX}bias", default=True)
    fields: dict[str, Any] = {
        "name": "imported", "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": _whole(options, "n_query_groups", heads),
        "head_dim": _whole(options, "head_size", hidden // heads), "ffn": ffn, "gated": gated, "vocab": _whole(options, "padded_vocab_size", rows),
        "norm": "rmsnorm" if options.text(f"{_PREFIX}norm_class_name") == "RMSNorm" else "layernorm",
        "parallel_block": options.flag(f"{_PREFIX}parallel_residual", default=True), "tied_embeddings": options.flag("train.tie_embeddings"),
        "qkv_bias": bias or options.flag(f"{_PREFIX}attn_bias"), "attention_out_bias": bias, "ffn_bias": bias,
        "qk_norm": "head" if options.flag(f"{_PREFIX}norm_qk") else "none", "window": _whole(options, "sliding_window_size", 0),
    }  # fmt: skip
    if (experts := _whole(options, "n_expert", 0)) > 1:
        each = _whole(options, "moe_intermediate_size", ffn)
        fields["experts"] = {"experts": experts, "top_k": _whole(options, "n_expert_per_token", 1), "ffn": each,
                             "shared_ffn": _whole(options, "n_shared_expert", 0) * each}  # fmt: skip
    return Model.parse(fields, "model_config")


def _whole(options: Options, name: str, usual: int) -> int:
    return options.whole(f"{_PREFIX}{name}") or usual
