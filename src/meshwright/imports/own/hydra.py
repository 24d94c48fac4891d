"""A program of one's own whose settings Hydra puts together from files at hand and a command's words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from meshwright.imports.beside import program_beside
from meshwright.imports.formats import chatlearn, mindspeed_rl, nemo_rl, verl
from meshwright.imports.formats.hf_launcher import one_process
from meshwright.imports.hydra_defaults import chosen, of_program, with_defaults
from meshwright.imports.interpolate import merged
from meshwright.imports.launch import Launch
from meshwright.imports.own import tables as own_tables
from meshwright.imports.own.arguments import typed
from meshwright.imports.own.commands import launched
from meshwright.imports.own.loops import COPIES
from meshwright.imports.own.sizes import SHARDS
from meshwright.imports.reading import Given, Reading
from meshwright.imports.shell.state import Script
from meshwright.imports.shell.words import unmarked
from meshwright.imports.tasks import name_task
from meshwright.specs.foreign import read_text

_WORD = re.compile(r"(\+{0,2}|~)([A-Za-z_][\w./@]*)=(.*)", re.DOTALL)


def read(
    launch: Launch, given: Given, folder: Path | None, script: Script | None = None
) -> Reading | None:
    """What a command runs by its program's own configuration; None where the program has none at hand, or it says too little.

    Raises:
        SpecError: a value that cannot be, or a model that is no decoder.
    """
    path = program_beside(folder, launch.program)
    text = "" if path is None else read_text(path, "file")
    if path is None or "hydra.main" not in text:
        return None
    found = _settings(text, path, launch.words)
    if found is None:
        return None
    data, root = found
    for known in (
        mindspeed_rl,
        chatlearn,
        nemo_rl,
    ):  # a framework's program, started with its own configuration
        if known.is_config(data):
            return known.read(data, given, root)
    if "actor_rollout_ref" in data:  # a program of one's own around verl's trainer
        return verl.read_verl_data(data, given, launch.program, said=set())
    if not own_tables.is_config(data):
        return None
    reading = own_tables.read(data, given, folder)
    reading.format = "Hydra configuration of a program of its own"
    for word in launch.words:  # `loss=dpo`: a group that says what it trains for
        if re.match(r"\+*(?:loss|method|algorithm|trainer|objective)=", word):
            name_task(reading, unmarked(word).partition("=")[2])
    name_task(reading, chosen(launch.words)[1])
    guessed = {one.option for one in reading.remarks if one.kind == "guess"}
    if "sharding" in guessed and (SHARDS.search(text) or COPIES.search(text)):
        reading.layout["zero"] = 3 if SHARDS.search(text) else 0
        reading.remarks = [one for one in reading.remarks if one.option != "sharding"]
    if script is not None and launch.option("config-file", "config_file"):
        launched(script, launch, reading, given, folder)
    one_process(launch, reading)
    return reading


def _settings(text: str, path: Path, words: list[str]) -> tuple[dict[str, Any], Path] | None:
    """The tables that the program sees, and where they lie: the files of its `config_path`, the groups that words choose, words over both."""
    where, name = of_program(text)
    said_where, said_name = chosen(words)
    where, name = said_where or where, said_name or name
    root = (path.parent / where).resolve()
    file = root / f"{name.removesuffix('.yaml')}.yaml"
    if not name or not file.is_file():
        return None
    said = [found.groups() for found in map(_WORD.fullmatch, map(unmarked, words)) if found]
    groups = {key: value for _sign, key, value in said if (root / key / f"{value}.yaml").is_file()}
    data = with_defaults(file, chosen=groups)
    for sign, key, value in said:
        if key in groups or sign == "~":
            continue
        table: Any = typed(value)
        for part in reversed(key.split(".")):
            table = {part: table}
        data = merged(data, table)
    return data, root
