"""YAML, JSON and TOML as people write them, as a table: comments, templates, several documents in a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from meshwright.imports import cloud
from meshwright.imports.config_maps import documents as yaml_documents
from meshwright.imports.interpolate import LIMITS
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import parse_json, parse_toml, parse_yaml

Data = dict[str, Any]


_BRACED = re.compile(r"(?:\s*+#[^\n]*+\n)*+\s*+\{")
"""A table in braces, after remarks."""


def parsed(text: str, name: str) -> Data:
    """A TOML, JSON or YAML document, by the ending of its file's name or by how it begins.

    Raises:
        SpecError: no such document, or no table.
    """
    suffix = Path(name).suffix.lower()
    if suffix == ".toml":
        data: Any = parse_toml(text, "file", name, LIMITS)
    elif suffix in (".json", ".jsonc") or _BRACED.match(text):
        try:
            data = parse_json(without_comments(text), "file", name, LIMITS)
        except SpecError:
            if suffix in (".json", ".jsonc"):
                # A template: what its placeholders stand for is not said.
                data = parse_json(_without_placeholders(text), "file", name, LIMITS)
            else:
                # Flow-style YAML looks like JSON, too: words without quotes, comments with a #.
                data = parse_yaml(text, "file", name, LIMITS)
    elif suffix in (".yaml", ".yml") or re.search(r"^[\w\"'-]+\s*:", text, re.MULTILINE):
        document = _tamed(_one_document(text, name))
        try:
            data = parse_yaml(document, "file", name, LIMITS)
        except SpecError:
            named = _PLACEHOLDER.sub(
                r"\1", document
            )  # `{{model_dir}}/vocab.json` is a path below a name
            if named == document:
                raise
            data = parse_yaml(named, "file", name, LIMITS)
        if isinstance(data, dict):
            data = {key: one for key, one in data.items() if key not in _merged(text)}
    elif re.search(r"^\[[\w.]+\]", text, re.MULTILINE):
        data = parse_toml(text, "file", name, LIMITS)
    else:
        raise SpecError(
            "file",
            name,
            "no known format; a training script, recipe, log or configuration of a "
            "known framework is expected",
        )
    if not isinstance(data, dict):
        raise SpecError("file", name, "describes no training run: it holds a list or a word; a table of named fields is expected")  # fmt: skip
    return data


_PLACEHOLDER = re.compile(r"\{\{\s*([\w.]+)\s*\}\}")


def _merged(text: str) -> set[str]:
    """Tables at the outside that only hold what `<<` takes into the others."""
    named = dict(re.findall(r"(?m)^([\w.-]+):[^\S\n]*&([\w-]+)", text))
    return {key for key, anchor in named.items() if re.search(rf"(?m)^<<:[^\n]*\*{anchor}\b", text)}


def _without_placeholders(text: str) -> str:
    """JSON whose values that nobody filled in (none, or a word in capitals) are left to others."""
    return re.sub(
        r"(:(?:\s*+(?=[A-Z])|[^\S\n]*+))(?:[A-Z][A-Za-z0-9_]*+)?+(?=[^\S\n]*+\n|\s*+[,}])",
        r'\1"auto"',
        without_comments(text),
    )


def _one_document(text: str, name: str) -> str:
    """Of several YAML documents in a file (Kubernetes objects) the one that starts most training."""
    parts = yaml_documents(text)
    if len(parts) < 2:
        return text
    starts = [
        sum(map(cloud.training, cloud.commands(parse_yaml(_tamed(p), "file", name, LIMITS))))
        for p in parts
    ]
    if any(starts):
        return parts[starts.index(max(starts))]
    return next((one for one in parts if re.search(r"^\s+containers:", one, re.MULTILINE)), text)


def left_open(text: str) -> str:
    """The places of a JSON template that were left for whoever fills it in; empty where none is."""
    try:
        parse_json(without_comments(text), "file", "", LIMITS)
    except SpecError:
        left = re.findall(r'"(\w+)"\s*:\s*([A-Z][A-Z0-9_]{2,})\b', without_comments(text))
        return ", ".join(f"{key} {word}" for key, word in left[:6]) + " and more" * (len(left) > 6)
    return ""


def _tamed(text: str) -> str:
    """A YAML text without template marks and tags that no plain parser knows."""
    text = re.sub(
        r"^[^\S\n]*\{%.*%\}[^\S\n]*$|^[^\S\n]*\{\{.*\}\}[^\S\n]*$", "", text, flags=re.MULTILINE
    )
    if re.search(r"\{\{-|\.Values\.", text):  # a Helm chart
        text = re.sub(r"\{\{(?:(?!\{\{).)*?\}\}", "left-to-helm", text)
    text = re.sub(r"!(?:include|join|ref|new|name|apply)[:\w.]*", "", text)
    text = re.sub(
        r"(?m)^![A-Za-z][\w:./-]*[^\S\n]*$", "", text
    )  # of the whole document: a class of the program's own
    return text.replace("\t", "  ")


def without_comments(text: str) -> str:
    """JSON without `//` and `#` comments, block comments and trailing commas, as people write it."""
    found: list[str] = []
    index, end = 0, len(text)
    while index < end:
        letter = text[index]
        if letter == '"':
            start = index
            index += 1
            while index < end and text[index] != '"':
                index += 2 if text[index] == "\\" else 1
            index += 1
            found.append(text[start:index])
        elif text.startswith("//", index) or letter == "#":
            index = text.find("\n", index)
            index = end if index < 0 else index
        elif text.startswith("/*", index):
            index = text.find("*/", index) + 2
            index = end if index < 2 else index
        else:
            found.append(letter)
            index += 1
    return re.sub(r",(\s*[}\]])", r"\1", "".join(found))
