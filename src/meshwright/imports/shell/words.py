"""Expand the words of a shell script as data: quotes, variables, arithmetic, simple substitutions.

What the file does not state stays in a word as a mark (`unset` tells which name is missing), so
that whoever needs the value can ask for it by name.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from meshwright.imports.shell.braces import braced
from meshwright.imports.shell.numbers import calculated, choices
from meshwright.imports.shell.quotes import closing, closing_quote
from meshwright.specs.errors import SpecError

MAX_VALUE = 200_000
_OPEN, _CLOSE = "\ue000", "\ue001"
_MARK = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*){_CLOSE}")
_NAME = re.compile(r"[A-Za-z_]\w*")
_BLANKS, _NO_BREAK = re.compile(r"\s+"), "\u00a0"
_SYNTAX = "\"'`\\$()|;<>&{}[]#*?!~"
_HIDDEN = {ord(letter): 0xE010 + index for index, letter in enumerate(_SYNTAX)}
_READABLE = {hidden: letter for letter, hidden in _HIDDEN.items()}
"""Letters of a shell's syntax inside marks, where a text with marks is followed as a script again."""
_SPECIAL = "@*#?$!-0123456789"
Value = str | list[str]


def unset(text: str) -> list[str]:
    """Names of what a text depends on and the script does not state."""
    return [name.translate(_READABLE) for name in _MARK.findall(text)]


def mark(name: str) -> str:
    """The mark of something that the script does not state; no blank splits it and no letter of it is syntax."""
    return f"{_OPEN}{_BLANKS.sub(_NO_BREAK, name).translate(_HIDDEN)}{_CLOSE}"


def readable(name: str) -> str:
    """The name inside a mark as a person wrote it."""
    return name.translate(_READABLE).replace(_NO_BREAK, " ")


def shown(text: str) -> str:
    """A text as a person wrote it: marks become `$NAME`."""
    spelled = _MARK.sub(lambda match: _spelled(readable(match.group(1))), text)
    return re.sub(r"[\x00-\x1f\x7f]+", " ", spelled)


def _spelled(name: str) -> str:
    bare = name.partition("=")[0]
    return bare if bare[:1] == "$" else f"${bare}"


def unmarked(text: str) -> str:
    """A text without its marks, as an unset variable expands."""
    return _MARK.sub("", text)


@dataclass
class Scope:
    """Variables of a script, its positional parameters, and how to evaluate a substitution."""

    variables: dict[str, Value] = field(default_factory=dict)
    positional: list[str] = field(default_factory=list)
    name: str = "script.sh"  # `$0`
    sourced: list[str] = field(
        default_factory=list
    )  # files that are being included, the last one innermost
    aliases: dict[str, str] = field(default_factory=dict)
    run: Callable[[str], str | None] = lambda _text: None
    counts: Callable[[re.Match[str]], str] = lambda found: found.group()  # a mark as a number
    depth: int = 0

    def get(self, name: str) -> Value | None:
        """A variable's value; None where nothing sets it."""
        name = self.aliases.get(name, name)
        if name in ("@", "*"):
            return list(self.positional)
        if name == "#":
            return str(len(self.positional))
        if name.isdigit():
            index = int(name)
            if index == 0:
                return self.name
            return self.positional[index - 1] if index <= len(self.positional) else None
        if name in ("?", "!", "-", "$"):
            return "0"
        if name == "BASH_SOURCE":
            return [*reversed(self.sourced), self.name]
        return self.variables.get(name)


def text_of(value: Value) -> str:
    """A value as one string."""
    return " ".join(value) if isinstance(value, list) else value


def expand_words(raw: str, scope: Scope) -> list[str]:
    """Expand one raw word into fields: its braces, and what the shell splits where it is not quoted."""
    return [field for word in braced(raw) for field in _fields(word, scope)]


def _fields(raw: str, scope: Scope) -> list[str]:
    pieces = _pieces(raw, scope)
    fields: list[str] = []
    current: str | None = None
    for text, quoted, several in pieces:
        if several is not None and quoted:
            if not several:
                continue
            current = (current or "") + several[0]
            for item in several[1:]:
                fields.append(current)
                current = item
            continue
        if quoted:
            current = (current or "") + text
            continue
        parts = re.split(r"[ \t\n]+", text)
        if len(parts) == 1:
            if text:
                current = (current or "") + text
            continue
        if parts[0]:
            current = (current or "") + parts[0]
        for part in parts[1:]:
            if current is not None:
                fields.append(current)
            current = part or None
    if current is not None:
        fields.append(current)
    return fields


def expand_text(raw: str, scope: Scope) -> str:
    """Expand one raw word into one string, as an assignment does."""
    return _bounded(
        "".join(
            text if several is None else " ".join(several)
            for text, _q, several in _pieces(raw, scope)
        )
    )


def _bounded(text: str) -> str:
    if len(text) > MAX_VALUE:
        raise SpecError("script", text[:40], f"a value grows beyond {MAX_VALUE} characters")
    return text


def expand_heredoc(raw: str, scope: Scope) -> str:
    """Expand the variables of a here-document; quotes are letters there."""
    return _bounded(
        "".join(
            text if several is None else " ".join(several)
            for text, _q, several in _double(raw, scope, heredoc=True)
        )
    )


Piece = tuple[str, bool, list[str] | None]


def _pieces(raw: str, scope: Scope) -> list[Piece]:
    found: list[Piece] = []
    index = 0
    while index < len(raw):
        letter = raw[index]
        if letter == "'":
            end = raw.find("'", index + 1)
            end = len(raw) if end < 0 else end
            found.append((raw[index + 1 : end], True, None))
            index = end + 1
        elif letter == '"':
            end = closing_quote(raw, index)
            found.append(("", True, None))
            found += _double(raw[index + 1 : end], scope)
            index = end + 1
        elif letter == "\\":
            if raw[index + 1 : index + 2] == "\n":
                found.append((" ", False, None))
            else:
                found.append((raw[index + 1 : index + 2], True, None))
            index += 2
        elif letter in "$`":
            text, several, index = _dollar(raw, index, scope)
            found.append((text if several is None else " ".join(several), False, None))
        else:
            end = index + 1
            while end < len(raw) and raw[end] not in "'\"\\$`":
                end += 1
            # White space inside one raw word is never a separator: the grammar has split already.
            found.append((raw[index:end], True, None))
            index = end
    return found


def _double(raw: str, scope: Scope, *, heredoc: bool = False) -> list[Piece]:
    found: list[Piece] = []
    index = 0
    while index < len(raw):
        letter = raw[index]
        if letter == "\\" and index + 1 < len(raw):
            following = raw[index + 1]
            if following == "\n":
                found.append((" ", True, None))
            elif following in "$`\\" or (following == '"' and not heredoc):
                found.append((following, True, None))
            else:
                found.append((letter + following, True, None))
            index += 2
        elif letter in "$`":
            text, several, index = _dollar(raw, index, scope)
            found.append((text, True, several))
        else:
            end = index + 1
            while end < len(raw) and raw[end] not in "\\$`":
                end += 1
            found.append((raw[index:end], True, None))
            index = end
    return found


def _dollar(raw: str, index: int, scope: Scope) -> tuple[str, list[str] | None, int]:
    """(text, the items of an array in quotes, index after) of what starts with $ or a backtick."""
    if raw[index] == "`":
        end = raw.find("`", index + 1)
        end = len(raw) if end < 0 else end
        return _substitute(raw[index + 1 : end], scope), None, end + 1
    if raw.startswith("$((", index):
        end = closing(raw, index + 1)
        return arithmetic(raw[index + 3 : end - 2], scope), None, end
    if raw.startswith("$[", index) and (end := raw.find("]", index)) > 0:  # the older spelling
        return arithmetic(raw[index + 2 : end], scope), None, end + 1
    if raw.startswith("$(", index):
        end = closing(raw, index + 1)
        return _substitute(raw[index + 2 : end - 1], scope), None, end
    if raw.startswith("${", index):
        end = closing(raw, index + 1)
        text, several = _parameter(raw[index + 2 : end - 1], scope)
        return text, several, end
    match = _NAME.match(raw, index + 1)
    name = match.group() if match else raw[index + 1 : index + 2]
    if not match and (not name or name not in _SPECIAL):
        return "$", None, index + 1
    value = scope.get(name)
    after = index + 1 + len(name)
    if isinstance(value, list):
        if name in ("@", "*"):
            return " ".join(value), value, after
        return value[0] if value else "", None, after
    return mark(name) if value is None else value, None, after


def _substitute(command: str, scope: Scope) -> str:
    if command.lstrip().startswith("#"):
        return ""  # `# a comment inside a command`
    if scope.depth > 8:
        return mark("$(…)")
    scope.depth += 1
    try:
        found = scope.run(command)
    finally:
        scope.depth -= 1
    short = " ".join(command.split())[:40]
    return mark(f"$({short})") if found is None else found


_PARAMETER = re.compile(
    r"(?P<pre>[#!]?)(?P<name>[A-Za-z_]\w*|[@*#]|\d+)(?:\[(?P<index>[^\]]*)\])?(?P<op>.*)", re.DOTALL
)


def _parameter(inner: str, scope: Scope) -> tuple[str, list[str] | None]:
    match = _PARAMETER.fullmatch(inner)
    if match is None:
        return mark(inner[:40]), None
    name, index, op = match["name"], match["index"], match["op"]
    name = scope.aliases.get(name, name)
    value = scope.get(name)
    if match["pre"] == "#":
        if isinstance(value, list):
            return str(len(value)), None
        return (mark(name) if value is None else str(len(value))), None
    if match["pre"] == "!" and index in ("@", "*"):
        places = _places(name, value, scope)
        return " ".join(places), places
    if match["pre"] == "!" and isinstance(value, str):
        name, value = value, scope.get(value)
    if index is not None and index not in ("@", "*"):
        place = expand_text(index, scope)
        items = value if isinstance(value, list) else [] if value is None else [value]
        key = f"{name}[{place}]"
        if key in scope.variables:
            value = scope.variables[key]
        elif place.lstrip("-").isdigit() and -len(items) <= int(place) < len(items):
            value = items[int(place)]
        else:
            value = None
    elif index is None and isinstance(value, list) and name not in ("@", "*"):
        value = value[0] if value else ""
    if op:
        return _operated(name, value, op, scope), None
    if isinstance(value, list):
        if index == "*":
            separator = scope.get("IFS")
            first = separator[:1] if isinstance(separator, str) and separator else " "
            return first.join(value), None
        return " ".join(value), value
    return (mark(name) if value is None else value), None


def _places(name: str, value: Value | None, scope: Scope) -> list[str]:
    """The keys of an array (`${!sizes[@]}`): its names, or the places of its items."""
    begin = f"{name}["
    keys = [one[len(begin) : -1] for one in scope.variables if one.startswith(begin)]
    items = value if isinstance(value, list) else [] if value is None else [value]
    return keys or [str(place) for place in range(len(items))]


def _operated(name: str, value: Value | None, op: str, scope: Scope) -> str:
    text = None if value is None else text_of(value)
    known = text is not None and not (unset(text) and not unmarked(text))
    colon = op.startswith(":") and op[1:2] in ("-", "=", "+", "?")
    kind, rest = (op[1], op[2:]) if colon else (op[0], op[1:])
    if kind in "-=" and (colon or op[0] in "-="):
        if known and (text or not colon):
            return text or ""
        default = expand_text(rest, scope)
        if kind == "=":
            scope.variables[name] = default
        return default
    if kind == "+":
        return expand_text(rest, scope) if known and (text or not colon) else ""
    if kind == "?":
        return text if known and text is not None else mark(name)
    if text is None:
        return mark(name)
    return _edited(text, op, scope)


def _edited(text: str, op: str, scope: Scope) -> str:
    """Prefix and suffix removal, replacement, case, and slices."""
    if op in (",,", "^^"):
        return text.lower() if op == ",," else text.upper()
    if op[0] in "#%":
        long = op[:2] in ("##", "%%")
        pattern = re.compile(fnmatch.translate(expand_text(op[1 + long :], scope)))
        lengths = range(len(text) + 1)
        for size in reversed(lengths) if long else lengths:
            part = text[:size] if op[0] == "#" else text[len(text) - size :]
            if pattern.match(part):
                return text[size:] if op[0] == "#" else text[: len(text) - size]
            if size > 2_000:
                break
        return text
    if op[0] == "/":
        every = op.startswith("//")
        old, _, new = op[1 + every :].partition("/")
        old, new = expand_text(old, scope), expand_text(new, scope)
        return text.replace(old, new, -1 if every else 1) if old else text
    if op[0] == ":":
        parts = [arithmetic(part, scope) for part in op[1:].split(":")]
        if all(part.lstrip("-").isdigit() and len(part) < 9 for part in parts):
            start = int(parts[0])
            return text[start : start + int(parts[1])] if len(parts) > 1 else text[start:]
    return text


def arithmetic(raw: str, scope: Scope) -> str:
    """Whole-number arithmetic; a mark where a part is not stated."""
    # Quotes are no part of a number; those inside a substitution are its commands'.
    written = raw if "$(" in raw else raw.replace('"', "")
    text = _MARK.sub(scope.counts, expand_text(written, scope)).replace('"', "")
    if unset(text):
        return re.sub(r"[ \t\n]+", "", text)  # one word, as its number would be
    missing: list[str] = []

    def known(match: re.Match[str]) -> str:
        value = scope.get(match.group())
        said = mark(match.group()) if value is None else _MARK.sub(scope.counts, text_of(value))
        missing.extend(unset(said)[:1])
        return "0" if unset(said) else said or "0"

    bare = _NAME.sub(known, text)
    if missing:
        return mark(missing[0])
    bare = re.sub(r"!(?!=)", " not ", bare.replace("&&", " and ").replace("||", " or "))
    # Where a name is empty two signs meet: Python knows `//`, no shell does.
    found = None if "//" in bare else calculated(choices(bare))
    return mark(f"$(({text[:30]}))") if found is None else found
