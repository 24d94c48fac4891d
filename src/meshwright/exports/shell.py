"""Read a shell script as data: variables, arrays, commands. Nothing is ever run."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import dataclass, field

from meshwright.specs.errors import SpecError

MAX_BYTES = 4_000_000
MAX_VALUE = 200_000
MAX_LINES = 1_000
_ASSIGN = re.compile(
    r"^(?:export\s+|declare\s+(?:-\w+\s+)*|local\s+)?([A-Za-z_]\w*)(\+?)=(.*)$", re.DOTALL
)
_VARIABLE = re.compile(
    r"\$\{#?([A-Za-z_]\w*)(?:\[[@*]\])?(?::?([-=+?])([^{}]*))?\}|\$([A-Za-z_]\w*)"
)
_ARITHMETIC = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")


@dataclass
class Script:
    """What a script says: its variables, its #SBATCH options and the words of its commands.

    Conditions are not evaluated: every branch counts as taken, and `branches` says there are some.
    """

    variables: dict[str, str] = field(default_factory=dict)
    sbatch: dict[str, str] = field(default_factory=dict)
    commands: list[list[str]] = field(default_factory=list)
    branches: bool = False


def read_script(text: str) -> Script:
    """Read assignments, `#SBATCH` lines and commands; simple variables are put in.

    Command substitution and tests are left as they stand: what depends on them stays unread.

    Raises:
        SpecError: a quote or bracket is never closed.
    """
    script = Script()
    for statement in _statements(text, script):
        match = _ASSIGN.match(statement)
        if match:
            name, adds, value = match.groups()
            value = value.strip()
            array = re.fullmatch(r"\((.*)\)", value, re.DOTALL)
            value = " ".join(_words(array.group(1))) if array else " ".join(_words(value))
            words = expand(value, script.variables)
            if len(words) > MAX_VALUE:
                raise SpecError(name, words[:40], f"grows beyond {MAX_VALUE} characters")
            old = script.variables.get(name, "") + " " if adds else ""
            script.variables[name] = old + words
            continue
        script.branches |= statement.split(maxsplit=1)[0] in ("if", "elif", "else", "case")
        words = expand(statement, script.variables)
        found = _split(words, statement)
        if found:
            script.commands.append(found)
    return script


def _statements(text: str, script: Script) -> list[str]:
    """Statements of a script: continued lines, arrays and open quotes joined, comments dropped."""
    found: list[str] = []
    pending = ""
    continued, lines = False, 0
    for line in text.replace("\r\n", "\n").split("\n"):
        stripped = line.strip()
        option = re.match(r"#SBATCH\s+(--?[\w-]+)(?:[=\s]\s*(\S+))?", stripped)
        if option and not pending:
            script.sbatch[option.group(1).lstrip("-")] = option.group(2) or ""
            continue
        # A comment ends with its line, also where it ends in a backslash.
        if stripped.startswith("#") and not _open_quote(pending):
            continue
        if not stripped and not continued and not pending:
            continue
        code = _bare(line) if pending else _bare(stripped)
        whole = code.rstrip()
        continued = whole.endswith("\\") and not whole.endswith("\\\\")
        if continued:
            code = whole[:-1]
        joint = " " if pending else ""
        pending = f"{pending}{joint}{code}" if pending else code
        lines = lines + 1 if joint else 1
        if lines > MAX_LINES or len(pending) > MAX_VALUE:
            raise SpecError("script", pending[:60], "a statement that long cannot be read")
        if continued or _open_quote(pending) or _open_array(pending):
            continue
        if pending.strip():
            found.append(pending.strip())
        pending = ""
    if pending.strip():
        if not continued:
            raise SpecError("script", pending[:60], "a quote or bracket is never closed")
        found.append(pending.strip())
    return found


def _bare(line: str) -> str:
    """A line without its comment (a # after white space, outside quotes)."""
    quote = ""
    for index, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and index and line[index - 1] in " \t":
            return line[:index].rstrip()
    return line


def _open_quote(text: str) -> bool:
    quote = ""
    previous = ""
    for letter in text:
        if quote:
            if letter == quote and not (quote == '"' and previous == "\\"):
                quote = ""
        elif letter in "'\"" and previous != "\\":
            quote = letter
        previous = letter
    return bool(quote)


def _open_array(text: str) -> bool:
    match = re.match(r"^(?:export\s+|declare\s+(?:-\w+\s+)*|local\s+)?[A-Za-z_]\w*\+?=\(", text)
    if match is None:
        return False
    bare = re.sub(r"'[^']*'|\"(?:\\.|[^\"\\])*\"", "", text)
    return bare.count("(") > bare.count(")")


def _words(text: str) -> list[str]:
    """Words of an assignment's value, each kept quoted as one word if it holds white space."""
    bare = text.strip()
    if len(bare) > 1 and bare[0] in "'\"" and bare[-1] == bare[0] and bare[0] not in bare[1:-1]:
        return [" ".join(bare[1:-1].split())]
    return [" ".join(bare.split())]


def expand(text: str, variables: dict[str, str]) -> str:
    """Put known variables and whole-number arithmetic in; unknown ones stay as they are."""
    for _ in range(8):
        before = text
        text = _VARIABLE.sub(lambda match: _value(match, variables), text)
        text = _ARITHMETIC.sub(lambda match: _arithmetic(match, variables), text)
        if text == before or len(text) > MAX_VALUE:
            break
    return text


def _value(match: re.Match[str], variables: dict[str, str]) -> str:
    name = match.group(1) or match.group(4)
    known = variables.get(name)
    if known is not None and known != "" and not known.startswith("${" + name):
        return known
    if match.group(2) in ("-", "="):
        return (match.group(3) or "").strip("\"'")
    return known if known is not None else match.group(0)


def _arithmetic(match: re.Match[str], variables: dict[str, str]) -> str:
    bare = re.sub(r"[A-Za-z_]\w*", lambda m: variables.get(m.group(), m.group()), match.group(1))
    try:
        return str(_whole(ast.parse(bare.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return match.group(0)


def _whole(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp):
        left, right = _whole(node.left), _whole(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, (ast.Div, ast.FloorDiv)):
            return left // right
        if isinstance(node.op, ast.Mod):
            return left % right
    raise ValueError("not whole-number arithmetic")


def _split(text: str, statement: str) -> list[str]:
    try:
        return shlex.split(text, comments=False, posix=True)
    except ValueError:
        raise SpecError("script", statement[:60], "a quote is never closed") from None
