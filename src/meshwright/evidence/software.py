"""How a source ran its jobs: framework, deviations, precision and documented defaults."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from meshwright.costs.frameworks import Behaviour, framework
from meshwright.evidence.rows import Row
from meshwright.specs.job import OPTIMIZERS, RECIPES, Framework, OptimizerRecipe, PrecisionRecipe
from meshwright.specs.layout import Recompute


@dataclass(frozen=True)
class SourceRule:
    """One entry of data/sources.toml."""

    framework: Framework
    family: str
    precision: str
    why: str
    source: str = ""
    match: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    lora: bool = False
    pipeline: bool = False
    gpu: str = ""
    printed_precision: str = ""
    defaults: dict[str, Any] = field(default_factory=dict)

    def default(self, name: str) -> Any:
        """What the source documents where a row leaves a cell blank, or None."""
        return self.defaults.get(name)


@cache
def source_rules() -> tuple[SourceRule, ...]:
    """Return data/sources.toml, in order."""
    text = resources.files("meshwright.evidence").joinpath("data/sources.toml").read_text("utf-8")
    named = {
        "framework", "family", "precision", "why", "source", "match", "options", "lora", "pipeline",
        "gpu", "printed_precision",
    }  # fmt: skip
    return tuple(
        SourceRule(
            **{key: value for key, value in entry.items() if key in named},
            defaults={key: value for key, value in entry.items() if key not in named},
        )
        for entry in tomllib.loads(text)["source"]
    )


@cache
def _rule(
    source: str, model: str, setup: str, gpu: str, precision: str, pipeline: bool
) -> SourceRule:
    everything = f"{source}\n{model}\n{setup}"
    for rule in source_rules():
        if rule.pipeline and not pipeline:
            continue
        if not re.search(rule.gpu, gpu) or not re.search(rule.printed_precision, precision):
            continue
        if re.search(rule.source, source) and re.search(rule.match, everything):
            return rule
    raise AssertionError("the last rule matches everything")


def rule_for(row: Row) -> SourceRule:
    """Return the rule that describes a row's source."""
    pipeline = (row.count("pp") or 1) > 1
    return _rule(row["source"], row["model"], row["setup"], row["gpu"], row["precision"], pipeline)


def megatron_arguments(row: Row) -> dict[str, Any]:
    """Return the Megatron arguments that `setup` carries as JSON after `args`, or nothing."""
    match = re.search(r"\bargs (\{.*\})", row["setup"])
    if not match:
        return {}
    try:
        found = json.loads(match.group(1))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


_KERNELS = (
    (r"kernel=torch", {"attention_kernel": "unfused", "fused_softmax": False, "fused_norm": False}),
    (r"kernel=fused", {"attention_kernel": "unfused", "fused_norm": False}),
    (r"kernel=flash_attentionv1", {"flash_generation": 1, "fused_norm": False}),
    (r"kernel=flash", {"flash_generation": 2, "fused_norm": False}),
    (r"no[- ]?flash|attention=unfused", {"attention_kernel": "unfused"}),
)


def framework_options(row: Row, rule: SourceRule) -> dict[str, Any]:
    """Return the run's deviations from its framework: the source's, then the row's own."""
    options = dict(rule.options)
    for pattern, values in _KERNELS:
        if re.search(pattern, row["setup"]):
            options |= values
            break
    arguments = megatron_arguments(row)
    if arguments:
        options["reduce_overlapped"] = bool(arguments.get("overlap-grad-reduce"))
        options["gather_overlapped"] = bool(arguments.get("overlap-param-gather"))
        options["placeholder_gradients"] = not arguments.get("no-gradient-accumulation-fusion")
        # The functional tests keep Megatron's default of 0.1; every release recipe sets 0.
        options["dropout"] = "release" not in row["model"]
        if "make-vocab-size-divisible-by" in arguments:
            options["vocab_multiple"] = int(arguments["make-vocab-size-divisible-by"])
        if arguments.get("cross-entropy-loss-fusion"):
            options["logits_bytes"] = 4.0
        local = arguments.get("transformer-impl") == "local"
        if arguments.get("attention-backend") == "unfused" or local:
            options["attention_kernel"] = "unfused"
    if re.search(r"no overlap of gradient all-reduce", row["setup"]):
        options["reduce_overlapped"] = False
    return options


def precision_of(
    row: Row, rule: SourceRule, known: Behaviour, assumed: list[str]
) -> PrecisionRecipe:
    """Return the precision recipe of a row, gradients as its framework keeps them."""
    text = row["precision"].lower()
    if rule.precision == "pure-bf16":  # weights as published, whatever computes
        base = RECIPES["pure-bf16"]
        return base.but(compute="fp16") if text.startswith("fp16") else base
    if not text:
        assumed.append(f"precision={rule.precision}")
        text = rule.precision
    if "fp8" in text or "mxfp8" in text:
        base = RECIPES["fp8"]
    elif "fp4" in text:
        base = RECIPES["fp8"].but(name="fp4", compute="fp4")
    elif text.startswith("fp32"):
        return RECIPES["fp32"]
    elif "fp16" in text or text == "mixed" or "half" in text:
        base = RECIPES["fp16"]
    else:
        base = RECIPES["bf16"]
    if rule.lora and base.name == "fp8":
        base = base.but(parameter_bytes=1)  # frozen weights are kept in fp8
    return base.but(
        gradient_bytes=known.gradient_bytes, gradient_reduce_bytes=known.gradient_reduce_bytes
    )


def optimizer_of(row: Row, rule: SourceRule) -> OptimizerRecipe:
    """Return the optimizer of a row: the source's or AdamW unless `setup` names another."""
    if named := rule.default("optimizer"):
        return OPTIMIZERS[named]
    if re.search(r"\bmuon\b", row["setup"], re.IGNORECASE):
        return OPTIMIZERS["muon"]
    return OPTIMIZERS["adamw"]


def recompute_of(row: Row, rule: SourceRule, assumed: list[str]) -> Recompute:
    """Return the recomputation mode: the row's, else the source's, else the framework's."""
    text = row["recompute"].lower()
    if text.startswith("full"):
        return "full"
    if text.startswith(("selective", "minimal")):
        return "selective"
    if text.startswith("none") or text in ("no", "false", "0", "off"):
        return "none"
    mode: Recompute = rule.default("recompute") or framework(rule.framework).recompute
    assumed.append(f"recompute={mode}")
    return mode


def zero_of(row: Row, rule: SourceRule, assumed: list[str]) -> tuple[int, int]:
    """Return the ZeRO stage and the shard degree that a row states (0: all replicas)."""
    text = row["zero_or_fsdp"]
    shard = re.search(r"(?:FSDP\d? ?shard|FSDP)=(\d+)", text)
    if re.search(r"HSDP", text):
        return 3, row.count("gpus_per_node") or 8
    if shard:
        return (3, int(shard.group(1))) if int(shard.group(1)) > 1 else (0, 0)
    if re.search(r"FSDP|fully sharded|optim_grads_params", text, re.IGNORECASE):
        return 3, 0
    stage = re.search(r"ZeRO[- ]?(\d)", text, re.IGNORECASE)
    if stage:
        return int(stage.group(1)), 0
    if "distributed optimizer" in text.lower():
        return 1, 0
    if text.lower() in ("none", "ddp"):
        return 0, 0
    known = rule.default("zero")
    zero = framework(rule.framework).zero if known is None else int(known)
    assumed.append(f"zero={zero}")
    return zero, 0
