"""NeMo's launcher and SageMaker HyperPod's: `main.py training=gpt3/5b training.model.x=…` around a YAML of their own."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from meshwright.imports.beside import beside
from meshwright.imports.formats import hyperpod, nemo
from meshwright.imports.interpolate import merged, read_table, resolved, words_to_table
from meshwright.imports.reading import Given, Reading
from meshwright.imports.shell.words import unmarked, unset
from meshwright.specs.errors import SpecError

_GROUPS = ("training", "fine_tuning", "peft", "recipes", "rlhf_rm", "rlhf_ppo", "steerlm_reg")
_PATHS = re.compile(
    r"(?:^|[._])(?:dir|file|file_path|save_name|container\w*|files?|train_data|val_data|name)$|_dir$|_files?$"
)
_PLACES = ("conf/{group}/{name}.yaml", "launcher_scripts/conf/{group}/{name}.yaml", "recipes_collection/recipes/{name}.yaml")  # fmt: skip


def named(program: str, words: list[str]) -> tuple[str, str]:
    """The group and the name of the configuration that a launcher's command asks for; empty where it is none."""
    if posixpath.basename(program) != "main.py":
        return "", ""
    for word in words:
        group, equals, name = unmarked(word).lstrip("+").partition("=")
        if equals and group in _GROUPS and "/" in name:
            return group, name.strip("\"'")
    return "", ""


def read(program: str, words: list[str], given: Given, folder: Path | None) -> Reading:
    """Return what such a command runs.

    Raises:
        SpecError: the configuration is not here or is no NeMo YAML, or a value cannot be.
    """
    group, name = named(program, words)
    path = next((found for place in _PLACES if (found := beside(folder, place.format(group=group, name=name)))), None)  # fmt: skip
    if path is None:
        raise SpecError("file", f"{group}={name}", "describes no training run of its own: model, batch and sequence are in that configuration of the launcher, which is not here: import that one")  # fmt: skip
    over = [word.lstrip("+").removeprefix(f"{group}.") for word in words if word.lstrip("+").startswith(f"{group}.")]  # fmt: skip
    open_ones = [word for word in over if unset(word) and not unmarked(word.partition("=")[2]).strip()]  # fmt: skip
    over = [word for word in over if word not in open_ones]
    data = merged(read_table(path), words_to_table(over))
    # Its references begin at the launcher's own table.
    filled = resolved({**data, group: data}, dict(given.variables))
    del filled[group]
    if hyperpod.is_config(filled):
        reading = hyperpod.read(filled, given, path.parent)
        reading.format = f"{reading.format}, named by a script"
        _leave_open(open_ones, reading)
        return reading
    if not nemo.is_config(filled):
        raise SpecError("file", f"{group}={name}", f"describes no training run of its own: import {path.name}, which the launcher reads, itself")  # fmt: skip
    reading = nemo.read(filled, given, [])
    reading.format = "NeMo launcher command"
    _leave_open(open_ones, reading)
    return reading


def _leave_open(words: list[str], reading: Reading) -> None:
    """Say what the command leaves to its environment: the configuration's own values stand."""
    names = [word.partition("=")[0] for word in words if not _PATHS.search(word.partition("=")[0])]
    if names:
        reading.guess(", ".join(names[:3]), "the command leaves it to its environment; the configuration's own is taken")  # fmt: skip
