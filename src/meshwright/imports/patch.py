"""Change an option in somebody's file, leaving every other character as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_VALUE = r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s,#}\)\]\\]+)"


@dataclass(frozen=True, slots=True)
class Edit:
    """One changed line. `new` is empty where the line goes; `old` where it is added after `line`."""

    line: int
    old: str
    new: str

    def text(self) -> str:
        """The edit as a person would note it."""
        if not self.new:
            return f"line {self.line}: remove `{self.old.strip()}`"
        if not self.old:
            return f"after line {self.line}: add `{self.new.strip()}`"
        return f"line {self.line}: `{self.old.strip()}` becomes `{self.new.strip()}`"


def find_edits(text: str, option: str, value: str) -> Iterator[Edit]:
    """Every edit that gives an option another value, in the order of the lines.

    A value that is a variable is changed where the file assigns it, its default included.

    Args:
        option: `--flag`, or a key, dotted where it is nested (its last part is looked for).
    """
    lines = text.split("\n")
    flag = option.startswith("--")
    name = re.escape(option.lstrip("-") if flag else option.rsplit(".", 1)[-1]).replace(
        r"\-", "[-_]"
    )
    name = name.replace("_", "[-_]") if "[-_]" not in name else name
    pattern = (
        re.compile(rf"(?P<head>--{name}(?:[ \t=]+|\s*:\s*))(?P<value>{_VALUE})")
        if flag
        else re.compile(
            rf"(?P<head>(?:^|[\s{{,(.\"'])[\"']?{name}[\"']?\s*[:=]\s*)(?P<value>{_VALUE})"
        )
    )
    for index, line in enumerate(lines):
        if line.lstrip().startswith(("#", "//")):
            continue
        match = pattern.search(line)
        if match is None:
            continue
        variable = re.fullmatch(r"[\"']?\$\{?(\w+)\}?[\"']?", match["value"])
        if variable is not None:
            assigned = _assignment(lines, variable.group(1), value)
            if assigned is not None:
                yield assigned
            continue
        new = (
            line[: match.start("value")] + _like(match["value"], value) + line[match.end("value") :]
        )
        if new != line:
            yield Edit(index + 1, line, new)


def _like(old: str, value: str) -> str:
    """A value in the quotes, and the spelling of true and false, of the one it replaces."""
    if old in ("True", "False") and value in ("true", "false"):
        return value.capitalize()
    quote = old[:1] if old[:1] in "\"'" and old[-1:] == old[:1] else ""
    return f"{quote}{value}{quote}"


def _assignment(lines: list[str], variable: str, value: str) -> Edit | None:
    """The last assignment of a variable, changed; a default inside `${…:-…}` is what changes."""
    pattern = re.compile(rf"^(\s*(?:export\s+)?{variable}=)([\"']?)(.*?)([\"']?)(\s*(?:#.*|;.*)?)$")
    for index in range(len(lines) - 1, -1, -1):
        match = pattern.match(lines[index])
        if match is None:
            continue
        head, opening, old, closing, tail = match.groups()
        default = re.fullmatch(r"(\$\{\w+:?[-=])([^}]*)(\})", old)
        made = f"{default.group(1)}{value}{default.group(3)}" if default else value
        new = f"{head}{opening}{made}{closing}{tail}"
        return Edit(index + 1, lines[index], new) if new != lines[index] else None
    return None


def find_flag(text: str, option: str) -> Edit | None:
    """The edit that takes a flag (and its value) out; None where the file does not hold it."""
    name = re.escape(option)
    pattern = re.compile(rf"{name}(?![\w-])(?:[ \t=]+(?!-|\\){_VALUE})?")
    for index, line in enumerate(text.split("\n")):
        if line.lstrip().startswith("#"):
            continue
        match = pattern.search(line)
        if match is None:
            continue
        rest = line[match.end() :]
        if re.match(r"\s*:", rest) and not line[: match.start()].strip(" '\"-"):
            return Edit(index + 1, line, "")  # a key of YAML goes with its value
        if re.match(r"\s*=[^=]", rest) and "." in line[: match.start()]:
            return Edit(
                index + 1, line, f"{line[: match.end()]} = None"
            )  # a field of a Python recipe
        new = (line[: match.start()] + rest).rstrip(" ")
        bare = new.strip()
        return Edit(index + 1, line, "" if bare in ("", "\\", "-") else new)
    return None


def add_key(text: str, name: str, value: str, beside: tuple[str, ...]) -> Edit | None:
    """The edit that adds `name: value` after a line with one of the other keys, at its depth."""
    lines = text.split("\n")
    for other in beside:
        for index, line in enumerate(lines):
            match = re.match(rf"(\s*){re.escape(other)}\s*([:=])\s*\S", line)
            if match is not None:
                mark = ": " if match[2] == ":" else " = "
                return Edit(index + 1, "", f"{match[1]}{name}{mark}{value}")
    return None


def add_flags(text: str, option: str, beside: tuple[str, ...]) -> Iterator[Edit]:
    """Every edit that adds a flag after a line with one of the others, or beside it in its line."""
    lines = text.split("\n")
    for other in beside:
        whole = re.compile(rf"{re.escape(other)}(?![\w-])")
        for index, line in enumerate(lines):
            at = whole.search(line)
            if not other or at is None or line.lstrip().startswith("#"):
                continue
            indent = line[: len(line) - len(line.lstrip())]
            ends = line.rstrip().endswith("\\")
            continues = bool(index) and lines[index - 1].rstrip().endswith("\\")
            if re.match(rf"\s*{re.escape(other)}\s*:", line):
                yield Edit(index + 1, "", f"{indent}{option}: true")
            elif not line.lstrip().startswith("--") or (continues and not ends):
                # In the middle of a line, or on a command's last: right before the other flag.
                new = f"{line[: at.start()]}{option} {line[at.start() :]}"
                yield Edit(index + 1, line, new)
            else:
                end = " \\" if ends else ""
                yield Edit(index + 1, "", f"{indent}{option}{end}")


def apply_edits(text: str, edits: list[Edit]) -> str:
    """A text with its edits; lines are counted in the text as it was."""
    lines = text.split("\n")
    for edit in sorted(edits, key=lambda one: one.line, reverse=True):
        if not edit.old:
            lines.insert(edit.line, edit.new)
        elif not edit.new:
            gone = lines.pop(edit.line - 1)
            above = lines[edit.line - 2] if edit.line > 1 else ""
            if above.rstrip().endswith("\\") and not gone.rstrip().endswith("\\"):
                # What is now a command's last line goes on no longer.
                lines[edit.line - 2] = above.rstrip()[:-1].rstrip()
        else:
            lines[edit.line - 1] = edit.new
    return "\n".join(lines)
