"""The words of a command, those of commands inside its quotes among them."""

from __future__ import annotations

import re
import shlex


def _lines(text: str) -> str:
    """A command of several lines as one: a semicolon before a line that begins with no option."""
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return "".join(
        line if not index else f" {line}" if line.startswith("-") else f" ; {line}"
        for index, line in enumerate(lines)
    )


def split(text: str) -> list[str]:
    """The words of a text as a shell has them, or between its blanks where its quotes do not close."""
    text = text.replace("\\\n", " ")
    try:
        return [word for word in shlex.split(text) if word.strip()]
    except ValueError:
        return text.split()


def opened(words: list[str]) -> list[str]:
    """Words with commands in quotes opened up (`srun bash -c "python …"`, `ray job submit -- …`)."""
    found: list[str] = []
    for index, word in enumerate(words):
        if word in ("$@", "$*", "${@}"):
            continue  # what the script is started with; nobody has started it
        inside = (
            " " in word
            and not word.startswith(("{", "["))
            and (
                re.search(
                    r"(?:^|\s)(?:\S*/)?(?:python[\d.]*|torchrun|deepspeed|accelerate|srun|bash|train_\w*cu)\s",
                    word,
                )
                or word.count(" --") > 1
                or re.match(r"--[\w-]+ \S", word)
            )
        )
        found += opened(split(_lines(word))) if inside else [word]
        if inside and index and words[index - 1] == "-c":
            break  # after `bash -c "…"` come the name and the arguments of that shell
    return found
