"""What a shell makes of braces in a word: `{1..4}`, `{a,b}`."""

from __future__ import annotations

import itertools
import re

from meshwright.imports.shell.quotes import closing, closing_quote

MOST = 400
"""Words that one word becomes; a word of more stays as it is written."""

_BRACES = 40

_RANGE = re.compile(r"(-?\d{1,6})\.\.(-?\d{1,6})(?:\.\.-?(\d{1,6}))?|([A-Za-z])\.\.([A-Za-z])")


def braced(raw: str) -> list[str]:
    """The words that the braces outside quotes of a raw word make; the word alone where there are none.

    A brace after `$`, one that is never closed, and one without a comma or a range are letters, as in bash.
    """
    if not 0 < raw.count("{") <= _BRACES:
        return [raw]
    found = _expanded(raw)
    return found if len(found) <= MOST else [raw]


def _expanded(raw: str) -> list[str]:
    index = 0
    while index < len(raw):
        after = _passed(raw, index)
        if after > index:
            index = after
            continue
        if raw[index] == "{":
            closed = _parts(raw, index)
            if closed is not None:
                parts, end = closed
                rest = _expanded(raw[end:])
                inner = [one for part in parts for one in _expanded(part)]
                if len(inner) * len(rest) > MOST:
                    return [raw] * (MOST + 1)
                return [raw[:index] + one + other for one in inner for other in rest]
        index += 1
    return [raw]


def _passed(raw: str, index: int) -> int:
    """Where reading goes on after a quote, an escape or a `$…` that begins here; the same place for anything else."""
    letter = raw[index]
    if letter == "\\":
        return index + 2
    if letter == '"':
        return closing_quote(raw, index) + 1
    if letter in "'`":
        end = raw.find(letter, index + 1)
        return (len(raw) if end < 0 else end) + 1
    if letter == "$" and raw[index + 1 : index + 2] in ("{", "("):
        return closing(raw, index + 1)
    return index


def _parts(raw: str, start: int) -> tuple[list[str], int] | None:
    """What stands between commas, or what a range counts, in the brace at `start`, and where it ends."""
    commas, depth, index = [start], 0, start
    while index < len(raw):
        after = _passed(raw, index)
        if after > index:
            index = after
            continue
        letter = raw[index]
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 1:
            commas.append(index)
        index += 1
        if not depth:
            break
    else:
        return None
    inner = raw[start + 1 : index - 1]
    if len(commas) > 1:
        places = [*commas, index - 1]
        return [raw[one + 1 : other] for one, other in itertools.pairwise(places)], index
    said = _RANGE.fullmatch(inner)
    return None if said is None else (_counted(said), index)


def _counted(said: re.Match[str]) -> list[str]:
    """The numbers or letters of a range, in its direction; numbers as wide as the widest that begins with a zero."""
    first, last, step, low, high = said.groups()
    if low:
        one, other = ord(low), ord(high)
        return [chr(code) for code in range(one, other + (1 if other >= one else -1), 1 if other >= one else -1)]  # fmt: skip
    one, other, by = int(first), int(last), max(int(step or 1), 1)
    width = max((len(text) for text in (first, last) if re.match(r"-?0\d", text)), default=0)
    up = other >= one
    if abs(other - one) // by > MOST:
        return [said.string] * (MOST + 1)
    counted = range(one, other + (1 if up else -1), by if up else -by)
    return [f"{number:0{width}d}" for number in counted]
