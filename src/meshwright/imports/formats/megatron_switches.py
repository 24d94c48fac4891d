"""What Megatron-LM's switches make of its usual overlaps, buckets, fusions, padding, graphs and capacities."""

from __future__ import annotations

import re
from typing import Any

from meshwright.imports.options import Options
from meshwright.imports.reading import Reading
from meshwright.planner.graphs import OPTION as GRAPHS
from meshwright.specs.errors import SpecError
from meshwright.specs.model import Experts

NEGATED = {
    "add_bias_linear": "disable-bias-linear", "overlap_p2p_comm": "no-overlap-p2p-communication", "fp8_wgrad": "no-fp8-wgrad",
    "apply_rope_fusion": "no-rope-fusion", "gradient_accumulation_fusion": "no-gradient-accumulation-fusion",
    "masked_softmax_fusion": "no-masked-softmax-fusion", "bias_gelu_fusion": "no-bias-gelu-fusion",
    "bias_swiglu_fusion": "no-bias-swiglu-fusion", "bias_dropout_fusion": "no-bias-dropout-fusion",
    "gradient_reduce_div_fusion": "no-gradient-reduce-div-fusion", "align_param_gather": "no-align-param-gather",
    "pin_cpu_grads": "no-pin-cpu-grads", "pin_cpu_params": "no-pin-cpu-params",
    "scatter_gather_tensors_in_pipeline": "no-scatter-gather-tensors-in-pipeline",
    "create_attention_mask_in_dataloader": "no-create-attention-mask-in-dataloader",
}  # fmt: skip
"""Fields that are on unless Megatron-LM is told otherwise, and the flag that tells it."""
_VOCAB_MULTIPLE = 128
_MASK_BYTES = 2**28
"""A mask that is worth a word."""
_FUSED_LOGITS_BYTES = 4.0
"""16-bit logits and one 16-bit copy, where the loss is one kernel (as published rows with the switch were priced)."""


def behaviour(
    options: Options, zero: int, *, overlaps: bool
) -> dict[str, bool | int | float | str]:
    """Deviations from what `framework: megatron` assumes: the benchmark's overlaps, default buckets and padding.

    Args:
        overlaps: whether the tool overlaps the data-parallel collectives where its options say nothing.
            Megatron-LM's own scripts do not; recipes of NeMo and Megatron-Bridge do.
    """
    found: dict[str, bool | int | float | str] = {}
    reduces = options.flag("overlap-grad-reduce", default=overlaps)
    gathers = options.flag("overlap-param-gather", default=overlaps)
    # From ZeRO-2 on Megatron-FSDP reduces beside the backward whatever it is told, and gathers so from ZeRO-3 on
    # (megatron_fsdp.py); FSDP2 does both.
    if zero < 2 and not reduces:
        found["reduce_overlapped"] = False
    fsdp2 = options.flag("use-torch-fsdp2")
    if zero in (1, 2) and not gathers and not fsdp2:
        found["gather_overlapped"] = False
    if options.flag("tp-comm-overlap"):
        found["tensor_overlapped"] = True
    if options.flag("overlap-moe-expert-parallel-comm"):
        found["expert_overlapped"] = True
    if options.flag("no-overlap-p2p-communication"):
        found["p2p_overlapped"] = False
    bucket = options.whole("ddp-bucket-size")
    if bucket:
        found |= {"bucket_parameters": float(bucket), "bucket_parameters_per_rank": 0.0}
    found |= padding(options)
    kind = options.word("cross-entropy-fusion-impl", default="native")
    if options.flag("cross-entropy-loss-fusion") and kind != "linear":
        found["logits_bytes"] = _FUSED_LOGITS_BYTES
    return found


def padding(options: Options) -> dict[str, bool | int | float | str]:
    """What the vocabulary is padded to a multiple of, where that is not the usual 128 (times tp)."""
    multiple = options.whole("make-vocab-size-divisible-by", default=_VOCAB_MULTIPLE)
    return {} if multiple in (0, _VOCAB_MULTIPLE) else {"vocab_multiple": multiple}


def name_others(options: Options, reading: Reading, experts: Experts | None, *, mask: bool, spread: bool = False) -> None:  # fmt: skip
    """Name what a step pays for, or saves, that no behaviour of the table holds.

    Args:
        mask: whether Megatron-LM's own loader feeds the run, which makes masks unless told not to.
        spread: whether experts lie on several ranks.

    Raises:
        SpecError: the training loop is skipped.
    """
    kind = options.word("cross-entropy-fusion-impl", default="native")
    if options.flag("cross-entropy-loss-fusion") and kind == "linear":
        reading.unmodelled("--cross-entropy-fusion-impl", "head and loss are one kernel that never holds all logits; the estimate does")  # fmt: skip
    grouped = options.flag("moe-grouped-gemm", "moe-use-legacy-grouped-gemm", "use-grouped-gemm")
    if experts is not None and not grouped and "--moe-grouped-gemm" not in options.guessed:
        reading.unmodelled("--moe-grouped-gemm", "is not there: a rank's experts run one by one; grouped products are priced")  # fmt: skip
    if spread and options.word("moe-token-dispatcher-type", default="allgather") == "allgather":
        said = (
            ""
            if options.has("moe-token-dispatcher-type")
            else "is Megatron-LM's default, allgather: "
        )
        reading.unmodelled("--moe-token-dispatcher-type", f"{said}every token goes to every rank of experts; an all-to-all is priced")  # fmt: skip
    if options.word("transformer-impl") not in ("", "local", "transformer_engine"):
        reading.unmodelled(
            "--transformer-impl",
            f"{options.word('transformer-impl')} builds other layers; Transformer Engine's are priced",
        )
    if options.flag("skip-train"):
        raise SpecError("--skip-train", True, "does not train; a training run is expected")
    lengths = [name for name in ("train-iters", "train-samples", "train-tokens") if options.has(name)]  # fmt: skip
    if lengths and not options.has("train-epochs") and all(str(options.raw(name)) == "0" for name in lengths):  # fmt: skip
        raise SpecError(f"--{lengths[0]}", 0, "does not train; a training run is expected")
    spec = options.text("spec")
    own = spec.split()[0].strip("\"'[],") if spec.split() else ""
    if (
        own
        and own not in ("local", "te", "transformer_engine")
        and not own.startswith(
            (
                "megatron.core.models.gpt",
                "megatron.core.models.hybrid",
                "megatron.core.models.mamba",
                "mindspeed_llm.tasks.models.spec",
            )
        )
    ):
        reading.unmodelled(
            "--spec", f"layers are built by {own[-60:]}; Megatron-LM's own are priced"
        )
    made = mask and not options.flag(
        "no-create-attention-mask-in-dataloader", "sft", "dataloader-inter-document-masking"
    )
    size = (reading.micro_batch or 1) * reading.seq_len**2
    if made and size >= _MASK_BYTES:
        reading.unmodelled("--no-create-attention-mask-in-dataloader", f"is not there: each micro-batch brings a mask of {size / 2**30:.2g} GiB, which the estimate leaves out")  # fmt: skip


def graphs_and_capacity(
    options: Options, reading: Reading, found: dict[str, Any]
) -> dict[str, Any]:
    """What CUDA graphs capture, and the multiple of their even share that experts keep."""
    more: dict[str, Any] = {}
    capacity = options.number("moe-expert-capacity-factor")
    if not capacity:  # which tokens go first where none has to
        options.read.add("moe-token-drop-policy")
    if capacity >= 1:
        more["routing"] = {"capacity": capacity}
    elif capacity > 0:
        reading.unmodelled(
            "--moe-expert-capacity-factor", f"{capacity:g} drops tokens even of balanced experts"
        )
    kind = _graphs(options, reading)
    if kind != "none":
        more["framework_options"] = {**found.get("framework_options", {}), GRAPHS: kind}
    return more


def _graphs(options: Options, reading: Reading) -> str:
    """none, layers or all; a scope that is not one of the two is none, and said.

    Older names: `--enable-cuda-graph` is local, `--external-cuda-graph` Transformer Engine's, and
    `--cuda-graph-scope` the modules (docs/user-guide/features/cuda_graph.md of Megatron-LM).
    """
    older = "local" if options.flag("enable-cuda-graph") else "none"
    older = "transformer_engine" if options.flag("external-cuda-graph") else older
    kind = options.word("cuda-graph-impl", default=older)
    text = options.text("cuda-graph-modules", "cuda-graph-scope")
    modules = set(re.sub(r"[\[\]'\",]", " ", text).replace("CudaGraphScope.", "").split())
    if kind in ("none", "null"):
        return "none"
    if kind == "full_iteration" or modules & {"full_iteration", "full_iter"}:
        return "all"
    # Experts that run again are in no graph: Megatron-LM captures what stands beside them.
    beside = "moe" in reading.layout.get("recompute_modules", ())
    sharded = reading.layout.get("zero", 0) >= 2
    if (not modules or modules & {"full", "attn"}) and not beside and not sharded:
        return "layers"
    what = "beside sharded weights" if sharded else f"of {', '.join(sorted(modules))} alone" if modules else "beside recomputed experts"  # fmt: skip
    reading.unmodelled("--cuda-graph-modules", f"graphs {what} have no price")
    return "none"


def name_groups(options: Options, reading: Reading) -> None:
    """Say that a number of query groups stands without its switch: releases differ in whether it counts then."""
    model = reading.model
    if model is None or "num-query-groups" not in options or "group-query-attention" in options:
        return
    if 1 < model.kv_heads < model.heads:
        reading.note("counts here without --group-query-attention; releases of Megatron-LM that read it only beside the switch keep keys and values of all heads", "--num-query-groups")  # fmt: skip
