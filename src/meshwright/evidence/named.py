"""Which software a row means: the framework that its texts name, whoever wrote them."""

from __future__ import annotations

import re

from meshwright.costs.frameworks import framework_names
from meshwright.evidence.rows import Row

_NAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"nanotron", ("nanotron",)),
    (r"torch ?tune", ("torchtune", "torchtitan")),
    (
        r"lit-?gpt|lit-?llama|(?<!pytorch )(?<!pytorch-)lightning(?! ?attention)",
        ("litgpt", "pytorch", "deepspeed"),
    ),
    (r"torch ?titan|Auto-?model|torchforge|OLMo-?core", ("torchtitan",)),
    (r"llm-foundry|composer|mosaic|fms-fsdp|FSDP1|metaseq|fairscale", ("fsdp",)),
    (r"max-?text|\bJAX\b|\bPax|levanter|\bT5X\b|EasyLM|praxis|\bXLA\b", ("maxtext",)),
    (r"Megatron[-_ ]DeepSpeed|gpt-?neox|bigscience", ("megatron-deepspeed",)),
    (r"NeMo\b|Megatron-?Bridge|dgxc", ("nemo",)),
    (
        r"Megatron|M-?Core|FlagScale|Primus|Pai-Megatron|MindSpeed|Mind-?Formers|MindSpore|Paddle|Neuron|InternEvo|"
        r"Colossal|veScale|Nemotron|Fast-?LLM|HAI-?LLM",
        ("megatron",),
    ),
    (
        r"axolotl|llama-?factory|\bpeft\b|transformers|unsloth|\btrl\b|hugging ?face|accelerate|"
        r"xtuner|swift|qlora|fastchat|alpaca|\bverl\b|openrlhf|lmflow",
        ("huggingface", "deepspeed"),
    ),
    (r"deep-?speed|ZeRO-?(?:infinity|offload)", ("deepspeed",)),
    (r"nano-?gpt|llm\.c", ("pytorch", "torchtitan")),
)
"""What texts print, in the order of trust, and the behaviours that stand for it (the first that exists)."""

_SHARED_NAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"FSDP2|fully_shard|prime-?rl|\bDTensor\b", ("torchtitan",)),
    (r"\bFSDP\b", ("fsdp",)),
    (
        r"\bSFT\b|fine-?tun|(?<![a-z])(?:Q|Do)?-?LoRA(?![a-z])|\bPEFT\b|\bmethod: ?full\b",
        ("huggingface", "deepspeed"),
    ),
    (r"py-?torch|nano-?gpt|\bDDP\b|torch\.compile", ("pytorch", "torchtitan")),
)
"""The same, for what is a part of many programs."""


_OLD_DEVICES = re.compile(r"V100|Volta|\bT4\b|DGX-?[12]\b", re.IGNORECASE)
"""Devices older than what flash attention and Transformer Engine run on (Ampere): Megatron as it was then."""


def named_framework(row: Row) -> str | None:
    """Return the framework that a row names: in `setup`, then in its sharding column, then in `source`.

    What many programs share (FSDP, DDP, PyTorch) counts only where nothing more is named.
    """
    for names in (_NAMES, _SHARED_NAMES):
        for text in (row["setup"], row["zero_or_fsdp"], row["source"], row["model"]):
            for pattern, behaviours in names:
                if re.search(pattern, text, re.IGNORECASE):
                    known = framework_names()
                    found = next((name for name in behaviours if name in known), None)
                    if names is _SHARED_NAMES and re.search("TPU", row["gpu"]):
                        return "maxtext"
                    if found == "megatron" and _OLD_DEVICES.search(row["gpu"]):
                        return "megatron-2021"
                    # FSDP beside other axes is torch's composable kind, as in torchtitan.
                    shared = names is _SHARED_NAMES and found == "fsdp" and _split(row)
                    return "torchtitan" if shared else found
    return None


def programs_named(text: str) -> list[str]:
    """The programs that a text names, each as it prints it; what many programs share is none."""
    return list(programs_by_kind(text).values())


def programs_by_kind(text: str) -> dict[str, str]:
    """The same by the behaviour that stands for each: Unsloth, TRL and QLoRA's script are of one kind."""
    found: dict[str, str] = {}
    for pattern, behaviours in _NAMES:
        if one := re.search(pattern, text, re.IGNORECASE):
            found.setdefault(behaviours[0], one[0])
    if "megatron-deepspeed" in found:
        found.pop("megatron", None)
        found.pop("deepspeed", None)
    return found


def torchs_layers(row: Row) -> bool:
    """Whether a row names torchtitan, or no program around torch's composable FSDP."""
    return own_loop(row) or any(
        re.search(r"torch ?titan", row[column], re.IGNORECASE) for column in ("setup", "source")
    )


def own_loop(row: Row) -> bool:
    """Whether a row names torch's composable FSDP and no known program around it: a training loop of its own."""
    texts = (row["setup"], row["zero_or_fsdp"], row["source"], row["model"])
    if any(re.search(known, text, re.IGNORECASE) for known, _ in _NAMES for text in texts):
        return False
    return named_framework(row) == "torchtitan"


def plain_torch(row: Row) -> bool:
    """Whether a row names PyTorch alone, or nanoGPT's kind: replicas, of which nothing is sharded unless it says so."""
    texts = "; ".join(row[column] for column in ("setup", "zero_or_fsdp", "source", "model"))
    return own_loop(row) and not re.search(
        r"fsdp|fully_shard|prime-?rl|DTensor|shard", texts, re.IGNORECASE
    )


def fallback_framework(row: Row) -> str:
    """The framework to assume where none is named: only Megatron's kind splits layers and stages."""
    if re.search("TPU", row["gpu"]):
        return "maxtext"
    if _split(row) or "pytorch" not in framework_names():
        return "megatron-2021" if _OLD_DEVICES.search(row["gpu"]) else "megatron"
    return "pytorch"


def _split(row: Row) -> bool:
    return any((row.count(axis) or 1) > 1 for axis in ("tp", "pp", "vpp", "cp", "ep"))
