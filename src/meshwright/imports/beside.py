"""Where a file that another file names lies."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from meshwright.imports.shell.words import unmarked
from meshwright.specs.foreign import parse_json, read_text

_UP = 5
"""Folders above the script's own in which a file that it includes is looked for."""


def beside(folder: Path | None, named: str) -> Path | None:
    """The file that a script names: in its folder or a few above, by as much of the path as fits.

    Only files below the fifth folder above the script, and of the script's own checkout where it lies in
    one, are looked at; never an absolute path.
    """
    if folder is None:
        return None
    bare = posixpath.normpath(unmarked(named).replace("$PWD", "").strip())
    parts = [part for part in re.split(r"/+", bare) if part not in ("", ".")]
    while parts and parts[0] == "..":
        parts = parts[1:]
    if not parts or ".." in parts:
        return None
    roots = [folder.resolve()]
    while len(roots) <= _UP and len(roots[-1].parent.parts) > 1:
        if (roots[-1] / ".git").exists():  # what lies above a checkout belongs to somebody else
            break
        roots.append(roots[-1].parent)
    for start in range(len(parts)):
        for root in roots:
            path = root.joinpath(*parts[start:])
            try:
                if path.is_file() and path.resolve().is_relative_to(roots[-1]):
                    return path
            except (OSError, ValueError):
                return None
    return None


_MODULE = re.compile(r"[\w-]+(?:\.[\w-]+)*")


def file_of(program: str) -> str:
    """The file of a program, by what a command starts: `-m package.train` is `package/train.py`."""
    if program.endswith((".py", ".ipynb")) or not _MODULE.fullmatch(program):
        return program
    return program.replace(".", "/") + ".py"


def program_beside(folder: Path | None, program: str) -> Path | None:
    """The Python file of a program that a command starts, where it is at hand."""
    named = file_of(program)
    return beside(folder, named) if named.endswith(".py") else None


_STEPS = re.compile(r'(?:progress\.options\(parser, |"--steps", type=int, default=)(\d{1,12})\)')


def steps_beside(folder: Path | None) -> int:
    """Optimizer steps of the script of ours beside a configuration, `train.py`; 0: no such script."""
    path = folder / "train.py" if folder is not None else None
    found = _STEPS.search(read_text(path)) if path is not None and path.is_file() else None
    return int(found[1]) if found is not None else 0


def keeps_scores(folder: Path | None) -> bool:
    """Whether the config.json of ours beside a file tells transformers' eager attention."""
    path = folder / "config.json" if folder is not None else None
    if path is None or not path.is_file():
        return False
    data = parse_json(read_text(path), "config.json", str(path))
    return isinstance(data, dict) and data.get("attn_implementation") == "eager"


def switched_on(folder: Path | None, name: str) -> bool:
    """Whether the script of ours beside a configuration, `train.py`, sets what the configuration has no word for."""
    path = folder / "train.py" if folder is not None else None
    return path is not None and path.is_file() and f"\n{name} = True" in read_text(path)
