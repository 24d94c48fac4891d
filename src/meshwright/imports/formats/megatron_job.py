"""Precision, attention kernel and budget of a Megatron-LM run."""

from __future__ import annotations

import re
from typing import Any

from meshwright.imports.formats.megatron_offload import optimizer_share, searched
from meshwright.imports.options import Options, counted
from meshwright.imports.reading import Reading
from meshwright.imports.recipes import optimizer_or_adamw
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES, OptimizerRecipe, PrecisionRecipe

_BYTES = {
    "fp32": 4,
    "float32": 4,
    "bf16": 2,
    "bfloat16": 2,
    "fp16": 2,
    "float16": 2,
    "fp8": 1,
    "uint8": 1,
}


def width_bytes(options: Options, name: str, default: str = "fp32") -> float:
    """Bytes of the type that an option names.

    Raises:
        SpecError: no known type.
    """
    word = options.word(name, default=default).removeprefix("torch.")
    if word not in _BYTES:
        raise SpecError(f"--{name}", word, f"one of {', '.join(_BYTES)} is expected")
    return _BYTES[word]


def precision_recipe(
    options: Options, reading: Reading, dialect: str, zero: int
) -> PrecisionRecipe:
    """What a run computes, reduces and keeps its weights in.

    Raises:
        SpecError: no known type.
    """
    eight, four = (_format(options, name) for name in ("fp8", "fp4"))
    eight = "hybrid" if options.flag("fp8-e4m3", "fp8-hybrid", "use-hpu-fp8-transformer-engine") else eight  # fmt: skip
    narrow = options.flag("grad-reduce-in-bf16")
    wide = options.flag("accumulate-allreduce-grads-in-fp32")
    half, brain = options.flag("fp16"), options.flag("bf16")
    if half and eight:
        # Eight bits in the products, 16 beside them: weights and sums are as wide as in fp16.
        recipe = RECIPES["fp8"].but(**_gradients(4 if wide else 2))
    elif half:
        recipe = RECIPES["fp16"].but(**(_gradients(4) if wide else {}))
    elif not brain and not eight:
        return RECIPES["fp32"]
    else:
        size = 2 if narrow or (dialect != "megatron" and zero >= 2) else 4
        recipe = RECIPES["bf16" if size == 2 else "bf16-fp32-grads"]
        if eight or four:
            recipe = RECIPES["fp8"].but(**_gradients(size))
            if four:
                recipe = recipe.but(name="fp4", compute="fp4")
    sums = width_bytes(options, "main-grads-dtype")
    if sums == 2 and not wide:  # arguments.py: summed in 32 bits only where main gradients have 32
        recipe = recipe.but(**_gradients(2))
    if options.flag("use-precision-aware-optimizer"):
        _remainders(options, reading)
        recipe = recipe.but(master_bytes=width_bytes(options, "main-params-dtype"), gradient_bytes=sums)  # fmt: skip
    if options.flag("fp8-param-gather", "fp4-param-gather"):
        reading.unmodelled(
            "--fp8-param-gather",
            "weights are kept and gathered in 8 bits; the estimate holds and gathers 16",
        )
    return recipe


def _remainders(options: Options, reading: Reading) -> None:
    """Say where 32-bit weights are kept as what the bf16 ones lack (core/optimizer/optimizer_config.py, `store_param_remainders`)."""
    shared = options.flag("bf16") and width_bytes(options, "main-params-dtype") == 4
    delayed = not _format(options, "fp8") or options.word("fp8-recipe", default="delayed") == "delayed"  # fmt: skip
    if shared and delayed and not options.flag("optimizer-cpu-offload", "use-megatron-fsdp"):
        reading.note("Transformer Engine from 2.1 on keeps 2 of the 4 bytes of a 32-bit weight that are priced: the 16-bit one has the others", "--use-precision-aware-optimizer")  # fmt: skip


def _format(options: Options, name: str) -> str:
    """The number format of products of 8 or 4 bits; empty where there are none."""
    said = options.word(f"{name}-format", name, default="")
    return "" if said in ("false", "none", "null", "no", "0") else said


def _gradients(size: int) -> dict[str, Any]:
    return {"gradient_bytes": size, "gradient_reduce_bytes": size}


_BEFORE_ENGINE = (
    "DDP-impl", "checkpoint-activations", "activations-checkpoint-method", "checkpoint-num-layers", "model-parallel-size",
    "use-contiguous-buffers-in-local-ddp", "no-contiguous-buffers-in-local-ddp", "no-scaled-masked-softmax-fusion",
    "no-query-key-layer-scaling", "moe-expert-model-parallelism", "no-tie-embed-logits", "use-rms-norm", "num-attention-heads-kv",
)  # fmt: skip
"""Options of releases and forks that ran layers of their own unless they were told `--use-flash-attn`."""


def attention_kernel(options: Options, dialect: str) -> str:
    """The kernel that attention runs on."""
    backend = options.word("attention-backend", default="")
    flash = options.flag("use-flash-attn", "use-flash-attn-v1", "use-flash-attn-v2", "use-flash-attn-triton",
                         "use-flash-attn-builder", "use-fusion-attn-v2", "use-fused-sdpa")  # fmt: skip
    said = options.word("transformer-impl")
    local = said == "local" or (not said and options.has(*_BEFORE_ENGINE))
    if backend in ("unfused", "local", "attnbackend.unfused", "attnbackend.local"):
        return "unfused"
    if flash or backend in ("flash", "fused", "auto"):
        return "flash"
    return "unfused" if dialect != "megatron" or local else "flash"


def batch(options: Options, reading: Reading, config: dict[str, Any]) -> None:
    """Micro-batch and batch, and what DeepSpeed's configuration says of them where the command's own options leave it."""
    reading.micro_batch = options.whole("micro-batch-size", "batch-size")
    reading.global_batch = options.whole("global-batch-size")
    if not reading.global_batch and "step-batch-size-schedule" in options:
        sizes = re.findall(r":(\d{1,7})", options.loose("step-batch-size-schedule"))
        reading.global_batch = int(sizes[-1]) if sizes else 0
    steps = options.whole("gradient-accumulation-steps", default=1, least=1)
    reading.accumulation = steps if not reading.global_batch else 0
    names = ("train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps")
    micro, whole, steps = (counted(config.get(name)) for name in names)
    reading.micro_batch = reading.micro_batch or micro
    if not reading.global_batch and whole:
        reading.global_batch, reading.accumulation = whole, 0
    elif not reading.global_batch and steps:
        reading.accumulation = steps


def add_budget(options: Options, reading: Reading) -> None:
    """Add the tokens of the whole run where the options say its steps or samples."""
    ramp = options.loose("rampup-batch-size", "step-batch-size-schedule")
    if ramp:
        reading.note(
            f"the batch grows ({ramp[:40]}); it is priced at its full size", "--rampup-batch-size"
        )
    try:
        steps = options.number("train-iters")
        samples = options.number("train-samples")
        tokens = options.number("train-tokens")
    except SpecError:
        return
    seq, batch = reading.seq_len, reading.global_batch
    found = tokens or samples * seq or (steps * batch * seq if steps > 1000 else 0)
    if found:
        reading.job["token_budget"] = float(found)


def deduplicates(options: Options) -> bool:
    """Whether experts' tokens travel by DeepEP or HybridEP."""
    kind = options.word("moe-token-dispatcher-type", default="alltoall")
    backend = options.word("moe-flex-dispatcher-backend", default="deepep")
    older = options.flag("moe-enable-deepep")
    return kind == "flex" and (older or backend in ("deepep", "hybridep"))


def optimizer_of(options: Options, reading: Reading) -> OptimizerRecipe:
    """The optimizer that Megatron-LM's options name, with its moments' width, and what of a step leaves the device.

    Raises:
        SpecError: an optimizer whose state is not known.
    """
    name = options.word("optimizer", default="adam")
    momentum = options.number("sgd-momentum", default=0.9)
    optimizer = optimizer_or_adamw(reading, name, "--optimizer", momentum)
    aware = options.flag("use-precision-aware-optimizer")
    named = aware or options.has("exp-avg-dtype", "exp-avg-sq-dtype")
    if named and optimizer.name.startswith("adam"):  # no other has these moments
        moments = sum(
            width_bytes(options, field) for field in ("exp-avg-dtype", "exp-avg-sq-dtype")
        )
        optimizer = optimizer.but(state_bytes=float(moments))
    if fraction := optimizer_share(options):
        reading.offload.add("optimizer")
        if fraction < 1:
            reading.unmodelled(
                "--optimizer-offload-fraction", f"only {fraction:g} of the optimizer is offloaded"
            )
        elif searched(options):
            reading.unmodelled("--optimizer-offload-policy", "how much of the optimizer leaves the device is found while it runs; all of it is priced in host memory")  # fmt: skip
    return optimizer
