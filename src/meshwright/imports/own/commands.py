"""A command of a program that is no framework's own: its words, and the DeepSpeed file that they name."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from meshwright.imports.beside import program_beside
from meshwright.imports.formats import deepspeed
from meshwright.imports.formats.hf_launcher import launcher, one_process
from meshwright.imports.formats.hf_sharding import agrees, deepspeed_named
from meshwright.imports.launch import Launch
from meshwright.imports.launch_counts import whole
from meshwright.imports.options import Options, flags_of
from meshwright.imports.own import option_names, usual
from meshwright.imports.own.arguments import own_deepspeed, own_defaults
from meshwright.imports.own.layers import own_adapters
from meshwright.imports.own.made_with import describes, usual_names
from meshwright.imports.own.tables import inert
from meshwright.imports.reading import Given, Reading
from meshwright.imports.shell.state import Script
from meshwright.imports.tasks import name_task
from meshwright.specs.foreign import read_text


def engine_defaults(launch: Launch, folder: Path | None) -> dict[str, Any]:
    """What a program at hand that hands its model to DeepSpeed takes where its command is silent, by the usual names."""
    path = program_beside(folder, launch.program)
    text = "" if path is None else read_text(path, "file")
    if "deepspeed.initialize(" not in text or "add_argument(" not in text:
        return {}
    found = own_defaults(launch.program, folder)
    shape = usual_names(found)
    return shape if describes(found) else found


def is_usual(launch: Launch, own: Iterable[str] = ()) -> bool:
    """Whether a command trains and describes or names a model, and says a batch or a sequence.

    Args:
        own: what its program says where the command is silent.
    """
    names = {name.replace("-", "_") for name in flags_of_words(launch)} | set(own)
    if not names & set(option_names.TRAINS) and not re.search(
        r"train|tune|sft", posixpath.basename(launch.program)
    ):
        shape = bool(names & set(option_names.LAYERS)) and bool(names & set(option_names.HIDDEN))
        return shape and bool(names & set(option_names.LENGTHS)) and option_names.says_batch(names)
    return option_names.says_enough(names)


def says_anything(launch: Launch) -> bool:
    """Whether a command says something of a model or its sequences; a batch alone describes no run."""
    names = {name.replace("-", "_") for name in flags_of_words(launch)}
    return bool(
        names
        & {
            *option_names.LAYERS,
            *option_names.HIDDEN,
            *option_names.NAMES,
            *option_names.LENGTHS,
            *option_names.BATCHES,
        }
    )


def flags_of_words(launch: Launch) -> dict[str, Any]:
    """Options as `--name value`, and as `name=value` where a program takes those (Hydra)."""
    flags = {
        name.replace("-", "_"): _without_settings(value)
        for name, value in flags_of(launch.words).items()
    }
    for word in launch.words:
        name, equals, value = word.lstrip("+").partition("=")
        if equals and _SETTING.match(word):
            short = name.rsplit(".", 1)[-1]
            flags.setdefault(
                "model_name_or_path" if short == "name_or_path" else short, value.strip("\"'")
            )
    described = flags.get("model_config")
    if str(described).endswith(".json") and not set(flags) & set(option_names.NAMES):
        flags["model_name_or_path"] = flags.pop("model_config")  # a checkpoint's own file of sizes
    return flags


_SETTING = re.compile(r"\+*[A-Za-z_][\w.]*=")


def _without_settings(value: Any) -> Any:
    """An option's value without the `name=value` words that follow it and are settings of their own."""
    if not isinstance(value, list):
        return value
    found = value[:1] + [word for word in value[1:] if not _SETTING.match(word)]
    return found[0] if len(found) == 1 else found


_DEEPSPEED = ("deepspeed_config", "deepspeed", "ds_config", "deepspeed_config_file", "deepspeed_config_path", "deepspeed_cfg", "ds_cfg", "deepspeed_config_json")  # fmt: skip


def launched(
    script: Script, launch: Launch, reading: Reading, given: Given, folder: Path | None
) -> None:
    """Take what the launcher's configuration says, in place of what was taken where the words say nothing."""
    said = Reading("")
    launcher(script, launch, said, given, folder)
    reading.remarks += said.remarks
    guessed = {one.option for one in reading.remarks if one.kind == "guess"}
    if said.job.get("framework") and "sharding" in guessed:
        reading.layout["zero"] = said.layout.get("zero", 0)
        reading.job["framework"], reading.replicate = said.job["framework"], said.replicate
        reading.offload |= said.offload
        reading.remarks = [one for one in reading.remarks if one.option != "sharding"]
    if "precision" in said.job and "precision" in guessed:
        reading.job["precision"] = said.job["precision"]
        reading.remarks = [one for one in reading.remarks if one.option != "precision"]
    if said.world():
        reading.hosts, reading.per_host, reading.devices = said.hosts, said.per_host, said.devices
        launch.per_host = launch.hosts = (
            0  # devices that are seen, of which so many processes take one each
        )


def read_words(
    launch: Launch,
    given: Given,
    folder: Path | None = None,
    script: Script | None = None,
    own: Mapping[str, Any] | None = None,
) -> Reading:
    """Return what a command of a program runs whose options have their usual names.

    Args:
        own: what its program takes where the command is silent.
        folder: where the program may lie, which may set up DeepSpeed by a table of its own, and files that it names.
        script: the script that starts it, which may write such a file.

    Raises:
        SpecError: a value that cannot be, or a model that is no decoder.
    """
    said = flags_of_words(launch)
    made = own_adapters(launch.program, folder, {**(own or {}), **said})
    flags = {**(own or {}), **made, **said}
    trainer = str(flags.get("trainer", ""))
    if trainer.endswith("Trainer"):
        # The reference implementation of DPO: its batch is of all ranks, its trainer says the sharding.
        flags["global_batch_size"] = flags.pop("batch_size", None)
        flags["sharding_strategy"] = "full_shard" if trainer.startswith("FSDP") else "no_shard"
    program = posixpath.basename(launch.program)[:60]
    file = next((one for one in _DEEPSPEED if str(flags.get(one)).endswith(".json")), "")
    named = str(flags.pop(file)) if file else ""
    table = own_deepspeed(launch.program, folder, flags)
    devices = flags.pop("devices", None)
    reading = usual.read_table(
        flags, given, "script of a program of its own", inert if own else None, program, frozenset((own or {}).keys() - made.keys() - said.keys())
    )  # fmt: skip
    if table or named:
        told = {"sharding", "precision", "sequence parallelism"}
        reading.remarks = [one for one in reading.remarks if one.option not in told]
        reading.job.pop("precision", None)
        reading.job["framework"] = "deepspeed"
    if script is not None and launch.option("config-file", "config_file"):
        launched(script, launch, reading, given, folder)
    if named:
        micro = reading.micro_batch
        deepspeed_named(named, reading, given, folder, script)
        agrees(reading, micro, 0)
    elif table:
        deepspeed.apply(table, reading, given)
        reading.note("DeepSpeed is set up by a table in the program, which is read", program)
    if "precision" not in reading.job:
        usual.precision(Options(flags, "--"), reading)
    if devices is not None and not (launch.per_host or launch.devices):
        # Lightning's: how many of each host, or which.
        reading.per_host = len(str(devices).split(",")) if "," in str(devices) else whole(str(devices))  # fmt: skip
        reading.hosts = launch.hosts or whole(str(flags.get("num_nodes", "1")))
    one_process(launch, reading)
    for one in (program, str(flags.get("algorithm", "")), str(flags.get("rl_algorithm", ""))):
        name_task(reading, one)
    return reading
