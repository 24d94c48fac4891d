"""A training program that is no framework's own: its options by the names that most programs use.

Nothing here is certain, and the reading says so: only programs that describe a model (or name one)
and a batch or a sequence are read at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from meshwright.imports.formats.hf_lengths import summed
from meshwright.imports.names import guess_model, model_named, refuse_other, shape_named
from meshwright.imports.options import Options
from meshwright.imports.other_models import says_text
from meshwright.imports.own.named_models import as_named
from meshwright.imports.own.option_names import (
    ANSWER_LENGTHS,
    BATCHES,
    BATCHES_OF_TOKENS,
    CHOSEN,
    EXPERT_FFN,
    EXPERTS,
    FFN,
    FSDP,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    LENGTHS,
    MICRO,
    NAMES,
    SHARED_EXPERTS,
    STEPS,
    TIES,
    TOKENS,
    UNITS,
)
from meshwright.imports.own.usual_adapters import adapt
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw
from meshwright.imports.tuning import recomputes_as_unsloth
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES
from meshwright.specs.model import Model

_SHARED_SEQUENCES = (
    "seq_parallel_size", "sequence_parallel_degree", "seq_parallel_degree", "sp_degree", "ulysses_degree", "ulysses_parallel_size",
    "ulysses_sequence_parallel_size", "ulysses_size", "ds_sequence_parallel_size",
)  # fmt: skip
_PROMPTS = ("max_prompt_length", "max_prompt_tokens", "max_prompt_len")
_RESPONSES = (*ANSWER_LENGTHS, "max_response_tokens", "max_completion_tokens", "max_response_len")
_SHARDING = {
    "full": 3, "full_shard": 3, "fsdp": 3, "hybrid": 3, "hsdp": 3, "hybrid_shard": 3, "shard_grad_op": 2, "grad_op": 2,
    "hybrid_shard_zero2": 2, "fsdp1": 3, "fsdp2": 3, "no_shard": 0, "ddp": 0, "none": 0, "no": 0,
}  # fmt: skip


def read_table(
    flags: dict[str, Any],
    given: Given,
    title: str,
    inert: Callable[[str], bool] | None = None,
    program: str = "",
    assumed: frozenset[str] = frozenset(),
) -> Reading:
    """Return what options with their usual names say.

    Args:
        inert: whether an option says nothing of memory, time or numbers.
        program: the file that takes them; empty for a configuration.
        assumed: names that nobody said, with what the program takes then.

    Raises:
        SpecError: a value that cannot be, or a model that is no decoder.
    """
    options = Options(flags, "--" if program else "")
    options.guessing = given.guess
    options.assumed = set(assumed)
    micro = _said(options, MICRO)
    reading = Reading(title, options={"micro_batch": micro if program else micro.lstrip("-")})
    what = f"{program} is" if program else "the file is"
    reading.guess(
        "program" if program else "file",
        f"{what} no framework's own: its options are read by their usual meaning",
    )
    reading.model = given.model or _shape(options, reading)
    named = shape_named(_name_of_model(options), options.loose("config_name"))
    if given.model is None and not program and not options.has(*FFN):
        kept = {"kv_heads": KV_HEADS, "vocab": ("vocab_size",), "head_dim": ("head_dim",)}
        as_named(reading, model_named(named), [one for one, names in kept.items() if options.has(*names)])  # fmt: skip
    if reading.model is None and named:
        refuse_other(named)
        reading.model_name = named
    unknown = model_named(named) is None and guess_model(named) is None
    if reading.model is None and unknown and not says_text(flags, [named, *_names_of(flags)]):  # fmt: skip
        raise SpecError("file", program or "the configuration", "names no model that is known, no length of a sequence and no tokenizer: nothing says that it trains a language model")  # fmt: skip
    reading.micro_batch, reading.accumulation = options.whole(*MICRO), options.whole(*STEPS) or 1
    reading.global_batch = options.whole(*BATCHES) or _whole_batch(options, reading, micro)
    if reading.global_batch >= TOKENS:
        said = next(name for name in BATCHES if name in options)
        reading.guess(said, f"{reading.global_batch} is taken as a number of tokens")
        reading.global_batch, reading.batch_tokens = 0, reading.global_batch
    if not reading.global_batch:
        reading.batch_tokens = reading.batch_tokens or options.whole(*BATCHES_OF_TOKENS)
    if options.number("num_iterations") > _REPEATS:
        options.read.add("num_iterations")  # the steps of the run; GRPO repeats few
    reading.seq_len = options.whole(*LENGTHS)
    if not reading.seq_len and options.has("max_completion_length"):
        summed(options, reading, options.whole("max_prompt_length", default=512))
    elif not reading.seq_len and options.has(*_PROMPTS) and options.has(*_RESPONSES):
        summed(options, reading, options.whole(*_PROMPTS), *_RESPONSES)
    if str(options.values.get("device")).lower() == "tpu":
        options.read.add("device")
        reading.likely = "tpu-v4"
    if str(options.values.get("device")).lower() == "cpu":
        options.read.add("device")
        reading.unmodelled("device", "cpu: the run is on processors; the cluster's devices are priced")  # fmt: skip
    _degrees(options, reading)
    _sharding(options, reading)
    _job(options, reading)
    attention = options.word("attention_type")
    if attention and re.search(
        r"hybrid|sparse|linear|local|sliding|window|mla|latent|mamba", attention
    ):
        reading.unmodelled(
            "attention_type", f"{attention}; plain attention over whole sequences is priced"
        )
    if inert is not None:
        options.read |= {name for name in options.values.keys() - options.assumed if inert(name)}
    options.finish(reading, "own", "fsdp", "hf", "common", strict=given.strict)
    return reading


def _names_of(flags: dict[str, Any]) -> list[str]:
    """What options that name data and models say."""
    return [str(value) for name, value in flags.items() if re.search(r"model|data|name|task|corpus", name)]  # fmt: skip


def _name_of_model(options: Options) -> str:
    """The first name that is a model's, else the first: a run has one, too, and calls it so."""
    said = [text for name in NAMES if name in options and (text := options.loose(name))]
    known = (one for one in said if model_named(one) is not None)
    return next(known, said[0] if said else "")


def _whole_batch(options: Options, reading: Reading, micro: str) -> int:
    """A batch beside a micro-batch that it is a multiple of is the step's; 0 where there is none."""
    said = {"batch_size", "train_batch_size"} & set(options.values)
    one_device = re.search(r"micro|device|gpu", micro)
    if not one_device or not said:
        return 0
    name = min(said)
    whole = options.whole(name)
    if options.has(*STEPS):
        if whole == reading.micro_batch * reading.accumulation:
            reading.guess(f"--{name}" if options.prefix else name, f"{whole} is taken for what one device adds up in a step; some programs mean all devices")  # fmt: skip
        return 0
    if not reading.micro_batch or whole % reading.micro_batch or whole == reading.micro_batch:
        return 0
    reading.guess(f"--{name}" if options.prefix else name, f"{whole}, beside a micro-batch of {reading.micro_batch}, is taken for the whole step")  # fmt: skip
    return whole


_REPEATS = 64
"""The most times that a batch of answers is trained on."""


def _said(options: Options, names: tuple[str, ...]) -> str:
    return f"--{next((name for name in names if name in options), names[0])}"


def _shape(options: Options, reading: Reading) -> Model | None:
    layers, hidden, heads = (options.whole(*names) for names in (LAYERS, HIDDEN, HEADS))
    if not (layers and hidden and heads):
        return None
    kind = options.word("model_type", "model_family", "arch")
    refuse_other(kind)
    experts = options.whole(*EXPERTS)
    told = any(name in options and name not in options.assumed for name in EXPERTS)
    if experts > 1 and (not told or options.word("architecture", "model_kind") == "dense"):
        if not told:
            reading.guess("--model", f"the program has {experts} experts where it makes any, which the command does not say: a dense model is taken")  # fmt: skip
        experts = 0
    if experts > 1 and not (options.whole(*CHOSEN) and options.whole(*EXPERT_FFN)):
        raise SpecError("--model", None, f"the file describes a mixture of {experts} experts, but not how many are chosen or how wide they are: give --model")  # fmt: skip
    ffn, vocab = (
        options.whole(*FFN),
        options.whole("vocab_size", "padded_vocab_size", "vocabulary_size"),
    )
    if not ffn and not kind:
        reading.guess("--model", f"its FFNs are not described: two matrices of {4 * hidden} are taken, as GPT-2 has them")  # fmt: skip
    unit = options.word(*UNITS)
    if not unit.endswith("glu"):
        options.read -= set(UNITS)  # says nothing here that is priced
    gated = bool(
        re.search(r"llama|mi[sx]tral|qwen|gemma|yi|deepseek|olmo", kind) or re.search(r"glu$", unit)
    ) or bool(ffn and ffn < 4 * hidden)
    if not vocab:
        alike = model_named(options.loose("tokenizer", "tokenizer_name_or_path", "tokenizer_name", "tokenizer_id", "tokenizer_path"))  # fmt: skip
        vocab = (
            alike.vocab
            if alike is not None
            else 128_256
            if "v3" in kind or "llama3" in kind
            else 32_000
        )
        reading.guess("--model", f"the vocabulary is in a tokenizer's file; {vocab} is taken")
    return Model.parse(
        {
            "name": "imported", "layers": layers, "hidden": hidden, "heads": heads,
            "kv_heads": options.whole(*KV_HEADS) or heads, "head_dim": options.whole("head_dim") or hidden // heads,
            "ffn": ffn or 4 * hidden, "vocab": vocab, "gated": gated,
            "norm": "rmsnorm" if gated else "layernorm",
            **({"tied_embeddings": options.flag(*TIES)} if options.has(*TIES) else {}),
            "experts": {"experts": experts, "top_k": options.whole(*CHOSEN), "ffn": options.whole(*EXPERT_FFN),
                        "shared_ffn": options.whole(*SHARED_EXPERTS) * options.whole(*EXPERT_FFN)} if experts > 1 else None,
        },
        "model",
    )  # fmt: skip


def _degrees(options: Options, reading: Reading) -> None:
    for axis, names in (
        ("tp", ("tensor_parallel_size", "tensor_model_parallel_size", "tensor_parallel_degree", "model_parallel_size", "tp_size", "tp")),
        ("pp", ("pipeline_parallel_size", "pipeline_model_parallel_size", "pipeline_parallel_degree", "pipe_parallel_size", "pp_size", "pp")),
        ("cp", ("context_parallel_size", "sequence_parallel_size", "context_parallel_degree", "cp_size", "sp_size", "cp",
                "context_parallel_dim", "cp_degree", "ring_attn_size", *_SHARED_SEQUENCES)),
        ("ep", ("expert_parallel_size", "expert_model_parallel_size", "expert_parallel_degree", "ep_size", "ep")),
    ):  # fmt: skip
        size = options.whole(*names, default=1, least=1)
        if size > 1:
            reading.layout[axis] = size
        if (
            axis == "cp"
            and size > 1
            and options.has(*_SHARED_SEQUENCES, "sequence_parallel_size", "sp_size")
        ):
            reading.layout["cp_method"] = "ulysses"
            reading.guess("sequence parallelism", "which kind is not said; heads go around (Ulysses) is taken")  # fmt: skip


def _sharding(options: Options, reading: Reading) -> None:
    strategy = options.word("sharding_strategy", "fsdp_sharding_strategy", "dist_strategy", "fsdp_type")  # fmt: skip
    strategy = strategy.replace("-", "_").removeprefix("fsdp_") or strategy
    for name in (
        "strategy",
        "accelerate_mode",
        "fsdp_mode",
        "data_parallel_mode",
    ):  # of many things a program calls so
        if not strategy and str(options.values.get(name)).strip().lower() in (*_SHARDING, "auto"):
            strategy = options.word(name)
    stage = options.whole("zero_stage", "deepspeed_stage", default=-1, least=-1)
    switches = (*FSDP, *(["fsdp"] if _is_switch(options.values.get("fsdp")) else []))  # fmt: skip
    fsdp = options.flag(*switches) if options.has(*switches) else False
    if 0 <= stage <= 3:
        reading.layout["zero"] = stage
        reading.job["framework"] = "deepspeed"
    elif strategy:
        if strategy not in _SHARDING:
            raise SpecError(
                _said(options, ("sharding_strategy", "fsdp_sharding_strategy", "dist_strategy")),
                strategy, f"one of {', '.join(_SHARDING)} is known",
            )  # fmt: skip
        reading.layout["zero"] = _SHARDING[strategy]
        if strategy.startswith(("hybrid", "hsdp")):
            reading.note("shards inside a host and copies between hosts", strategy)
    elif fsdp:
        reading.layout["zero"] = 3
    else:
        reading.layout["zero"] = 0
        reading.guess("sharding", "no option of that kind is set; whole copies (DDP) are taken")
    if options.flag("cpu_offload", "offload", "fsdp_cpu_offload", "use_cpu_offload"):
        reading.offload |= (
            {"optimizer", "parameters"} if reading.layout["zero"] == 3 else {"optimizer"}
        )
    if options.flag("offload_activations", "activation_offload"):
        reading.offload.add("activations")


def _is_switch(value: object) -> bool:
    return isinstance(value, bool) or str(value).strip().lower() in ("true", "false", "1", "0", "yes", "no")  # fmt: skip


def _job(options: Options, reading: Reading) -> None:
    names = ("activation_checkpointing", "gradient_checkpointing", "fsdp_activation_checkpointing", "recompute",
             "selective_activation_checkpointing", "use_gradient_checkpointing", "use_activation_checkpointing", "grad_checkpointing",
             "grad_checkpoint", "enable_gradient_checkpointing", "enable_activation_checkpointing")  # fmt: skip
    recomputes_as_unsloth(options, reading)
    said = options.raw(*names)
    if said is None:
        reading.guess("recompute", "no option of that kind is set; none is taken")
    on = said is not None and (options.flag(*names) if str(said).lower() in ("1", "0", "true", "false", "yes", "no", "none") else True)  # fmt: skip
    reading.layout["recompute"] = "full" if on else "none"
    reading.job.setdefault("framework", "fsdp")
    dropout = options.number("resid_pdrop", "hidden_dropout", "dropout")
    if 0 < dropout < 1:
        reading.job["dropout"] = dropout
    precision(options, reading)
    name = options.word(
        "optimizer", "optim", default="muon" if options.flag("use_muon") else "adamw"
    )
    reading.job["optimizer"] = optimizer_or_adamw(reading, name, "--optimizer").model_dump()
    if options.has("use_flash_attn", "use_flash_attention") and not options.flag(
        "use_flash_attn", "use_flash_attention"
    ):
        reading.job["attention_kernel"] = "unfused"
    adapt(options, reading)


def precision(options: Options, reading: Reading) -> None:
    """Set a reading's precision by the options that usually say it.

    Raises:
        SpecError: neither true nor false where a switch is expected.
    """
    words = [
        options.word(name)
        for name in (
            "mixed_precision",
            "precision",
            "dtype",
            "torch_dtype",
            "compute_dtype",
            "mixed_precision_dtype",
            "model_dtype",
            "policy_dtype",
        )
    ]
    # Switched on, in a width that another option says, or that the file leaves open.
    kind = next((one for one in words if one not in ("", "true", "yes", "1", "auto")), "")
    half, brain = options.flag("fp16", "use_fp16"), options.flag("bf16", "pure_bf16", "use_bf16")
    eight = options.has("fp8_enabled", "use_fp8") and options.flag("fp8_enabled", "use_fp8")
    recipe = "fp8" if "fp8" in kind or eight else "bf16" if brain or "bf" in kind else "fp16" if half or "16" in kind else "fp32" if kind or options.has("bf16", "fp16") else ""  # fmt: skip
    mixing = ("amp", "use_amp", "use_mixed_precision")
    if not recipe and options.has(*mixing) and not options.flag(*mixing):
        recipe = "fp32"
    if not recipe:
        recipe = "bf16"
        reading.guess("precision", "no option of that kind is set; bf16 is taken")
    reading.job["precision"] = RECIPES[recipe].model_dump()
