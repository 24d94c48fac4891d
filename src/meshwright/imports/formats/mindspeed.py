"""MindSpeed's own options (Megatron-LM on Ascend NPUs) in Megatron-LM's words."""

from __future__ import annotations

import re
from typing import Any

from meshwright.exports.megatron_model import read_pattern
from meshwright.imports.options import Options
from meshwright.imports.reading import Reading
from meshwright.imports.tasks import name_task
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.model import Model
from meshwright.specs.models import load_model

_SIGNS = (
    "first-k-dense-replace", "n-shared-experts", "handler-name", "no-shared-storage", "context-parallel-algo",
    "reuse-fp32-param", "swap-optimizer", "swap-attention", "noop-layers", "num-layer-list", "schedules-method", "shape-order",
    "moe-tp-extend-ep", "moe-permutation-async-comm", "moe-alltoall-overlap-comm", "ai-framework", "use-cp-send-recv-overlap",
    "model-type-hf", "recompute-activation-function", "o2-optimizer", "multi-head-latent-attention", "gemm-gradient-accumulation-fusion",
    "use-ascend-coc", "use-ascend-mc2", "moe-fb-overlap", "tp-2d", "smart-swap", "tokenizer-not-use-fast",
    "is-instruction-dataset", "is-pairwise-dataset", "prompt-type", "no-pad-to-seq-lengths", "use-fused-swiglu", "use-fused-rmsnorm",
    "use-fused-rotary-pos-emb", "use-fused-ring-attention-update", "use-glm-rope", "enable-high-availability",
)  # fmt: skip
"""Names that only MindSpeed and its model library have."""
_METHODS = {
    "ulysses_cp_algo": "a2a", "megatron_cp_algo": "p2p", "hybrid_cp_algo": "a2a+p2p", "hybrid_adaptive_cp_algo": "a2a+p2p",
    "adaptive_cp_algo": "p2p", "kvallgather_cp_algo": "all_gather", "mamba_cp_algo": "p2p",
}  # fmt: skip
TABLE = "mindspeed"
_MOST_LAYERS = 10_000


def translate(options: Options) -> tuple[str, ...]:
    """Say MindSpeed's options in Megatron-LM's words, where any is there; return the tables of what is left.

    Raises:
        SpecError: layers or a method that cannot be.
    """
    if not options.has(*_SIGNS):
        return ()
    values = options.values
    if options.flag("multi-head-latent-attention"):
        values["multi-latent-attention"] = True
    method = options.word("context-parallel-algo")
    if method and "cp-comm-type" not in values:
        if method not in _METHODS:
            raise SpecError(
                "--context-parallel-algo", method, f"one of {', '.join(_METHODS)} is expected"
            )
        values["cp-comm-type"] = _METHODS[method]
    shared = options.whole("n-shared-experts")
    if shared and "moe-shared-expert-intermediate-size" not in values:
        width = options.whole("moe-ffn-hidden-size", "moe-intermediate-size", "ffn-hidden-size")
        values["moe-shared-expert-intermediate-size"] = shared * width
    _layers(options)
    if options.flag("o2-optimizer"):
        values.setdefault("exp-avg-dtype", "bf16")
        values.setdefault("exp-avg-sq-dtype", "bf16")
    if options.flag("o2-gradient"):
        values["grad-reduce-in-bf16"] = True
    if options.has("swap-attention") and options.whole("recompute-num-layers"):
        # What is swapped out is recomputed in so many layers, whatever the granularity (adaptor.py, `solve_prefetch_policy`).
        values.setdefault("recompute-granularity", "full")
        values.setdefault("recompute-method", "block")
    if options.flag("post-norm"):
        values["sandwich-norm"] = True
    window = options.whole("interleave-sliding-window")
    if window:
        values |= {"window-size": str(window), "window-attn-skip-freq": "2"}
    return (TABLE,)


_KNOWN = ("deepseek-v4-flash", "deepseek-v4-pro")


_OF_V4 = ("hc-", "enable-mhc", "use-v4-", "v4-", "attn-sink", "attn-sliding-window", "hybrid-attention", "num-hash-layers", "swiglu-limit", "use-triton-mhc", "index-", "indexer-", "use-fused-mhc", "use-fused-lightning", "use-sparse-flash", "max-batch-size", "enable-dsa", "o-lora-rank", "o-groups", "kv-compress", "compress-", "n-hash-layers")  # fmt: skip
"""Options of its streams and its attention, which the preset has."""


def known_shape(options: Options, reading: Reading) -> Model | None:
    """DeepSeek-V4 by its preset: its attention and its streams have no options here that describe them whole.

    Raises:
        SpecError: the sizes are those of no preset.
    """
    named = options.word("position-embedding-type") == "deepseek4"
    if not named and not (options.has("compress-ratios") and options.has("hc-mult")):
        return None
    said = options.whole("num-layers"), options.whole("hidden-size")
    for name in _KNOWN:
        model = load_model(name)
        if (model.layers, model.hidden) == said:
            options.values["position-embedding-type"] = "rope"
            options.read.add("position-embedding-type")
            options.read |= {one for one in options.values if one.startswith(_OF_V4)}
            reading.note(f"the options are {name}'s, whose preset is taken", "--model")
            return model
    where = "position-embedding-type" if named else "compress-ratios"
    raise SpecError(f"--{where}", options.loose(where), f"DeepSeek-V4's attention with {said[0]} layers is not modelled; {' and '.join(_KNOWN)} are")  # fmt: skip


def _layers(options: Options) -> None:
    """Which layers there are, which of them have experts, and how stages share them.

    `--noop-layers` names layers that only fill a stage up; `--first-k-dense-replace` counts them.
    """
    values = options.values
    if "num-layers" not in values:
        return
    count = options.whole("num-layers", least=1)
    if count > _MOST_LAYERS:
        raise SpecError("--num-layers", count, f"at most {_MOST_LAYERS} layers are expected")
    empty = {int(one) for one in re.findall(r"\d{1,6}", options.text("noop-layers"))}
    kept = [index for index in range(count) if index not in empty]
    dense = options.whole("first-k-dense-replace", default=0, least=-1)
    often = options.text("moe-layer-freq", default="1").strip("\"' ") or "1"
    if re.fullmatch(r"-?\d+", often) and options.has("num-experts"):
        period = abs(int(often)) or 1
        pattern = [int(i >= dense and (i - max(dense, 0)) % period == 0) for i in range(count)]
    elif options.has("num-experts"):
        pattern = read_pattern(often, count)
    else:
        pattern = [0] * count
    if options.has("num-experts"):
        values["moe-layer-freq"] = str([pattern[index] for index in kept])
    values["num-layers"] = len(kept)
    stages = _stages(options, count)
    if stages:
        held = [sum(first <= index < last for index in kept) for first, last in stages]
        values["pipeline-model-parallel-layout"] = "|".join("t" * number for number in held)


def _stages(options: Options, count: int) -> list[tuple[int, int]]:
    """First layer of each stage and the one after its last, where the options deal layers out in their own way."""
    pp = options.whole("pipeline-model-parallel-size", default=1, least=1)
    named = [int(one) for one in re.findall(r"\d{1,6}", options.text("num-layer-list"))]
    folded = options.word("schedules-method") == "dualpipev"
    if pp == 1:
        return []
    if named and not options.has("noop-layers"):
        if sum(named) != count:
            raise SpecError(
                "--num-layer-list", options.text("num-layer-list"), f"{count} layers are expected"
            )
        ends = [sum(named[: index + 1]) for index in range(len(named))]
        return list(zip([0, *ends[:-1]], ends, strict=True))
    per_stage = options.whole("num-layers-per-virtual-pipeline-stage")
    if not (folded or options.has("noop-layers")):
        return []
    wide = pp * 2 if folded else pp
    each = count // wide if folded or not per_stage else per_stage
    if not each or count % each or (count // each) % pp:
        raise SpecError("--num-layers", count, f"layers that {wide} stages share are expected")
    return [(first, first + each) for first in range(0, count, each)]


def refine(options: Options, reading: Reading, fields: dict[str, Any]) -> None:
    """What MindSpeed's options change of a layout and a job that Megatron-LM's are read into."""
    if options.word("schedules-method") == "dualpipev" and fields["pp"] > 1:
        fields["schedule"] = "dualpipe-v"
    sequential = options.word("moe-token-dispatcher-type") == "alltoall_seq"  # the others ignore it
    if options.flag("moe-tp-extend-ep") and sequential:
        fields |= {"ep": fields["ep"] * fields["etp"], "etp": 1}
    if options.flag("enable-recompute-layers-per-pp-rank") and fields.get("recompute_layers"):
        fields["recompute_layers"] = max(fields["recompute_layers"] // fields["virtual_stages"], 1)
    heads, ranks = reading.model.kv_heads if reading.model else 1, fields["tp"] * fields["cp"]
    latent = reading.model is not None and reading.model.latent_attention
    if fields["cp_method"] == "ulysses" and heads % ranks and not latent:
        fields["cp_method"] = "ring"
        reading.unmodelled(
            "--context-parallel-algo",
            f"{heads} key and value heads are repeated to be dealt out over {ranks} ranks, which "
            "Megatron-LM's own Ulysses does not do; ring attention over these ranks is priced",
        )
    _masked(options, reading)
    if options.flag("enable-high-availability") and not options.has(
        "distributed-optimizer-no-replica"
    ):
        reading.unmodelled("--enable-high-availability", "a second copy of every shard of the optimizer's states is kept; one is priced")  # fmt: skip
    if options.flag("swap-optimizer"):
        reading.offload.add("optimizer")
        fields["offload"].append("optimizer")
    if options.flag("reuse-fp32-param"):
        # A 32-bit weight is the 16-bit one and what rounding took from it.
        reading.job["precision"]["master_bytes"] = 2
    targets, rank = options.raw("lora-target-modules"), options.whole("lora-r", default=8)
    # A print of all arguments has a rank, and no modules, where there are no adapters.
    if targets or (options.has("lora-r") and not options.has("lora-target-modules")):
        adapters(
            reading,
            method="qlora" if options.flag("qlora") else "lora",
            rank=rank,
            alpha=options.number("lora-alpha"),
            targets=targets,
            dropout=options.number("lora-dropout"),
            option="--lora-target-modules",
        )
    stage = options.word("stage")
    if stage in ("dpo", "trl_dpo"):
        reading.task, reading.reference = "dpo", True
    elif stage == "orm":  # an outcome reward model
        name_task(reading, "reward")
    elif stage == "prm":
        reading.unmodelled("--stage", "prm: the head has one output; one of the whole vocabulary is priced")  # fmt: skip
    else:
        name_task(reading, stage)


_CAUSAL = (0, 2, 3, 7, 8)
"""Masks of the fused kernel under which a token sees all those before it (in its document)."""


def _masked(options: Options, reading: Reading) -> None:
    """Name a mask, or a band, that lets a token see less or more than all before it."""
    mode, far = options.whole("sparse-mode"), options.whole("pre-tockens")
    if mode not in _CAUSAL:
        reading.unmodelled("--sparse-mode", f"mask {mode} of the fused kernel is not causal; a causal one is priced")  # fmt: skip
    if far and far < options.whole("seq-length"):
        reading.unmodelled("--pre-tockens", f"attention sees {far} tokens back where the mask is a band; the whole sequence is priced")  # fmt: skip
    options.read.add("next-tockens")
