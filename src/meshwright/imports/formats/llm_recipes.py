"""llm-recipes: FSDP around Hugging Face's models by Megatron-LM's spellings; its batch counts whole steps."""

from __future__ import annotations

from meshwright.imports.formats.hf_launcher import one_process
from meshwright.imports.launch import Launch
from meshwright.imports.options import Options, flags_of
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw, torch_moments
from meshwright.imports.tasks import name_task
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES

_SIGNS = frozenset({"base_model", "micro_batch_size", "global_batch_size", "seq_length"})
_SHARDS = {"full_shard": 3, "hybrid_shard": 3, "shard_grad_op": 2, "_hybrid_shard_zero2": 2, "no_shard": 0}  # fmt: skip


def has_words(launch: Launch) -> bool:
    """Whether a command's options are its own."""
    return {name.replace("-", "_") for name in flags_of(launch.words)} >= _SIGNS


def read_words(launch: Launch, given: Given) -> Reading:
    """Return what such a command trains.

    Raises:
        SpecError: a strategy that FSDP does not have, or a value that cannot be.
    """
    said = {name.replace("-", "_"): value for name, value in flags_of(launch.words).items()}
    options = Options(said, "--")
    reading = Reading("llm-recipes command", options={"micro_batch": "--micro-batch-size"})
    reading.model = given.model
    reading.model_name = options.loose("base_model")
    reading.micro_batch = options.whole("micro_batch_size", default=1, least=1)
    reading.global_batch = options.whole("global_batch_size")
    reading.seq_len = options.whole("seq_length")
    reading.reduces_each = True  # no step of its loop goes without a reduction
    strategy = options.word("sharding_strategy", default="full_shard")
    if strategy not in _SHARDS:
        raise SpecError("--sharding-strategy", strategy, f"one of {', '.join(_SHARDS)} is known")
    again = options.flag("fsdp_activation_checkpointing")
    reading.layout = {"zero": _SHARDS[strategy], "recompute": "full" if again else "none"}
    if "hybrid" in strategy:
        reading.note("shards inside a host and copies between hosts", "--sharding-strategy")
    if options.flag("fsdp_cpu_offload"):
        reading.offload |= {"optimizer", "parameters"}
    # The model is loaded in the 16 bits that are asked for, and updated in them unless weights are to be wide.
    half, brain = options.flag("fp16"), options.flag("bf16")
    wide = options.word("param_dtype") == "fp32"
    options.raw("mixed_precision")
    recipe = RECIPES["fp16" if half or not brain else "bf16" if wide else "pure-bf16"]
    optimizer = optimizer_or_adamw(reading, options.word("optimizer", default="adam"), "--optimizer")  # fmt: skip
    reading.job = {
        "framework": "fsdp",
        "precision": recipe.model_dump(),
        "optimizer": torch_moments(optimizer, recipe).model_dump(),
        "document_masking": options.flag("reset_attention_mask"),
    }
    if options.flag("direct_preference_optimization"):
        name_task(reading, "dpo")
    reading.count_steps(options, "train_iters")
    for name in ("use_freeze_layers", "quantization"):
        if options.flag(name):
            reading.unmodelled(f"--{name}", "only part of the weights trains, or in fewer bits; all are priced")  # fmt: skip
    options.raw("freeze_layers")
    options.read |= {name for name in said if name.startswith(("lr", "min_lr", "adam_", "save", "load", "eval", "wandb", "data_", "train_data", "valid_data",
                     "test_data", "tokenizer", "no_save", "weight_decay", "grad_clip", "split", "seed", "use_mpi", "low_cpu", "checkpoint_type", "num_workers",
                     "log_", "instruction", "continual", "no_meta", "use_dist_ckpt", "distributed_timeout", "sliding_window_size"))}  # fmt: skip
    one_process(launch, reading)
    options.finish(reading, "fsdp", "common", strict=given.strict)
    return reading
