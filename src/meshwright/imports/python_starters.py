"""Python programs that start a training elsewhere: SageMaker's estimators, Modal's functions, commands handed to a shell."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

from meshwright.exports.stamp import Stamp
from meshwright.imports import cloud, notebooks
from meshwright.imports.code.names import Known
from meshwright.imports.code.syntax import dotted, parse_python
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
        reading, stamp = scripts.read(remote[0], f"{name}.sh", given, folder, stamp)
        notebooks.machine(text, reading)
        return reading, stamp
    tree = parse_python(text)
    command = "" if tree is None else _command(tree)
    if not command:
        return None
    reading, stamp = scripts.read(command, f"{name}.sh", given, folder, stamp)
    asked = _GPUS.search(text) if re.search(r"^(?:import|from) modal\b", text, re.M) else None
    if asked is not None:
        reading.likely = device_named(asked.group(1) or asked.group(3)) or reading.likely
        if not reading.world():
            reading.hosts, reading.per_host = 1, int(asked.group(2) or asked.group(4) or 1)
    return reading, stamp


def _command(tree: ast.Module) -> str:
    """The command handed to a shell that looks most like a training; empty where none does."""
    known = Known(tree)
    found: list[str] = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and node.args and _STARTERS.search(dotted(node.func))):
            continue
        value = known.value(node.args[0])
        if value is None and isinstance(node.args[0], (ast.List, ast.Tuple)):
            parts = [known.value(one) for one in node.args[0].elts]
            value = [one for one in parts if one is not None]
        if isinstance(value, list) and all(isinstance(one, (str, int, float)) for one in value):
            value = shlex.join(map(str, value))
        if isinstance(value, str) and cloud.starts(value):
            found.append(value)
    return max(found, key=cloud.training, default="")
