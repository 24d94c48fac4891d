"""Run a user's script under a layout with torchrun, recording into a folder."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from meshwright.probe.files import LAYOUT_VARIABLE, OUT_VARIABLE, parse_layout
from meshwright.specs.errors import SpecError

_AXES = ("dp", "tp", "pp", "cp", "shard", "fsdp", "replicate")
"""Axes that multiply to the number of processes; others (ep, zero) reuse them."""

_MOST_PROCESSES = 64


def processes(label: str) -> int:
    """How many processes a layout's label asks for.

    Raises:
        SpecError: the label is not one of degrees, or asks for too many.
    """
    try:
        degrees = parse_layout(label)
    except ValueError as error:
        raise SpecError("layouts", label, str(error)) from None
    count = math.prod(size for axis, size in degrees.items() if axis in _AXES)
    if not 1 <= count <= _MOST_PROCESSES:
        raise SpecError("layouts", label, f"1 to {_MOST_PROCESSES} processes on this machine")
    return count


def launch(script: Path, label: str, out: Path, timeout_s: float) -> Path:
    """Run the script once; returns the folder of its recording.

    Raises:
        SpecError: no such script, it failed, took too long, or recorded nothing.
    """
    if not script.is_file():
        raise SpecError("script", str(script), "a Python file that calls meshwright.probe.record")
    folder = out / re.sub(r"[^A-Za-z0-9]+", "-", label).strip("-")
    if folder.exists():
        _clear(folder)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(processes(label)), str(script),
    ]  # fmt: skip
    environment = os.environ | {OUT_VARIABLE: str(folder.resolve()), LAYOUT_VARIABLE: label}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace",
            timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SpecError(
            "timeout_s", timeout_s, f"{script.name} under {label} took longer"
        ) from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if re.match(r"\S*(Error|Exception)\b", line.split(": ")[-2] if ": " in line else line)]  # fmt: skip
        last = said[-1] if said else (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise SpecError("script", script.name, f"under {label} it failed and said: {last.strip()}")
    if not any(folder.glob("rank*.jsonl")):
        raise SpecError(
            "script", script.name,
            f"under {label} it recorded nothing: call meshwright.probe.record without out=",
        )  # fmt: skip
    return folder


def _clear(folder: Path) -> None:
    """Remove an earlier recording, and nothing else."""
    strangers = [p for p in folder.iterdir() if not re.fullmatch(r"rank\d{5}\.(jsonl|f64)", p.name)]
    if strangers:
        raise SpecError(
            "out", str(folder), f"a folder of recordings only; {strangers[0].name} is in it"
        )
    shutil.rmtree(folder)
