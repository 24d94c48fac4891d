"""Where quotes and brackets of a raw text of a shell end."""

from __future__ import annotations

_DEEPEST = 60
"""Quotes and brackets within each other; nobody writes more, and what is deeper counts as never closed."""


def closing_quote(raw: str, start: int, depth: int = 0) -> int:
    """Index of the double quote that closes the one at `start`; the end where none does."""
    index = start + 1 if depth < _DEEPEST else len(raw)
    while index < len(raw):
        if raw[index] == "\\":
            index += 2
        elif raw[index] == '"':
            return index
        elif raw[index] == "`":
            index = _closing_tick(raw, index) + 1
        elif raw.startswith(("$(", "${"), index):
            index = closing(raw, index + 1, depth + 1)
        else:
            index += 1
    return len(raw)


def closing(raw: str, start: int, depth: int = 0) -> int:
    """Index after the bracket that closes the one at `start`; quotes inside are passed over."""
    opens, closes = raw[start], {"(": ")", "{": "}"}[raw[start]]
    open_ones, index = 0, start if depth < _DEEPEST else len(raw)
    while index < len(raw):
        letter = raw[index]
        if letter == "\\":
            index += 2
            continue
        if letter == "'" and opens == "(":
            end = raw.find("'", index + 1)
            index = len(raw) if end < 0 else end + 1
            continue
        if letter == '"':
            index = closing_quote(raw, index, depth + 1) + 1
            continue
        if letter == "`" and opens == "(":
            index = _closing_tick(raw, index) + 1
            continue
        open_ones += (letter == opens) - (letter == closes)
        index += 1
        if open_ones == 0:
            return index
    return len(raw)


def _closing_tick(raw: str, start: int) -> int:
    """Index of the backtick that closes the one at `start`; `start` where none does."""
    end = raw.find("`", start + 1)
    while end > 0 and raw[end - 1] == "\\":
        end = raw.find("`", end + 1)
    return start if end < 0 else end
