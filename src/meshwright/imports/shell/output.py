"""What harmless commands of a shell would print."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from meshwright.imports.shell.files import file_text, table_lines
from meshwright.imports.shell.filters import found_in, translated
from meshwright.imports.shell.reals import said_by_awk, said_by_python
from meshwright.imports.shell.words import Scope, arithmetic, readable, unset

if TYPE_CHECKING:
    from meshwright.imports.shell.state import Script

_DEVICES = re.compile(
    r"\bcuda\.device_count\(\)|\b(?:nvidia-smi|rocm-smi|npu-smi)\b.*(?:\bwc\b[^|]*-l|\bgrep\b[^|]*-c)",
    re.S,
)
_HOSTS = re.compile(r"\bscontrol\s+show\s+hostnames?\b.*\bwc\b[^|]*-[lw]|\b(?:SLURM_(?:JOB_)?NODELIST|(?:PBS|COBALT)_NODEFILE)\b.*\bwc\b[^|]*-l|\bwc\b\s+-l\s*<?\s*\W*(?:PBS|COBALT)_NODEFILE\b", re.S)  # fmt: skip


def simple_output(words: list[str], scope: Scope) -> str | None:
    """What a harmless command would print: echo, dirname, basename, expr, seq and the like."""
    if not words:
        return ""
    name, args = posixpath.basename(words[0]), [w for w in words[1:] if w != "--"]
    if name == "echo":
        return " ".join(a for a in args if a not in ("-n", "-e"))
    if name == "printf" and args:
        return formatted(args)
    if re.fullmatch(r"python[\d.]*", name) and len(args) == 2 and args[0] == "-c":
        return said_by_python(args[1])
    if name in ("awk", "gawk") and len(args) == 1:
        return said_by_awk(args[0])
    if name == "dirname" and args:
        return posixpath.dirname(args[-1].rstrip("/")) or "."
    if name == "basename" and args:
        return _basename(args)
    if name in ("realpath", "readlink") and args:
        return posixpath.normpath(args[-1])
    if name == "expr":
        return arithmetic(" ".join(args).replace("\\*", "*"), scope)
    if name == "seq" and args and all(a.isdigit() and len(a) < 6 for a in args):
        low, high = (1, int(args[0])) if len(args) == 1 else (int(args[0]), int(args[-1]))
        step = int(args[1]) if len(args) == 3 else 1
        return " ".join(map(str, range(low, high + 1, max(step, 1))))
    return None


def _basename(args: list[str]) -> str:
    """What `basename NAME [ENDING]` or `basename -s ENDING NAME` prints."""
    path, ending = (args[2], args[1]) if args[0] == "-s" and len(args) > 2 else (args[0], args[1] if len(args) > 1 else "")  # fmt: skip
    made = posixpath.basename(path.rstrip("/")) or "."
    return made.removesuffix(ending) if made != ending else made


def printed_by(script: Script, words: list[str]) -> str | None:
    """What a command prints by itself, of a file that is at hand, or of what it is given to read; None where that is not known."""
    output = simple_output(words, script.scope)
    name = posixpath.basename(words[0])
    if name in ("yq", "jq"):
        return table_lines(script, words)
    if name == "pwd" and script.directory:
        return script.directory
    if words[0] == "cat" and len(words) == 2:
        return file_text(script, words[1])
    if script.fed is not None and output is None:
        return translated(script.fed, words)
    return output


def searched(script: Script, words: list[str]) -> bool | None:
    """Whether `grep -q PATTERN FILE`, or one that reads what it is given, finds something; None where the text is not here."""
    text = script.fed
    if text is None and len(words) > 2:
        text, words = file_text(script, words[-1]), words[:-1]
    return None if text is None else found_in(text, words)


def asks_for_npu(words: list[str]) -> bool:
    """Whether a command does nothing but ask whether PyTorch's plugin for Ascend is installed."""
    return len(words) == 3 and re.fullmatch(r"(?:.*/)?python[\d.]*", words[0]) is not None and words[1] == "-c" and re.fullmatch(r"\s*import torch_npu\s*;?\s*", words[2]) is not None  # fmt: skip


def formatted(words: list[str]) -> str:
    """What `printf` makes of a format and its values."""
    values = iter(words[1:])
    text = re.sub(r"%[-\d.]*[sdqbif]", lambda _match: next(values, ""), words[0] if words else "")
    return text.replace("\\n", "\n").replace("\\t", " ")


def counted_by_machine(script: Script, text: str) -> str:
    """What a command would print that counts devices or hosts: by the script, the machine, or else a guess of 8 and 1.

    Empty for any other command, and where nothing is to be guessed.
    """
    hosts, devices = script.machine or ((1, 8) if script.guessing else (0, 0))
    if _DEVICES.search(text):
        seen = script.value("CUDA_VISIBLE_DEVICES")
        listed = str(len(seen.split(","))) if re.fullmatch(r"\d+(?:,\s*\d+)*", seen) else ""
        return listed or script.value("SLURM_GPUS_ON_NODE") or str(devices or "")
    if _HOSTS.search(_opened(script, text)):
        return script.value("SLURM_NNODES") or str(hosts or "")
    return ""


def _opened(script: Script, text: str) -> str:
    """A command with the variables that hold what another would print by that other's text (`echo $nodes | wc -w`)."""

    def one(match: re.Match[str]) -> str:
        held = script.scope.variables.get(match[1], "")
        return readable(held) if isinstance(held, str) and unset(held) else match[0]

    return re.sub(r"\$\{?([A-Za-z_]\w*)(?:\[[@*]\])?\}?", one, text)
