"""Primus (AMD): a plan as its YAML experiment on the Megatron backend, and back.

Primus merges the YAML into the namespace that Megatron-LM's own parser would give, so the overrides
are the flags of Megatron-LM under the names of their destinations, with typed values. Every setting
that its module and model defaults change is written out (primus/configs of AMD-AGI/Primus).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import yaml

from meshwright.exports import megatron
from meshwright.exports.bundle import comment
from meshwright.specs.plan import Plan

LIMITS = replace(megatron.LIMITS, title="Primus", framework="primus")
VERSION = LIMITS.can.checked

_NEGATED = {
    # Destination that is true unless its flag is given → the flag.
    "add_bias_linear": "disable-bias-linear",
    "gradient_accumulation_fusion": "no-gradient-accumulation-fusion",
    "create_attention_mask_in_dataloader": "no-create-attention-mask-in-dataloader",
    "apply_rope_fusion": "no-rope-fusion",
    "yarn_correction_range_round_to_int": "no-yarn-correction-range-round-to-int",
}
_RENAMED = {"fp8": "fp8-format", "fp4": "fp4-format"}
_LISTS = (
    "recompute-modules",
    "window-size",
    "offload-modules",
    "hierarchical-context-parallel-sizes",
)
_TEXTS = ("pipeline-model-parallel-layout", "moe-layer-freq")
_DEFAULTS = {
    # What Primus' own YAML files set otherwise than Megatron-LM, at Megatron-LM's values.
    "swiglu": False, "group_query_attention": False, "sequence_parallel": False,
    "untie_embeddings_and_output_weights": False, "use_distributed_optimizer": False,
    "finetune": False, "lr_warmup_iters": 0, "override_opt_param_scheduler": False,
}  # fmt: skip


def notes(plan: Plan) -> tuple[str, ...]:
    """Where Primus is not at home."""
    if plan.cluster.device.vendor == "amd":
        return megatron.notes(plan)
    return (
        *megatron.notes(plan),
        "Primus is AMD's and its containers are ROCm's: on other devices its Megatron backend is started in NVIDIA's "
        "container of NeMo, which AMD does not test",
    )


def overrides(plan: Plan) -> dict[str, Any]:
    """Destination of a Megatron-LM argument → its value, typed."""
    flags = megatron.all_flags(plan)
    found: dict[str, Any] = dict(_DEFAULTS)
    found["add_bias_linear"] = True
    # Primus's own trainer computes in bf16 unless it is told not to.
    found["bf16"] = False
    # Random tokens, until the command line names data (inputs.py).
    found |= {"mock_data": True, "tokenizer_type": "NullTokenizer"}
    spelled = {flag: (name, False) for name, flag in _NEGATED.items()}
    names = {flag: name for name, flag in _RENAMED.items()}
    for flag, value in flags.items():
        if flag in spelled:
            found[spelled[flag][0]] = False
        else:
            found[names.get(flag, flag.replace("-", "_"))] = _typed(flag, value)
    return found


def _typed(flag: str, value: str | bool) -> Any:
    if isinstance(value, bool) or flag in _TEXTS:
        return value
    if flag in _LISTS:
        return [_scalar(part) for part in value.replace(",", " ").split()]
    return _scalar(value)


def _scalar(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def files(plan: Plan, command: str) -> dict[str, str]:
    """`primus.yaml`."""
    data = {
        "work_group": "meshwright",
        "user_name": "meshwright",
        "exp_name": "plan",
        "workspace": "./output",
        "modules": {
            "pre_trainer": {
                "framework": "megatron",
                "config": "pre_trainer.yaml",
                "model": "language_model.yaml",
                "overrides": overrides(plan),
            }
        },
    }
    text = comment(plan, command, f"Primus {VERSION}") + yaml.safe_dump(data, sort_keys=False)
    return {"primus.yaml": text}
