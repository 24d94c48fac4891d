"""Parse Python that may be newer than the interpreter: what only 3.12 can say is rewritten first.

Three things of 3.12 are no syntax before it: quotes of an f-string's own kind inside its braces
(PEP 701), `type` statements and the parameters of generic functions and classes (PEP 695). None of
them changes a value that a configuration states, so a plain rewriting is enough.
"""

from __future__ import annotations

import ast
import contextlib
import re
import warnings
from functools import lru_cache

_PREFIX = re.compile(r"(?i)(?<![\w'\"])(?:f|rf|fr)(?=['\"])")
_TYPE = re.compile(r"^([ \t]*)type[ \t]+(\w+)[ \t]*(?:\[[^\]\n]*\])?[ \t]*=", re.M)
_GENERIC = re.compile(
    r"^([ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+\w+)\[[^\n]*?\](?=[ \t]*[(:])", re.M
)
_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)


@lru_cache(maxsize=8)
def parse_python(text: str) -> ast.Module | None:
    """The tree of a Python text, which nobody changes; None where it is none, in any version's syntax."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Python would say of somebody else's text
        with contextlib.suppress(*_ERRORS):
            return ast.parse(text)
        with contextlib.suppress(*_ERRORS):
            return ast.parse(_older(text))
    return None


def without_comments(text: str) -> str:
    """A program without the lines that are comments as a whole: what was tried once is not what runs."""
    return re.sub(r"(?m)^[^\S\n]*#.*$", "", text)


def dotted(node: ast.expr) -> str:
    """How an expression is written; of plain names and attributes without the way through `ast.unparse`."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        return ".".join([node.id, *reversed(parts)])
    return ".".join([ast.unparse(node), *reversed(parts)])


def defaults_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[tuple[ast.arg, ast.expr]]:  # fmt: skip
    """Parameters of a function that have a default, with it."""
    given = function.args
    plain = [*given.posonlyargs, *given.args]
    pairs = [*zip(plain[len(plain) - len(given.defaults) :], given.defaults, strict=True), *zip(given.kwonlyargs, given.kw_defaults, strict=True)]  # fmt: skip
    return [(arg, default) for arg, default in pairs if default is not None]


def assigned(name: str, tree: ast.AST) -> list[ast.expr]:
    """What a program sets a name to, in the order of `ast.walk`."""
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and dotted(node.targets[0]) == name
    ]


def _older(text: str) -> str:
    """The text without what only Python 3.12 can say; lines stay where they are."""
    text = _GENERIC.sub(r"\1", _TYPE.sub(r"\1\2 =", text))
    found: list[str] = []
    at = 0
    while (match := _PREFIX.search(text, at)) is not None:
        start = match.end()
        quote = text[start] * 3 if text[start : start + 3] == text[start] * 3 else text[start]
        body, after = _body(text, start + len(quote), quote)
        found += [text[at:start], quote, body, quote]
        at = after
    return "".join([*found, text[at:]])


def _body(text: str, index: int, quote: str) -> tuple[str, int]:
    """(an f-string's inside with the other kind of quotes in its braces, the index after it)."""
    found: list[str] = []
    depth = 0
    other = "'" if quote[0] == '"' else '"'
    while index < len(text):
        letter = text[index]
        if depth == 0 and text.startswith(quote, index):
            return "".join(found), index + len(quote)
        if depth == 0 and letter == "\\":
            found.append(text[index : index + 2])
            index += 2
            continue
        if depth == 0 and text.startswith(("{{", "}}"), index):
            found.append(text[index : index + 2])
            index += 2
            continue
        if depth and letter in "'\"":
            end = text.find(letter, index + 1)
            if end < 0 or "\n" in text[index:end]:
                break
            inner = text[index + 1 : end].replace("\\", "").replace(other, "").replace(quote[0], "")
            found += [other, inner, other]
            index = end + 1
            continue
        depth += (letter == "{") - (letter == "}" and depth > 0)
        found.append(letter)
        index += 1
    return "".join(found), index
