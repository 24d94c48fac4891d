"""Import a file or a folder of another tool: which format it is in, by its content, and its run."""

from __future__ import annotations

import re
from pathlib import Path

from meshwright.exports.stamp import Stamp, read_stamp
from meshwright.imports import documents, logs, makefiles, notebooks, python, scripts
from meshwright.imports.beside import beside, keeps_scores, steps_beside
from meshwright.imports.code.syntax import parse_python
from meshwright.imports.complete import complete
from meshwright.imports.model_files import describe
from meshwright.imports.reading import Given, Imported, Reading
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_text
from meshwright.specs.models import model_names

_TEXT_BYTES = 4_000_000
_SHELL = (
    ".sh",
    ".bash",
    ".sbatch",
    ".slurm",
    ".sub",
    ".job",
    ".lsf",
    ".bsub",
    ".pbs",
    ".qsub",
    ".sge",
    ".flux",
)
_COMMAND = re.compile(
    r"^[^\S\n]*(?:torchrun|srun|deepspeed|accelerate launch|mpirun|mpiexec|jsrun|python3? |uv run|#SBATCH|#BSUB|#PBS|tune run|llamafactory-cli|export |bash )",
    re.MULTILINE,
)


_PAGES = {".md", ".rst", ".html", ".adoc"}
"""Endings of texts for people."""


def import_file(path: str | Path, given: Given | None = None) -> Imported:
    """Read a file of another tool, or a folder with the pieces of one run.

    Raises:
        SpecError: the file cannot be read or its format is not known, values contradict each
            other, or something that the format does not say was not given.
    """
    given = given or Given()
    where = Path(path)
    if str(path) != "-" and where.is_dir():
        from meshwright.imports.folders import import_folder

        return import_folder(where, given)
    text = read_text(where, size_bytes=_TEXT_BYTES)
    folder = None if str(path) == "-" else where.parent
    return import_text(text, str(path), given, folder)


def import_text(text: str, name: str, given: Given, folder: Path | None = None) -> Imported:
    """Read the content of a file; its name only helps to tell formats apart.

    Raises:
        SpecError: as `import_file`.
    """
    if "\0" in text:
        raise SpecError("file", name, "is a binary file; a script or a configuration is expected")
    if not text.strip():
        raise SpecError("file", name, "is empty")
    try:
        found, stamp = read_any(text, name, given, folder)
    except SpecError as error:
        if error.field != "script" or Path(name).suffix.lower() not in _PAGES:
            raise
        raise SpecError("file", name, "is a page of text; the script, recipe, log or configuration in it is expected as a file of its own") from None  # fmt: skip
    own = stamp.target and not found.model_name and stamp.model not in model_names()
    if own and beside(folder, "config.json"):
        found.model_name = "config.json"  # an export of a model that has no name here
    if stamp.target and not found.steps:
        found.steps = steps_beside(folder)
    if stamp.target and keeps_scores(folder):
        found.job.setdefault("attention_kernel", "unfused")
    describe(found, given, folder)
    return complete(found, given, stamp)


def read_any(text: str, name: str, given: Given, folder: Path | None) -> tuple[Reading, Stamp]:
    """What a file says, and the stamp of an export where it has one.

    Raises:
        SpecError: its format is not known, or it says what cannot be.
    """
    suffix = Path(name).suffix.lower()
    if suffix == ".ipynb":
        return notebooks.read(text, name, given, folder)
    if suffix == ".gin":
        raise SpecError("file", name, "describes no training run by itself: gin's bindings are read by T5X's programs, which train encoder-decoders for the most part")  # fmt: skip
    stamp = read_stamp(text)
    if makefiles.is_makefile(name):
        return scripts.read(makefiles.as_shell(text, name), name, given, folder, stamp)
    logged = None if suffix == ".py" else logs.read(text, given)
    if logged is not None:
        return logged, stamp
    if suffix == ".py" or (suffix not in _SHELL and _is_python(text)):
        return python.read(text, name, given, folder, stamp)
    if (
        suffix in _SHELL
        or (text.startswith("#!") and suffix == "")
        or (suffix not in (".yaml", ".yml", ".json", ".toml") and _COMMAND.search(text))
    ):
        return scripts.read(text, name, given, folder, stamp)
    return documents.read(text, name, given, folder, stamp)


def _is_python(text: str) -> bool:
    if not re.search(r"^(?:import|from) \w|^def \w+\(", text, re.MULTILINE):
        return False
    return parse_python(text) is not None
