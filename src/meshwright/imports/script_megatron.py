"""Megatron-LM's and slime's commands out of a script."""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.imports.beside import program_beside
from meshwright.imports.formats import megatron, megatron_yaml, slime_options
from meshwright.imports.formats.megatron_switches import name_groups
from meshwright.imports.interpolate import LIMITS
from meshwright.imports.launch import Launch
from meshwright.imports.names import OF_MINDSPEED_MM, PLANNED, model_named, refuse_other
from meshwright.imports.options import Missing, Options, flags_of, flattened
from meshwright.imports.reading import Given, Reading, Remark
from meshwright.imports.script_files import json_named
from meshwright.imports.script_refusals import left_open
from meshwright.imports.shell.files import file_text
from meshwright.imports.shell.state import Script
from meshwright.imports.shell.words import shown, unmarked, unset
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import parse_yaml, read_text

_DEEPSPEED = (
    "zero-stage",
    "deepspeed-config",
    "deepspeed",
    "ds-sequence-parallel-size",
    "moe-expert-parallel-size",
    "no-pipeline-parallel",
)


_BLOOM = (
    "embed-layernorm",
    "glu-activation",
    "pp-partition-method",
    "kill-switch-path",
    "pad-vocab-size-to",
)


def read_megatron(script: Script, launch: Launch, given: Given, folder: Path | None) -> Reading:
    """Return what a command with Megatron-LM's options runs.

    Raises:
        SpecError: a value that cannot be, or words that only the environment holds.
    """
    flags = flags_of(launch.words)
    flags = _of_yaml(script, flags)
    flags = _own_llama(launch.program, folder) | flags
    if any(name in flags for name in _EPFL):
        flags = _of_epfl(flags)
    if "mm-model" in flags and given.model is None:
        raise SpecError("--mm-model", flags["mm-model"], OF_MINDSPEED_MM)
    options = Options(flags, "--")
    _ask_for_shape(script, launch, flags, given)
    if "hetero-micro-batch-sizes" in flags:
        raise SpecError("--hetero-micro-batch-sizes", flags["hetero-micro-batch-sizes"], "devices of several kinds in one run are not modelled")  # fmt: skip
    options.read |= {
        "use-bridge",
        "use-mbridge",
        "megatron-to-hf-mode",
        "bridge-hf-model",
        "load-weights",
    }
    # Options that a program prints, as miles' for its models, stand in a word that is nothing but a variable.
    told = not script.missing and all(unmarked(word) or not unset(word) for word in launch.words)
    given, whence = _of_checkpoint(flags, given, included=told)
    dialect = _dialect(launch, flags)
    if whence is not None and given.model is not None and given.model.experts is not None:
        # What turns the checkpoint into Megatron-LM's model, or describes it elsewhere, sets these.
        options.values.setdefault("moe-grouped-gemm", True)
        options.values.setdefault("moe-token-dispatcher-type", "alltoall")
    config = None
    named = options.loose("deepspeed-config", "deepspeed_config")
    if named:
        config = json_named(script, folder, named)
    missing = bool(named) and config is None
    title = {"megatron": "Megatron-LM script"}.get(dialect, "Megatron-DeepSpeed script")
    if slime_options.are_of_slime(flags):
        title = "slime script"
        if "multimodal-keys" in flags:
            raise SpecError("--multimodal-keys", flags["multimodal-keys"], f"trains a vision-language model: {PLANNED}")  # fmt: skip
        options.read.add("hf-checkpoint")
        reading = _slime(options, given, title)
        slime_options.environment(" ".join(launch.launcher), reading)
    else:
        reading = megatron.read(options, given, title, dialect, config)
        if dialect == "megatron":
            name_groups(options, reading)
    if config:
        _rest_of_deepspeed(config, reading, given)
    reading.remarks += [whence] if whence is not None else []
    if missing:
        base = posixpath.basename(unmarked(named))[-60:]
        reading.guess("--deepspeed-config", f"{base} is not here; what it says is left out")
    unsaid = title != "slime script" and not {"bf16", "fp16", "params-dtype"} & set(flags)
    if unsaid and (script.missing or not launch.program):
        why = "an included file is missing" if script.missing else "no command either"
        reading.guess("--bf16", f"no precision is set here, and {why}; fp32, Megatron-LM's own, is taken")  # fmt: skip
    if not launch.program:
        reading.note("no command is here, only options: they are read as Megatron-LM's")
    return reading


def _ask_for_shape(script: Script, launch: Launch, flags: dict[str, Any], given: Given) -> None:
    """Ask for what the model is described by, where the command leaves it open.

    Raises:
        SpecError: sizes or all options are the environment's, or an included file's, to say.
    """
    open_words = [name for word in launch.words for name in unset(word)]
    if not flags and open_words:
        raise Missing("words", open_words[0], shown(" ".join(launch.words)))
    learned = not any("rotary" in one or one == "position-embedding-type" for one in flags)
    for name in (
        "num-layers",
        "hidden-size",
        "num-attention-heads",
        *(["max-position-embeddings"] if learned else []),
    ):
        left = unset(str(flags.get(name, "")))
        if left and given.model is None and given.guess:  # nothing to take for a shape
            raise Missing(f"--{name}", left[0], shown(str(flags[name])))
    counted = {"num-layers", "hybrid-layer-pattern", "hybrid-override-pattern"} & set(flags)
    if not counted and given.model is None and not named_checkpoint(flags):
        why = left_open(script)
        if why:
            raise SpecError("--num-layers", None, f"is not among the command's options{why}; give what it depends on, or --model")  # fmt: skip


def _dialect(launch: Launch, flags: dict[str, Any]) -> str:
    """Which family of forks a command is of: their defaults differ."""
    if any(name in flags for name in _DEEPSPEED) or "deepspeed" in " ".join(launch.launcher[:3]):
        return "megatron-deepspeed"
    of_bloom = any(name in flags for name in _BLOOM)
    return "bloom" if of_bloom and not any(name in flags for name in _EPFL) else "megatron"


def _rest_of_deepspeed(config: dict[str, Any], reading: Reading, given: Given) -> None:
    """Name what DeepSpeed's configuration says beside stage, offloading and the batch, which were read."""
    rest = Options(flattened(config))
    rest.read |= {name for name in rest.values if re.match(r"train_|gradient_accumulation_steps|fp16\.|bf16\.|bfloat16\.|zero_optimization\.(?:stage$|offload|cpu_offload$)", name)}  # fmt: skip
    rest.finish(reading, "deepspeed", "common", strict=given.strict)


def _of_yaml(script: Script, flags: dict[str, Any]) -> dict[str, Any]:
    """The options with those of the file that `--yaml-cfg` names, which Megatron-LM takes in their place."""
    named = flags.get("yaml-cfg")
    text = file_text(script, named) if isinstance(named, str) and not unset(named) else None
    table = parse_yaml(text, "--yaml-cfg", str(named), LIMITS) if text is not None else None
    if not isinstance(table, dict) or not megatron_yaml.is_config(table):
        return flags
    found = megatron_yaml.core_flags(table)
    return {name: one for name, one in {**flags, **found}.items() if name != "yaml-cfg"}


_OWN_LLAMA = re.compile(r"from (?:megatron|ascendspeed)\.model import [^\n]*\bLlama2?Model\b")
_LLAMA = {
    "swiglu": True, "normalization": "RMSNorm", "use-rotary-position-embeddings": True, "disable-bias-linear": True,
    "untie-embeddings-and-output-weights": True, "attention-dropout": 0.0, "hidden-dropout": 0.0,
}  # fmt: skip


def _own_llama(program: str, folder: Path | None) -> dict[str, Any]:
    """Options that a fork builds into a model of its own, `LlamaModel`, by the program at hand that trains it."""
    path = program_beside(folder, program)
    return dict(_LLAMA) if path is not None and _OWN_LLAMA.search(read_text(path, "file")) else {}


_EPFL = (
    "no-tie-embed-logits",
    "use-rms-norm",
    "num-attention-heads-kv",
    "lima-dropout",
    "parallel-layernorm",
)
"""Options that only EPFL's Megatron-LLM has."""


def _of_epfl(flags: dict[str, Any]) -> dict[str, Any]:
    """Megatron-LLM's options in Megatron-LM's words: no linear layer has a bias unless it is asked for."""
    made = {name: one for name, one in flags.items() if name != "no-tie-embed-logits"}
    if "no-tie-embed-logits" in flags:
        made["untie-embeddings-and-output-weights"] = True
    if "use-bias" not in flags:
        made["disable-bias-linear"] = True
    return made


_CHECKPOINTS = (
    "hf-checkpoint",
    "hf-model-id",
    "hf-model-path",
    "hf-path",
    "load-hf-model",
    "bridge-hf-model",
)


def named_checkpoint(flags: dict[str, Any]) -> str:
    """The checkpoint of another tool that a command names; empty where it names none."""
    return next((str(flags[one]) for one in _CHECKPOINTS if isinstance(flags.get(one), str)), "")


def _of_checkpoint(
    flags: dict[str, Any], given: Given, *, included: bool
) -> tuple[Given, Remark | None]:
    """The model by the name of the checkpoint that a command is given, where no flag describes it.

    slime's `--megatron-to-hf-mode bridge`, and `--use-bridge` elsewhere, take the shape from that checkpoint.

    Raises:
        SpecError: the model comes from a checkpoint that is no preset.
    """
    if given.model is not None:
        return given, None
    if "num-layers" in flags:
        return _of_bridge(flags, given)
    bridged = flags.get("megatron-to-hf-mode") == "bridge" or bool({"use-bridge", "use-mbridge"} & set(flags))  # fmt: skip
    named = named_checkpoint(flags)
    if not named or not (bridged or not included or slime_options.are_of_slime(flags)):
        return given, None
    refuse_other(named)
    model = model_named(unmarked(named))
    if model is None and bridged:
        raise SpecError("--model", None, f"the model comes from the checkpoint {shown(named)[-60:]}, which is no preset: give a preset or its config.json")  # fmt: skip
    if model is None:
        return given, None
    text = (
        f"{model.name}, by the checkpoint's name: the bridge takes the shape from it"
        if bridged
        else f"what describes the model is not in this file; {model.name}, by the checkpoint's name, is taken"
    )
    return replace(given, model=model), Remark("note" if bridged else "guess", "--model", text)


def _of_bridge(flags: dict[str, Any], given: Given) -> tuple[Given, Remark | None]:
    """HYGON's `--use-bridge`: the checkpoint has the shape, whatever sizes stand beside it."""
    if "use-bridge" not in flags or "bridge-hf-model" not in flags:
        return given, None
    model = model_named(unmarked(str(flags["bridge-hf-model"])))
    if model is None:
        return given, Remark("guess", "--model", "the bridge takes the shape from the checkpoint, whose name is not known here, whatever the flags say; the flags' sizes are taken")  # fmt: skip
    return replace(given, model=model), Remark("note", "--model", f"{model.name}, by the checkpoint's name: the bridge takes the shape from it")  # fmt: skip


def _slime(options: Options, given: Given, title: str) -> Reading:
    """A reinforcement-learning script: the training half, on the actor's devices."""
    hosts = options.whole("actor-num-nodes", default=1, least=1)
    per_host = options.whole("actor-num-gpus-per-node", default=8, least=1)
    rank = options.whole("lora-rank")
    adapted = (
        rank,
        options.number("lora-alpha"),
        options.raw("target-modules"),
        options.number("lora-dropout"),
    )
    # A micro-batch fills the ranks that share its sequences.
    tokens = options.whole("max-tokens-per-gpu") * options.whole("context-parallel-size", default=1)
    longest, least = slime_options.longest(options)
    if "global-batch-size" not in options:
        prompts = options.whole("rollout-batch-size") * options.whole(
            "n-samples-per-prompt", default=1
        )
        options.values["global-batch-size"] = prompts // max(
            options.whole("num-steps-per-rollout", default=1), 1
        )
    defaults = {"attention-dropout": 0.0, "hidden-dropout": 0.0, "use-distributed-optimizer": True}
    # What slime sets itself whatever the flags say; bf16 unless fp16 is asked for.
    for flag, value in defaults.items():
        options.values.setdefault(flag, value)
    if "fp16" not in options:
        options.values.setdefault("bf16", True)
    slime_options.before(options)
    reading = megatron.read(options, given, title)
    reading.hosts, reading.per_host = hosts, per_host
    # The batch system's devices are the rollouts', too.
    reading.counts_itself = "actor-num-gpus-per-node" in options
    slime_options.after(options, reading)
    if not reading.seq_len and (longest or tokens):
        reading.seq_len = longest or tokens
        most = f"at most {longest} tokens{least}" if longest else f"no length here; a device takes {tokens} tokens at once"  # fmt: skip
        reading.guess("--seq", f"sequences have {most}; that is taken for all")
    if not reading.micro_batch:
        reading.micro_batch = max(1, tokens // max(reading.seq_len, 1)) if tokens else 1
        reading.guess(
            "--micro-batch", f"micro-batches are filled by tokens; {reading.micro_batch} is taken"
        )
    if rank:
        adapters(
            reading,
            rank=rank,
            alpha=adapted[1],
            targets=adapted[2],
            dropout=adapted[3],
            option="--target-modules",
        )
    return reading
