"""The commands of a shell script that change what the rest of it sees."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise, takewhile

from meshwright.imports.beside import beside
from meshwright.imports.shell.batch import batch_options
from meshwright.imports.shell.conditions import test
from meshwright.imports.shell.output import formatted
from meshwright.imports.shell.state import Command, Script
from meshwright.imports.shell.words import arithmetic, mark, shown, unmarked, unset
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_text

MAX_INCLUDED = 200
"""Files that a script includes or starts; one that starts twenty runs includes its settings each time."""

_SURROUNDINGS = re.compile(
    r"(?:^|/)(?:activate|deactivate|enable|\.?bashrc|\.?bash_profile|\.?profile|modules?\.sh|lmod|init/bash|setvars\.sh|conda\.sh|miniforge\S*|mamba\.sh|"
    r"thisroot\.sh|nvm\.sh|set_env\.sh)$"
)
"""What a shell sources for its environments, compilers and modules: it says nothing of a training."""


def include(script: Script, words: list[str]) -> bool | None:
    """Follow a file that the script includes."""
    if not words:
        return None
    path = beside(script.folder, words[0])
    if path is None:
        if not _SURROUNDINGS.search(words[0]):
            script.missing.append(shown(words[0]))
        return None  # where the script lives it is there, or the run would not start
    if len(script.included) > MAX_INCLUDED:
        raise SpecError("source", shown(words[0]), "too many included files")
    script.included.append(path)
    before = script.scope.positional
    if len(words) > 1:
        script.scope.positional = words[1:]
    script.scope.sourced.append(str(path))
    try:
        script.run_text(read_text(path, "source"))
    finally:
        script.scope.positional = before
        script.scope.sourced.pop()
    return True


def _evaluate(script: Script, words: list[str]) -> bool | None:
    # What a program of the machine would print (`eval "$(conda shell.bash hook)"`) is not here.
    if any(unmarked(word) or not any("$(" in name for name in unset(word)) for word in words):
        script.run_text(" ".join(words))
    return None


def _read(script: Script, words: list[str]) -> bool | None:
    names = [
        w
        for i, w in enumerate(words)
        if not w.startswith("-") and w and words[i - 1] not in ("-d", "-p")
    ]
    if script.fed is not None and not unset(script.fed):
        return _split_into(script, words, names, script.fed)
    for name in names:
        script.scope.variables.setdefault(name, mark(name))
    return None  # whether there is anything to read


def _split_into(script: Script, words: list[str], names: list[str], text: str) -> bool:
    """`IFS=, read -r A B <<< text`: the text's fields by name, what is left to the last name."""
    separators = script.scope.get("IFS")
    between = separators if isinstance(separators, str) and separators else " \t\n"
    blank = not between.strip()
    pattern = f"[{re.escape(between)}]" + ("+" if blank else "")
    text = text.strip(between) if blank else text.rstrip("\n")
    if any(re.fullmatch(r"-\w*a", word) for word in words):
        script.set(names[-1], re.split(pattern, text))
        return True
    fields = re.split(pattern, text, maxsplit=len(names) - 1)
    for name, value in zip(names, [*fields, *[""] * len(names)], strict=False):
        script.set(name, value)
    return True


def _env(script: Script, words: list[str]) -> bool | None:
    """`env [-i] [-u NAME] A=1 B=2 command …`: the command, with these set for it alone."""
    environment: dict[str, str] = {}
    index = 0
    while index < len(words):
        name, equals, value = words[index].partition("=")
        if words[index] in ("-u", "--unset", "-C", "--chdir"):
            index += 1
        elif equals and not name.startswith("-"):
            environment[name] = value
        elif not words[index].startswith("-"):
            break
        index += 1
    return script.start(words[index:], environment) if words[index:] else True


def _printf(script: Script, words: list[str]) -> bool | None:
    """`printf -v NAME format values`, and what a plain one prints."""
    target = ""
    if words[:1] == ["-v"] and len(words) > 2:
        target, words = words[1], words[2:]
    text = formatted(words[1:] if words[:1] == ["--"] else words)
    if target:
        script.set(target, text)
    elif script.printed is not None:
        script.printed.append(text.rstrip("\n"))
    return True


def _shift(script: Script, words: list[str]) -> bool | None:
    count = int(words[0]) if words and words[0].isdigit() else 1
    script.scope.positional = script.scope.positional[count:]
    return True


def forget(script: Script, words: list[str]) -> bool | None:
    """Take variables away, as `unset` does."""
    for word in words:
        script.scope.variables.pop(word, None)
    return True


def _set(script: Script, words: list[str]) -> bool | None:
    """`set -- a b`: the script's arguments from here on; other options of the shell change nothing."""
    if "--" in words:
        script.scope.positional = words[words.index("--") + 1 :]
    return True


def _mapfile(script: Script, words: list[str]) -> bool | None:
    """`mapfile -t NAME < file`: the lines as an array."""
    names = [word for word in words if not word.startswith("-")]
    if script.fed is not None and names:
        script.set(names[-1], script.fed.rstrip("\n").split("\n"))
    elif names:
        script.scope.variables.setdefault(names[-1], mark(names[-1]))
    return True


def _let(script: Script, words: list[str]) -> bool | None:
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            script.set(name, arithmetic(value, script.scope))
    return True


def _change(script: Script, words: list[str]) -> bool | None:
    """`cd`: where files that the script names later lie."""
    named = next((unmarked(word) for word in words if not word.startswith("-")), "")
    if named.strip("/. "):
        within = "" if named.startswith("/") else script.directory
        script.directory = posixpath.normpath(posixpath.join(within, named)).strip("/")
    return True


_THERE = frozenset({"docker", "podman", "nvidia-smi", "python", "python3", "torchrun", "accelerate", "deepspeed", "scontrol", "yq", "jq", "uv"})  # fmt: skip
"""Tools of which one has the first that a script asks for; what else it asks for is the machine's to say."""


def _command(script: Script, words: list[str]) -> bool | None:
    """`command -v docker`: whether it is there; `command docker …`: that one."""
    if words[:1] in (["-v"], ["-V"]):
        return True if words[1:2] and words[1] in _THERE else None
    return script.start(words, {})


def _exit(script: Script, _words: list[str]) -> bool | None:
    """`exit`: what comes after it counts only where nothing before it trains (`launch.find_launch`)."""
    script.exits += script.printed is None
    return None


@contextmanager
def _another(script: Script, name: str, arguments: Iterable[str] = ()) -> Iterator[None]:
    """Within a script that this one starts: what it sets, and that it ends, stays there."""
    scope = script.scope
    kept, named, positional = dict(scope.variables), scope.name, scope.positional
    sourced, exits = scope.sourced, script.exits
    scope.name, scope.positional, scope.sourced = name, list(arguments), []
    try:
        yield
    finally:
        scope.variables, scope.name, scope.positional = kept, named, positional
        scope.sourced, script.exits = sourced, exits


def _in_shell(script: Script, words: list[str]) -> bool | None:
    """`bash -c "…"`, and `bash train.sh a b` where that script is at hand."""
    leads = words[0].startswith("-") if words else False  # not what a script's arguments say
    if leads and (inner := text_of_shell(["bash", *words])):
        return _own_shell(script, words[inner - 1], words[inner:], {})
    at = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    if at < len(words) and script.files.get(unmarked(words[at])) and starts_script(script, ["bash", *words[at:]], {}):  # fmt: skip
        return None  # a script that this one has written
    if at < len(words) and beside(script.folder, words[at]) is not None:
        with _another(script, words[at]):
            return include(script, words[at:])
    script.commands.append(Command(["bash", *words]))
    return None


BUILTINS: dict[str, Callable[[Script, list[str]], bool | None]] = {
    "source": include, ".": include, "eval": _evaluate, "exec": lambda s, w: s.start(w, {}),
    "exit": _exit, "command": _command, "printf": _printf, "cd": _change, "pushd": _change,
    "read": _read, "shift": _shift, "unset": forget, "set": _set, "mapfile": _mapfile, "readarray": _mapfile, "let": _let, "bash": _in_shell,
    "sh": _in_shell, "env": _env, "nohup": lambda s, w: s.start(w, {}), "time": lambda s, w: s.start(w, {}),
    "[": lambda s, w: test(s, w[:-1], False), "test": lambda s, w: test(s, w, False),
}  # fmt: skip

STARTERS = frozenset({
    "srun", "sbatch", "torchrun", "mpirun", "mpiexec", "singularity", "apptainer", "docker", "podman", "timeout", "numactl",
    "nsys", "ray", "pdsh", "deepspeed", "kubectl",
})  # fmt: skip
"""Commands that start what follows their own options."""


def text_of_shell(words: list[str]) -> int:
    """Where the text of `bash -c "…"`, `bash -lc "…"` or `sh -l -c "…"` stands among words; 0 where there is none."""
    for start, word in enumerate(words):
        if posixpath.basename(word) not in ("bash", "sh"):
            continue
        flags = takewhile(lambda one: one.startswith("-"), words[start + 1 :])
        for at, flag in enumerate(flags, start + 1):
            if re.fullmatch(r"-\w*c", flag) and at + 1 < len(words):
                return at + 1
    return 0


def _own_shell(
    script: Script, text: str, rest: list[str], environment: dict[str, str]
) -> bool | None:
    """Follow the text of `bash -c "…" NAME ARGUMENT…`: what it sets, where it goes, and that it ends, stays within."""
    scope, directory = script.scope, script.directory
    kept, named, positional, exits = dict(scope.variables), scope.name, scope.positional, script.exits  # fmt: skip
    scope.variables |= environment
    if rest:
        scope.name, scope.positional = rest[0], rest[1:]
    try:
        return _evaluate(script, [text])
    finally:
        scope.variables, scope.name, scope.positional = kept, named, positional
        script.exits, script.directory = exits, directory


_SETS = re.compile(r"(?m)(?:^|[;&|]|\b(?:do|then|else)\s)\s*(?:export\s+|declare\s+(?:-\w+\s+)?)?([A-Za-z_]\w*)=")  # fmt: skip
"""A statement that sets a variable."""


def _has_to_be_followed(text: str) -> bool:
    """Whether a text for a shell starts a script, or uses a variable that it sets itself."""
    if re.search(r"(?:^|[\s;&])(?:bash|sh|\./\S*)\s*\S*\.sh\b", text):
        return True
    return any(re.search(rf"\${{?{one}\b", text) for one in _SETS.findall(text))


def _inside(script: Script, words: list[str], at: int, environment: dict[str, str]) -> bool:
    """Follow the text of `mpirun … bash -c "… bash train.sh" NAME ARGUMENT…`; the launcher's words come first."""
    before = len(script.commands)
    _own_shell(script, words[at], words[at + 1 :], environment)
    start = max(i for i, word in enumerate(words[:at]) if posixpath.basename(word) in ("bash", "sh"))  # fmt: skip
    for command in script.commands[before:]:
        command.words = [*words[:start], *command.words]
        command.environment = environment | command.environment
    return len(script.commands) > before


def exported(words: list[str]) -> dict[str, str]:
    """Variables that `sbatch --export=ALL,NAME=value` hands on; a value with a comma ends there, as SLURM has it."""
    listed = [word.partition("=")[2] for word in words if word.startswith("--export=")]
    listed += [after for word, after in pairwise(words) if word == "--export"]
    pairs = [one.partition("=") for text in listed for one in text.split(",")]
    return {name: value for name, equals, value in pairs if equals and name.isidentifier()}


def starts_script(script: Script, words: list[str], environment: dict[str, str]) -> bool:
    """Follow the script that a launcher starts, where it is at hand; the launcher's words come first."""
    scope, inner = script.scope, text_of_shell(words)
    for index, word in enumerate(words[1:], 1):
        if index == inner and _has_to_be_followed(word):
            return _inside(script, words, index, environment)
        bare = unmarked(word)
        written = bare in script.files and posixpath.basename(words[index - 1]) in ("sbatch", "bash", "sh")  # fmt: skip
        named = bare.endswith((".sh", ".bash", ".sbatch", ".slurm")) or written
        if word.startswith("-") or not named:
            continue
        text = script.files.get(bare) or script.files.get(posixpath.basename(bare))
        path = None if text is not None else beside(script.folder, bare)
        if path is not None and len(script.included) <= MAX_INCLUDED:
            script.included.append(path)
            text = read_text(path, "script")
        if text is None or bare.endswith(posixpath.basename(scope.name)) or text in script.running:
            continue  # not here, or it starts itself again (as a job that goes on)
        before = len(script.commands)
        if posixpath.basename(words[0]) == "sbatch":
            # The job's own requests, what the command says over them, and what it hands on.
            script.sbatch |= batch_options(text) | batch_options(
                f"#SBATCH {' '.join(words[1:index])}"
            )
            environment = environment | exported(words[1:index])
        script.running.append(text)
        try:
            with _another(script, bare if path is None else str(path), words[index + 1 :]):
                scope.variables |= environment
                script.run_text(text)
        finally:
            script.running.pop()
        ahead = words[: index - 1] if words[index - 1] in ("bash", "sh") else words[:index]
        for command in script.commands[before:]:
            command.words = [*ahead, *command.words]
        return len(script.commands) > before
    return False
