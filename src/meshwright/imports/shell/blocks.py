"""Follow the branches and loops of a shell script."""

from __future__ import annotations

import fnmatch
import posixpath
import re
from typing import TYPE_CHECKING

from meshwright.imports.shell.conditions import take
from meshwright.imports.shell.state import MAX_ROUNDS, QUIET, LeftLoop, Script, raw, walk
from meshwright.imports.shell.words import (
    arithmetic,
    expand_text,
    expand_words,
    shown,
    unmarked,
    unset,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_READS = re.compile(r"\s*(?:IFS=\S*\s+)?read\b")


def run_if(script: Script, node: Node) -> bool | None:
    """Follow the first branch whose test holds; a test that depends on the machine is named in `doubts`."""
    clauses: list[tuple[Node | None, list[Node]]] = []
    clause: tuple[list[Node], list[Node]] = ([], [])
    seen_then = False
    for child in node.children:
        if child.type == "then":
            seen_then = True
        elif child.type == "elif_clause" or child.type == "else_clause":
            clauses += [(clause[0][-1] if clause[0] else None, clause[1])] if clause[0] else []
            clause = ([], [])
            clauses.append(_clause(child))
        elif child.is_named and child.type != "comment":
            clause[1 if seen_then else 0].append(child)
    if clause[0]:
        clauses.insert(0, (clause[0][-1], clause[1]))
    for condition, body in clauses:
        script.has_else = len(clauses) == 1 or any(one is None for one, _body in clauses)
        status = True if condition is None else script.run(condition)
        script.has_else = False
        if status is None and condition is not None and _matters(body):
            short = " ".join(raw(condition).split())[:60]
            script.doubts.append(short)
            status = script.assuming or None
        if status:
            for child in body:
                script.run(child)
            return True
    return True


def _clause(node: Node) -> tuple[Node | None, list[Node]]:
    named = [child for child in node.named_children if child.type != "comment"]
    if node.type == "else_clause":
        return None, named
    return (named[0], named[1:]) if named else (None, [])


def _matters(body: list[Node]) -> bool:
    """Whether a branch sets or starts anything."""
    for node in body:
        for inner in walk(node):
            if inner.type in ("variable_assignment", "if_statement"):
                return True
            if inner.type == "command_name" and posixpath.basename(raw(inner)) not in QUIET:
                return True
    return False


def run_case(script: Script, node: Node) -> bool | None:
    """Follow the first pattern that matches."""
    value_node = node.child_by_field_name("value")
    value = expand_text(raw(value_node), script.scope) if value_node is not None else ""
    if unset(value) and not unmarked(value):
        script.doubts.append(f"case {shown(value)}")
    for item in node.named_children:
        if item.type != "case_item":
            continue
        patterns = item.children_by_field_name("value")
        first = expand_text(raw(patterns[0]), script.scope) if patterns else ""
        first = re.sub(r"\[(\w)[^\]]*\]", r"\1", first)  # `[0]`, `[yY]es`: the first it takes
        if script.guessing and unset(value) and "*" not in first and take(script, value, first):
            value = first
        if any(
            fnmatch.fnmatchcase(unmarked(value), expand_text(raw(p), script.scope))
            for p in patterns
        ):
            skip = {p.id for p in patterns}
            for child in item.named_children:
                if child.id not in skip:
                    script.run(child)
            return True
    return True


def _goes_on(script: Script, body: Node) -> bool:
    """Follow a loop's body once; whether the loop has another round."""
    script.loops += 1
    try:
        script.run(body)
    except LeftLoop as left:
        if left.levels > 1:
            raise LeftLoop(left.levels - 1, again=left.again) from None
        return left.again
    finally:
        script.loops -= 1
    return True


def run_for(script: Script, node: Node) -> bool | None:
    """Follow the body for every word."""
    variable = node.child_by_field_name("variable")
    body = node.child_by_field_name("body")
    if variable is None or body is None:
        return None
    items: list[str] = []
    for child in node.children_by_field_name("value"):
        items += expand_words(raw(child), script.scope)
    for item in items[:MAX_ROUNDS]:
        script.set(raw(variable), item)
        if not _goes_on(script, body):
            break
    return True


def run_while(script: Script, node: Node) -> bool | None:
    """Follow the body as long as the test holds, within bounds."""
    body = node.child_by_field_name("body")
    condition = node.child_by_field_name("condition")
    for _ in range(MAX_ROUNDS):
        if body is None or condition is None or script.run(condition) is not True:
            break
        if not _goes_on(script, body) or raw(condition).strip() in ("true", ":"):
            break
    return True


def run_lines(script: Script, node: Node, text: str) -> bool:
    """`while read -r LINE; do … done < FILE`: follow the body for every line; False for another loop."""
    body = node.child_by_field_name("body")
    condition = node.child_by_field_name("condition")
    if body is None or condition is None or _READS.match(raw(condition)) is None:
        return False
    before = script.fed
    for line in text.splitlines()[:MAX_ROUNDS]:
        script.fed = line
        try:
            known = script.run(condition)
        finally:
            script.fed = before
        if known is not True or not _goes_on(script, body):
            break
    return True


def run_c_for(script: Script, node: Node) -> bool | None:
    """`for ((i = 0; i < N; i++))`, as often as the bounds that the script states say."""
    body = node.child_by_field_name("body")
    match = re.match(r"for\s*\(\(([^;]*);([^;]*);(.*?)\)\)", raw(node), re.DOTALL)
    if body is None or match is None:
        return None
    begin, condition, step = (part.strip() for part in match.groups())
    name, _, first = begin.partition("=")
    name = name.strip()
    if not name.isidentifier():
        return None
    script.set(name, arithmetic(first.strip(), script.scope))
    change = re.fullmatch(rf"{name}\s*(\+\+|--|\+=\s*(\d+))|\+\+{name}", step)
    for _ in range(400):
        if change is None or arithmetic(condition, script.scope) not in ("1", "True"):
            break
        if not _goes_on(script, body):
            break
        amount = change.group(2) or ("-1" if change.group(1) == "--" else "1")
        script.set(name, arithmetic(f"{name} + {amount}", script.scope))
    return True
