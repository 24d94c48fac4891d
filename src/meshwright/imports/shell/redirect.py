"""Where a command of a shell reads from and writes to: here-documents, files, pipelines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from meshwright.imports.shell.batch import batch_options
from meshwright.imports.shell.blocks import run_lines
from meshwright.imports.shell.files import file_text, substitute, write_file
from meshwright.imports.shell.filters import found_in, translated
from meshwright.imports.shell.sed import parts, sed
from meshwright.imports.shell.state import Command, Script, raw, walk
from meshwright.imports.shell.words import expand_heredoc, expand_text, expand_words, mark

if TYPE_CHECKING:
    from tree_sitter import Node


def herestring(script: Script, node: Node) -> str:
    """What `<<< text` gives a command to read."""
    return " ".join(expand_text(raw(child), script.scope) for child in node.named_children)


def pipeline(script: Script, node: Node) -> bool | None:
    """Follow a pipeline; what it prints where every stage is known."""
    before, script.printed = script.printed, None
    stages = [child for child in node.named_children if child.type != "comment"]
    if before is not None and stages:
        text = script.scope.run(raw(stages[0]))
        for stage in stages[1:]:
            filtered = [
                w for word in joined(stage.named_children) for w in expand_words(word, script.scope)
            ]
            text = None if text is None else translated(text, filtered)
        if text is not None:
            script.printed = before
            script.printed.append(text)
            return True
    if before is None and (asked := _asked(script, stages)) is not None:
        return asked
    if len(stages) == 2 and stages[1].type == "while_statement":
        lines = script.scope.run(raw(stages[0]))
        if lines is not None and run_lines(script, stages[1], lines):
            return True
    try:
        script.run_all(node)
    finally:
        script.printed = before
    if before is not None:
        # What a pipeline prints is not followed.
        script.commands.append(Command([mark("|")]))
    return None


def _asked(script: Script, stages: list[Node]) -> bool | None:
    """Whether `echo "$OPTIONS" | grep -q PATTERN` finds it; None for another pipeline, or where that is not known."""
    if len(stages) != 2 or not re.match(r"(?:echo|printf|cat)\b", raw(stages[0])):
        return None
    words = [w for word in joined(stages[1].named_children) for w in expand_words(word, script.scope)]  # fmt: skip
    if words[:1] not in (["grep"], ["egrep"]) or not any(re.match(r"-\w*q|--quiet", w) for w in words):  # fmt: skip
        return None
    text = script.scope.run(raw(stages[0]))
    return None if text is None else found_in(text, words)


def _files_of(script: Script, node: Node) -> tuple[str, str]:
    """Files that a command writes to and reads from; empty where it has none."""
    target, source = "", ""
    for child in walk(node):
        if child.type == "file_redirect" and raw(child).startswith(">"):
            destination = child.child_by_field_name("destination")
            if destination is not None:
                target = expand_text(raw(destination), script.scope)
        elif child.type == "file_redirect" and raw(child).startswith("<"):
            destination = child.child_by_field_name("destination")
            if destination is not None:
                named = raw(destination)  # `<(command)` is expanded where it runs
                source = named if named.startswith("<(") else expand_text(named, script.scope)
    return target, source


def redirected(script: Script, node: Node) -> bool | None:
    """Follow a command with redirections; what it writes to a file is kept."""
    body = node.child_by_field_name("body")
    target, source = _files_of(script, node)
    text: str | None = None
    reads_into = raw(body) if body is not None else ""
    if source and target and reads_into.strip().startswith("envsubst"):
        return substitute(script, source, target)
    heredoc = next((c for c in node.children if c.type == "heredoc_redirect"), None)
    if heredoc is not None:
        start = next((raw(c) for c in heredoc.children if c.type == "heredoc_start"), "")
        lines = next((raw(c) for c in heredoc.children if c.type == "heredoc_body"), "")
        text = lines if start[:1] in "'\"\\" else expand_heredoc(lines, script.scope)
    if text is not None:
        name = re.match(
            r"(?:IFS=\S*\s+)?read\s+(?:-\S+\s+|''\s+|\"\"\s+)*([A-Za-z_]\w*)", reads_into
        )
        if name:
            script.set(name.group(1), text)
            return True
        if target:
            write_file(script, target, text)
            return True
        if re.match(r"(?:\S*/)?(?:sbatch|bash|sh)\b", reads_into):
            # A job handed to the batch system, or to a shell, as a here-document.
            script.sbatch |= batch_options(text)
            script.run_text(text)
            return True
    if body is not None and body.type == "while_statement":
        held = file_text(script, source) if source and text is None else text
        if held is not None and run_lines(script, body, held):
            return True
    printed = script.printed
    if source and not target and _reads(script, source, reads_into, printed):
        return True
    if body is None:
        return None
    string = next((c for c in node.children if c.type == "herestring_redirect"), None)
    if string is not None:
        before, script.fed = script.fed, herestring(script, string)
        try:
            return script.run(body)
        finally:
            script.fed = before
    if text is not None and printed is not None and reads_into.strip() in ("cat", "cat -"):
        printed.append(text)
        return True
    filled = filtered(script, body) if target else None
    if filled is not None:
        write_file(script, target, filled)
        return True
    if target and printed is None and raw(body).lstrip().startswith(("echo", "printf")):
        script.printed = []
        try:
            script.run(body)
            text = "\n".join(script.printed)
        finally:
            script.printed = printed
        write_file(script, target, text)
        return True
    return script.run(body)


def _reads(script: Script, source: str, command: str, printed: list[str] | None) -> bool:
    """Follow `$(< file)`, `mapfile -t A < file` and `read -r A B < file`; False for other commands."""
    inner = re.fullmatch(r"<\((.*)\)", source, re.DOTALL)
    held = script.scope.run(inner.group(1)) if inner else file_text(script, source)
    if held is None:
        return False
    if printed is not None and command.strip() in ("", "cat"):
        printed.append(held)
        return True
    if not re.match(r"(?:mapfile|readarray|(?:IFS=\S*\s+)?read)\b", command):
        return False
    before, script.fed = script.fed, held
    try:
        script.run_text(command)
    finally:
        script.fed = before
    return True


def filtered(script: Script, node: Node) -> str | None:
    """What filters of a file that is at hand print, alone or in a pipeline; None where one is not known."""
    stages = [node] if node.type == "command" else list(node.named_children)
    text: str | None = None
    for index, stage in enumerate(stages):
        if stage.type != "command":
            return None
        words = [
            w for word in joined(stage.named_children) for w in expand_words(word, script.scope)
        ]
        if index == 0:
            files = parts(words)[1] if words and words[0] != "cat" else words[1:]
            text = file_text(script, files[0]) if len(files) == 1 else None
            if words and words[0] == "cat":
                continue
        text = None if text is None else sed(text, words)
        if text is None:
            return None
    return text


def joined(nodes: list[Node]) -> list[str]:
    """The texts of words; what the grammar split without a blank between is one word."""
    found: list[str] = []
    end = -1
    for node in nodes:
        if node.start_byte == end and found:
            found[-1] += raw(node)
        else:
            found.append(raw(node))
        end = node.end_byte
    return found
