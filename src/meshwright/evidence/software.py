"""How a source ran its jobs: framework, deviations, precision and documented defaults."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, cast

from meshwright.costs.frameworks import UNCOMPILED_LOSS, Behaviour, framework
from meshwright.evidence.named import (
    fallback_framework,
    named_framework,
    own_loop,
    plain_torch,
    torchs_layers,
)
from meshwright.evidence.rows import Row
from meshwright.evidence.stated import (
    EAGER,
    accumulates_whole,
    adam_fused,
    own_loop_options,
    says,
    stated_options,
    uncompiled,
)
from meshwright.specs.job import FP4, RECIPES, Framework, PrecisionRecipe
from meshwright.specs.layout import Recompute, RecomputeModule


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
    gpu: str = ""
    printed_precision: str = ""
    defaults: dict[str, Any] = field(default_factory=dict)

    @property
    def documented(self) -> bool:
        """Whether an entry of data/sources.toml stands behind it."""
        return bool(self.source or self.match)

    def default(self, name: str) -> Any:
        """What the source documents where a row leaves a cell blank, or None."""
        return self.defaults.get(name)


@cache
def source_rules() -> tuple[SourceRule, ...]:
    """Return data/sources.toml, in order."""
    text = resources.files("meshwright.evidence").joinpath("data/sources.toml").read_text("utf-8")
    named = {
        "framework", "family", "precision", "why", "source", "match", "options", "lora",
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
def _rule(source: str, model: str, setup: str, gpu: str, precision: str) -> SourceRule | None:
    everything = f"{source}\n{model}\n{setup}"
    for rule in source_rules():
        if not re.search(rule.gpu, gpu) or not re.search(rule.printed_precision, precision):
            continue
        if re.search(rule.source, source) and re.search(rule.match, everything):
            return rule
    return None


def rule_for(row: Row, as_user: bool = False) -> SourceRule:
    """Return what is known of the software behind a row.

    The first entry of data/sources.toml that its source matches; else, and always `as_user`, no more
    than the framework's name: the one that an entry gives, or that the row's texts name.
    """
    known = _rule(row["source"], row["model"], row["setup"], row["gpu"], row["precision"])
    if known is not None and not as_user:
        return known
    named = known.framework if known is not None else named_framework(row)
    return SourceRule(
        framework=cast("Framework", named or fallback_framework(row)),
        family="",
        precision="fp16" if re.search("V100|T4", row["gpu"]) else "bf16",
        why="named in setup or source" if named else "nothing names the framework",
    )


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
    (
        r"eager attention|attn_implementation\W{0,4}eager|attention \(unfused",
        {"attention_kernel": "unfused", "fused_softmax": False},
    ),
    (r"no[- ]?flash|attention=unfused", {"attention_kernel": "unfused"}),
)


_FUSED_FORKS = re.compile(r"Gaudi|\bHPU|910[BC]|Atlas", re.IGNORECASE)
"""Devices whose vendor's fork of Megatron-DeepSpeed attends by a fused kernel unless it is told otherwise: HabanaAI's
--use-fused-sdpa, Ascend's npu_fusion_attention."""


def _of_torchs_loops(row: Row, options: dict[str, Any]) -> dict[str, Any]:
    """Behaviour of a program on torch's own layers: a loop of somebody's own, compiled or not."""
    if own_loop(row):
        options |= own_loop_options(f"{row['setup']}; {row['zero_or_fsdp']}")
        if not _PURE.search(f"{row['precision']}; {row['setup']}"):
            options["frozen_bytes"] = 4.0  # parameters are created in fp32, frozen ones with them
    if torchs_layers(row) and uncompiled(f"{row['setup']}; {row['precision']}"):
        options |= EAGER
    elif plain_torch(row) and says(r"torch\.?compile", row["setup"]):
        # A script on PyTorch alone compiles its model with the loss in it, as nanoGPT's forward returns both.
        options = {name: value for name, value in options.items() if name not in UNCOMPILED_LOSS}
    return options


def framework_options(row: Row, rule: SourceRule) -> dict[str, Any]:
    """Return the run's deviations from its framework: the source's, then the row's own."""
    options = dict(rule.options)
    if rule.framework == "torchtitan" and not rule.documented:
        options = _of_torchs_loops(row, options)
    forked = rule.framework == "megatron-deepspeed" and not rule.documented
    if forked and _FUSED_FORKS.search(row["gpu"]):
        options["attention_kernel"] = "flash"
    for pattern, values in _KERNELS:
        if re.search(pattern, row["setup"]):
            options |= values
            break
    else:
        # Older profiles attend unfused unless a run says otherwise.
        if re.search(r"flash[-_ ]?att", row["setup"], re.IGNORECASE):
            options.setdefault("attention_kernel", "flash")
    arguments = megatron_arguments(row)
    if arguments:
        options["reduce_overlapped"] = bool(arguments.get("overlap-grad-reduce"))
        options["gather_overlapped"] = bool(arguments.get("overlap-param-gather"))
        options["placeholder_gradients"] = not arguments.get("no-gradient-accumulation-fusion")
        # arguments.py: hidden and attention dropout are 0.1 unless they are given.
        given = [arguments.get(f"{part}-dropout", 0.1) for part in ("hidden", "attention")]
        options.setdefault("dropout", any(float(chance) > 0 for chance in given))
        if "make-vocab-size-divisible-by" in arguments:
            options["vocab_multiple"] = int(arguments["make-vocab-size-divisible-by"])
        if arguments.get("cross-entropy-loss-fusion"):
            options["logits_bytes"] = 4.0
        local = arguments.get("transformer-impl") == "local"
        if arguments.get("attention-backend") == "unfused" or local:
            options["attention_kernel"] = "unfused"
    if re.search(
        r"no overlap of gradient all-reduce|no overlap_comm|no overlap of comp", row["setup"]
    ):
        options |= {"reduce_overlapped": False, "gather_overlapped": False}
    if re.search(r"flash[-_ ]?att(?:entio)?n[-_ ]?2|\bFA2\b", row["setup"], re.IGNORECASE):
        options["flash_generation"] = 2
    elif re.search(
        r"flash[-_ ]?att(?:entio)?n[-_ ]?[34]|\bFA[34]\b|cuDNN att", row["setup"], re.IGNORECASE
    ):
        options["flash_generation"] = 3
    sharding = f"{row['setup']}; {row['zero_or_fsdp']}"
    eager = framework(rule.framework).modules == "transformers"
    if eager and re.search(r"deep ?speed|zero[-_ ]?(?:stage)?[-_ ]?3", sharding, re.IGNORECASE):
        options["zero3_gathers"] = "modules"
    if eager and rule.framework not in ("litgpt", "torchtune"):
        if accumulates_whole(row):
            options["accumulates_whole"] = True
        deepspeed = re.search(r"deep ?speed|zero[-_ ]?(?:stage)?[-_ ]?\d", sharding, re.IGNORECASE)
        if not (rule.documented or deepspeed or adam_fused(row["setup"])):
            options["optimizer_fused"] = False
    stated = f"{row['setup']}; pp={row['pp']}; {row['schedule']}; {row['interconnect']}"
    options |= stated_options(stated)
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
        benchmark = re.search(r"MLPerf", f"{row['source']} {row['model']} {row['setup']}")
        eight = benchmark and re.search(r"H[12]00|[BG]B?[23]00|MI3\d\d", row["gpu"])
        text = "fp8" if eight else rule.precision  # what closed-division submissions run there
        if benchmark and _FOUR_BIT_ROUNDS.search(row["source"]) and "Blackwell" in row["gpu"]:
            text = "fp4"
        assumed.append(f"precision={text}")
    if known.modules == "transformers" and _PURE.search(f"{text}; {row['setup']}"):
        return RECIPES["pure-bf16"]
    base = recipe_of(text)
    if base.name == "fp32" and not re.search("no tf32|true fp32", text):
        # Vendors' containers allow TF32; a device without it multiplies in fp32 all the same.
        assumed.append("tf32 products where the device has them")
        base = RECIPES["tf32"]
    if base.name in ("fp32", "tf32"):
        return base
    if rule.lora and base.name == "fp8":
        base = base.but(parameter_bytes=1)  # frozen weights are kept in fp8
    whole = says(_WHOLE_GRADIENTS, f"{text}; {row['setup']}")
    # One buffer holds what is summed and what is reduced (Megatron-Core's grad_reduce_in_fp32) where both are alike.
    one_buffer = known.gradient_bytes == known.gradient_reduce_bytes
    return base.but(
        gradient_bytes=4.0 if whole else known.gradient_bytes,
        gradient_reduce_bytes=4.0 if whole and one_buffer else known.gradient_reduce_bytes,
    )


_WHOLE_GRADIENTS = r"fp32[ _-]grad|grad\w{0,40}[ -]\w{0,40} ?(?:in )?fp32|grad\w*_in_fp32"
"""Gradients that are summed in fp32, as rows print it beside their precision or in a remark."""


_FOUR_BIT_ROUNDS = re.compile(r"v5\.[1-9]|v[6-9]\.")
"""MLPerf Training's rounds whose submissions on Blackwell come with configurations in NVFP4
(mlcommons/training_results_v5.1, names that end in `_fp4.sh`)."""

_PURE = re.compile(
    r"(?:bf|fp)?16-true|\btorch\.bfloat16\b|pure[-_ ]?(?:bf16|bfloat16|16)|full[-_ ]?bf16|bf16[-_ ]full",
    re.IGNORECASE,
)
"""Weights, gradients and moments in 16 bits, without a master copy, as Lightning and others print it; `torch.bfloat16` is the
type that transformers' from_pretrained(torch_dtype=…) gives all weights."""


def whole_in_16_bits(row: Row, rule: SourceRule) -> bool:
    """Whether a full fine-tuning holds everything in 16 bits although its row says no more than `bf16`.

    torchtune's `dtype: bf16`, LitGPT's default precision and models that TRL, axolotl and ms-swift
    (swift/llm/utils/argument.py, `dtype`) load in bf16 have no master copy. DeepSpeed, mixed precision
    and LLaMA-Factory (but for `pure_bf16`) keep one, and transformers' Trainer does either.
    """
    text = f"{row['precision']}; {row['setup']}; {row['zero_or_fsdp']}"
    named = re.search(r"\btrl\b|axolotl|\bms-?swift\b", row["setup"], re.IGNORECASE)
    if not named and rule.framework not in ("torchtune", "litgpt"):
        return False
    formats = r"bf16|bfloat16|fp8|float8" if rule.framework == "torchtune" else r"bf16|bfloat16"
    if not re.search(formats, row["precision"], re.IGNORECASE):
        return False
    return not re.search(
        r"deep ?speed|zero|mixed|autocast|\bamp\b|fp32|master|megatron", text, re.IGNORECASE
    )


def recipe_of(text: str) -> PrecisionRecipe:
    """Return the recipe that a precision column means: `float8`, `MXFP8`, `nvfp4`, `bf16-mixed`, `AMP O2`…"""
    text = text.lower()
    if re.search(r"(?:mx|nv)?fp4|float4|e2m1", text):
        return FP4
    if re.search(r"(?:mx)?fp8|float8|e4m3|e5m2|\b8[ -]?bit float", text):
        return RECIPES["fp8"]
    if re.search(r"^(?:fp32|float32|single|32(?:-true|-bit)?$)", text):
        return RECIPES["tf32" if "tf32" in text else "fp32"]
    if "tf32" in text:
        return RECIPES["tf32"]
    if re.search(r"bf16|bfloat16", text) and not re.match(r"fp16|float16", text):
        return RECIPES["bf16"]
    if re.search(r"fp16|float16|half|\bmixed\b|16-mixed|\bamp\b", text):
        return RECIPES["fp16"]
    return RECIPES["bf16"]


def recompute_of(row: Row, rule: SourceRule, assumed: list[str]) -> Recompute:
    """Return the recomputation mode: the row's, else the source's, else the framework's."""
    text = row["recompute"].lower().strip()
    if re.match(r"none|no\b|false|0$|off|w/o|without|disabled", text):
        return "none"
    if re.match(r"selective|minimal|core|attn|attention|moe|layernorm|save_|partial", text):
        return "selective"
    if re.match(r"full|yes|true|on\b|1$|all|uniform|block|enabled|every|checkpoint|gradient", text):
        return "full"
    own: Recompute = framework(rule.framework).recompute
    if plain_torch(row) and not rule.documented:
        own = (
            "none"  # a loop on PyTorch alone computes again what it wraps in torch.utils.checkpoint
        )
    mode: Recompute = rule.default("recompute") or own
    assumed.append(f"recompute={mode}")
    return mode


_MODULES: tuple[tuple[str, RecomputeModule], ...] = (
    (r"layer_?norm|\bnorm\b", "layernorm"),
    (r"moe_act|\bact\b", "moe_act"),
    (r"mla_up_proj", "mla_up_proj"),
    (r"shared_experts?", "shared_experts"),
    (r"\bmoe\b", "moe"),
    (r"\bmlp\b", "mlp"),
    (r"core_attn", "core_attn"),
)


def modules_of(row: Row, rule: SourceRule) -> tuple[RecomputeModule, ...]:
    """Modules of a layer that a row, or else its source, recomputes by name; empty: none is named."""
    said = re.search(
        r"selective(?: recompute)?:? ([a-z_, ]+)", f"{row['recompute']}; {row['setup']}"
    )
    text = said[1] if said else row["recompute"]
    if "core_attn" not in text and not re.search(r"norm|act|moe|mlp|mla|shared", text):
        text = " ".join(rule.default("recompute_modules") or ()) if not row["recompute"] else ""
    return tuple(name for pattern, name in _MODULES if re.search(pattern, text))


def zero_of(row: Row, rule: SourceRule, assumed: list[str]) -> tuple[int, int]:
    """Return the ZeRO stage and the shard degree that a row states (0: all replicas)."""
    text = row["zero_or_fsdp"]
    if re.search(r"HSDP|hybrid", text, re.IGNORECASE):
        stated = re.search(r"shard[ =_]*(\d+)", text)
        return 3, int(stated[1]) if stated else row.count("gpus_per_node") or 8
    # InternEvo: zero1=N is ZeRO-1 over groups of N ranks, -1 over all of them.
    if group := re.search(r"zero1 ?= ?(-?\d+)", text):
        size = int(group[1])
        return (1, 0) if size < 0 else (1, size) if size > 1 else (0, 0)
    shard = re.search(r"(?:FSDP\d? ?shard|FSDP)=(\d+)", text)
    if shard:
        return (3, int(shard.group(1))) if int(shard.group(1)) > 1 else (0, 0)
    if re.search(r"SHARD_GRAD_OP|reshard_after_forward ?[=:] ?(?:false|no|0)", text, re.IGNORECASE):
        return 2, 0
    if re.search(r"NO_SHARD", text):
        return 0, 0
    stage = re.search(r"ZeRO[- _]?(?:stage)?[- _]?([0-3])|stage[ -_]?([0-3])", text, re.IGNORECASE)
    if stage:
        return int(stage[1] or stage[2]), 0
    if re.search(r"FSDP|fully[ -_]sharded|full[ _]shard|optim_grads_params", text, re.IGNORECASE):
        return 3, 0
    if re.search(
        r"distributed[ _-]?optimizer|dist[_-]?opt|sharded optimizer|os\b", text, re.IGNORECASE
    ):
        return 1, 0
    if re.match(r"none|no|ddp|dp|0|false|off|not?\b", text, re.IGNORECASE):
        return 0, 0
    known = rule.default("zero")
    if known is None and plain_torch(row) and not rule.documented:
        known = 0
    zero = framework(rule.framework).zero if known is None else int(known)
    assumed.append(f"zero={zero}")
    return zero, 0
