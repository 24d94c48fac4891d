"""What is said of a script in which no command trains, or whose options are in files that it is given."""

from __future__ import annotations

import posixpath
import re

from meshwright.imports.launch import Launch
from meshwright.imports.options import Missing
from meshwright.imports.shell.state import Script
from meshwright.imports.shell.words import unmarked, unset

_OF_FILES = re.compile(r"\[\[? !? ?-[defhrsxL] ")
"""A condition on the machine's files, which no option answers."""


def starts_another(text: str) -> str:
    """What is said of the last script that a script starts; empty where it starts none."""
    started = re.findall(  # a bounded number of options: a line of nothing else costs its square
        r"(?m)^(?![ \t]*#).*?\b(?:bash|sh)[ \t]+(?:-\w+[ \t]+){0,8}[\"']?([^\s\"'|;]*\.(?:sh|sbatch|slurm)|\$\{?TRAIN\w*)\b",
        text,
    )
    if not started:
        return ""
    return f"; it starts {posixpath.basename(started[-1])[:60]}: import what that starts"


def left_open(script: Script) -> str:
    """What a script includes and is not here, and the first name that it leaves to its caller; empty where there is neither."""
    missing = f"; the script includes {script.missing[0][-60:]}, which is not here" if script.missing else ""  # fmt: skip
    unset = [doubt for doubt in script.doubts if "$" in doubt and not _OF_FILES.match(doubt)]
    return missing + (f"; it depends on {unset[0][:80]}" if unset else "")


def nothing_found(script: Script, text: str) -> str:
    """The sentence for a script without a training command: what it includes, depends on or starts."""
    missing = f"; it includes {script.missing[0][:60]}, which is not here" if script.missing else ""
    unset = [doubt for doubt in script.doubts if "$" in doubt and not _OF_FILES.match(doubt)]
    started = starts_another(text)
    if not unset and started:
        missing += started
    elif unset and re.search(
        r"torchrun|accelerate|deepspeed|srun|sbatch|python|\.py\b|\.sh\b", text
    ):
        missing += (
            f"; it depends on {unset[0]} (--set NAME=value or --args says, --guess takes the first)"
        )
    return f"no command that trains was found in this script{missing}"


def ask_for_included(script: Script, launch: Launch) -> None:
    """Ask for the files that a script takes as its arguments and includes, where they hold the training's options.

    Raises:
        Missing: it does, and they do.
    """
    told = next((one for one in script.missing if re.fullmatch(r"\$\{?\d\}?", one)), "")
    if told and any(unset(word) and not unmarked(word) for word in launch.words):
        raise Missing("source", told.strip("${}"), told)


_LAUNCHER = re.compile(
    r"(?:^|\W)(?:torchrun|torch\.distributed\.(?:run|launch)|deepspeed|srun|python3?)$"
)
_OWN_OPTION = re.compile(r"-\S+|[^\s\"'.]*\"?\$\{?(?!@|\*)\w\S*|\d+")
_ARGUMENTS = frozenset({"$@", "${@}", "$*", "$1"})


def starts_arguments(text: str) -> bool:
    """Return whether a launcher stands with options of its own and then only the script's arguments."""
    return any(_ends_in_arguments(line) for line in text.replace("\\\n", " ").splitlines())


def _ends_in_arguments(line: str) -> bool:
    words = line.split()
    if len(words) < 2 or words[0].startswith("#"):
        return False
    last = words.pop()
    if last not in _ARGUMENTS and (last[0] + last[-1] != '""' or last[1:-1] not in _ARGUMENTS):
        return False
    for at in range(len(words) - 1, -1, -1):
        word = words[at]
        if _LAUNCHER.search(word) or words[max(at - 1, 0) : at + 1] == ["accelerate", "launch"]:
            return True
        if not _OWN_OPTION.fullmatch(word):
            return False
    return False
