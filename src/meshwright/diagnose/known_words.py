"""Which lines are worth a look at a table of patterns: those that hold a word without which none of them matches.

A table has hundreds of patterns and a log millions of lines. The words are taken from the patterns themselves, so that
no entry can be forgotten: of each branch of a pattern, the longest text that every match of it contains.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable
from typing import Any

# The parser that `re` is built on: its module has another name since Python 3.11.
_NEW = sys.version_info >= (3, 11)
_op: Any = importlib.import_module("re._constants" if _NEW else "sre_constants")
_parser: Any = importlib.import_module("re._parser" if _NEW else "sre_parse")

SHORTEST = 4
"""Letters below which a word is in every line."""


def needed(pattern: re.Pattern[str]) -> set[str]:
    """Words in lower case of which at least one is in everything that `pattern` matches.

    Raises:
        ValueError: it has a branch without such a word.
    """
    words = _words(_parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE))
    if words is None or min(map(len, words)) < SHORTEST:
        raise ValueError(f"no word of {SHORTEST} letters in every branch of {pattern.pattern!r}")
    return words


def _words(sequence: Iterable[tuple[Any, Any]]) -> set[str] | None:
    """The best set of words of a sequence: the one whose shortest word is longest."""
    found: list[set[str]] = []
    text = ""
    for operation, argument in sequence:
        if operation is _op.LITERAL:
            text += chr(argument).lower()
            continue
        inner = _inner(operation, argument)
        if text:
            found.append({text})
            text = ""
        if inner:
            found.append(inner)
    if text:
        found.append({text})
    return max(found, key=lambda words: (min(map(len, words)), -len(words)), default=None)


def _inner(operation: Any, argument: Any) -> set[str] | None:
    if operation is _op.SUBPATTERN:
        return _words(argument[-1])
    if operation is _op.BRANCH:
        branches = [_words(branch) for branch in argument[1]]
        if any(words is None for words in branches):
            return None
        return set().union(*(words for words in branches if words))
    if operation in (_op.MAX_REPEAT, _op.MIN_REPEAT) and argument[0] > 0:
        return _words(argument[2])
    return None


_ALIKE = str.maketrans("123456789", "000000000")
"""Lines of a log mostly differ in their digits alone; words are compared with all digits alike."""
REMEMBERED, LONG = 4096, 1000
"""Lines whose candidates are kept, and letters beyond which a line is not."""


class Index:
    """Finds the patterns that a line could match, by the words that it holds."""

    def __init__(self, patterns: Iterable[re.Pattern[str]]) -> None:
        at: dict[str, list[int]] = {}
        for number, pattern in enumerate(patterns):
            for word in needed(pattern):
                at.setdefault(word.translate(_ALIKE), []).append(number)
        self._at = [(word, numbers) for word, numbers in sorted(at.items())]
        self._known: dict[str, list[int]] = {}

    def candidates(self, line: str) -> list[int]:
        """Numbers of the patterns that are worth trying on a line, in their order."""
        low = line.lower().translate(_ALIKE)
        if (known := self._known.get(low)) is not None:
            return known
        found = [numbers for word, numbers in self._at if word in low]
        result = sorted({number for numbers in found for number in numbers}) if found else []
        if len(line) <= LONG:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[low] = result
        return result


class Sifted:
    """A pattern of many branches, tried only on lines that hold one of its words."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern = pattern
        self._words = tuple(sorted(needed(pattern)))

    def search(self, line: str) -> re.Match[str] | None:
        """Return what the pattern finds in a line."""
        low = line.lower()
        for word in self._words:
            if word in low:
                return self.pattern.search(line)
        return None
