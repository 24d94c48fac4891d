"""What overrides of a Megatron-Bridge recipe change that no flag of Megatron-LM says: switches, shapes, adapters."""

from __future__ import annotations

from typing import Any

from meshwright.imports.code.values import Made
from meshwright.imports.reading import Reading
from meshwright.imports.tuning import adapters
from meshwright.specs.model import Experts, Model

_FUSION = "a kernel's fusion is switched; the estimate takes the framework's usual kernels"
_REDUCED = "gradients are reduced after the backward; the recipe's default is priced"
_GATHERED = "weights are gathered before the forward; the recipe's default is priced"
_ON = {
    # On in a recipe; what it means that an override switches it off.
    "model.gradient_accumulation_fusion": "gradients are added by kernels of their own; the estimate fuses them",
    "model.masked_softmax_fusion": _FUSION,
    "model.cross_entropy_loss_fusion": _FUSION,
    "model.bias_activation_fusion": _FUSION,
    "model.bias_dropout_fusion": _FUSION,
    "model.apply_rope_fusion": _FUSION,
    "model.moe_grouped_gemm": "experts run one by one; grouped products are priced",
    "model.moe_permute_fusion": _FUSION,
    "model.deallocate_pipeline_outputs": "a stage keeps what it sent: more memory than estimated",
    "ddp.overlap_grad_reduce": _REDUCED,
    "ddp.overlap_param_gather": _GATHERED,
    "comm_overlap.overlap_grad_reduce": _REDUCED,
    "comm_overlap.overlap_param_gather": _GATHERED,
    "comm_overlap.tp_comm_overlap": "tensor-parallel collectives wait; the estimate assumes the framework's default",
}  # fmt: skip


USUAL = (*(f for f, what in _ON.items() if what == _FUSION), "model.deallocate_pipeline_outputs")
"""Fields that say nothing new where an override has them on."""
_BARE = "vanilla_gpt"
_OFF_IN_BARE = {
    "model.bias_activation_fusion": ("model.gated_linear_unit", "true"),
    "model.bias_dropout_fusion": None,
    "model.apply_rope_fusion": ("model.position_embedding_type", "rope"),
}
"""What the recipe of a bare model, which takes Megatron-Core's own defaults, leaves off unless it is told, and where it
would do something."""


def override(words: list[str], field: str) -> str:
    """What an override says of a field, the last one counting; empty where there is none."""
    said = [w.lstrip("+").partition("=")[2] for w in words if w.lstrip("+").startswith(f"{field}=")]
    return said[-1].strip("\"'") if said else ""


def switched_off(words: list[str], recipe: str = "") -> list[tuple[str, str]]:
    """Fields that overrides turn against the recipe's default, and what that means."""
    bare = _OFF_IN_BARE.items() if recipe.startswith(_BARE) else ()
    unsaid = [
        field
        for field, where in bare
        if not override(words, field) and (where is None or override(words, where[0]) == where[1])
    ]
    return [
        (field, what)
        for field, what in _ON.items()
        if override(words, field).lower() == "false" or field in unsaid
    ]


def reshaped(model: Model, words: list[str], flags: dict[str, Any]) -> Model:
    """The recipe's model with what overrides change of its shape."""
    changed: dict[str, Any] = _numbers(model, _SIZES, words, flags)
    if model.experts is not None:
        of_experts = _numbers(model.experts, _OF_EXPERTS, words, flags)
        if of_experts:
            changed["experts"] = model.experts.but(**of_experts)
    normed = override(words, "model.qk_layernorm").lower()
    if normed in ("true", "false") and not model.latent_attention and (normed == "true") != (model.qk_norm != "none"):  # fmt: skip
        changed["qk_norm"] = "head" if normed == "true" else "none"
    tied = override(words, "model.share_embeddings_and_output_weights").lower()
    if tied in ("true", "false"):
        changed["tied_embeddings"] = tied == "true"
    changed = {name: value for name, value in changed.items() if value != getattr(model, name)}
    return model.but(name="imported", **changed) if changed else model


_SIZES = {
    "num_layers": "layers", "vocab_size": "vocab", "ffn_hidden_size": "ffn", "hidden_size": "hidden", "num_attention_heads": "heads",
    "num_query_groups": "kv_heads", "kv_channels": "head_dim",
}  # fmt: skip
_OF_EXPERTS = {
    "num_moe_experts": "experts", "moe_router_topk": "top_k", "moe_ffn_hidden_size": "ffn",
    "moe_shared_expert_intermediate_size": "shared_ffn",
}  # fmt: skip
_FLAGS = {"num_moe_experts": "num-experts"}


def _numbers(
    part: Model | Experts, names: dict[str, str], words: list[str], flags: dict[str, Any]
) -> dict[str, int]:
    """Numbers of a part that overrides change, whose flags are done with."""
    found: dict[str, int] = {}
    for theirs, ours in names.items():
        said = override(words, f"model.{theirs}")
        if said.isdigit() and int(said) != getattr(part, ours):
            found[ours] = int(said)
        flags.pop(_FLAGS.get(theirs, theirs.replace("_", "-")), None)
    return found


_KINDS = {
    "model.experimental_attention_variant": "another kind of attention; softmax attention over all tokens is priced",
    "model.linear_attention_freq": "layers of linear attention; softmax attention is priced",
    "model.heterogeneous_layers_config_path": "layers of several shapes; the recipe's are priced",
    "model.is_hybrid_model": "state-space layers; the recipe's are priced",
    "model.hybrid_layer_pattern": "layers of several kinds; the recipe's are priced",
    "model.softmax_type": "another softmax; numerics only, or one number a head",
    "model.position_embedding_type": "other positions than the recipe's, which are priced",
    "model.activation_func": "another activation than the recipe's, which is priced",
    "model.gated_linear_unit": "an FFN of another form than the recipe's, which is priced",
    "model.add_bias_linear": "biases are switched; the recipe's are priced",
    "model.window_attn_skip_freq": "which layers see a window; the recipe's are priced",
}  # fmt: skip


def other_kinds(words: list[str]) -> list[tuple[str, str]]:
    """Overrides that change what a recipe's model is made of, where its sizes alone are read."""
    off = {"", "null", "none"}
    said = {field: override(words, field).lower() for field in _KINDS}
    return [
        (field, what)
        for field, what in _KINDS.items()
        if said[field] not in (off - {"none"} if "position" in field else off)
    ]


def adapted(peft: Made, reading: Reading) -> None:
    """Adapters as a recipe's `peft` sets them."""
    rank, alpha = peft.fields.get("dim"), peft.fields.get("alpha")
    adapters(
        reading, method="dora" if "DoRA" in peft.name else "lora", rank=rank if isinstance(rank, int) else 32,
        alpha=float(alpha) if isinstance(alpha, (int, float)) else 0.0,
        targets=peft.fields.get("target_modules"), option="peft.target_modules",
    )  # fmt: skip
    if not isinstance(rank, int):
        reading.guess("peft.dim", "the adapters' rank is not stated here; 32 is taken")
