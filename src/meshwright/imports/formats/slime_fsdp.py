"""slime on its FSDP engine: a checkpoint of transformers, sharded whole, its sequences shared by ring attention.

Names and defaults: slime/backends/fsdp_utils/arguments.py and actor.py of slime.
"""

from __future__ import annotations

from meshwright.imports.formats import slime_options
from meshwright.imports.names import PLANNED, refuse_other
from meshwright.imports.options import Options, flags_of
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_named
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES


def is_command(words: list[str]) -> bool:
    """Whether words are slime's for its FSDP engine, the model known by its checkpoint alone."""
    flags = flags_of(words)
    alone = {"rollout-batch-size", "hf-checkpoint"} <= set(flags) and "num-layers" not in flags
    return alone and flags.get("train-backend") == "fsdp"


def read_words(words: list[str], given: Given) -> Reading:
    """Return the training half of a slime command on FSDP.

    Raises:
        SpecError: nothing trains, or a value cannot be.
    """
    options = Options(flags_of(words), "--")
    options.guessing = given.guess
    if options.flag("debug-rollout-only"):
        raise SpecError("--debug-rollout-only", True, "does not train; a training run is expected")
    if options.has("multimodal-keys"):
        raise SpecError("--multimodal-keys", options.loose("multimodal-keys"), f"trains a vision-language model: {PLANNED}")  # fmt: skip
    reading = Reading("slime script", options={"micro_batch": "--micro-batch-size"})
    reading.model, reading.model_name = given.model, options.loose("hf-checkpoint")
    if reading.model is None:
        refuse_other(reading.model_name)
    reading.hosts = options.whole("actor-num-nodes", default=1, least=1)
    reading.per_host = options.whole("actor-num-gpus-per-node", default=8, least=1)
    shared = options.whole("context-parallel-size", default=1) or 1
    again = options.flag("gradient-checkpointing")
    reading.layout = {"zero": 3, "cp": shared, "recompute": "full" if again else "none"}
    if shared > 1:
        reading.layout["cp_method"] = "ring"
    if options.flag("fsdp-cpu-offload"):
        reading.offload |= {"optimizer", "parameters"}
    half = "fp16" if options.flag("fp16") else "bf16"
    recipe = RECIPES[half].but(gradient_bytes=4, gradient_reduce_bytes=4)
    optimizer = optimizer_named(options.word("optimizer", default="adam"), "--optimizer")
    reading.job = {
        "framework": "fsdp",
        "precision": recipe.model_dump(),
        "optimizer": optimizer.model_dump(),
        "document_masking": True,
    }
    if options.word("attn-implementation") == "eager":
        reading.job["attention_kernel"] = "unfused"
    _batches(options, reading, shared)
    slime_options.after(options, reading)
    options.read |= {"train-backend", "attn-implementation", "train-env-vars"}
    options.finish(reading, "forks", "megatron", "common", strict=given.strict)
    return reading


def _batches(options: Options, reading: Reading, shared: int) -> None:
    """Sequences of a step, their length, and what one pass holds: a number of them, or of tokens."""
    samples = options.whole("n-samples-per-prompt", default=1) or 1
    steps = options.whole("num-steps-per-rollout", default=1) or 1
    reading.global_batch = options.whole("global-batch-size") or options.whole("rollout-batch-size") * samples // steps  # fmt: skip
    longest = options.whole("rollout-max-response-len") + options.whole("rollout-max-prompt-len")
    tokens = options.whole("max-tokens-per-gpu") * shared
    reading.seq_len = longest or tokens
    reading.guess("--seq", f"sequences have at most {reading.seq_len} tokens; that is taken for all")  # fmt: skip
    reading.micro_batch = options.whole("micro-batch-size", default=1) or 1
    if options.flag("use-dynamic-batch-size"):
        reading.micro_batch = max(1, tokens // max(1, reading.seq_len))
        reading.guess("--micro-batch", f"micro-batches are filled by tokens; {reading.micro_batch} is taken")  # fmt: skip
