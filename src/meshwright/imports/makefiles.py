"""Makefiles and justfiles: the recipe that trains, as the shell script that it is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

_NAMES = re.compile(r"(?i)(?:gnu)?makefile|.*\.mk|\.?justfile|.*\.just")
_ASSIGNED = re.compile(r"(?:export\s+|override\s+)?([A-Za-z_]\w*)\s*(\?=|:=|::=|\+=|=)\s*(.*)")
_TARGET = re.compile(
    r"@?([\w./%-]+)((?:\s+[\w-]+(?:\s*=\s*(?:\"[^\"]*\"|'[^']*'|\S+))?)*)\s*:(?!=)(.*)"
)
_BUILTIN = frozenset({"MAKE", "CURDIR", "SHELL", "MAKEFLAGS", "MAKECMDGOALS"})


def is_makefile(name: str) -> bool:
    """Whether a file is make's or just's, by its name."""
    return _NAMES.fullmatch(Path(name).name) is not None


def as_shell(text: str, name: str) -> str:
    """The variables and recipes of such a file as one shell script, targets in their order."""
    just = "just" in Path(name).name.lower()
    lines: list[str] = []
    inside = False
    for line in text.replace("\\\n", " \\\n").split("\n"):
        if inside and (line.startswith(("\t", " ")) or not line.strip()):
            lines.append(_recipe(line.strip(), just))
            continue
        inside = line.endswith("\\") and bool(lines) and inside
        if line.startswith("#") or not line.strip():
            continue
        assigned = _ASSIGNED.fullmatch(line.strip())
        target = _TARGET.fullmatch(line.rstrip())
        if assigned is not None:
            lines.append(_assignment(assigned.group(1), assigned.group(2), assigned.group(3), just))
        elif target is not None:
            inside = True
            lines += _parameters(target.group(2)) if just else []
        elif not just:
            lines.append(_recipe(line.strip(), just))  # what a recipe's line goes on with
    return "\n".join(lines) + "\n"


def _assignment(name: str, how: str, value: str, just: bool) -> str:
    """`NAME ?= value` as the shell says it; what the caller's environment says counts over `?=`."""
    plain = _filled(value.strip() if just else re.split(r"\s#", value)[0].strip(), just)
    if plain[:1] in "\"'" and plain[-1:] == plain[:1] and len(plain) > 1:
        plain = plain[1:-1]
    quoted = f'"{plain}"' if "$" in plain else shlex.quote(plain)
    if how == "?=":
        return f'[ -n "${{{name}:-}}" ] || {name}={quoted}'
    return f'{name}="${{{name}}} {plain}"' if how == "+=" else f"{name}={quoted}"


def _parameters(text: str) -> list[str]:
    """Defaults of a recipe's own parameters (`train gpus="4":`), as assignments."""
    pairs = re.findall(r"([A-Za-z_][\w-]*)\s*=\s*(\"[^\"]*\"|'[^']*'|\S+)", text)
    return [f"{name.replace('-', '_')}={value}" for name, value in pairs]


def _recipe(line: str, just: bool) -> str:
    return _filled(line.lstrip("@-+ ") if not line.startswith("--") else line, just)


def _filled(text: str, just: bool) -> str:
    """References in the shell's own way: `$(NAME)`, `{{name}}`, and `$$` for a dollar of the shell's."""
    if just:
        return re.sub(r"\{\{\s*([A-Za-z_][\w-]*)\s*\}\}", lambda found: "${" + found.group(1).replace("-", "_") + "}", text)  # fmt: skip
    text = re.sub(r"(?<!\$)\$[({](?:shell\s+)([^()]*)[)}]", r"$(\1)", text)
    text = re.sub(
        r"(?<!\$)\$[({]([A-Za-z_]\w*)[)}]",
        lambda found: found.group(0) if found.group(1) in _BUILTIN else "${" + found.group(1) + "}",
        text,
    )
    return text.replace("$$", "$")
