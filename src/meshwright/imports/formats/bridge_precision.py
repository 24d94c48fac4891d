"""The precision of a Megatron-Bridge or NeMo 2 recipe: one of their named ones, then what is changed on it."""

from __future__ import annotations

import re
from typing import Any

from meshwright.imports.code.values import Made

_KEPT = {"fp8_dot_product_attention": False, "fp8_multi_head_attention": False, "fp8_wgrad": True, "fp8_margin": 0,
         "first_last_layers_bf16": False, "fp4_param_gather": False, "fp8": None}  # fmt: skip
"""Fields of a precision that change nothing where they stand at this."""
_WIDTHS = ("fp8", "fp4", "first_last_layers", "num_layers_at", "reuse_grad_buf")


def precision_words(value: Any) -> list[str]:
    """A precision, named or made and then changed, as overrides: which recipe, then its fields."""
    one = value[0] if isinstance(value, list) and value else value
    name = one if isinstance(one, str) else "bf16_mixed"
    fields: dict[str, Any] = {}
    if isinstance(one, Made):
        fields = one.fields
        called = one.args[0] if one.args and isinstance(one.args[0], str) else one.name
        name = called.rsplit(".", 1)[-1] if "mixed" in called else "bf16_mixed"
        precision = str(fields.get("precision", "")).lower()
        if fields.get("fp16") is True or (precision.startswith("16") or "fp16" in precision):
            name = "fp16_mixed"
        elif precision.startswith("32"):
            name = "none"
    name = name.replace("-", "_")
    off = [key for key in ("fp8", "fp4") if key in fields and not fields[key]]
    for key in off:  # a recipe of 8 bits whose 8 bits are switched off again
        name = re.sub(rf"_with_\w*{key}\w*_mixed", "_mixed", name)
    words = [f"mixed_precision={name or 'bf16_mixed'}"]
    wide = fields.get("grad_reduce_in_fp32")
    if isinstance(wide, bool) or name.startswith("fp16"):
        words.append(f"ddp.grad_reduce_in_fp32={str(wide is True).lower()}")
    narrow = any(fields.get(key) for key in ("fp8", "fp4")) or "fp8" in name or "fp4" in name
    for field, said in fields.items():
        changed = narrow and field.startswith(_WIDTHS) and said != _KEPT.get(field)
        if changed and isinstance(said, (str, int)):
            text = str(said).lower() if isinstance(said, bool) else said
            words.append(f"mixed_precision.{field}={text}")
    return words
