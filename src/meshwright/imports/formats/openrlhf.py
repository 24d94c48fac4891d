"""OpenRLHF and what took over its words: the training half of a command."""

from __future__ import annotations

import re

from meshwright.imports.names import PLANNED
from meshwright.imports.options import Options, flags_of
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw
from meshwright.imports.tasks import name_task
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES


def is_openrlhf(program: str, words: list[str]) -> bool:
    """Whether a command is OpenRLHF's: its module, or a script of its older releases by its options."""
    flags = {name.replace("_", "-") for name in flags_of(words)}
    own = {"pretrain", "micro-train-batch-size", "train-batch-size"} <= flags
    return program.startswith("openrlhf") or (own and "train" in program)


_GROUPS = ("ds.lora.", "lora.", "ds.", "train.", "data.", "model.", "actor.", "adam.", "muon.")
"""How newer releases group the options of what trains: `--ds.zero_stage`, `--data.max_len`. Those of the
generation, of the critic, the reward and the reference model have groups of their own."""


def _short(name: str) -> str:
    """An option by the name that older releases gave it."""
    group = next((one for one in _GROUPS if name.startswith(one)), "")
    field = name.removeprefix(group)
    return f"lora_{field}" if "lora." in group and field in ("rank", "alpha", "dropout") else field


def _devices(options: Options, reading: Reading) -> None:
    """What the actor runs on."""
    hosts = options.whole("actor_num_nodes", "actor.num_nodes", "num_nodes")
    per_host = options.whole(
        "actor_num_gpus_per_node", "actor.num_gpus_per_node", "num_gpus_per_node"
    )
    if hosts and per_host:
        reading.hosts, reading.per_host, reading.counts_itself = hosts, per_host, True


def _degrees(options: Options, reading: Reading) -> None:
    """How the model is split, and what lives in host memory."""
    stage = options.whole("zero_stage", default=2)
    if stage > 3:
        raise SpecError("--zero_stage", stage, "a stage from 0 to 3 is expected")
    tp = options.whole("ds_tensor_parallel_size", "tensor_parallel_size", default=1) or 1
    ring = options.whole("ring_attn_size", default=1) or 1
    reading.layout = {
        "zero": stage, "tp": tp, "cp": ring, "cp_method": "ring" if ring > 1 else "all-gather",
        "recompute": "full" if options.flag("gradient_checkpointing", "gradient_checkpointing_enable") else "none",
    }  # fmt: skip
    if options.flag("adam_offload"):
        reading.offload.add("optimizer")
    if options.flag("offload"):
        reading.offload.add("parameters")


def _batches(options: Options, reading: Reading) -> None:
    """Sequences of a step, and their length."""
    reading.micro_batch = options.whole(
        "micro_train_batch_size", "train.micro_batch_size", "micro_batch_size", default=4
    )
    reading.global_batch = options.whole(
        "train_batch_size", "train.batch_size", "batch_size", default=128
    )
    prompt, generated = (
        options.whole("prompt_max_len"),
        options.whole("generate_max_len", "max_new_tokens"),
    )
    reading.seq_len = (
        options.whole("max_len", "data.max_len", "rollout.max_len") or prompt + generated
    )


def read_openrlhf(program: str, words: list[str], given: Given) -> Reading:
    """Return what an OpenRLHF command trains.

    Raises:
        SpecError: it does not train, or a value cannot be.
    """
    flat = {name.replace("-", "_"): value for name, value in flags_of(words).items()}
    short = {_short(name): value for name, value in flat.items()}
    if "train" not in program and "micro_train_batch_size" not in short:
        raise SpecError("file", program, "does not train; a training command is expected")
    options = Options({**short, **flat}, "--")
    options.within = _GROUPS
    _refuse(options)
    reading = Reading(
        "OpenRLHF command",
        options={"micro_batch": "--micro_train_batch_size", "zero": "--zero_stage"},
    )
    reading.model = given.model
    reading.model_name = options.loose(
        "pretrain",
        "model.model_name_or_path",
        "actor.model_name_or_path",
        "model_name_or_path",
        "model.pretrain",
    ) or _of_agents(options, reading)
    _devices(options, reading)
    _degrees(options, reading)
    _batches(options, reading)
    precision = options.word("param_dtype", default="bf16")
    bf16 = options.flag("bf16", default=precision == "bf16")
    reading.job = {
        "framework": "deepspeed",
        "precision": RECIPES[
            "bf16" if bf16 else "fp16" if "16" in precision else "fp32"
        ].model_dump(),
    }
    _optimizer(options, reading)
    read_adapters(options, reading)
    if options.flag("packing_samples"):
        reading.job["document_masking"] = True
    if (
        not options.flag("flash_attn", default=True)
        or options.word("attn_implementation") == "eager"
    ):
        reading.job["attention_kernel"] = "unfused"
    if "ppo" not in program:
        name_task(reading, program.rsplit("train_", 1)[-1])
    else:
        reading.note("the actor's training is priced, not rollouts, reference or critic")
    for name in flat:
        if _short(name) in options.read:
            options.read.add(name)
    options.read |= {
        name for name in short if name not in flat
    }  # what is left is named as it is written
    options.finish(reading, "openrlhf", "rl", "common", "hf", strict=given.strict)
    return reading


_AGENT = re.compile(r'"pretrain"\s*:\s*"([^"]+)"')


def _of_agents(options: Options, reading: Reading) -> str:
    """The first of several agents' models, where each is described in JSON (MARTI's `--agents`)."""
    found = _AGENT.findall(options.loose("agents")) or _AGENT.findall(
        options.loose("default_agent")
    )
    if len(found) > 1:
        reading.unmodelled("--agents", f"{len(found)} agents, each with a model of its own; the first one's training is priced")  # fmt: skip
    return found[0] if found else ""


def _refuse(options: Options) -> None:
    """Forks that train a model of pictures and words, or only score one.

    Raises:
        SpecError: the command does.
    """
    if options.flag("train_vlm") or options.has("freeze_prefix"):
        name = "train_vlm" if options.flag("train_vlm") else "freeze_prefix"
        raise SpecError(f"--{name}", options.loose(name), f"trains a vision-language model: {PLANNED}")  # fmt: skip
    if options.word("training_mode").startswith("eval"):
        raise SpecError("--training_mode", options.word("training_mode"), "does not train; a training run is expected")  # fmt: skip


def _optimizer(options: Options, reading: Reading) -> None:
    """AdamW, or Muon on the matrices (openrlhf/utils/deepspeed)."""
    kind = options.word("optim", default="adam")
    if kind != "adam":
        reading.job["optimizer"] = optimizer_or_adamw(reading, kind, "--optim").model_dump()


def read_adapters(options: Options, reading: Reading) -> None:
    """Adapters by the words that OpenRLHF and oat share, on weights of 16 or 4 bits."""
    rank, four = options.whole("lora_rank"), options.flag("load_in_4bit")
    if rank:
        adapters(reading, rank=rank, alpha=options.number("lora_alpha", default=16.0), dropout=options.number("lora_dropout"),
                 targets=options.raw("target_modules"), option="--target_modules", bits=4 if four else 0)  # fmt: skip
    elif four:
        reading.unmodelled("--load_in_4bit", "weights in 4 bits do not train without adapters, and none are named; all weights are priced in 16 bits as trained")  # fmt: skip
