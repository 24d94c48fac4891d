"""`sed` over a script's own files: templates that it fills in (`sed "s/A/$A/" template > config`)."""

from __future__ import annotations

import posixpath
import re

_MOST_STARS = 2
"""Repetitions in a pattern; more could take long on a long line."""


def sed(text: str, words: list[str]) -> str | None:
    """What `sed` with these words makes of a text; None where it does more than substitute.

    Args:
        words: the command's, from `sed` on; a file among them is what `text` came from.
    """
    expressions, _files, _inside = parts(words)
    if not expressions:
        return None
    extended = any(re.fullmatch(r"-[a-zA-Z]*[Er]", one) for one in words[1:])
    for expression in expressions:
        for one in re.split(r";\s*(?=s\W)", expression.strip().strip(";")):
            changed = _substituted(text, one.strip(), extended)
            if changed is None:
                return None
            text = changed
    return text


def parts(words: list[str]) -> tuple[list[str], list[str], bool]:
    """(expressions, files, whether it changes them in place) of a `sed` command; no expressions for another."""
    if not words or posixpath.basename(words[0]) not in ("sed", "gsed"):
        return [], [], False
    expressions, rest, inside, waiting = list[str](), list[str](), False, False
    for word in words[1:]:
        if waiting:
            expressions.append(word)
            waiting = False
        elif word in ("-e", "--expression"):
            waiting = True
        elif word.startswith("-i") or word == "--in-place":
            inside = True
        elif word in ("-E", "-r", "-n", "--"):
            if word == "-n":
                return [], [], False
        else:
            rest.append(word)
    if not expressions and rest:
        expressions, rest = rest[:1], rest[1:]
    return expressions, rest, inside


def _substituted(text: str, expression: str, extended: bool) -> str | None:
    """A text after one `s/pattern/replacement/flags`, on every line; None for any other expression."""
    if len(expression) < 4 or expression[0] != "s":
        return None
    delimiter = expression[1]
    if delimiter.isalnum() or delimiter in "\\\n":
        return None
    fields = re.split(rf"(?<!\\){re.escape(delimiter)}", expression[2:])
    if len(fields) != 3 or not re.fullmatch(r"g?", fields[2].strip()):
        return None
    pattern = _pattern(fields[0].replace(f"\\{delimiter}", delimiter), extended)
    if pattern is None:
        return None
    made = fields[1].replace(f"\\{delimiter}", delimiter)
    if re.search(r"\\[1-9]|(?<!\\)&", made):
        return None
    made = made.replace("\\&", "&").replace("\\n", "\n")
    count = 0 if "g" in fields[2] else 1
    return "\n".join(pattern.sub(lambda _: made, line, count=count) for line in text.split("\n"))


_PIECES = re.compile(r"(\.\*|\[[^\]\s]{1,20}\](?:\*|\\\+|\+)?|\^|\$$|\\.)")
_SETS = re.compile(r"\[\^?[\w.,\"'{}:/-]+\]")


_EITHER = re.compile(r"\(([\w-]+(?:\|[\w-]+)*)\)")
"""A choice between plain words, in extended patterns."""


def _pattern(text: str, extended: bool) -> re.Pattern[str] | None:
    """A plain pattern of `sed` as one of Python's; None where it has groups of other than words, or repeats much."""
    found, stars = "", 0
    for index, piece in enumerate(_PIECES.split(text)):
        if index % 2 == 0 and extended:
            rest = _EITHER.split(piece)
            if any(set(one) & set("()|+?{}") for one in rest[::2]):
                return None
            found += "".join(
                f"(?:{one})" if at % 2 else re.escape(one) for at, one in enumerate(rest)
            )
        elif index % 2 == 0:
            found += re.escape(piece)
        elif piece == ".*":
            found, stars = found + "[^\\n]*", stars + 1
        elif piece.startswith("["):
            repeat = "*" if piece.endswith("*") else "+" if piece.endswith("+") else ""
            bare = piece.rstrip("*+\\")
            if not _SETS.fullmatch(bare):
                return None
            found, stars = found + bare + repeat, stars + bool(repeat)
        elif piece in ("^", "$"):
            found += piece
        elif piece[1] == "+" and found:
            found, stars = f"{found}+", stars + 1
        elif piece[1] in "./$*[]^{}\"'":
            found += re.escape(piece[1])
        else:
            return None
    if stars > _MOST_STARS:
        return None
    try:
        return re.compile(found)
    except re.error:
        return None
