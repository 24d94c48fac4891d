"""The Megatron-LM flags that a Megatron-Bridge configuration's fields amount to."""

from __future__ import annotations

from typing import Any

from meshwright.imports.formats.bridge_overrides import USUAL

_TABLES = ("model", "train", "optimizer", "ddp", "dist", "dataset", "checkpoint", "tokenizer", "scheduler", "comm_overlap", "rng",
           "logger", "validation", "profiling", "mixed_precision", "peft", "inprocess_restart", "ft", "straggler")  # fmt: skip
RENAMED = {
    "num-moe-experts": "num-experts", "virtual-pipeline-model-parallel-size": "num-virtual-stages-per-pipeline-rank",
    "num-layers-in-first-pipeline-stage": "decoder-first-pipeline-num-layers",
    "num-layers-in-last-pipeline-stage": "decoder-last-pipeline-num-layers",
    "sequence-length": "seq-length", "seq-len": "seq-length", "fp8-param": "fp8-param-gather",
    "seq-len-interpolation-factor": "rotary-seq-len-interpolation-factor",
    "packed-sequence-specs.packed-sequence-size": "seq-length",
}  # fmt: skip
_SILENT = ("logger", "validation", "checkpoint", "rng", "profiling", "scheduler", "straggler", "ft", "inprocess_restart",
           "peft")  # fmt: skip
"""Tables whose fields change no plan."""


def flags_of(words: list[str]) -> dict[str, Any]:
    """The Megatron-LM flags that overrides of a configuration's fields amount to."""
    flags: dict[str, Any] = {}
    for word in words:
        field, equals, value = word.lstrip("+").partition("=")
        table, _dot, name = field.partition(".")
        if (
            word.startswith("--")
            or not equals
            or (table not in _TABLES and field != "mixed_precision")
        ):
            continue
        value = value.strip().strip("\"'")
        if field == "mixed_precision":
            _mixed(flags, value)
        elif not _special(flags, field, value) and table not in _SILENT:
            flag = RENAMED.get(name.replace("_", "-"), name.replace("_", "-"))
            _set(flags, flag, value)
    if "num-query-groups" in flags:
        flags["group-query-attention"] = True
    if flags.get("fp16") and not flags.pop("grad-reduce-in-bf16", False):
        flags["accumulate-allreduce-grads-in-fp32"] = True
    return flags


def _set(flags: dict[str, Any], flag: str, value: str) -> None:
    if value.lower() in ("true", "false"):
        flags[flag] = value.lower() == "true"
    elif value.lower() not in ("null", "none", ""):
        listed = value.startswith("[") and flag != "moe-layer-freq"
        flags[flag] = value.strip("[]") if listed else value


def _special(flags: dict[str, Any], field: str, value: str) -> bool:
    """Overrides whose sense or values differ from the flag's."""
    on = value.lower() == "true"
    if field == "model.add_bias_linear":
        _set(flags, "disable-bias-linear", str(not on))
    elif field == "model.share_embeddings_and_output_weights":
        _set(flags, "untie-embeddings-and-output-weights", str(not on))
    elif field == "model.gated_linear_unit":
        _set(flags, "swiglu", value)
    elif field in ("ddp.grad_reduce_in_fp32", "mixed_precision.grad_reduce_in_fp32"):
        _set(flags, "grad-reduce-in-bf16", str(not on))
    elif field in ("model.gradient_accumulation_fusion", "model.activation_func", "optimizer.use_distributed_optimizer",
                   "tokenizer.vocab_size", "model.pipeline_dtype", "model.cuda_graph_warmup_steps",
                   # YaRN's band in latent attention: numbers without a cost.
                   "model.beta_fast", "model.beta_slow", "model.original_max_position_embeddings",
                   "tokenizer.use_tokenizer_vocab_size") or (on and field in USUAL):  # fmt: skip
        pass
    elif field.startswith("mixed_precision."):
        name = field.partition(".")[2].replace("_", "-")
        _set(flags, {"fp8": "fp8-format", "fp4": "fp4-format"}.get(name, name), value)
    else:
        return False
    return True


def _mixed(flags: dict[str, Any], value: str) -> None:
    if value.startswith("fp16"):
        flags["fp16"] = True
    elif value.lower() not in ("null", "none"):
        flags["bf16"] = True
    if "fp8" in value:
        flags["fp8-format"] = "hybrid"
        flags["fp8-param-gather"] = True
    if "fp4" in value:
        flags["fp4-format"] = "e2m1"
