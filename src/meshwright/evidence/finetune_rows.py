"""What a row says of fine-tuning: its method, adapters, storage of frozen weights, loss, optimizer."""

from __future__ import annotations

import re
from typing import Any

from meshwright.evidence.machines import SkipRow
from meshwright.evidence.rows import Row
from meshwright.evidence.software import SourceRule
from meshwright.specs.finetune import Finetune, finetune_recipe
from meshwright.specs.job import attention_lora

LORA_RANK = 16
"""Rank of the adapters in the MLPerf fine-tuning rules, used where a row says only "LoRA"."""

_UNMODELLED = (
    (r"Finetuning with Adapter", "LLaMA-Adapter prompts are not modelled"),
    (r"offload", "offloading is not told apart in this table"),
    (r"Fuse optimizer step into backward|8-bit AdamW", "the optimizer in backward is not modelled"),
)


def finetune_of(row: Row, rule: SourceRule, assumed: list[str]) -> Finetune | None:
    """Return the fine-tuning that a row describes; None where all weights train.

    The source's documented adapters (`adapters` of data/sources.toml) fill what the row leaves open.

    Raises:
        SkipRow: a technique that the cost model does not know.
    """
    text = f"{row['model']}; {row['setup']}; {row['precision']}"
    method = re.sub(r"each added on top.*", "", text)
    known: dict[str, Any] | None = rule.default("adapters")
    if known is not None:
        for pattern, why in _UNMODELLED:
            if re.search(pattern, text, re.IGNORECASE):
                raise SkipRow(why)
    quantised = re.search(r"QLoRA|Q-LoRA|bnb\.nf4", method)
    if not (rule.lora or quantised or re.search(r"\bLoRA\b", method)):
        return None
    if known is None:
        return attention_lora(LORA_RANK)
    fields: dict[str, Any] = {"method": "qlora" if quantised else "lora", **known}
    assumed.append(f"adapters={known}")
    if stated := re.search(r"\b(?:r=|rank )(\d+)", text):
        fields["rank"] = int(stated.group(1))
    if quantised:
        fields["storage"] = "int4" if "int4" in text else "nf4"
        fields["double_quantization"] = "nf4-dq" in text or bool(known.get("double_quantization"))
    else:
        fields.pop("upcast", None)
        fields.pop("double_quantization", None)
    if "embedding and output layer also trained" in text:
        fields["train"] = ("embedding", "head")
    return finetune_recipe(fields)
