"""What a row says in the words of frameworks: kernels, losses, what lives in the host's memory."""

from __future__ import annotations

import re
from typing import Any

from meshwright.costs.frameworks import UNCOMPILED_BLOCK, UNCOMPILED_LOSS
from meshwright.evidence.rows import Row
from meshwright.specs.job import Loss
from meshwright.specs.layout import Offload

NANOTRON_PIPELINES: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"after_pp_fix=True", {"collectives_checked": True}),
    (
        r"after_pp_fix=False.*; pp=(?:[2-9]|\d\d)",
        {"messages_wait": True, "message_poll_s": 0.1, "collectives_checked": True},
    ),
    (r"after_pp_fix=False", {"messages_wait": True}),
)
"""Which state of nanotron's pipeline a row of its benchmark ran, in that benchmark's words.

Before the fix (huggingface/nanotron at 67c5ebb6, 2024-12-27, pipeline_parallel/p2p.py) sender and receiver sleep 0.1 s
between looks at each of two messages before a tensor, and the receiver reads its shape back from the device. Launchers
of the months after export TORCH_DISTRIBUTED_DEBUG=DETAIL (examples/mamba/run_multinode.sh at 77f54c10, slurm_launcher.py
at ef206a3a), those of runs without a pipeline before do not (run_multinode.sh at 6ac7d733). The bandwidth that the
benchmark logs before it trains agrees: 27 GB/s over 128 devices with a pipeline, mended or not, 124 without."""

STATED: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"deep ?ep\b|hybrid ?ep\b", {"expert_dispatch": "deduplicated"}),
    (r"a2a overlap", {"expert_overlapped": True}),
    # Ascend's products fused with the collective of tensor parallelism (npu_mm_all_reduce, npu_all_gather_mm).
    (r"\bMC2\b|ascend[-_]mc2", {"tensor_overlapped": True}),
    # Of layers' parts, unless the whole iteration is named: those of experts have no fixed shapes.
    (r"(?<!no )\bcuda graphs?\b", {"graphs": "layers"}),
    (r"full[- _]iteration (?:cuda )?graph", {"graphs": "all"}),
    (r"TORCH_DISTRIBUTED_DEBUG ?= ?DETAIL", {"collectives_checked": True}),
    *NANOTRON_PIPELINES,
    # arXiv 2412.19437 section 3.2.1: what the schedule is for.
    (r"dual-?pipe", {"expert_overlapped": True}),
    (r"fused[-_ ](?:layer|rms)_?-?norm|\bliger\b|\bunsloth\b", {"fused_norm": True}),
    (r"fused[-_ ](?:swiglu|silu|mlp|bias)", {"fused_activation": True}),
    (r"\bliger\b|\bunsloth\b", {"fused_activation": True, "activation_in_place": True}),
    (r"fused[-_ ](?:rotary|rope)|\bliger\b|\bunsloth\b", {"fused_rotary": True}),
    (
        r"torch[._]compile|\binductor\b",
        {
            "fused_norm": True,
            "fused_activation": True,
            "fused_rotary": True,
            "kernels_per_layer": 14,
        },
    ),
    (r"fused[-_ ]cross[-_ ]?entropy", {"logits_bytes": 4.0, "loss_bytes": 8.0}),
    # Megatron-Core's default is one layer at either end (num_layers_at_start_in_bf16, num_layers_at_end_in_bf16).
    (
        r"first[-_ ](?:and|/|\+)?[-_ ]?last[-_ ](?:layers?[-_ ])?(?:in[-_ ])?bf16|first/last (?:layers? )?(?:in )?bf16",
        {"layers_16bit": 2},
    ),
    (
        r"(?:many|various|varying|variable|different|(?:their|its) own) (?:sequence |sample )?lengths?|"
        r"\bunpadded|dynamic(?:ally)?[- ]padd|variable[- ]length|no packing|without packing|packing ?[=:] ?false",
        {"lengths_vary": True},
    ),
)
"""What a row says of its experts' dispatch, kernels, graphs and checks, in the words that frameworks print.

A fused cross-entropy (flash_attn, Transformer Engine, Apex, xformers) reads 16-bit logits and writes
their gradient over them."""

EAGER: dict[str, Any] = {**UNCOMPILED_BLOCK, **UNCOMPILED_LOSS}

OWN_LOOP: dict[str, Any] = {
    # Under tensor parallelism the head's output is gathered unless loss_parallel is asked for (torch's tutorial of
    # tensor parallelism: ColwiseParallel(output_layouts=Replicate())).
    "logits_sharded": False,
    # F.cross_entropy of fp32 logits outside of the compiled model.
    "logits_bytes": EAGER["logits_bytes"],
    "loss_bytes": EAGER["loss_bytes"],
    # set_requires_gradient_sync(False) until the last micro-batch (torch's FSDP2 tutorial; facebookresearch/lingua,
    # microsoft/dion, KempnerForge and accelerate do so, torchtitan itself reduces each).
    "accumulates_whole": True,
}
"""What a training loop on torch's composable FSDP does that is no torchtitan, unless it says otherwise."""

_FUSED = r"adamw?_torch_fused|fused[-_ ]adam|adamw? ?\(fused\)|fused=true"
_OLD_TORCH = r"\b(?:py)?torch[-= ]*(?:v ?)?(?:1\.\d+|2\.[0-7])\b"
_NEW_TORCH = (
    r"\b(?:py)?torch[-= ]*(?:v ?)?(?:2\.(?:[89]|[1-9]\d)|3\.\d)|transformers[-= ]*(?:v ?)?5\b"
)


def adam_fused(text: str) -> bool:
    """Whether a run of transformers' Trainer updates by torch's fused Adam.

    training_args.py asks for it by default where torch is 2.8 or later (transformers from mid-2025 on); before, and
    in all published tables of fine-tuning that say nothing, `adamw_torch` is torch's foreach kernels.
    """
    return says(_FUSED, text) or (says(_NEW_TORCH, text) and not says(_OLD_TORCH, text))


_REDUCED_EACH = r"prime-?rl|sync_each_batch|(?:reduc|sync)\w* (?:at |in |after )?e(?:ach|very) (?:micro|batch|backward)"
_LIBRARY_LAYERS = (
    r"transformer[-_ ]?engine|\bTE\b|\bliger\b|\bapex\b|fused[-_ ](?:layer|rms)_?-?norm"
)


def own_loop_options(text: str) -> dict[str, Any]:
    """Return the fields of behaviour of a row's own training loop on torch's composable FSDP."""
    options = dict(OWN_LOOP)
    if says(_REDUCED_EACH, text):
        options["accumulates_whole"] = False
    return options


def uncompiled(text: str) -> bool:
    """Whether nothing says that a program of torch's own layers compiles them.

    torchtitan's `compile.enable` is off unless it is asked for (config/job_config.py), and its guide to float8 asks
    for it always (docs/float8.md); torchao's float8nocompile is its kernels without.
    """
    told = says(r"torch\.?compile\b", text)
    if not told and says(r"no-?compile|\beager\b(?! att)|without compil", text):
        return True
    return not says(r"compil(?:e[ds]?\b|ation|e_model)|\binductor\b|float8|fp8", text) and not says(
        _LIBRARY_LAYERS, text
    )


def accumulates_whole(row: Row) -> bool:
    """Whether FSDP of a program on accelerate sums gradients whole while batches accumulate.

    accelerate's `no_sync` does so for FSDP1 (transformers' trainer.py enters it for all but the last micro-batch; its
    guide tells of Mixtral 8x7B at 69 GB with one and out of memory with two), for FSDP2 only from 1.11 on.
    """
    text = f"{row['zero_or_fsdp']}; {row['setup']}"
    sharded = re.search(r"\bFSDP\b|full[ _]shard|fully[ -_]sharded", text, re.IGNORECASE)
    other = re.search(r"FSDP-?v?2|fully_shard|deep ?speed", text, re.IGNORECASE)
    return bool(sharded) and not other and not says(_REDUCED_EACH, text)


_ASSUMED: tuple[tuple[str, object, str], ...] = (
    ("logits_sharded", False, "a training loop of its own on torch's layers (whole logits)"),
    ("loss_bytes", EAGER["loss_bytes"], "an eager loss"),
    ("accumulates_whole", True, "gradients summed whole until the last micro-batch"),
    ("frozen_bytes", 4.0, "frozen weights in fp32"),
    ("kernels_per_layer", EAGER["kernels_per_layer"], "layers not compiled"),
    ("optimizer_fused", False, "an Adam that is not fused"),
)


def assumed_of(options: dict[str, Any]) -> list[str]:
    """Return in words what behaviour was assumed of a program that no source documents."""
    return [words for name, value, words in _ASSUMED if options.get(name) == value]


LOSSES: tuple[tuple[str, Loss], ...] = (
    (
        r"\bliger\b|fused[-_ ]linear[-_ ]cross[-_ ]?entropy|\bFLCE\b|prime-?rl[^;,]{0,12}\bRL trainer",
        "liger",
    ),
    (r"cut[-_ ]cross[-_ ]?entropy|\bCCE\b|\bunsloth\b", "cut"),
    (
        r"chunked[-_ ](?:cross[-_ ]?entropy|CE\b|nll|loss|output|logits|LM head)|vocab[-_ ]tiling|\bloss chunks\b",
        "chunked",
    ),
)
"""Losses that never hold all logits, as programs name them. Unsloth's is Cut cross-entropy (its release of
2024-11). prime-rl's trainer of reinforcement learning streams its head through 1,024 tokens at a time
(docs/scaling.md, fused_lm_head_token_chunk_size), about Liger's piece; its supervised trainer does not."""


_NEGATED = re.compile(r"(?:\b(?:no|not|without|w/o|disabled?|non)[-_ ]+|\bno-)$", re.IGNORECASE)
_SWITCHED_OFF = re.compile(
    r"\w*['\"`]?\s*[=:]\s*['\"`]?(?:false|off|no|none|0|disabled?)\b|`?\s+(?:is |was )?(?:off|disabled)\b",
    re.IGNORECASE,
)


def says(pattern: str, text: str) -> bool:
    """Whether a text says something without taking it back: `no liger`, `torch.compile=False`."""
    return any(
        not _NEGATED.search(text[: found.start()]) and not _SWITCHED_OFF.match(text[found.end() :])
        for found in re.finditer(pattern, text, re.IGNORECASE)
    )


def stated_options(text: str) -> dict[str, Any]:
    """Return the fields of a framework's behaviour that a text states."""
    options: dict[str, Any] = {}
    for pattern, values in STATED:
        if says(pattern, text):
            options |= values
    return options


def loss_of(row: Row) -> Loss:
    """Return how a row says that its loss meets the logits; "framework" where it says nothing."""
    text = re.sub(r"each added on top.*", "", row["setup"])
    for pattern, kind in LOSSES:
        if says(pattern, text):
            return kind
    return "framework"


OFFLOADED: tuple[tuple[str, Offload], ...] = (
    (
        r"activations?[-_ ](?:cpu[-_ ])?offload|offload\w*[-_ ](?:of )?activations|offload_to_cpu",
        "activations",
    ),
    (
        r"optimi[sz]er[-_ ](?:states? )?(?:to )?(?:cpu[-_ ])?offload|offload\w*[-_ ](?:of )?(?:the )?optim|"
        r"\bFSDP\b.{0,20}\bCPU[-_ ]?offload|cpu[-_ ]?adam|offload[-_ ]?(?:ed[-_ ]?)?adam|zero-?(?:[123] ?[+,]? ?(?:cpu[-_ ])?)?offload|zero-?infinity|adamw? (?:on|in) (?:the )?(?:cpu|host)",
        "optimizer",
    ),
    (
        r"offload\w*[-_ ](?:of )?param|param\w*[-_ ](?:cpu[-_ ])?offload|zero-?infinity|"
        r"\bFSDP\b.{0,20}\bCPU[-_ ]?offload|zero-?3 ?[+,]? ?(?:cpu[-_ ])?offload",
        "parameters",
    ),
)
"""What lives in the host's memory, as DeepSpeed, torchtune, TRL and Megatron print it (`offload_optimizer`,
`DeepSpeedCPUAdam`, `enable_activation_offloading`). FSDP's CPUOffload(offload_params=True) keeps parameters, gradients and so the
update there, ZeRO-3's offload parameters and states."""


_OF_A_MODULE = re.compile(
    r"\b(?:attn_norm|qkv_linear|core_attn|attn_proj|mlp_norm|expert_fc1|moe_act)\b[^;]*?offload\w*",
    re.IGNORECASE,
)
"""Inputs of one module that leave the device (Megatron-Core's `offload_modules`), beside its computation: not
all activations, whose traffic would set the pace, and not priced."""


def stated_offloads(row: Row) -> tuple[Offload, ...]:
    """Return what a row says that its run keeps in the host's memory."""
    text = _OF_A_MODULE.sub("", f"{row['setup']}; {row['zero_or_fsdp']}")
    return tuple(kind for pattern, kind in OFFLOADED if says(pattern, text))
