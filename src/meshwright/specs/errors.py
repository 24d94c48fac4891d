"""The one exception for bad input: a sentence that names field, value and remedy."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class SpecError(ValueError):
    """Input that cannot be accepted.

    `str(error)` is one sentence a person can act on. `field` is the dotted path of the
    offending field, so that a form can mark it.
    """

    def __init__(self, field: str, value: object, remedy: str) -> None:
        self.field = field
        self.value = value
        self.remedy = remedy
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        sentence = f"{field} = {shown}: {remedy}"
        if not sentence.isprintable():  # a field name from a file may hold a line break
            sentence = "".join(c if c.isprintable() else repr(c)[1:-1] for c in sentence)
        super().__init__(sentence)

    def __reduce__(self) -> tuple[type[SpecError], tuple[str, object, str]]:
        """What a copy in another process is made from."""
        return SpecError, (self.field, self.value, self.remedy)


class DoesNotFitError(Exception):
    """No layout fits: the answer to a valid question, so not a `SpecError` (exit code 1)."""


def nearest(name: str, known: Iterable[str], limit: int = 3) -> str:
    """Return "did you mean a, b?" for a misspelt name, or the list of what is known."""
    known = sorted(known)
    close = get_close_matches(name.lower(), known, n=limit, cutoff=0.5)
    if close:
        return f"did you mean {', '.join(close)}?"
    shown = ", ".join(known[:12])
    return f"known: {shown}{', …' if len(known) > 12 else ''}"
