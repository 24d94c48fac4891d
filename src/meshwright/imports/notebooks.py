"""Jupyter notebooks: a program that trains in the notebook, or the commands that it gives its shell or SageMaker."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import Any

from meshwright.exports.stamp import Stamp, read_stamp
from meshwright.imports import programs, python, scripts
from meshwright.imports.code.names import Known
from meshwright.imports.code.notebook import MAGIC, code_cells, program_of
from meshwright.imports.code.syntax import parse_python
from meshwright.imports.reading import Given, Reading
from meshwright.imports.script_devices import instance
from meshwright.specs.errors import SpecError

_STARTS_MORE = re.compile(r"\bnotebook_launcher\(|\btorchrun\b|accelerate launch|\bspawn\(")
"""What starts more processes out of a notebook."""
_STARTS = re.compile(
    r"\b(?:torchrun|accelerate launch|deepspeed|llamafactory-cli train|axolotl(?:\.cli\.| )train|swift (?:sft|pt|rlhf)|tune run|xtuner train|python3?)\b"
)
_SPREADS = re.compile(
    r"torchrun|accelerate|deepspeed|llamafactory|axolotl|xtuner|tune run|swift|torch\.distributed|mpirun|srun"
)
"""Commands that start as many processes as they find devices."""
_SHELL_CELL = re.compile(r"\s*%%(?:bash|sh|shell|script bash)\b[^\n]*\n")
_FILE_CELL = re.compile(r"\s*%%writefile\s+(?:-a\s+)?([\"']?)([^\n\"']*[^\s\"'])\1[^\S\n]*\n")
_ELSEWHERE = re.compile(r"\bsagemaker\b")
_ESTIMATORS = ("HuggingFace", "PyTorch", "Estimator", "ModelTrainer")


def read(text: str, name: str, given: Given, folder: Path | None) -> tuple[Reading, Stamp]:
    """Return what a notebook trains.

    Raises:
        SpecError: no notebook, nothing that trains, or a value that cannot be.
    """
    cells = code_cells(text, "file", name)
    program = program_of(cells)
    plain = MAGIC.sub(r"\1pass", program)
    remote = _ELSEWHERE.search(program) is not None
    trains = programs.is_program(re.sub(r"\bModelTrainer\(", "(", program) if remote else program)
    started = remote_command(plain) if remote and not trains else None
    script = _script(cells, plain)
    if not trains and (started or _STARTS.search(script)):
        command, source = started or ("", "")
        inner = started_in(folder, source)
        reading, stamp = scripts.read(script + command, name, given, inner, read_stamp(program))
        reading.note("the commands that the notebook starts are read, with the files that it writes", "file")  # fmt: skip
        if started:
            machine(plain, reading)
        elif not reading.world() and not _SPREADS.search(
            re.sub(r"(?m)^.*\bpip3? install.*$", "", script)
        ):
            reading.devices = 1
            reading.note("python alone starts one process: one device is priced", "launcher")
        return reading, stamp
    if not trains and (remote or parse_python(plain) is None):
        raise SpecError("file", name, "starts no training that can be followed: a notebook with a trainer, or with the command or the job that trains, is expected")  # fmt: skip
    reading, stamp = python.read(
        program if trains else plain, name, given, folder, read_stamp(program)
    )
    if not reading.world() and not _STARTS_MORE.search(program):
        reading.devices = 1
        reading.note("a notebook trains in one process, on one device", "file")
    return reading, stamp


def _constants(program: str) -> dict[str, str]:
    tree = parse_python(program)
    names = Known(tree).names if tree is not None else {}
    return {
        name: str(value)
        for name, value in names.items()
        if isinstance(value, (str, int, float)) and len(str(value)) < 500 and "\n" not in str(value)
    }


def _script(cells: list[str], program: str) -> str:
    """What a notebook gives its shell, as one script: its own constants first, the files that it writes as here-documents."""
    said = _constants(program)
    lines = [f"{name}={shlex.quote(value)}" for name, value in said.items()]
    for cell in cells:
        if found := _SHELL_CELL.match(cell):
            lines.append(cell[found.end() :])
        elif found := _FILE_CELL.match(cell):
            lines += [f"cat > {shlex.quote(found.group(2))} <<'END_OF_CELL'", cell[found.end() :], "END_OF_CELL"]  # fmt: skip
        else:
            for line in re.findall(r"(?m)^[ \t]*[!%](?!%)((?:[^\n]*\\\n)*[^\n]*)", cell):
                lines.append(re.sub(r"(?<!\$)\{(\w+)\}", r"${\1}", line))
    return "\n".join(lines) + "\n"


def remote_command(program: str) -> tuple[str, str] | None:
    """The command that a job of SageMaker starts, and the folder that it is started in; None where there is none."""
    tree = parse_python(program)
    if tree is None:
        return None
    known = Known(tree)
    calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call)]
    code = next((one for one in calls if ast.unparse(one.func).endswith("SourceCode")), None)
    job = next((one for one in calls if ast.unparse(one.func).rpartition(".")[2] in _ESTIMATORS and one.keywords), None)  # fmt: skip
    if job is None:
        return None
    said = dict(known.keywords(job)) | (dict(known.keywords(code)) if code is not None else {})
    command = said.get("command")
    entry = said.get("entry_script") or said.get("entry_point")
    source = str(said.get("source_dir") or "").removeprefix("./").rstrip("/")
    words = _words(said.get("hyperparameters"))
    _device, per_host = instance(_of(program, known))
    hosts = said.get("instance_count") or known.names.get("training_instance_count") or known.names.get("instance_count") or 1  # fmt: skip
    if isinstance(command, str):
        counts = f"export SM_HOST_COUNT={hosts} SM_NUM_GPUS={per_host or 1}\n"
        return f"{counts}{command} {words}\n", source
    if not isinstance(entry, str):
        return None
    spread = next((ast.unparse(one.value) for one in job.keywords if one.arg in ("distributed", "distribution")), "")  # fmt: skip
    many = bool(re.search(r"Torchrun|torch_distributed|smdistributed|pytorchddp|MPI", spread))
    start = f"torchrun --nnodes {hosts} --nproc_per_node {per_host or 1}" if many else "python"
    return f"{start} {entry} {words}\n", source


_BESIDE = re.compile(r"(?:\.\./){0,2}(?!\.\.)[\w.-]+(?:/(?!\.\.)[\w.-]+)*")
"""A folder below this one, or below one of the two around it."""


def started_in(folder: Path | None, source: str) -> Path | None:
    """The folder that a job's program lies in: the one that its source names where that is at hand."""
    if folder is None or not _BESIDE.fullmatch(source):
        return folder
    inner = folder / source
    return inner if inner.is_dir() else folder


def _words(table: Any) -> str:
    """A job's hyperparameters as SageMaker hands them to the program."""
    pairs = table.items() if isinstance(table, dict) else ()
    return " ".join(f"--{key} {shlex.quote(str(value))}" for key, value in pairs if value is not None)  # fmt: skip


def _of(program: str, known: Known) -> str:
    """The kind of machine that a program asks for (`ml.p5.48xlarge`)."""
    named = [str(one) for key, one in known.names.items() if "instance_type" in key]
    found = [one for one in named if re.fullmatch(r"ml\.\w[\w-]*\.\w+", one)]
    trained = [str(known.names[key]) for key in known.names if "train" in key and "instance_type" in key]  # fmt: skip
    written = re.findall(r"instance_type\s*=\s*[\"'](ml\.[\w.-]+)", program)
    return next((one for one in [*trained, *found, *written] if one.startswith("ml.")), "")


def machine(program: str, reading: Reading) -> None:
    """Take the devices of the machines that a job of SageMaker asks for, where the command says no fewer."""
    tree = parse_python(program)
    known = Known(tree) if tree is not None else None
    kind = _of(program, known) if known is not None else ""
    device, per_host = instance(kind)
    if not device:
        return
    reading.likely = device
    counts = [one for key, one in known.names.items() if "instance_count" in key and isinstance(one, int)] if known else []  # fmt: skip
    if not reading.world() and per_host:
        reading.hosts, reading.per_host = (counts[0] if counts else 1), per_host
        reading.note(f"{kind} has {per_host}", "instance_type")
