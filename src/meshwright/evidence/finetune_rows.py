"""What a row says of fine-tuning: its method, adapters, storage of frozen weights, loss, optimizer."""

from __future__ import annotations

import re
from typing import Any

from meshwright.costs.frameworks import framework
from meshwright.evidence.machines import SkipRow
from meshwright.evidence.rows import Row
from meshwright.evidence.software import SourceRule
from meshwright.evidence.stated import says
from meshwright.specs.finetune import Finetune, finetune_recipe
from meshwright.specs.job import attention_lora

LORA_RANK = 16
"""Rank of the adapters in the MLPerf fine-tuning rules, used where a row says only "LoRA"."""

ALL_LINEAR = "all-linear"
"""Every matrix of a layer: a word that a source's list of names makes precise."""

_UNMODELLED = (
    (r"Finetuning with Adapter", "LLaMA-Adapter prompts are not modelled"),
    (r"offload", "offloading is not told apart in this table"),
    (r"Fuse optimizer step into backward|8-bit AdamW", "the optimizer in backward is not modelled"),
)


def finetune_of(row: Row, rule: SourceRule, assumed: list[str]) -> Finetune | None:
    """Return the fine-tuning that a row describes; None for training that is no fine-tuning.

    The source's documented adapters (`adapters` of data/sources.toml) fill what the row leaves open.

    Raises:
        SkipRow: a technique that the cost model does not know.
    """
    text = _LATENT.sub("", f"{row['model']}; {row['setup']}; {row['precision']}")
    method = re.sub(r"each added on top.*", "", text)
    known: dict[str, Any] | None = rule.default("adapters")
    if known is not None:
        for pattern, why in _UNMODELLED:
            if re.search(pattern, text, re.IGNORECASE):
                raise SkipRow(why)
    if _FULL.search(method):
        return finetune_recipe("full")
    # An optimizer's or a kernel's bits are no weights'.
    weights = _OPTIMIZER_BITS.sub("", method)
    quantised = says(r"Q-?LoRA|bnb\.nf4|\bnf4\b|\bfp4 base|load_in_4bit|4-?bit|int4", weights)
    eight = not quantised and says(r"load_in_8bit|LLM\.int8|\bint8\b|8-?bit", weights)
    if not (
        rule.lora
        or quantised
        or re.search(r"(?<![a-z])(?:Do)?LoRA(?![a-z])|\bpeft\b", method, re.IGNORECASE)
    ):
        return None
    if known is None and not _STATED.search(text) and not quantised and not eight:
        assumed.append(f"adapters of rank {LORA_RANK} on attention")
        return attention_lora(LORA_RANK)
    fields: dict[str, Any] = {"method": "qlora" if quantised else "lora", **(known or {})}
    if re.search(r"\bDoRA\b", method) and not quantised:
        fields["method"] = "dora"
    if stated := _STATED.search(text):
        fields["rank"] = int(next(filter(None, stated.groups())))
    targets = _targets(text)
    if targets and (known is None or targets != [ALL_LINEAR]):
        fields["targets"] = targets
    assumed.append(f"adapters={fields}")
    if quantised and known is None and not _COMPUTE.search(text) and not _SETS_COMPUTE.search(text):
        assumed.append(COMPUTED)
    if quantised:
        fields["storage"] = "int4" if re.search(r"int4|gptq|awq", text, re.IGNORECASE) else "nf4"
        double = says(r"nf4-dq|double[_ ]quant", text)
        if known is None and not re.search(r"double[_ ]quant|bnb\.nf4", text):
            double = double or bool(_QUANTISED_TWICE.search(text))
        fields["double_quantization"] = bool(double or (known or {}).get("double_quantization"))
        if known is None and fields["storage"] == "nf4" and _prepared_by_peft(row, rule, text):
            fields["upcast"] = True
    else:
        fields.pop("upcast", None)
        fields.pop("double_quantization", None)
        if eight and known is None:
            fields["storage"] = "int8"  # bitsandbytes' LLM.int8
    if re.search(r"embedding and (?:output layer|head) also trained|modules_to_save", text):
        fields["train"] = ("embedding", "head")
    return finetune_recipe(fields)


def _prepared_by_peft(row: Row, rule: SourceRule, text: str) -> bool:
    """Whether PEFT casts what is not quantised (embedding, head, norms) to fp32.

    peft/utils/other.py, prepare_model_for_kbit_training: of bitsandbytes' models all 16-bit parameters,
    of GPTQ's, AQLM's, EETQ's, HQQ's and torchao's none. TRL, axolotl and most scripts call it; LLaMA-Factory,
    Unsloth, fms-acceleration, and models that FSDP or ZeRO-3 shards have preparations of their own; axolotl
    casts what PEFT cast back (loaders/model.py, `should_convert`).
    """
    if framework(rule.framework).modules != "transformers" or rule.framework in (
        "torchtune",
        "litgpt",
    ):
        return False
    others = r"unsloth|llama-?factory|axolotl|fms[-_ ]acceleration|fsdp|zero[-_ ]?(?:stage)?[-_ ]?3"
    return not re.search(others, f"{text}; {row['zero_or_fsdp']}", re.IGNORECASE)


COMPUTED = "4-bit weights multiplied in 16 bits (bitsandbytes' own default is fp32)"
"""What is assumed of a run that does not print its bnb_4bit_compute_dtype: BitsAndBytesConfig leaves it at float32, and
torch multiplies fp32 without TF32 unless it is told otherwise; scripts mostly set bf16."""
_COMPUTE = re.compile(
    r"compute[-_ ]d?type|(?:bf|fp)16[- ]compute|nf4[-/](?:bf|fp)16", re.IGNORECASE
)
_SETS_COMPUTE = re.compile(
    r"unsloth|axolotl|llama-?factory|torchtune|swift|fms[-_ ]acceleration|litgpt|lit-gpt|xtuner",
    re.IGNORECASE,
)
"""Programs that set it themselves."""
_QUANTISED_TWICE = re.compile(r"axolotl|llama-?factory|unsloth|torchtune", re.IGNORECASE)
"""Programs whose 4-bit weights have quantised scales unless they are told otherwise: axolotl's loaders/model.py and
LLaMA-Factory's quantization arguments set bnb_4bit_use_double_quant, Unsloth's models and torchtune's NF4 come so."""
_OPTIMIZER_BITS = re.compile(
    r"(?:adam|lion|adagrad|sgd|optim\w*)[\w:=. ]{0,12}?[-_ ]?[48]-?bit|\b(?:bnb|paged|ao)?[-_ ]?[48]-?bit[-_ ](?:paged[-_ ])?(?:adam|lion|optim)\w*",
    re.IGNORECASE,
)
"""`adamw_bnb_8bit`, `AdamW 8-bit`, `8-bit AdamW`: how an optimizer keeps its states."""
_LATENT = re.compile(r"\b(?:q|kv)[-_]lora[-_]rank\b[\"' =:]*\d*", re.IGNORECASE)
"""Megatron's ranks of latent attention, which are no adapters'."""
_FULL = re.compile(
    r"\bfull[- ](?:parameter|fine-?tun|model fine-?tun|SFT)|full_finetune|\b(?:method|mode|tuning|fine-?tun\w*): ?full\b",
    re.IGNORECASE,
)
"""All weights train, also where the software named beside it could train adapters (`… + peft`)."""
_STATED = re.compile(
    r"(?:\blora[_ -]?r(?:ank)?|\br(?:ank)?)[ =:]*(\d+)|\b(\d+)[- ]rank\b", re.IGNORECASE
)
"""The rank of adapters as people write it: `r=64`, `rank 16`, `lora_r: 8`, `lora_rank=32`."""


def _targets(text: str) -> list[str]:
    """Matrices with adapters that a text names: module names, or a group of them."""
    if re.search(r"all[- _]linear|linear layers|all modules|all layers", text, re.IGNORECASE):
        return [ALL_LINEAR]
    names = re.findall(
        r"\b(?:[qkvo]_proj|(?:gate|up|down)_proj|c_attn|c_proj|w[123]|qkv_proj|query_key_value|"
        r"linear_qkv|linear_proj|linear_fc[12]|dense_h_to_4h|dense_4h_to_h)\b",
        text,
    )
    return list(dict.fromkeys(names))
