"""Follow a shell script statically: which variables it sets, which commands it would start.

The grammar is tree-sitter's; nothing is executed. Tests are decided where the script itself says
enough; a test that depends on the machine counts as false and is named in `doubts`.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.imports.words import (
    Scope,
    Value,
    arithmetic,
    expand_heredoc,
    expand_text,
    expand_words,
    mark,
    shown,
    simple_output,
    text_of,
    unmarked,
    unset,
)
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_text

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_STEPS = 60_000
MAX_ROUNDS = 40
MAX_DEPTH = 60
MAX_TEXT = 1_000_000
_UP = 4
"""Folders above the script's own in which a file that it includes is looked for."""

_QUIET = frozenset({
    "echo", "printf", "mkdir", "cd", "pushd", "popd", "sleep", "exit", "return", "touch", "rm",
    "chmod", "chown", "ulimit", "module", "conda", "wait", "trap", "true", "false", "break",
    "continue", "hostname", "date", "nvidia-smi", "tee", "ls", "which", "ldconfig", "alias", "shopt",
    ":", "cat", "cp", "mv", "tar", "wget", "curl", "git", "pkill", "kill", "umask", "sed", "grep",
    "awk", "wc", "sort", "head", "tail", "tr", "cut", "ln", "find", "apt", "apt-get", "env", "logger",
})  # fmt: skip
"""Commands that set nothing and train nothing."""


@dataclass
class Command:
    """One command that the script would start, with the variables set for it alone."""

    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass
class Script:
    """What a script says."""

    scope: Scope
    folder: Path | None
    commands: list[Command] = field(default_factory=list)
    sbatch: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    included: list[Path] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    functions: dict[str, Node] = field(default_factory=dict)
    guessing: bool = False
    guesses: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    depth: int = 0
    printed: list[str] | None = None

    def value(self, name: str) -> str:
        """A variable as one string without marks; empty where nothing sets it."""
        found = self.scope.get(name)
        return "" if found is None else unmarked(text_of(found))


def read_script(
    text: str,
    name: str = "script.sh",
    folder: Path | None = None,
    given: dict[str, str] | None = None,
    arguments: list[str] | None = None,
    guess: bool = False,
) -> Script:
    """Follow a script and return what it sets and starts.

    Args:
        folder: where files that it includes are looked for; None: nowhere.
        given: variables of its environment.
        arguments: its positional parameters.
        guess: where a test compares a name that nothing states with a text, take that text.

    Raises:
        SpecError: the script is too long or too deep to be followed.
    """
    scope = Scope(variables=dict(given or {}), positional=list(arguments or []), name=name)
    script = Script(scope, folder, guessing=guess)
    for line in text.splitlines():
        option = re.match(r"#\s?(?:SBATCH|BSUB|PBS)\s+(--?[\w-]+)(?:[=\s]\s*(\S+))?", line)
        if option:
            script.sbatch[option.group(1).lstrip("-")] = option.group(2) or ""
    scope.run = lambda command: _captured(script, command)
    _run_text(script, text)
    return script


def _parse(text: str) -> Node:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language())).parse(text.encode()).root_node


def _run_text(script: Script, text: str) -> None:
    if len(text) > MAX_TEXT:
        raise SpecError("script", text[:40], f"longer than {MAX_TEXT} characters")
    script.depth += 1
    if script.depth > MAX_DEPTH:
        raise SpecError("script", text[:40], "includes or substitutes itself too deeply")
    try:
        root = _parse(_repaired(text))
        if root.has_error:
            _check_errors(script, root)
        _children(script, root)
    finally:
        script.depth -= 1


def _check_errors(script: Script, root: Node) -> None:
    """Refuse a quote that is never closed; name other places that the grammar cannot read."""
    for node in _walk(root):
        if node.type == "ERROR" or node.is_missing:
            text = _raw(node)
            if node.is_missing or text.lstrip()[:1] in ("'", '"'):
                quote = node.type in ('"', "'") or text.lstrip()[:1] in ("'", '"')
                if quote:
                    raise SpecError("script", text[:60], "a quote is never closed")
            if "line" not in "".join(script.doubts[:1]):
                script.doubts.append(f"line {node.start_point[0] + 1} is not plain bash")


def _repaired(text: str) -> str:
    """A text without what people leave in scripts and bash forgives or the grammar does not know."""
    text = text.replace("\r\n", "\n")
    # A blank after the backslash of a continued line, and comments between continued lines.
    text = re.sub(r"\\[ \t]+\n", "\\\n", text)
    lines, kept = text.split("\n"), list[str]()
    for line in lines:
        bare = line.strip()
        if bare.startswith("#") and kept and kept[-1].endswith("\\"):
            # A comment ends the command there, as bash has it, whatever the comment ends in.
            kept[-1] = kept[-1][:-1]
            continue
        kept.append(line)
    return "\n".join(kept)


def _captured(script: Script, command: str) -> str | None:
    """What a substituted command would print, where it only prints."""
    before, script.printed = script.printed, []
    commands = len(script.commands)
    variables = dict(script.scope.variables)
    try:
        _run_text(script, command)
        unknown = len(script.commands) > commands
        printed = script.printed
    finally:
        del script.commands[commands:]
        script.printed = before
        script.scope.variables = variables
    if unknown or not printed:
        return None
    return "\n".join(printed)


def _children(script: Script, node: Node) -> bool | None:
    status: bool | None = True
    for child in node.named_children:
        status = _run(script, child)
    return status


def _raw(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def _run(script: Script, node: Node) -> bool | None:
    """Follow one statement; whether it succeeds, None where that depends on the machine."""
    script.steps += 1
    script.depth += 1
    if script.steps > MAX_STEPS or script.depth > 4 * MAX_DEPTH:
        raise SpecError("script", _raw(node)[:40], "too long to be followed")
    try:
        handler = _HANDLERS.get(node.type)
        return handler(script, node) if handler else None
    finally:
        script.depth -= 1


def _assignment(script: Script, node: Node) -> bool | None:
    target = node.child_by_field_name("name")
    if target is None:
        return None
    value = node.child_by_field_name("value")
    name = _raw(target)
    adds = any(child.type == "+=" for child in node.children)
    made = _value(script, value)
    if target.type == "subscript":
        base = target.child_by_field_name("name")
        index = target.child_by_field_name("index")
        if base is not None and index is not None:
            name = f"{_raw(base)}[{expand_text(_raw(index), script.scope)}]"
    _set(script, name, made, adds)
    return True


def _value(script: Script, node: Node | None) -> Value:
    if node is None:
        return ""
    if node.type != "array":
        return expand_text(_raw(node), script.scope)
    found: list[str] = []
    for raw in _joined([child for child in node.named_children if child.type != "comment"]):
        found += expand_words(raw, script.scope)
    return found


def _joined(nodes: list[Node]) -> list[str]:
    """The texts of words; what the grammar split without a blank between is one word."""
    found: list[str] = []
    end = -1
    for node in nodes:
        if node.start_byte == end and found:
            found[-1] += _raw(node)
        else:
            found.append(_raw(node))
        end = node.end_byte
    return found


def _set(script: Script, name: str, value: Value, adds: bool = False) -> None:
    scope = script.scope
    old = scope.variables.get(name)
    if adds and old is not None:
        if isinstance(old, list) or isinstance(value, list):
            value = [*(old if isinstance(old, list) else [old]),
                     *(value if isinstance(value, list) else [value])]  # fmt: skip
        else:
            value = old + value
    if len(text_of(value)) > 200_000:
        raise SpecError(name, text_of(value)[:40], "grows beyond 200000 characters")
    scope.variables[name] = value


def _compound(script: Script, node: Node) -> bool | None:
    """`{ …; }`, or arithmetic in double brackets, which sets variables and has a truth."""
    raw = _raw(node).strip()
    if not raw.startswith("(("):
        return _children(script, node)
    inner = raw[2:-2].strip()
    change = re.fullmatch(r"([A-Za-z_]\w*)\s*(\+\+|--|[-+*/]?=(?!=))\s*(.*)", inner, re.DOTALL)
    if change:
        name, operator, rest = change.groups()
        sign = operator[0] if operator not in ("=",) else ""
        _set(
            script, name, arithmetic(f"{name} {sign} ({rest or 1})" if sign else rest, script.scope)
        )
        return True
    made = arithmetic(inner, script.scope)
    return None if unset(made) else made not in ("0", "")


def _declaration(script: Script, node: Node) -> bool | None:
    for child in node.named_children:
        if child.type == "variable_assignment":
            _assignment(script, child)
    return True


def _command(script: Script, node: Node) -> bool | None:
    environment: dict[str, str] = {}
    rest: list[Node] = []
    for child in node.named_children:
        if child.type == "variable_assignment":
            name, value = child.child_by_field_name("name"), child.child_by_field_name("value")
            if name is not None:
                environment[_raw(name)] = text_of(_value(script, value))
        elif child.type not in (
            "herestring_redirect",
            "file_redirect",
            "heredoc_redirect",
            "comment",
        ):
            rest.append(child)
    words: list[str] = []
    for raw in _joined(rest):
        words += expand_words(raw, script.scope)
    return _start(script, words, environment)


def _start(script: Script, words: list[str], environment: dict[str, str]) -> bool | None:
    if not words:
        for name, value in environment.items():
            _set(script, name, value)
        return True
    name = words[0]
    builtin = _BUILTINS.get(name)
    if builtin is not None:
        return builtin(script, words[1:])
    if name in script.functions and script.depth < MAX_DEPTH:
        return _call(script, name, words[1:])
    if script.printed is not None:
        output = simple_output(words, script.scope)
        if output is not None:
            script.printed.append(output)
            return True
    base = posixpath.basename(name)
    if base in ("true", ":"):
        return True
    if base == "false":
        return False
    if base not in _QUIET or any(word.startswith("--num-layers") for word in words):
        script.commands.append(Command(words, environment))
    return None if base not in _QUIET else True


def _call(script: Script, name: str, arguments: list[str]) -> bool | None:
    before = script.scope.positional
    script.scope.positional = arguments
    try:
        return _run(script, script.functions[name])
    finally:
        script.scope.positional = before


def _include(script: Script, words: list[str]) -> bool | None:
    if not words:
        return None
    path = beside(script.folder, words[0])
    if path is None:
        script.missing.append(shown(words[0]))
        return False
    if len(script.included) > 20:
        raise SpecError("source", shown(words[0]), "too many included files")
    script.included.append(path)
    before, name = script.scope.positional, script.scope.name
    if len(words) > 1:
        script.scope.positional = words[1:]
    script.scope.name = str(path)
    try:
        _run_text(script, read_text(path, "source"))
    finally:
        script.scope.positional, script.scope.name = before, name
    return True


def beside(folder: Path | None, named: str) -> Path | None:
    """The file that a script names: in its folder or a few above, by as much of the path as fits.

    Only files below the fourth folder above the script are looked at, never an absolute path.
    """
    if folder is None:
        return None
    bare = unmarked(named).replace("$PWD", "").strip()
    parts = [part for part in re.split(r"/+", bare) if part not in ("", ".")]
    while parts and parts[0] == "..":
        parts = parts[1:]
    if not parts or ".." in parts:
        return None
    roots = [folder.resolve()]
    while len(roots) <= _UP and len(roots[-1].parent.parts) > 1:
        roots.append(roots[-1].parent)
    for start in range(len(parts)):
        for root in roots:
            path = root.joinpath(*parts[start:])
            try:
                if path.is_file() and path.resolve().is_relative_to(roots[-1]):
                    return path
            except (OSError, ValueError):
                return None
    return None


def _evaluate(script: Script, words: list[str]) -> bool | None:
    _run_text(script, " ".join(words))
    return None


def _read(script: Script, words: list[str]) -> bool | None:
    names = [
        w
        for i, w in enumerate(words)
        if not w.startswith("-") and w and words[i - 1] not in ("-d", "-p")
    ]
    for name in names:
        script.scope.variables.setdefault(name, mark(name))
    return True


def _printf(script: Script, words: list[str]) -> bool | None:
    """`printf -v NAME format values`, and what a plain one prints."""
    target = ""
    if words[:1] == ["-v"] and len(words) > 2:
        target, words = words[1], words[2:]
    values = iter(words[1:])
    text = re.sub(r"%[-\d.]*[sdqbif]", lambda _match: next(values, ""), words[0] if words else "")
    text = text.replace("\\n", "\n").replace("\\t", " ")
    if target:
        _set(script, target, text)
    elif script.printed is not None:
        script.printed.append(text.rstrip("\n"))
    return True


def _shift(script: Script, words: list[str]) -> bool | None:
    count = int(words[0]) if words and words[0].isdigit() else 1
    script.scope.positional = script.scope.positional[count:]
    return True


def _unset(script: Script, words: list[str]) -> bool | None:
    for word in words:
        script.scope.variables.pop(word, None)
    return True


def _ignored(_script: Script, _words: list[str]) -> bool | None:
    return True


def _let(script: Script, words: list[str]) -> bool | None:
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            _set(script, name, arithmetic(value, script.scope))
    return True


def _in_shell(script: Script, words: list[str]) -> bool | None:
    """`bash -c "…"`, and `bash train.sh a b` where that script is at hand."""
    if "-c" in words and words.index("-c") + 1 < len(words):
        return _evaluate(script, [words[words.index("-c") + 1]])
    named = [word for word in words if not word.startswith("-")]
    if named and beside(script.folder, named[0]) is not None:
        before = dict(script.scope.variables)
        found = _include(script, [*named, *([""] if len(named) == 1 else [])])
        script.scope.variables = before
        return found
    script.commands.append(Command(["bash", *words]))
    return None


_BUILTINS: dict[str, Callable[[Script, list[str]], bool | None]] = {
    "source": _include, ".": _include, "eval": _evaluate, "exec": lambda s, w: _start(s, w, {}),
    "printf": _printf,
    "read": _read, "shift": _shift, "unset": _unset, "set": _ignored, "let": _let, "bash": _in_shell,
    "sh": _in_shell, "nohup": lambda s, w: _start(s, w, {}), "time": lambda s, w: _start(s, w, {}),
    "[": lambda s, w: _test(s, w[:-1]), "test": lambda s, w: _test(s, w),
}  # fmt: skip


def _if(script: Script, node: Node) -> bool | None:
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
        status = True if condition is None else _run(script, condition)
        if status is None and condition is not None and _matters(body):
            short = " ".join(_raw(condition).split())[:60]
            script.doubts.append(short)
        if status:
            for child in body:
                _run(script, child)
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
        for inner in _walk(node):
            if inner.type in ("variable_assignment", "if_statement"):
                return True
            if inner.type == "command_name" and posixpath.basename(_raw(inner)) not in _QUIET:
                return True
    return False


def _walk(node: Node) -> Iterator[Node]:
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting += current.named_children


def _case(script: Script, node: Node) -> bool | None:
    value_node = node.child_by_field_name("value")
    value = expand_text(_raw(value_node), script.scope) if value_node is not None else ""
    if unset(value) and not unmarked(value):
        script.doubts.append(f"case {shown(value)}")
    for item in node.named_children:
        if item.type != "case_item":
            continue
        patterns = item.children_by_field_name("value")
        first = expand_text(_raw(patterns[0]), script.scope) if patterns else ""
        if script.guessing and unset(value) and "*" not in first and _taken(script, value, first):
            value = first
        if any(
            fnmatch.fnmatchcase(unmarked(value), expand_text(_raw(p), script.scope))
            for p in patterns
        ):
            skip = {p.id for p in patterns}
            for child in item.named_children:
                if child.id not in skip:
                    _run(script, child)
            return True
    return True


def _for(script: Script, node: Node) -> bool | None:
    variable = node.child_by_field_name("variable")
    body = node.child_by_field_name("body")
    if variable is None or body is None:
        return None
    items: list[str] = []
    for child in node.children_by_field_name("value"):
        items += expand_words(_raw(child), script.scope)
    for item in items[:MAX_ROUNDS]:
        _set(script, _raw(variable), item)
        _run(script, body)
    return True


def _while(script: Script, node: Node) -> bool | None:
    body = node.child_by_field_name("body")
    condition = node.child_by_field_name("condition")
    for _ in range(MAX_ROUNDS):
        if body is None or condition is None or _run(script, condition) is not True:
            break
        if _raw(condition).strip() in ("true", ":"):
            _run(script, body)
            break
        _run(script, body)
    return True


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


def _pipeline(script: Script, node: Node) -> bool | None:
    before, script.printed = script.printed, None
    try:
        _children(script, node)
    finally:
        script.printed = before
    if before is not None:
        # What a pipeline prints is not followed.
        script.commands.append(Command([mark("|")]))
    return None


def _redirected(script: Script, node: Node) -> bool | None:
    body = node.child_by_field_name("body")
    target, text = "", None
    reads_into = _raw(body) if body is not None else ""
    for child in _walk(node):
        if child.type == "file_redirect" and _raw(child).startswith(">"):
            destination = child.child_by_field_name("destination")
            if destination is not None:
                target = expand_text(_raw(destination), script.scope)
    heredoc = next((c for c in node.children if c.type == "heredoc_redirect"), None)
    if heredoc is not None:
        start = next((_raw(c) for c in heredoc.children if c.type == "heredoc_start"), "")
        lines = next((_raw(c) for c in heredoc.children if c.type == "heredoc_body"), "")
        text = lines if start[:1] in "'\"\\" else expand_heredoc(lines, script.scope)
    if text is not None:
        name = re.match(
            r"(?:IFS=\S*\s+)?read\s+(?:-\S+\s+|''\s+|\"\"\s+)*([A-Za-z_]\w*)", reads_into
        )
        if name:
            _set(script, name.group(1), text)
            return True
        if target:
            script.files[posixpath.basename(unmarked(target)) or "file"] = text
            script.files[target] = text
            return True
    if body is None:
        return None
    printed = script.printed
    if target and printed is None and _raw(body).lstrip().startswith(("echo", "printf")):
        script.printed = []
        try:
            _run(script, body)
            text = "\n".join(script.printed)
        finally:
            script.printed = printed
        script.files[target] = text
        script.files[posixpath.basename(unmarked(target)) or "file"] = text
        return True
    return _run(script, body)


def _function(script: Script, node: Node) -> bool | None:
    name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
    if name is not None and body is not None:
        script.functions[_raw(name)] = body
    return True


def _negated(script: Script, node: Node) -> bool | None:
    status = _children(script, node)
    return None if status is None else not status


def _test_command(script: Script, node: Node) -> bool | None:
    raw = _raw(node).strip()
    if raw.startswith("(("):
        made = arithmetic(raw[2:-2], script.scope)
        return None if unset(made) else made not in ("0", "")
    inner = raw[2:-2] if raw.startswith("[[") else raw[1:-1]
    words: list[str] = []
    for token in re.findall(
        r"(?:\"(?:\\.|[^\"\\])*\"|'[^']*'|\$\{[^}]*\}|\$\((?:[^()]|\([^()]*\))*\)|[^\s\"'])+", inner
    ):
        if token in ("&&", "||", "!", "(", ")", "==", "=", "!=", "=~", "<", ">") or re.fullmatch(
            r"-\w+", token
        ):
            words.append(token)
        else:
            words.append(expand_text(token, script.scope))
    return _test(script, words)


def _test(script: Script, words: list[str]) -> bool | None:
    """Decide a test as `[` does; None where it depends on the machine or on what is not stated."""
    for operator, joined in (("||", "-o"), ("&&", "-a")):
        for index, word in enumerate(words):
            if word in (operator, joined) and index:
                one, other = _test(script, words[:index]), _test(script, words[index + 1 :])
                if operator == "||":
                    return True if one or other else None if None in (one, other) else False
                return False if False in (one, other) else None if None in (one, other) else True
    if words and words[0] == "!":
        inner = _test(script, words[1:])
        return None if inner is None else not inner
    if len(words) == 1:
        return bool(unmarked(words[0])) or None if unset(words[0]) else bool(words[0])
    if len(words) == 2:
        operator, value = words
        if operator in ("-z", "-n"):
            empty = not unmarked(value)
            return empty == (operator == "-z")
        if operator == "-v":
            return script.scope.get(value) is not None
        return None
    if len(words) != 3:
        return None
    left, operator, right = words
    if operator in _NUMERIC:
        if left.lstrip("-").isdigit() and right.lstrip("-").isdigit() and len(left + right) < 40:
            return _NUMERIC[operator](int(left), int(right))
        return None
    if script.guessing and operator in ("=", "==") and _taken(script, left, right):
        return True
    if (unset(left) and not unmarked(left)) or (unset(right) and not unmarked(right)):
        # An unset name equals nothing but an empty text.
        if operator in ("=", "==", "!="):
            plain = unmarked(left) == unmarked(right)
            return plain == (operator != "!=") if not (left and right) else None
        return None
    if operator in ("=", "=="):
        return fnmatch.fnmatchcase(left, right) if right else not left
    if operator == "!=":
        return not fnmatch.fnmatchcase(left, right)
    if operator == "=~":
        try:
            return (
                re.search(right, left) is not None if len(right) < 60 and len(left) < 200 else None
            )
        except re.error:
            return None
    return None


def _taken(script: Script, left: str, right: str) -> bool:
    """Give a name that nothing states the first text that it is compared with."""
    names = unset(left)
    if len(names) != 1 or unmarked(left) or not right or unset(right) or names[0].startswith("$"):
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

_HANDLERS: dict[str, Callable[[Script, Node], bool | None]] = {
    "program": _children, "compound_statement": _compound, "do_group": _children,
    "subshell": _children, "variable_assignments": _children, "variable_assignment": _assignment,
    "declaration_command": _declaration, "command": _command, "if_statement": _if,
    "case_statement": _case, "for_statement": _for, "c_style_for_statement": lambda s, n: _c_for(s, n),
    "while_statement": _while, "list": _list, "pipeline": _pipeline, "redirected_statement": _redirected,
    "function_definition": _function, "negated_command": _negated, "test_command": _test_command,
    "ERROR": _children, "unset_command": lambda s, n: _unset(s, [_raw(c) for c in n.named_children]),
}  # fmt: skip


def _c_for(script: Script, node: Node) -> bool | None:
    """`for ((i = 0; i < N; i++))`, as often as the bounds that the script states say."""
    body = node.child_by_field_name("body")
    match = re.match(r"for\s*\(\((.*?);(.*?);(.*?)\)\)", _raw(node), re.DOTALL)
    if body is None or match is None:
        return None
    begin, condition, step = (part.strip() for part in match.groups())
    name, _, first = begin.partition("=")
    name = name.strip()
    if not name.isidentifier():
        return None
    _set(script, name, arithmetic(first.strip(), script.scope))
    change = re.fullmatch(rf"{name}\s*(\+\+|--|\+=\s*(\d+))|\+\+{name}", step)
    for _ in range(400):
        if change is None or arithmetic(condition, script.scope) not in ("1", "True"):
            break
        _run(script, body)
        amount = change.group(2) or ("-1" if change.group(1) == "--" else "1")
        _set(script, name, arithmetic(f"{name} + {amount}", script.scope))
    return True
