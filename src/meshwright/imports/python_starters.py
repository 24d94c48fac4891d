"""Python programs that start a training elsewhere: SageMaker's estimators, Modal's functions, commands handed to a shell."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import Any

from meshwright.exports.stamp import Stamp
from meshwright.imports import cloud, notebooks
from meshwright.imports.code.names import Known
from meshwright.imports.code.syntax import assigned, dotted, parse_python
from meshwright.imports.own.imported import imported_settings
from meshwright.imports.reading import Given, Reading
from meshwright.imports.script_devices import device_named

_STARTERS = re.compile(
    r"(?:^|\.)(?:run|call|check_call|check_output|Popen|system|execvp|execute|run_command|exec)$"
)
_GPUS = re.compile(r"\bgpu\s*=\s*f?[\"']([\w.-]+)(?::(\d{1,2}))?[\"']|modal\.gpu\.(\w+)\((?:[^()]*?count\s*=\s*(\d{1,2}))?")  # fmt: skip


def read(
    text: str, name: str, given: Given, folder: Path | None, stamp: Stamp
) -> tuple[Reading, Stamp] | None:
    """Return what the command runs that a program starts; None where it starts no training.

    Raises:
        SpecError: what it starts cannot be read.
    """
    from meshwright.imports import scripts

    remote = notebooks.remote_command(text)
    if remote is not None:
        inner = notebooks.started_in(folder, remote[1])
        reading, stamp = scripts.read(remote[0], f"{name}.sh", given, inner, stamp)
        notebooks.machine(text, reading)
        return reading, stamp
    tree = parse_python(text)
    commands = [] if tree is None else _commands(tree, imported_settings(text, folder))
    if not commands:
        return None
    reading, stamp = scripts.read(
        max(commands, key=cloud.training), f"{name}.sh", given, folder, stamp
    )
    if len(commands) > 1:
        reading.note(f"the program starts {len(commands)} different trainings; the one with the most options is read", "runs")  # fmt: skip
    asked = _GPUS.search(text) if re.search(r"^(?:import|from) modal\b", text, re.M) else None
    if asked is not None:
        reading.likely = device_named(asked.group(1) or asked.group(3)) or reading.likely
        if not reading.world():
            reading.hosts, reading.per_host = 1, int(asked.group(2) or asked.group(4) or 1)
    return reading, stamp


def _commands(tree: ast.Module, imported: dict[str, Any]) -> list[str]:
    """Commands handed to a shell, or to torchrun's own function, that look like trainings."""
    known = Known(tree, below=imported)
    found: list[str] = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and node.args and _STARTERS.search(dotted(node.func))):
            continue
        handed, words = node.args[0], []
        if (
            isinstance(handed, ast.Call)
            and handed.args
            and dotted(handed.func).endswith("parse_args")
        ):
            handed, words = handed.args[0], ["torchrun"]  # torch.distributed.run.run(parse_args(…))
        value = _words_of(handed, known, tree)
        if isinstance(value, list) and all(isinstance(one, (str, int, float)) for one in value):
            value = shlex.join([*words, *map(str, value)])
        if isinstance(value, str) and cloud.starts(value):
            found.append(value)
    return list(dict.fromkeys(found))


def _words_of(handed: ast.expr, known: Known, tree: ast.Module) -> Any:
    """What is handed over, of a list its known parts; None where nothing of it is said."""
    value = known.value(handed)
    if value is None and isinstance(handed, ast.Name):
        lists = [one for one in assigned(handed.id, tree) if isinstance(one, (ast.List, ast.Tuple))]
        handed = lists[0] if lists else handed
    if value is not None or not isinstance(handed, (ast.List, ast.Tuple)):
        return value
    parts: list[Any] = []
    for one in handed.elts:
        inner = known.value(one.value if isinstance(one, ast.Starred) else one)
        if isinstance(one, ast.Starred):
            parts += inner if isinstance(inner, list) else []
        elif inner is not None:
            parts.append(inner)
    return parts
