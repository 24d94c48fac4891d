"""A shell script as it is followed: its text as a tree, and what is known at one place of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.imports.shell.words import Scope, Value, text_of, unmarked
from meshwright.specs.errors import SpecError

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_STEPS = 60_000
MAX_ROUNDS = 40
MAX_DEPTH = 60
MAX_TEXT = 1_000_000

QUIET = frozenset({
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
    exits: int = 0
    """How often the script would have ended before it came here, if what it needs were there."""


class LeftLoop(Exception):
    """`continue` or `break`: what follows in so many loops' bodies is not run."""

    def __init__(self, levels: int, *, again: bool) -> None:
        self.levels, self.again = levels, again


@dataclass
class Script:
    """What a script says.

    `run`, `run_all`, `run_text` and `start` follow a statement, all below it, a text, and a command.
    """

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
    captured: list[Command] = field(default_factory=list)
    """Commands whose output the script keeps (`JOB=$(ray job submit … )`): one may be its training all the same."""
    switched: str = ""
    """A switch that is off by itself and was turned on, because nothing trains without it."""
    assuming: bool = False
    """Whether a test that depends on the machine counts as true: where nothing trains if it is false."""
    fresh: bool = False
    """Whether files that are not at hand count as missing, as where the script runs for the first time."""
    countable: dict[str, str] = field(default_factory=dict)
    """Variables that count the machine's devices or hosts, with what is taken for them."""
    machine: tuple[int, int] | None = None
    counted: dict[str, str] = field(default_factory=dict)
    """Those of them that some number was made of."""
    loops: int = 0
    """Loops whose body is being followed."""
    has_else: bool = False
    """Whether who sets nothing has a way past the branch that is decided now: an `else`, or no other branch."""
    exits: int = 0
    steps: int = 0
    depth: int = 0
    printed: list[str] | None = None
    fed: str | None = None
    directory: str = ""
    running: list[str] = field(default_factory=list)
    given: frozenset[str] = frozenset()
    run: Callable[[Node], bool | None] = lambda _node: None
    run_all: Callable[[Node], bool | None] = lambda _node: None
    run_text: Callable[[str], None] = lambda _text: None
    start: Callable[[list[str], dict[str, str]], bool | None] = lambda _words, _environment: None

    def value(self, name: str) -> str:
        """A variable as one string without marks; empty where nothing sets it."""
        found = self.scope.get(name)
        return "" if found is None else unmarked(text_of(found))

    def set(self, name: str, value: Value, adds: bool = False) -> None:
        """Assign a variable, as `NAME=value` does, or `NAME+=value` with `adds`."""
        scope = self.scope
        old = scope.variables.get(name)
        if adds and old is not None:
            if isinstance(old, list) or isinstance(value, list):
                value = [
                    *(old if isinstance(old, list) else [old]),
                    *(value if isinstance(value, list) else [value]),
                ]
            else:
                value = old + value
        if len(text_of(value)) > 200_000:
            raise SpecError(name, text_of(value)[:40], "grows beyond 200000 characters")
        scope.variables[name] = value


def parse(text: str) -> Node:
    """The tree of a script."""
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language())).parse(text.encode()).root_node


_TICKS = re.compile(r"(?<!\\)`([^`\n\\]+)`")


_SUMS = re.compile(r"(?<!\$)\(\((?:[^()\n]|\([^()\n]*\))*\)\)")
_ELEMENT = re.compile(r"(?<![\w${])([A-Za-z_]\w*\[\$(?:\{\w+\}|\w+)\])(?!\s*[-+*/%]?=(?!=))")
"""An element of an array within `((…))`, where the grammar takes no variable between the brackets."""


def read_tree(text: str) -> Node:
    """The tree of a script; where the grammar fails, of the same in words that it knows.

    tree-sitter's grammar loses its way in some commands in backticks (a substituted process before a pipe) and at elements of arrays in sums, up to the end.
    """
    root = parse(text)
    if root.has_error and "`" in text:
        again = parse(_TICKS.sub(r"$(\1)", text))
        root = root if again.has_error else again
    if root.has_error and "[$" in text:
        again = parse(_SUMS.sub(lambda found: _ELEMENT.sub(r"${\1}", found[0]), text))
        root = root if again.has_error else again
    return _ended(root) if _LONG.search(text) else root


_LONG = re.compile(r"(?m)^[^\n#|]*\|[^\n|]+\|")
_GOES_ON = re.compile(r"(?:[\\|&({;]|\b(?:do|then|else|in))\s*$|<<")
_REMARK = re.compile(r"(?:\s+#.*)?$")
_ENDED_MOST = 30


def _ended(root: Node) -> Node:
    """The tree with each pipeline ending on its line.

    tree-sitter's grammar takes the lines behind a pipeline of three commands and more into its last one,
    down to the next redirection (`ps | grep x | xargs kill` before `python train.py 2>&1 | tee log`).
    """
    for _ in range(_ENDED_MOST):
        lines = raw(root).split("\n")
        row = next((found for one in walk(root) if (found := _runs_on(one)) is not None), None)
        if row is None:
            break
        at = row - root.start_point[0]
        lines[at] = _REMARK.sub(lambda found: f";{found[0]}", lines[at], count=1)
        root = parse("\n" * root.start_point[0] + "\n".join(lines))
    return root


def _runs_on(node: Node) -> int | None:
    """The row on which a pipeline is written to its end, where the tree has it end on a later one."""
    row, last = node.start_point[0], node.end_point[0]
    if node.type not in ("pipeline", "redirected_statement") or row == last:
        return None
    rest = _REMARK.sub("", raw(node).split("\n", 1)[0])
    whole = all(rest.count(one) % 2 == 0 for one in "'\"`") and rest.count("(") == rest.count(")")
    return row if rest.count("|") > 1 and whole and not _GOES_ON.search(rest) else None


def check_errors(script: Script, root: Node) -> None:
    """Refuse a quote that is never closed; name other places that the grammar cannot read."""
    for node in walk(root):
        if node.type == "ERROR" or node.is_missing:
            text = raw(node)
            if node.is_missing or text.lstrip()[:1] in ("'", '"'):
                quote = node.type in ('"', "'") or text.lstrip()[:1] in ("'", '"')
                if quote:
                    raise SpecError("script", text[:60], "a quote is never closed")
            if "line" not in "".join(script.doubts[:1]):
                script.doubts.append(f"line {node.start_point[0] + 1} is not plain bash")


_ASSIGNED = re.compile(
    r"""(?m)^([^\S\n]*(?:(?:export|local|readonly|declare)[^\S\n]+)?[A-Za-z_]\w*\+?=)((?:[^\s"'`;|&()<>#\\$]|\$\([^()"'`\n]*\)|\$(?!\()|"(?:[^"\\`\n]|\\.)*")+)"""
)
_PLAIN = re.compile(r"\$([A-Za-z_]\w*|\d)")


def repaired(text: str) -> str:
    """A text without what people leave in scripts and bash forgives or the grammar does not know."""
    text = text.replace("\r\n", "\n")
    text = re.sub(r"`#[^`\n]*`", "", text)  # a comment inside a command
    # A here-document of no command, by which people comment lines out.
    text = re.sub(r"(?m)^([ \t]*)(<<-?[ \t]*['\"]?\w+['\"]?[ \t]*)$", r"\1: \2", text)
    # A blank after the backslash of a continued line, and comments between continued lines.
    text = re.sub(r"\\[ \t]+\n", "\\\n", text)
    text = re.sub(r"\\\s*\Z", "\n", text)  # nothing follows the last line
    # `DIR=<your folder>`: a place that a template leaves to its reader, no redirection.
    text = re.sub(
        r"^([^\S\n]*(?:export\s+)?[A-Za-z_]\w*=)(<[^<>\n]*>)(?=\s*(?:#.*)?$)",
        r'\1"\2"',
        text,
        flags=re.M,
    )
    # `A=$B/$C/d` without braces is split after its second variable by the grammar.
    text = _ASSIGNED.sub(lambda m: m[1] + (_PLAIN.sub(r"${\1}", m[2]) if m[2].count("$") > 1 else m[2]), text)  # fmt: skip
    lines, kept = text.split("\n"), list[str]()
    for line in lines:
        bare = line.strip()
        if bare.startswith("#") and kept and kept[-1].endswith("\\"):
            # A comment ends the command there, as bash has it, whatever the comment ends in.
            kept[-1] = kept[-1][:-1]
            continue
        kept.append(line)
    return "\n".join(kept)


def raw(node: Node) -> str:
    """A node as it is written."""
    return (node.text or b"").decode("utf-8", "replace")


def walk(node: Node) -> Iterator[Node]:
    """A node and all below it."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting += current.named_children
