"""What the assignments and declarations of a shell script set."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from meshwright.imports.shell.builtins import forget
from meshwright.imports.shell.output import counted_by_machine
from meshwright.imports.shell.redirect import joined
from meshwright.imports.shell.state import Script, raw
from meshwright.imports.shell.words import (
    Value,
    expand_text,
    expand_words,
    mark,
    text_of,
    unmarked,
    unset,
)

if TYPE_CHECKING:
    from tree_sitter import Node


def assignment(script: Script, node: Node) -> bool | None:
    """Follow `A=…`, `A+=…`, `A[i]=…` or `A=(…)`; None where it sets nothing."""
    target = node.child_by_field_name("name")
    if target is None:
        return None
    value = node.child_by_field_name("value")
    name = raw(target)
    adds = any(child.type == "+=" for child in node.children)
    made = value_of(script, value)
    if target.type == "subscript":
        base = target.child_by_field_name("name")
        index = target.child_by_field_name("index")
        if base is not None and index is not None:
            place = expand_text(raw(index), script.scope)
            name = f"{raw(base)}[{place}]"
            _put(script, raw(base), place, text_of(made))
    elif isinstance(made, str) and made and not unmarked(made):
        made = _asked_of_machine(script, name, made, raw(value) if value is not None else "")
    if isinstance(made, list):
        if not adds:
            forget(script, [one for one in script.scope.variables if one.startswith(f"{name}[")])
        for entry in made:
            keyed = re.fullmatch(r"\[([^\]]+)\]=(.*)", entry, re.DOTALL)
            if keyed:
                script.set(f"{name}[{keyed.group(1)}]", keyed.group(2))
    script.set(name, made, adds)
    return True


def _put(script: Script, name: str, place: str, text: str) -> None:
    """`A[1]=text` where A is a list: its second entry, or one more."""
    items = script.scope.variables.get(name)
    if isinstance(items, list) and place.isdigit():
        at = min(int(place), len(items))
        script.scope.variables[name] = [*items[:at], text, *items[at + 1 :]]


def _asked_of_machine(script: Script, name: str, made: str, text: str) -> Value:
    """A value that only the machine knows, under the variable's name, so that a user can give it."""
    missing = unset(made)
    if len(missing) != 1 or missing[0][:2] != "$(":
        return made
    if name in script.given:
        return script.scope.variables[name]
    if counted := counted_by_machine(script, text):
        script.countable[name] = counted
    return mark(f"{name}={missing[0]}")


def counts(script: Script, found: re.Match[str]) -> str:
    """What is taken, where a number is made of it, for a mark that counts the machine's devices or hosts."""
    name = found.group(1).partition("=")[0]
    if name not in script.countable:
        return found.group()
    script.counted[name] = script.countable[name]
    return script.counted[name]


def value_of(script: Script, node: Node | None) -> Value:
    """What the right-hand side of an assignment comes to: a text, or the words of a list."""
    if node is None:
        return ""
    if node.type != "array":
        return expand_text(raw(node), script.scope)
    found: list[str] = []
    for word in joined([child for child in node.named_children if child.type != "comment"]):
        found += expand_words(word, script.scope)
    return found


def declaration(script: Script, node: Node) -> bool | None:
    """Follow `export`, `local`, `declare` and their like, `declare -n` as another name of a variable."""
    alias = any(child.type == "word" and raw(child) == "-n" for child in node.named_children)
    for child in node.named_children:
        target, value = child.child_by_field_name("name"), child.child_by_field_name("value")
        if alias and child.type == "variable_assignment" and target is not None:
            script.scope.aliases[raw(target)] = text_of(value_of(script, value))
        elif child.type == "variable_assignment":
            assignment(script, child)
    return True
