"""Commands of a script that read its own files: `envsubst`, and `yq` or `jq` over a table."""

from __future__ import annotations

import posixpath
import re
from typing import Any

from meshwright.imports.beside import beside
from meshwright.imports.shell.sed import parts, sed
from meshwright.imports.shell.state import Script
from meshwright.imports.shell.words import expand_heredoc, unmarked
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import Limits, parse_yaml, read_text

_LIMITS = Limits(size_bytes=1_000_000, any_number=True, last_wins=True)


def file_text(script: Script, named: str) -> str | None:
    """A file that the script has written itself, or one beside it; None where it is not here."""
    text = script.files.get(named) or script.files.get(posixpath.basename(unmarked(named)))
    if text is not None:
        return text
    path = beside(script.folder, named)
    return None if path is None else read_text(path, "script")


def write_file(script: Script, named: str, text: str) -> None:
    """Keep what a script writes to a file, under its path and under its name alone."""
    script.files[named] = text
    script.files[posixpath.basename(unmarked(named)) or "file"] = text


_SETTINGS = re.compile(r"\.(?:ya?ml|json|toml|conf|cfg|ini|sh)")


def copy(script: Script, words: list[str]) -> None:
    """`cp SETTINGS.yaml OTHER.yaml`, where the file is at hand."""
    named = [word for word in words[1:] if not word.startswith("-")]
    if len(named) != 2 or not all(_SETTINGS.fullmatch(posixpath.splitext(one)[1]) for one in named):
        return
    if (text := file_text(script, named[0])) is not None:
        write_file(script, named[1], text)


def substitute(script: Script, source: str, target: str) -> bool | None:
    """`envsubst < source > target`."""
    text = file_text(script, source)
    if text is None:
        return None
    write_file(script, target, expand_heredoc(text, script.scope))
    return True


def changed_in_place(script: Script, words: list[str]) -> bool:
    """`sed -i EXPRESSION FILE…`, where the file is at hand: the script's own copy of it changes."""
    _expressions, files, inside = parts(words)
    done = False
    for named in files if inside else []:
        text = file_text(script, named)
        made = None if text is None else sed(text, words)
        if made is not None:
            write_file(script, named, made)
            done = True
    return done


def table_lines(script: Script, words: list[str]) -> str | None:
    """What `yq EXPRESSION FILE`, or `jq`, prints, for one value or for the entries of a table as lines.

    Of `select` and `with` only the usual ones are followed: entries that are "false" are left out,
    and "true" becomes an empty text, where the expression says so.
    """
    named = [word for word in words[1:] if not word.startswith("-")]
    if len(named) != 2:
        return None
    expression, text = named[0], file_text(script, named[1])
    path = re.search(r"(?:^|\|)\s*((?:\.(?:[\w-]+|\"[^\"]+\"))+)\s*(?=\||$)", expression)
    if text is None or path is None:
        return None
    try:
        value: Any = parse_yaml(text, "file", named[1], _LIMITS)
    except SpecError:
        return None
    for quoted, bare in re.findall(r"\.(?:\"([^\"]+)\"|([\w-]+))", path.group(1)):
        value = value.get(quoted or bare) if isinstance(value, dict) else None
    if "to_entries" not in expression:
        return _plain(value) if not isinstance(value, (dict, list)) else None
    if not isinstance(value, dict):
        return None
    between = re.search(r"\.key\s*\+\s*\"([^\"]*)\"\s*\+\s*\.value", expression)
    lines = []
    for key, one in value.items():
        said = _plain(one)
        if said == "false" and re.search(r"select\(\.value\s*!=\s*\"?false", expression):
            continue
        if said == "true" and re.search(r"\.value\s*=\s*\"\"", expression):
            said = ""
        lines.append(f"{key}{between.group(1) if between else ' '}{said}")
    return "\n".join(lines)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)
