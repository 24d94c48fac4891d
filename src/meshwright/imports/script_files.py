"""Files that a script's command names: its configuration, a JSON file of DeepSpeed's."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from meshwright.imports import document_text
from meshwright.imports.beside import beside, file_of, program_beside
from meshwright.imports.formats import flagscale, mindspeed_rl, nemo, roll
from meshwright.imports.hydra_defaults import chosen
from meshwright.imports.interpolate import LIMITS, read_table
from meshwright.imports.launch import Launch
from meshwright.imports.shell.state import Script
from meshwright.imports.shell.words import unmarked
from meshwright.specs.foreign import parse_json, read_text

_NAMED = (
    "--config_file",
    "--config-file",
    "--config",
    "-c",
    "--conf",
    "--exp",
    "--cfg-path",
    "--config_path",
    "--job.config_file",
    "--job.config-file",
)


_LITERAL = re.compile(r"-?[\d.]+(?:[eE][-+]?\d+)?|true|false|null|True|False|None|-?Infinity|NaN")
"""Values that JSON and its like have without quotes."""


def json_named(script: Script, folder: Path | None, named: str) -> dict[str, Any] | None:
    """A JSON file that a script writes itself or that lies beside it; None where it is not here."""
    base = posixpath.basename(unmarked(named).strip())
    text, path = script.files.get(named) or script.files.get(base), None
    if text is None:
        path = beside(folder, named)
        if path is None:
            return None
        text = read_text(path, "--deepspeed")
    # `"train_batch_size": $BATCH` that nothing sets is no value at all.
    text = re.sub(r"(:\s*)(?=[,}\n])", r'\1"auto"', unmarked(text))
    if path is None:  # written by the script: nor is one that it calculates from such
        text = re.sub(r"(:\s*)([^\s\"\[{,}][^,}\n]*)", lambda found: found[0] if _LITERAL.fullmatch(found[2].strip()) else f'{found[1]}"auto"', text)  # fmt: skip
    data = parse_json(document_text.without_comments(text), "--deepspeed", base, LIMITS)
    return data if isinstance(data, dict) else None


def configuration(
    script: Script, launch: Launch, folder: Path | None
) -> tuple[str, Path | str] | None:
    """(option, the file or the text) of the configuration that a command names."""
    words = launch.words
    composed = hydra_named(launch, folder)
    if composed is not None:
        return "--config-name", composed
    places = [(words[i], words[i + 1]) for i in range(len(words) - 1) if words[i] in _NAMED]
    places += [tuple(w.split("=", 1)) for w in words if w.split("=", 1)[0] in _NAMED and "=" in w]  # type: ignore[misc]
    # JSON after an option of another name is data or DeepSpeed's, which its own option names.
    places += [
        ("", w)
        for before, w in zip(["", *words], words, strict=False)
        if re.search(r"\.(ya?ml|toml|json)$", unmarked(w))
        and not w.startswith("-")
        and not (w.endswith(".json") and before.startswith("--"))
    ]
    for option, value in places:
        base = posixpath.basename(unmarked(value))
        if value in script.files or base in script.files:
            return option, script.files.get(value) or script.files[base]
        path = beside(folder, value) or (
            beside(folder, f"{script.directory}/{value}") if script.directory else None
        )
        if path is not None:
            return option, path
    for variable in ("CONFIG_FILE", "CONFIG", "EXP"):
        value = script.value(variable)
        path = beside(folder, value) if value else None
        if path is not None:
            return variable, path
    usual = _usual(launch.program, folder) if not any(one in _NAMED for one, _ in places) else None
    return None if usual is None else ("--config", usual)


_FALLS_TO = re.compile(
    r"if (?:not args\.config|args\.config is None):\s+args\.config = os\.path\.join\(\s*"
    r"os\.path\.dirname\((?:os\.path\.abspath\()?__file__\)+,\s*((?:[\"'][\w.-]+[\"'],?\s*){1,5})\)"
)
"""A program that takes a file beside it where the command names none."""


def _usual(program: str, folder: Path | None) -> Path | None:
    """The configuration that a program at hand takes where none is named; None where it takes none."""
    path = program_beside(folder, program)
    found = _FALLS_TO.search(read_text(path, "file")) if path is not None else None
    if path is None or found is None:
        return None
    usual = path.parent.joinpath(*re.findall(r"[\w.-]+", found[1]))
    return usual if usual.is_file() else None


def started_in(script: Script, program: str, folder: Path | None) -> Path | None:
    """The folder that a script has gone to, where the program that it starts there is at hand; else its own."""
    if not script.directory or program_beside(folder, program) is not None:
        return folder
    named = file_of(program)
    path = beside(folder, f"{script.directory}/{named}")
    return folder if path is None else path.parents[named.strip("/").count("/")]


def hydra_named(launch: Launch, folder: Path | None) -> Path | None:
    """The file that `--config-path P --config-name N` names, or N alone, where it is FlagScale's, ROLL's, NeMo's or MindSpeed-RL's."""
    where, name = chosen(launch.words)
    name = name.removesuffix(".yaml")
    for one in ([where, "."] if where else ["configs", "conf", "config", "."]) if name else []:
        path = beside(folder, f"{one}/{name}.yaml")
        data = read_table(path) if path is not None else {}
        if any(one.is_config(data) for one in (flagscale, mindspeed_rl, roll, nemo)):
            return path
    return None
