"""What overrides of a Megatron-Bridge recipe change that no flag of Megatron-LM says: switches, shapes, adapters."""

from __future__ import annotations

from typing import Any

from meshwright.imports.pyvalues import Made
from meshwright.imports.reading import Reading
from meshwright.imports.tuning import adapters
from meshwright.specs.model import Model

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


def override(words: list[str], field: str) -> str:
    """What an override says of a field, the last one counting; empty where there is none."""
    said = [w.lstrip("+").partition("=")[2] for w in words if w.lstrip("+").startswith(f"{field}=")]
    return said[-1].strip("\"'") if said else ""


def switched_off(words: list[str]) -> list[tuple[str, str]]:
    """Fields that overrides turn against the recipe's default, and what that means."""
    return [(field, what) for field, what in _ON.items() if override(words, field).lower() == "false"]  # fmt: skip


def reshaped(model: Model, words: list[str], flags: dict[str, Any]) -> Model:
    """The recipe's model with what overrides change of its shape."""
    names = {"num_layers": "layers", "vocab_size": "vocab", "ffn_hidden_size": "ffn"}
    changed: dict[str, Any] = {}
    for theirs, ours in names.items():
        said = override(words, f"model.{theirs}")
        if said.isdigit() and int(said) != getattr(model, ours):
            changed[ours] = int(said)
        flags.pop(theirs.replace("_", "-"), None)
    experts = override(words, "model.num_moe_experts")
    if experts.isdigit() and model.experts is not None:
        changed["experts"] = model.experts.but(experts=int(experts))
        flags.pop("num-experts", None)
    tied = override(words, "model.share_embeddings_and_output_weights").lower()
    if tied in ("true", "false"):
        changed["tied_embeddings"] = tied == "true"
    changed = {name: value for name, value in changed.items() if value != getattr(model, name)}
    return model.but(name="imported", **changed) if changed else model


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
