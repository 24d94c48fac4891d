"""Follow a shell script statically: which variables it sets, which commands it would start.

The grammar is tree-sitter's; nothing is executed. Tests are decided where the script itself says
enough; a test that depends on the machine counts as false and is named in `doubts`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.imports.beside import beside
from meshwright.imports.shell import blocks as shell_blocks
from meshwright.imports.shell.assignments import assignment, counts, declaration, value_of
from meshwright.imports.shell.batch import batch_options, batch_variables
from meshwright.imports.shell.builtins import (
    BUILTINS,
    STARTERS,
    forget,
    starts_script,
    text_of_shell,
)
from meshwright.imports.shell.conditions import test_command, truth
from meshwright.imports.shell.files import changed_in_place, copy
from meshwright.imports.shell.output import asks_for_npu, printed_by, searched
from meshwright.imports.shell.redirect import herestring, joined, pipeline, redirected
from meshwright.imports.shell.state import (
    MAX_DEPTH,
    MAX_STEPS,
    MAX_TEXT,
    QUIET,
    Command,
    LeftLoop,
    Script,
    check_errors,
    raw,
    read_tree,
    repaired,
)
from meshwright.imports.shell.words import (
    Scope,
    arithmetic,
    expand_heredoc,
    expand_words,
    shown,
    text_of,
    unset,
)
from meshwright.specs.errors import SpecError

if TYPE_CHECKING:
    from tree_sitter import Node


_PLACE = re.compile(r"(?<=[\s=])<([A-Za-z][\w./-]*)>(?=\s|$)")
"""A place that a script leaves to its reader (`--model <YOUR_MODEL>`), which a shell would take for redirections."""


_OVERRIDE = re.compile(r"\+{0,2}[a-z_]\w*(?:\.\w+)+=")
"""A word that sets an option of Hydra's, which starts nothing."""


def read_script(
    text: str,
    name: str = "script.sh",
    folder: Path | None = None,
    given: dict[str, str] | None = None,
    arguments: list[str] | None = None,
    guess: bool = False,
    machine: tuple[int, int] | None = None,
    assume: bool = False,
    fresh: bool = False,
) -> Script:
    """Follow a script and return what it sets and starts.

    Args:
        folder: where files that it includes are looked for; None: nowhere.
        given: variables of its environment.
        arguments: its positional parameters.
        guess: where a test compares a name that nothing states with a text, take that text.
        machine: hosts and devices of each that it runs on, where that is known.
        assume: a branch whose test depends on the machine is followed.
        fresh: files that are not at hand count as missing.

    Raises:
        SpecError: the script is too long or too deep to be followed.
    """
    written, text = text, _PLACE.sub(r"'<\1>'", text)
    scope = Scope(variables=dict(given or {}), positional=list(arguments or []), name=name)
    script = Script(
        scope,
        folder,
        guessing=guess,
        given=frozenset(given or {}),
        machine=machine,
        assuming=assume,
        fresh=fresh,
    )
    script.running.append(written)
    script.sbatch |= batch_options(text)
    scope.run = lambda command: _captured(script, command)
    scope.counts = lambda found: counts(script, found)
    script.run = lambda node: _run(script, node)
    script.run_all = lambda node: _children(script, node)
    script.run_text = lambda inner: _run_text(script, inner)
    script.start = lambda words, environment: _start(script, words, environment)
    for name, value in batch_variables(script.sbatch).items():
        scope.variables.setdefault(name, value)
    task = re.match(r"\d+", script.sbatch.get("array", ""))
    if task and "SLURM_ARRAY_TASK_ID" not in scope.variables and "SLURM_ARRAY_TASK_ID" in text:
        scope.variables["SLURM_ARRAY_TASK_ID"] = task.group(0)
        script.guesses["SLURM_ARRAY_TASK_ID"] = task.group(0)
    _run_text(script, text)
    return script


def _run_text(script: Script, text: str) -> None:
    if len(text) > MAX_TEXT:
        raise SpecError("script", text[:40], f"longer than {MAX_TEXT} characters")
    script.depth += 1
    if script.depth > MAX_DEPTH:
        raise SpecError("script", text[:40], "includes or substitutes itself too deeply")
    try:
        root = read_tree(repaired(text))
        if root.has_error:
            check_errors(script, root)
        _children(script, root)
    finally:
        script.depth -= 1


def _captured(script: Script, command: str) -> str | None:
    """What a substituted command would print, where it only prints."""
    before, script.printed = script.printed, []
    commands, directory = len(script.commands), script.directory
    variables = dict(script.scope.variables)
    try:
        _run_text(script, command)
        unknown = len(script.commands) > commands
        printed = script.printed
        script.captured += script.commands[commands:][: MAX_DEPTH - len(script.captured)]
    finally:
        del script.commands[commands:]
        script.printed, script.directory = before, directory
        script.scope.variables = variables
    if unknown or not printed:
        return None
    return "\n".join(printed)


def _children(script: Script, node: Node) -> bool | None:
    status: bool | None = True
    for child in node.named_children:
        status = _run(script, child)
    return status


def _run(script: Script, node: Node) -> bool | None:
    """Follow one statement; whether it succeeds, None where that depends on the machine."""
    script.steps += 1
    script.depth += 1
    if script.steps > MAX_STEPS or script.depth > 4 * MAX_DEPTH:
        raise SpecError("script", raw(node)[:40], "too long to be followed")
    try:
        handler = _HANDLERS.get(node.type)
        return handler(script, node) if handler else None
    finally:
        script.depth -= 1


def _compound(script: Script, node: Node) -> bool | None:
    """`{ …; }`, or arithmetic in double brackets, which sets variables and has a truth."""
    text = raw(node).strip()
    if not text.startswith("(("):
        return _children(script, node)
    inner = text[2:-2].strip()
    change = re.fullmatch(r"([A-Za-z_]\w*)\s*(\+\+|--|[-+*/]?=(?!=))\s*(.*)", inner, re.DOTALL)
    if change:
        name, operator, rest = change.groups()
        sign = operator[0] if operator not in ("=",) else ""
        script.set(name, arithmetic(f"{name} {sign} ({rest or 1})" if sign else rest, script.scope))
        return True
    return truth(script, inner)


def _command(script: Script, node: Node) -> bool | None:
    environment: dict[str, str] = {}
    rest: list[Node] = []
    fed = script.fed
    for child in node.named_children:
        if child.type == "variable_assignment":
            name, value = child.child_by_field_name("name"), child.child_by_field_name("value")
            if name is not None:
                environment[raw(name)] = text_of(value_of(script, value))
        elif child.type == "herestring_redirect":
            script.fed = herestring(script, child)
        elif child.type not in ("file_redirect", "heredoc_redirect", "comment"):
            rest.append(child)
    words: list[str] = []
    for word in joined(rest):
        words += expand_words(word, script.scope)
    try:
        return _start(script, words, environment)
    finally:
        script.fed = fed


def _start(script: Script, words: list[str], environment: dict[str, str]) -> bool | None:
    if not words:
        for name, value in environment.items():
            script.set(name, value)
        return True
    name = words[0]
    goes_on = name.startswith("--") or _OVERRIDE.match(name) is not None
    if goes_on and script.commands and script.printed is None:
        # The line before it lacks its backslash, or has something after it; bash would fail here, the author meant one command.
        script.commands[-1].words += words
        script.doubts.append(f"the line before {shown(name)[:40]} lacks a backslash at its end")
        return None
    if name in ("continue", "break") and script.loops and not script.assuming:
        levels = int(words[1]) if words[1:2] and words[1].isdigit() else 1
        raise LeftLoop(min(max(levels, 1), script.loops), again=name == "continue")
    if name.endswith((".sh", ".bash")) and beside(script.folder, name) is not None:
        words, name = ["bash", *words], "bash"  # a script at hand that is started by its own name
    builtin = BUILTINS.get("bash" if re.fullmatch(r"/(?:usr/)?bin/(?:ba)?sh", name) else name)
    if builtin is not None:
        before = {known: script.scope.variables.get(known) for known in environment}
        script.scope.variables |= environment
        ahead = len(script.commands)
        status = builtin(script, words[1:])
        for command in script.commands[ahead:]:  # `A=1 nohup train`: the training sees it, too
            command.environment = environment | command.environment
        for known, earlier in before.items():
            if earlier is None:
                script.scope.variables.pop(known, None)
            else:
                script.scope.variables[known] = earlier
        return status
    if name in script.functions and script.depth < MAX_DEPTH:
        return _call(script, name, words[1:])
    written, words = words, _opened(script, words)
    if script.printed is not None and (output := printed_by(script, words)) is not None:
        script.printed.append(output)
        return True
    base = posixpath.basename(name)
    if asks_for_npu(words):
        said = f"{' '.join(words)[:50]}"
        script.doubts += [said] if said not in script.doubts else []
        return False
    if base == "cp":
        copy(script, words)
    if base == "sed" and changed_in_place(script, words):
        return True
    if (base in STARTERS or text_of_shell(written)) and starts_script(script, written, environment):
        return None
    if base in ("grep", "egrep"):
        return searched(script, words)
    if base in ("true", ":"):
        return True
    if base == "false":
        return False
    if base not in QUIET or any(word.startswith("--num-layers") for word in words):
        script.commands.append(Command(words, environment, script.exits))
    return None if base not in QUIET else True


def _opened(script: Script, words: list[str]) -> list[str]:
    """Words with the variables filled that only the shell of `bash -c '…'` sees."""
    at = text_of_shell(words)
    inner, scope, rest = words[at], script.scope, words[at + 1 :]
    if not at or "$" not in inner or unset(inner):
        return words
    before = scope.name, scope.positional
    scope.name, scope.positional = (rest or [scope.name])[0], rest[1:]
    try:
        opened = expand_heredoc(inner, scope)
    finally:
        scope.name, scope.positional = before
    return [*words[:at], opened, *rest]


def _call(script: Script, name: str, arguments: list[str]) -> bool | None:
    before = script.scope.positional
    script.scope.positional = arguments
    try:
        return _run(script, script.functions[name])
    finally:
        script.scope.positional = before


def _list(script: Script, node: Node) -> bool | None:
    parts = [child for child in node.named_children if child.type != "comment"]
    operator = next((c.type for c in node.children if c.type in ("&&", "||")), "&&")
    status = _run(script, parts[0]) if parts else None
    for part in parts[1:]:
        if (operator == "&&" and status is False) or (operator == "||" and status is True):
            return status
        if status is None and operator == "||":
            # What failed is not known; the usual `command || exit` and `test || default`.
            return _run(script, part) if part.type == "variable_assignment" else None
        status = _run(script, part)
    return status


def _subshell(script: Script, node: Node) -> bool | None:
    """`( … )`: what it sets, where it goes, and that it ends, stays within."""
    variables, exits, directory = dict(script.scope.variables), script.exits, script.directory
    try:
        return _children(script, node)
    finally:
        script.scope.variables, script.exits, script.directory = variables, exits, directory


def _function(script: Script, node: Node) -> bool | None:
    name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
    if name is not None and body is not None:
        script.functions[raw(name)] = body
    return True


def _negated(script: Script, node: Node) -> bool | None:
    status = _children(script, node)
    return None if status is None else not status


_HANDLERS: dict[str, Callable[[Script, Node], bool | None]] = {
    "program": _children, "compound_statement": _compound, "do_group": _children,
    "subshell": _subshell, "variable_assignments": _children, "variable_assignment": assignment,
    "declaration_command": declaration, "command": _command, "if_statement": shell_blocks.run_if,
    "case_statement": shell_blocks.run_case, "for_statement": shell_blocks.run_for, "c_style_for_statement": shell_blocks.run_c_for,
    "while_statement": shell_blocks.run_while, "list": _list, "pipeline": pipeline, "redirected_statement": redirected,
    "function_definition": _function, "negated_command": _negated, "test_command": test_command,
    "ERROR": _children, "unset_command": lambda s, n: forget(s, [raw(c) for c in n.named_children]),
}  # fmt: skip
