"""Hugging Face TrainingArguments and what is built on them: TRL, alignment-handbook, open-instruct,
FastChat, LLaVA, Qwen's scripts: a YAML of arguments, or the words of a command."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.imports.beside import program_beside
from meshwright.imports.formats import accelerate, trl_command
from meshwright.imports.formats.hf_adapters import read_adapters, take_file
from meshwright.imports.formats.hf_launcher import launcher, one_process
from meshwright.imports.formats.hf_lengths import sequences
from meshwright.imports.formats.hf_nested import lifted, raised
from meshwright.imports.formats.hf_optimizers import low_rank, updates_in_backward
from meshwright.imports.formats.hf_programs import (
    negated,
    set_defaults,
    set_switches,
    spread_over_devices,
    trl_defaults,
)
from meshwright.imports.formats.hf_recompute import of_checkpointing
from meshwright.imports.formats.hf_sharding import agrees, sharding
from meshwright.imports.interpolate import LIMITS
from meshwright.imports.names import PLANNED, refuse_other, shape_named
from meshwright.imports.not_training import refuse_without_training
from meshwright.imports.options import Options, flattened
from meshwright.imports.own.arguments import folder_of, own_defaults
from meshwright.imports.own.layers import fuses_loss, makes_none, own_adapters
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import optimizer_or_adamw, weights_alone
from meshwright.imports.shell.words import unmarked
from meshwright.imports.tasks import name_by_options, name_generation, name_task
from meshwright.imports.tuning import evaluation, recomputes_as_unsloth
from meshwright.imports.word_overrides import overridden
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import parse_yaml, read_text
from meshwright.specs.job import RECIPES

if TYPE_CHECKING:
    from meshwright.imports.launch import Launch
    from meshwright.imports.shell.state import Script

EDITS = {
    "micro_batch": "per_device_train_batch_size",
    "accumulation": "gradient_accumulation_steps",
    "recompute": "gradient_checkpointing",
}
_MARKS = (
    "per_device_train_batch_size",
    "model_name_or_path",
    "gradient_accumulation_steps",
    "per_device_batch_size",
)


def is_trainer(flags: dict[str, Any]) -> bool:
    """Whether flags (dashes or not) are TrainingArguments'."""
    names = {name.replace("-", "_") for name in flags}
    return (
        len(names & set(_MARKS)) > 1
        or "per_device_train_batch_size" in names
        or "model_name_or_path" in names
    )


def is_trainer_text(text: str) -> bool:
    """Whether a YAML text is of TrainingArguments."""
    return (
        re.search(
            r"^(?:per_device_train_batch_size|model_name_or_path|"
            r'[^\S\n]*"(?:per_device_train_batch_size|model_name_or_path)")[^\S\n]*:',
            text,
            re.MULTILINE,
        )
        is not None
    )


_WORDS = re.compile(
    r"(?m)^(num_train_epochs|max_seq_length|max_length|bf16|lora_r|gradient_checkpointing|output_dir|learning_rate|"
    r"ddp_timeout|packing|warmup_ratio|gradient_accumulation_steps|lr_scheduler_type)\s*:"
)


def has_words(text: str) -> bool:
    """Whether a YAML says at least four of TrainingArguments' words, without its batch and without axolotl's."""
    others = re.search(r"^(?:base_model|micro_batch_size)[^\S\n]*:", text, re.MULTILINE)
    return others is None and len(set(_WORDS.findall(text))) > 3


_RANKS = {"lora_r", "lora_rank", "peft_lora_r"}
"""Of adapters, as programs call them."""


def read_words(
    script: Script, launch: Launch, given: Given, folder: Path | None, text: str = ""
) -> Reading:
    """Return what a command with TrainingArguments runs: launcher, configuration, then its words.

    Raises:
        SpecError: a value that cannot be.
    """
    from meshwright.imports.options import flags_of

    values: dict[str, Any] = {}
    if text:
        data = parse_yaml(text, "file", "configuration", LIMITS)
        values = flattened(raised(data)[0]) if isinstance(data, dict) else {}
    flags = {name.replace("-", "_"): value for name, value in flags_of(launch.words).items()}
    values |= {k: v for k, v in flags.items() if k != "config"}
    if launch.program.startswith("llamafactory"):  # `key=value`, as OmegaConf takes it
        values |= overridden({}, [word for word in launch.words if not word.startswith("-")])
    here = program_beside(folder, launch.program)
    refuse_without_training(launch.program, values, read_text(here, "file") if here else "")
    reading = Reading(
        "Hugging Face Trainer script", options={k: f"--{v}" for k, v in EDITS.items()}
    )
    launcher(script, launch, reading, given, folder)
    if not text and (absent := _named_elsewhere(launch.words)):
        reading.guess("--config", f"{absent[-60:]} is not here: what it says beside the command is not seen")  # fmt: skip
    own = own_defaults(launch.program, folder)
    negated(values, own)
    if launch.program.startswith("trl "):
        trl_command.configured(values, reading, given, folder)
    if trl_command.is_own(launch.program):
        trl_defaults(values, reading)
    set_defaults(launch.program, values, reading, own, folder)
    spread_over_devices(launch.program, launch.environment, script, reading)
    name_task(reading, posixpath.basename(launch.program))
    name_task(reading, folder_of(launch.program, folder))
    if "num_learners_per_node" not in values:
        one_process(launch, reading)
    for said in [name for name in values if name not in own]:
        full = [name for name in own if name.startswith(said) and name not in values]
        if len(full) == 1 and len(said) > 3:  # argparse takes the beginning of a name for it
            values[full[0]] = values.pop(said)
    if not {"use_peft", "use_lora", "lora", "lora_enable", "finetuning_type", "lora_r"} & set(
        values
    ):
        made = own_adapters(launch.program, folder, {**own, **values})
        if made:
            values |= {name: value for name, value in made.items() if name not in values}
            reading.note("adapters are those that the program makes", posixpath.basename(launch.program))  # fmt: skip
    set_switches(launch.program, folder, values, own)
    fuses_loss(launch.program, folder, reading)
    if not _RANKS & set(values) and makes_none(launch.program, folder, {**own, **values}):
        own = {name: one for name, one in own.items() if name not in _RANKS}
    options = Options({**own, **values}, "--")
    options.assumed = set(own) - set(values)
    options.raw("config", "config_file")
    if "finetuning_type" in values or launch.program.startswith("llamafactory"):
        from meshwright.imports.formats import llama_factory

        return llama_factory.fill(options, reading, given, folder, script)
    return fill(options, reading, given, folder, script)


def _named_elsewhere(words: list[str]) -> str:
    """The YAML of arguments that a command names, after `--config` or by its place; empty without one."""
    for before, word in zip(["", *words], words, strict=False):
        told = before in ("--config", "--config_file") or not before.startswith("-")
        if told and re.search(r"\.ya?ml$", unmarked(word)) and not word.startswith("-") and "=" not in word:  # fmt: skip
            return posixpath.basename(unmarked(word))
    return ""


def fill(
    options: Options,
    reading: Reading,
    given: Given,
    folder: Path | None,
    script: Script | None = None,
) -> Reading:
    """Add what TrainingArguments say to a reading.

    Raises:
        SpecError: a value that cannot be.
    """
    options.guessing = given.guess
    options.values = lifted(options.values)
    take_file(options, reading, folder)
    reading.model = given.model or reading.model
    reading.model_name = reading.model_name or _named(options)
    if options.has("freeze_encoder", "val_max_target_length"):
        raise SpecError("model", reading.model_name, f"trains an encoder-decoder: {PLANNED}")
    if reading.model is None:
        refuse_other(reading.model_name)
    _refuse_seeing(options, reading)
    if re.match(r"(?:zo|mezo|forward_grad)(?![a-z])", options.word("trainer", "trainer_type")):
        raise SpecError("trainer", options.loose("trainer", "trainer_type"), "estimates gradients without a backward pass (zeroth-order): not modelled")  # fmt: skip
    micro = options.whole("per_device_train_batch_size", "per_device_batch_size", "batch_size_per_device", "train_batch_size_per_device", "micro_train_batch_size", "train_micro_batch_size_per_gpu")  # fmt: skip
    steps = options.whole("gradient_accumulation_steps")
    part = options.whole("micro_train_batch_size", "micro_batch_size")
    if options.has("per_device_train_batch_size") and 0 < part < micro and micro % part == 0:
        steps, micro = max(steps, 1) * micro // part, part  # a device's batch is taken in parts
    total = options.whole("total_train_batch_size", "global_batch_size", "global_train_batch_size", "total_batch_size", "effective_batch_size")  # fmt: skip
    reading.micro_batch = micro or reading.micro_batch or 8
    if not micro:
        reading.guess(
            "--micro-batch",
            f"per_device_train_batch_size is not set; {reading.micro_batch} is taken",
        )
    reading.accumulation = steps or reading.accumulation or 1
    reading.global_batch = total or reading.global_batch
    each = micro * steps
    if (
        total
        and each
        and total % each == 0
        and not reading.world()
        and "num_processes" not in options
    ):
        reading.devices = min(total // each, _MOST_DEVICES)
    sequences(options, reading)
    _precision(options, reading)
    sharding(options, reading, given, folder, script)
    agrees(reading, micro, steps)
    _memory(options, reading)
    evaluates = options.word("eval_strategy", "evaluation_strategy", default="no") not in (
        "no",
        "false",
    )
    if evaluates or options.flag("do_eval"):
        evaluation(reading, options.whole("per_device_eval_batch_size", default=8), "per_device_eval_batch_size")  # fmt: skip
    read_adapters(options, reading)
    _packing(options, reading)
    _task(options, reading)
    if options.flag("accelerator_config.gradient_accumulation_kwargs.sync_each_batch"):
        reading.reduces_each = True
    if reading.job.get("framework", "accelerate") == "accelerate":
        reading.job["framework"] = "trl"  # the trainer's own switches count, whatever launches it
    _loaded_in_16_bits(options, reading)
    new = options.has("config_name") and not options.has("model_name_or_path")
    if new and reading.job.get("framework") != "deepspeed":
        accelerate.gradients_of_32_bits(reading)  # of weights that begin here, in 32 bits
    weights_alone(reading.job, sharded=bool(reading.layout.get("zero")))
    options.finish(reading, "fsdp", "hf", "common", strict=given.strict)
    return reading


_METHODS = ("training_method", "train_method", "algorithm")
_PLAIN = re.compile(
    r"sft|full|lora|pretrain|(?<![a-z])pt(?![a-z])|supervised|causal|clm|fine|standard|normal|default|cpt"
)
"""Methods that train on the next token alone, or say how the weights are adapted."""


_OF_PAIRS = frozenset({
    "sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo", "sppo_hard", "aot", "aot_pair", "discopop", "apo_zero", "apo_down",
    "rpo", "kto_pair", "sigmoid_norm",
})  # fmt: skip
"""Losses over pairs (trl/trainer/dpo_config.py, and scripts before it); other tasks' losses have other names."""


def _task(options: Options, reading: Reading) -> None:
    """What is trained for, by a stage's name or by options that one task has."""
    for told in ("stage", "rlhf_type", "training_stage", "task_type", *_METHODS):
        said = options.loose(told)
        name_task(reading, said)
        if said and told in _METHODS and not reading.task and not _PLAIN.search(said.lower()):
            reading.unmodelled(told, f"{said[:40]}: what this method holds and computes beside the training of one model is not priced")  # fmt: skip
    if options.word("stage") in ("sft", "pt"):
        return  # whatever another phase of the same file is told
    answers = options.has("max_completion_length") and not options.has("beta", "loss_type")
    name_by_options(reading, options)
    if options.has("reward_funcs", "num_generations") or answers:
        name_task(reading, "grpo")
    elif options.has("beta") and options.has("max_prompt_length", "max_completion_length"):
        name_task(reading, options.loose("loss_type"))
        name_task(reading, "dpo")
    elif options.word("loss_type") in _OF_PAIRS:
        name_task(reading, "dpo")
    if reading.task in ("grpo", "rloo"):
        reading.reference = bool(options.number("beta", default=0.0))
    elif options.flag("precompute_ref_log_probs"):
        reading.reference = False
    name_generation(reading, options)


def _named(options: Options) -> str:
    """The model's name: what says the weights, or what says their shape where that alone is known."""
    name = options.loose(
        "model_name_or_path", "model_name", "model", "model_id", "model_id_or_path", "pretrained_model_name_or_path",
        "base_model", "base_model_name_or_path", "model_path", "model_dir", "input_model_filename", "input_model", "config_name",
    )  # fmt: skip
    name = "" if name.lower() == "true" else name  # a flag whose variable nothing sets
    return shape_named(name, options.loose("config_name"), options.loose("model_type"))


def _refuse_seeing(options: Options, reading: Reading) -> None:
    """Refuse what trains a projector of images alone, or whose program has an image encoder by itself."""
    parts = options.word("mm_tunable_parts")
    if options.word("tune_type_llm") == "frozen":
        raise SpecError("tune_type_llm", "frozen", f"trains a projector of images beside a frozen model: {PLANNED}")  # fmt: skip
    projector = options.flag("tune_mm_mlp_adapter") if options.has("vision_tower") else False
    if projector or (parts and "language_model" not in parts):
        raise SpecError("model", reading.model_name, f"trains a projector of images beside a frozen model: {PLANNED}")  # fmt: skip
    if any("vision_tower" in name and options.values[name] for name in options.assumed):
        raise SpecError("model", reading.model_name, f"trains a vision-language model: {PLANNED}")


def _precision(options: Options, reading: Reading) -> None:
    bf16, fp16 = options.flag("bf16"), options.flag("fp16")
    kind = options.word("mixed_precision", "precision", "train_model_precision")
    dtype = options.word("torch_dtype", "dtype", "model_dtype").removeprefix("torch.")
    options.flag("tf32", "pure_bf16")
    if options.flag("fp8", "enable_fp8"):
        reading.job["precision"] = RECIPES["fp8"].model_dump()
    elif bf16 or kind in ("bf16", "bfloat16"):
        reading.job["precision"] = RECIPES["bf16"].model_dump()
    elif fp16 or kind in ("fp16", "float16"):
        reading.job["precision"] = RECIPES["fp16"].model_dump()
    elif reading.job.get("precision", {}).get("name", "fp32") == "fp32":
        if dtype in ("bfloat16", "bf16", "float16", "fp16"):
            # Weights in 16 bits and no mixed precision: no 32-bit copy anywhere.
            reading.job["precision"] = RECIPES["pure-bf16"].model_dump()
            if dtype in ("float16", "fp16"):
                reading.note("weights and products are in float16, without a scale of the loss; priced as in bf16, which is as wide", "torch_dtype")  # fmt: skip
            return
        reading.job["precision"] = RECIPES["fp32"].model_dump()
        if dtype in ("", "auto") and not options.has(
            "deepspeed", "deepspeed_config", "ds_config", "pure_bf16"
        ):
            if reading.format == "TrainingArguments YAML":
                reading.guess("bf16", "neither bf16 nor fp16 is set, and what reads this file may choose: fp32, TrainingArguments' own, is taken")  # fmt: skip
            else:
                reading.note("neither bf16 nor fp16 is set: TrainingArguments compute in fp32", "bf16")  # fmt: skip
    if options.flag("pure_bf16"):
        reading.job["precision"] = RECIPES["pure-bf16"].model_dump()


def _loaded_in_16_bits(options: Options, reading: Reading) -> None:
    """Weights that are loaded in bf16 stay so under autocast: only FSDP and DeepSpeed make 32-bit copies."""
    dtype = options.word("torch_dtype", "dtype", "model_dtype").removeprefix("torch.")
    alone = not reading.layout.get("zero") and reading.job.get("framework") != "deepspeed"
    precision = reading.job.get("precision", {})
    if (
        not alone
        or precision.get("name") != "bf16"
        or reading.job.get("finetune")
        or reading.job.get("framework") == "llama-factory"  # casts what trains to 32 bits
    ):
        return
    if dtype in ("", "auto"):
        reading.guess("dtype", "nothing is said: weights are loaded in 32 bits, as by TRL and by transformers before 5; transformers 5 loads them as published")  # fmt: skip
    if dtype in ("bfloat16", "bf16"):
        reading.job["precision"] = RECIPES["pure-bf16"].model_dump()
        reading.note("weights are loaded in bf16: neither they nor AdamW's state have a 32-bit copy", "torch_dtype")  # fmt: skip


_MOST_DEVICES = 1024
"""More devices than any fine-tuning takes that states all three batches."""
_SWITCHES = ("use_flash_attn", "use_flash_attention_2", "use_flash_attn_2")
"""FlashAttention 2 as an option of its own."""


def _memory(options: Options, reading: Reading) -> None:
    default = reading.layout.get("recompute") == "full"
    recomputes_as_unsloth(options, reading)
    again = options.flag("gradient_checkpointing", "use_gradient_checkpointing", "activation_checkpointing", "enable_gradient_checkpointing",
                         default=default)  # fmt: skip
    # FSDP's own checkpointing runs whatever transformers' switch says; DeepSpeed's needs that switch.
    again = again or (default and reading.job.get("framework") != "deepspeed")
    reading.layout["recompute"] = "full" if again else "none"
    of_checkpointing(options, reading)
    own = ("customized_optim",) if options.flag("use_customized_optim") else ()  # LMFlow's
    name = options.word(*own, "optim", "optimizer", "optimizer_name", default="adamw_torch")
    if "optimizer" not in reading.job or options.has("optim"):
        found = optimizer_or_adamw(reading, name, "optim", momentum=0.0)
        found = low_rank(options, reading, found)
        reading.job["optimizer"] = found.model_dump()
        updates_in_backward(options, reading, name, found)
    kernel = options.word("attn_implementation", "attn_impl", "_attn_implementation", "flash_attn")
    if kernel in ("eager", "disabled"):
        reading.job["attention_kernel"] = "unfused"
    elif kernel == "sdpa":
        reading.job["attention_kernel"] = "flash"
    elif options.has(*_SWITCHES) and not options.flag(*_SWITCHES):
        reading.guess("use_flash_attention_2", "is off: transformers since 4.36 take PyTorch's fused attention then, which is priced; older ones keep all scores")  # fmt: skip
    if options.word("loss_type") == "chunked_nll":
        reading.job["loss"] = "chunked"
    if options.flag("use_liger_kernel", "use_liger"):
        reading.job["loss"] = "liger"
    elif options.word("loss_type") == "chunked_nll":  # TRL's: no logits are kept
        reading.job["loss"] = "chunked"


def _packing(options: Options, reading: Reading) -> None:
    named = options.values.get("padding_free")
    if named in (["huggingface"], "huggingface"):  # fms-hf-tuning's only way of it
        options.values["padding_free"] = True
    if any(options.flag(name) for name in ("packing", "neat_packing", "pack", "padding_free")):
        strategy = options.word("packing_strategy")
        reading.job["document_masking"] = options.flag(
            "padding_free", "neat_packing", default=strategy.startswith(("bfd", "ffd"))
        )  # TRL's first two put whole documents together, "wrapped" cuts and mixes them
    elif options.has("packing"):
        reading.note(
            "sequences are padded to the longest of their batch; all are priced at full length",
            "packing",
        )
