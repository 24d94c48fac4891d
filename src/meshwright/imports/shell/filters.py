"""What the usual filters of a pipeline make of a text: `tr`, `sed`, `bc`, `cut`, `grep`, `awk`, `head`, `wc`."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

from meshwright.imports.shell.reals import said_by_bc
from meshwright.imports.shell.sed import parts, sed
from meshwright.imports.shell.words import unset

_LONGEST = 80
"""Letters of a pattern; a longer one, or one that repeats inside what repeats, is not tried."""


def translated(text: str, words: list[str]) -> str | None:
    """A text after one filter; None where the filter is not one of the usual, or a mark would be cut."""
    if not words:
        return None
    name = posixpath.basename(words[0])
    if name in ("sed", "gsed"):
        return sed(text, words) if not parts(words)[1] else None
    if name == "tr":
        return _tr(text, words)
    if unset(text):
        return None  # what the machine would say has its own lines and fields
    if name == "bc":
        return said_by_bc(text, library="-l" in words)
    made = _FILTERS.get(name)
    return made(text, words[1:]) if made is not None else None


def found_in(text: str, words: list[str]) -> bool | None:
    """Whether `grep -q PATTERN` or `egrep -q PATTERN` finds something in a text; None where that is not known."""
    read = _grep_words(["-E"] * (posixpath.basename(words[0]) == "egrep") + words[1:])
    if read is None:
        return None
    flags, pattern = read
    hits = [bool(pattern.search(line)) for line in text.splitlines()]
    if unset(text) and not any(hits):
        return None
    return any(hit != ("v" in flags) for hit in hits)


def _tr(text: str, words: list[str]) -> str | None:
    if len(words) != 3:
        return None
    first, second = words[1], words[2]
    if first in ("[:upper:]", "A-Z") and second in ("[:lower:]", "a-z"):
        return text.lower()
    if first in ("[:lower:]", "a-z") and second in ("[:upper:]", "A-Z"):
        return text.upper()
    if first == "-d":
        if second == "[:space:]":
            return re.sub(r"\s", "", text)
        return text.replace(_letter(second), "") if len(_letter(second)) == 1 else None
    if len(_letter(first)) != 1 or len(_letter(second)) != 1:
        return None
    return text.replace(_letter(first), _letter(second))


def _letter(word: str) -> str:
    return {"\\n": "\n", "\\t": "\t"}.get(word, word)


def _grep_words(words: list[str]) -> tuple[str, re.Pattern[str]] | None:
    """(letters of the flags, the pattern) of a `grep` of a pipeline; None for one over files or with other options."""
    flags, rest = "", list[str]()
    for index, word in enumerate(words):
        if word == "--":
            rest += words[index + 1 :]
            break
        if word.startswith("-") and word not in ("-e", "--regexp"):
            flags += word.lstrip("-") if not word.startswith("--") else {"--quiet": "q", "--ignore-case": "i"}.get(word, "?")  # fmt: skip
        elif not word.startswith("-"):
            rest.append(word)
    if len(rest) != 1 or set(flags) - set("qiEFwvoPcx") or len(rest[0]) > _LONGEST or unset(rest[0]):  # fmt: skip
        return None
    text = rest[0]
    if "F" in flags:
        text = re.escape(text)
    elif not set(flags) & {"E", "P"}:
        text = re.sub(r"\\?[+?|(){}]", lambda one: one.group()[1:] if len(one.group()) > 1 else "\\" + one.group(), text)  # fmt: skip
    if re.search(r"[*+}]\)?[*+{]|\)[*+{]|\[\[|\\K", text):
        return None
    text = rf"\b(?:{text})\b" if "w" in flags else rf"^(?:{text})$" if "x" in flags else text
    try:
        return flags, re.compile(text, re.IGNORECASE if "i" in flags else 0)
    except re.error:
        return None


def _grep(text: str, words: list[str]) -> str | None:
    read = _grep_words(words)
    if read is None:
        return None
    flags, pattern = read
    if "o" in flags:
        return "\n".join(hit.group() for line in text.splitlines() for hit in pattern.finditer(line))  # fmt: skip
    kept = [line for line in text.splitlines() if bool(pattern.search(line)) != ("v" in flags)]
    return str(len(kept)) if "c" in flags else "\n".join(kept)


def _cut(text: str, words: list[str]) -> str | None:
    """`cut -d X -f N`, with or without blanks between."""
    said = re.fullmatch(r"-d ?(?P<by>.) -f ?(?P<at>\d)(?P<to>-?)|-f ?(?P<at2>\d) -d ?(?P<by2>.)", " ".join(words))  # fmt: skip
    if said is None:
        return None
    by, at = said["by"] or said["by2"], int(said["at"] or said["at2"])
    lines = []
    for line in text.splitlines():
        fields = line.split(by)
        taken = fields[at - 1 :] if said["to"] else fields[at - 1 : at]
        lines.append(line if len(fields) == 1 else by.join(taken))
    return "\n".join(lines)


def _awk(text: str, words: list[str]) -> str | None:
    """`awk -F X '{print $N}'`: one field, the last one, or how many there are."""
    said = re.fullmatch(r"(?:-F ?['\"]?(?P<by>\S| )['\"]? )?\{ ?print (?P<what>\$\d|\$NF|NF);? ?\}", re.sub(r"\s+", " ", " ".join(words)).strip())  # fmt: skip
    if said is None:
        return None
    lines = []
    for line in text.splitlines() or [""]:  # what `echo` prints of nothing is a line, too
        fields = line.split(said["by"]) if line else []
        what = said["what"]
        if what == "$0":
            lines.append(line)
        elif what == "NF":
            lines.append(str(len(fields)))
        else:
            at = len(fields) if what == "$NF" else int(what[1:])
            lines.append(fields[at - 1] if 0 < at <= len(fields) else "")
    return "\n".join(lines)


def _ends(text: str, words: list[str], *, last: bool) -> str | None:
    said = re.fullmatch(r"(?:-n ?|-)?(\d+)|", " ".join(words))
    if said is None:
        return None
    count, lines = int(said.group(1) or 10), text.splitlines()
    return "\n".join(lines[-count:] if last else lines[:count])


def _wc(text: str, words: list[str]) -> str | None:
    kinds: dict[str, Callable[[], int]] = {"-l": lambda: len(text.splitlines()), "-w": lambda: len(text.split()), "-c": lambda: len(text) + 1}  # fmt: skip
    return str(kinds[words[0]]()) if len(words) == 1 and words[0] in kinds else None


_FILTERS: dict[str, Callable[[str, list[str]], str | None]] = {
    "grep": _grep, "egrep": lambda text, words: _grep(text, ["-E", *words]), "cut": _cut, "awk": _awk, "gawk": _awk,
    "head": lambda text, words: _ends(text, words, last=False), "tail": lambda text, words: _ends(text, words, last=True),
    "wc": _wc, "xargs": lambda text, words: None if words else " ".join(text.split()),
    "sort": lambda text, words: None if words else "\n".join(sorted(text.splitlines())),
}  # fmt: skip
