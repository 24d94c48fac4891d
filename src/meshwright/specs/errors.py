"""The one exception for bad input: a sentence that names field, value and remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any


class SpecError(ValueError):
    """Input that cannot be accepted.

    `str(error)` is one sentence a person can act on. `field` is the dotted path of the
    offending field, so that a form can mark it.
    """

    def __init__(self, field: str, value: object, remedy: str) -> None:
        self.field = field
        self.value = value
        self.remedy = remedy
        # A field's name and what a remedy quotes may come from a file, too.
        what = shorten(field, str) if value is None else f"{shorten(field, str)} = {shorten(value)}"
        super().__init__(one_line(f"{what}: {remedy}"))

    def __reduce__(self) -> tuple[type[SpecError], tuple[str, object, str]]:
        """What a copy in another process is made from."""
        return SpecError, (self.field, self.value, self.remedy)


class DoesNotFitError(Exception):
    """No layout fits: the answer to a valid question, so not a `SpecError` (exit code 1)."""


def one_line(text: str) -> str:
    """Return text with escapes for all that breaks a line or moves a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shorten(value: object, form: Callable[[Any], str] = repr, limit: int = 80) -> str:
    """Return the first characters of a value's `repr` (or other form) without building the rest.

    What is short comes out whole. Lists and tables are walked only as far as they are shown, so
    one that holds itself, or itself a million times, costs no more than its first characters.
    """
    if isinstance(value, str) and form is str:
        return value if len(value) <= 4 * limit else value[: 4 * limit] + "..."
    if isinstance(value, str) and limit < len(value) + 2 <= 4096 and "/" in value:
        # Of a path the end says which file it is.
        head = (limit - 5) // 3  # two are the quotes
        return repr(value[:head] + "..." + value[head + 5 - limit :])
    pieces: list[str] = []
    _show(value, pieces, limit + 1, 8)
    shown = "".join(pieces)
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."


_BRACKETS: dict[type, str] = {list: "[]", tuple: "()", dict: "{}"}


def _show(value: object, pieces: list[str], room: int, depth: int) -> int:
    """Append the pieces of a repr while there is room; return what room is left."""
    brackets = _BRACKETS.get(type(value))
    if brackets is None or not value or room <= 0 or not depth:
        text = _leaf(value, room) if brackets is None or not value else "..."
        pieces.append(text)
        return room - len(text)
    pieces.append(brackets[0])
    room -= 1
    table = isinstance(value, dict)
    for index, one in enumerate(value):  # type: ignore[arg-type,var-annotated]
        if room <= 0:
            return room
        if index:
            pieces.append(", ")
            room -= 2
        room = _show(one, pieces, room, depth - 1)
        if table:
            pieces.append(": ")
            room = _show(value[one], pieces, room - 2, depth - 1)  # type: ignore[index]
    end = ",)" if isinstance(value, tuple) and len(value) == 1 else brackets[1]
    pieces.append(end)
    return room - len(end)


def _leaf(value: object, room: int) -> str:
    if isinstance(value, (str, bytes, bytearray)):
        return repr(value[: max(room, 1)])
    if isinstance(value, int) and value.bit_length() > 1024:
        return f"a whole number of about {int(value.bit_length() * 0.30103)} digits"
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


def nearest(name: str, known: Iterable[str], limit: int = 3) -> str:
    """Return "did you mean a, b?" for a misspelt name, or the list of what is known."""
    known = sorted(known)
    close = get_close_matches(name.lower(), known, n=limit, cutoff=0.5)
    if close:
        return f"did you mean {', '.join(close)}?"
    shown = ", ".join(known[:12])
    return f"known: {shown}{', …' if len(known) > 12 else ''}"
