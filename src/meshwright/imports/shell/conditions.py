"""Decide the tests of a shell script (`[ … ]`, `[[ … ]]`) where the script says enough."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from meshwright.imports.beside import beside
from meshwright.imports.shell.quotes import closing, closing_quote
from meshwright.imports.shell.state import Script, raw
from meshwright.imports.shell.words import (
    arithmetic,
    expand_text,
    mark,
    shown,
    text_of,
    unmarked,
    unset,
)

if TYPE_CHECKING:
    from tree_sitter import Node


def test_command(script: Script, node: Node) -> bool | None:
    """Decide a test in brackets; None where it depends on the machine."""
    text = raw(node).strip()
    if text.startswith("(("):
        return truth(script, text[2:-2])
    inner = text[2:-2] if text.startswith("[[") else text[1:-1]
    words: list[str] = []
    for token in _tokens(inner):
        if token in ("&&", "||", "!", "(", ")", "==", "=", "!=", "=~", "<", ">") or re.fullmatch(
            r"-\w+", token
        ):
            words.append(token)
        else:
            words.append(expand_text(token, script.scope))
    return test(script, words, text.startswith("[["))


def _tokens(text: str) -> list[str]:
    """The words of a test as they are written; substitutions inside quotes may hold quotes of their own."""
    found, start, index = [], 0, 0
    while index < len(text):
        letter = text[index]
        if letter.isspace():
            found.append(text[start:index])
            start = index = index + 1
        elif letter == '"':
            index = closing_quote(text, index) + 1
        elif letter == "'":
            end = text.find("'", index + 1)
            index = len(text) if end < 0 else end + 1
        elif text.startswith(("$(", "${"), index):
            index = closing(text, index + 1)
        else:
            index += 2 if letter == "\\" else 1
    return [token for token in (*found, text[start:]) if token]


def truth(script: Script, text: str) -> bool | None:
    """Whether arithmetic in double brackets is not zero; None where that depends on the machine."""
    made = arithmetic(text, script.scope)
    if not unset(made):
        return made not in ("0", "")
    named = {name for one in _NAMES.findall(text) for name in unset(text_of(script.scope.get(one) or mark(one)))}  # fmt: skip
    if not _plain_names("".join(map(mark, named))) or any(name.isdigit() for name in named):
        return None
    _say_zero(script, sorted(named))
    before = dict(script.scope.variables)
    script.scope.variables |= dict.fromkeys(named, "0")
    try:
        made = arithmetic(text, script.scope)
    finally:
        script.scope.variables = before
    return None if unset(made) else made not in ("0", "")


_NAMES = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def _say_zero(script: Script, names: list[str]) -> None:
    for name in names:
        said = f"{shown(mark(name))} (taken as 0)"
        script.doubts += [said] if said not in script.doubts else []


def _as_number(script: Script, text: str) -> str:
    """What `[[` compares as a number: bash takes 0 for a name that nothing sets, and so does who sets nothing."""
    names = unset(text)
    if not names or unmarked(text) or not _plain_names(text) or any(one.isdigit() for one in names):
        return text
    _say_zero(script, names)
    return "0"


def _of_one_value(script: Script, words: list[str]) -> bool | None:
    """A test of one value: whether it is empty, there, or set."""
    if len(words) == 1:
        return bool(unmarked(words[0])) or None if unset(words[0]) else bool(words[0])
    operator, value = words
    if operator in ("-z", "-n"):
        empty = not unmarked(value)
        return empty == (operator == "-z")
    if operator in ("-f", "-e", "-s") and (
        value in script.files or beside(script.folder, value) is not None
    ):
        return True
    if script.fresh and operator in ("-f", "-e", "-s", "-d"):
        return False
    if operator == "-v":
        base, bracket, key = value.partition("[")
        named = script.scope.aliases.get(base, base) + bracket + key
        return named in script.scope.variables or script.scope.get(value) is not None
    return None


def _with_unset(script: Script, left: str, operator: str, right: str) -> bool | None:
    """A comparison of two texts of which one is of names that nothing sets."""
    # An unset name equals nothing but an empty text.
    if operator not in ("=", "==", "!="):
        return None
    plain = unmarked(left) == unmarked(right)
    if not (left and right):
        return plain == (operator != "!=")
    off = unmarked(left + right).lower() in ("none", "false", "null", "no", "off", "0")
    if operator == "!=" and not off and _plain_names(left) and _plain_names(right):
        # Whoever starts the script and sets nothing gets the branch for "another text".
        script.doubts.append(f"{shown(left)} != {shown(right)} holds where nothing sets it")
        return not plain
    return None


def test(script: Script, words: list[str], counts: bool) -> bool | None:
    """Decide a test as `[` does; None where it depends on the machine or on what is not stated.

    Args:
        counts: within double brackets, where a number that nothing sets is 0.
    """
    for operator, joined in (("||", "-o"), ("&&", "-a")):
        for index, word in enumerate(words):
            if word in (operator, joined) and index:
                one = test(script, words[:index], counts)
                other = test(script, words[index + 1 :], counts)
                if operator == "||":
                    return True if one or other else None if None in (one, other) else False
                return False if False in (one, other) else None if None in (one, other) else True
    if words and words[0] == "!":
        inner = test(script, words[1:], counts)
        return None if inner is None else not inner
    if len(words) in (1, 2):
        return _of_one_value(script, words)
    if len(words) != 3:
        return None
    left, operator, right = words
    if operator in _NUMERIC:
        if counts:
            left, right = _as_number(script, left), _as_number(script, right)
        if left.lstrip("-").isdigit() and right.lstrip("-").isdigit() and len(left + right) < 40:
            return _NUMERIC[operator](int(left), int(right))
        return (operator == "-eq" and script.guessing and take(script, left, right)) or None
    if left == right and unset(left) and operator in ("=", "==", "!="):
        return operator != "!="  # whatever it is, it is the same on both sides
    if script.guessing and operator in ("=", "==") and take(script, left, right):
        return True
    if (unset(left) and not unmarked(left)) or (unset(right) and not unmarked(right)):
        return _with_unset(script, left, operator, right)
    if operator in ("=", "=="):
        return fnmatch.fnmatchcase(left, right) if right else not left
    if operator == "!=":
        return not fnmatch.fnmatchcase(left, right)
    if operator == "=~" and not re.search(r"[\\^$.|?*+()\[\]{}]", right):
        return right in left
    if operator == "=~":
        for name, its in _CLASSES.items():
            right = right.replace(f"[:{name}:]", its)
        if "[[" in right or "[:" in right:
            return None  # a set inside a set means something else to Python
        try:
            return (
                re.search(right, left) is not None if len(right) < 60 and len(left) < 200 else None
            )
        except re.error:
            return None
    return None


_CLASSES = {"digit": "0-9", "alpha": "A-Za-z", "alnum": "A-Za-z0-9", "space": r"\s", "upper": "A-Z", "lower": "a-z"}  # fmt: skip
"""POSIX's names of characters within brackets, as Python writes them."""


def _plain_names(text: str) -> bool:
    """Whether what a text lacks is variables or arguments, nothing that a program would print."""
    return not any(name[:1] == "$" or "=" in name for name in unset(text))


_OFF = frozenset({"false", "no", "off"})
"""Words that switch off what a script does unless it is told: nobody means them who says nothing."""
_ON = ("true", "yes", "on", "y", "1")
"""Words for which a switch is compared: what nobody sets is off, unless another branch asks for the opposite word."""


_ASIDE = re.compile(
    r"(?i)conver|eval|infer|generat|export|merge|debug|test|help|download|preproc|tokeniz|serve"
)
"""Words for what a script does beside training: who says nothing gets its `else`."""


def take(script: Script, left: str, right: str) -> bool:
    """Give a name that nothing states the first text that it is compared with."""
    names = unset(left)
    if (
        len(names) != 1
        or unmarked(left)
        or not right
        or unset(right)
        or "*" in right
        or names[0][:1] == "$"
        or "=" in names[0]
        or right.lower() in _OFF
        or (script.has_else and (right.lower() in _ON or _ASIDE.search(right)))
    ):
        return False
    name = names[0]
    if name in script.guesses:
        return script.guesses[name] == right
    script.guesses[name] = right
    if name.isdigit():
        place = int(name)
        script.scope.positional += [
            mark(str(i + 1)) for i in range(len(script.scope.positional), place)
        ]
        script.scope.positional[place - 1] = right
    for known, value in list(script.scope.variables.items()):
        if value == left:
            script.scope.variables[known] = right
    if not name.isdigit():
        script.scope.variables[name] = right
    return True


_NUMERIC: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b, "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
}  # fmt: skip
