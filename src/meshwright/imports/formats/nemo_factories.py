"""NeMo 2's command line: a recipe of the library by its factory's name, and fields of it that words set (`--factory "llama3_8b(num_nodes=2)" trainer.devices=8`)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from meshwright.imports.beside import program_beside
from meshwright.imports.code.follow import parse_module
from meshwright.imports.formats import nemo_library, nemo_recipes
from meshwright.imports.launch import launch_option
from meshwright.imports.reading import Given, Reading
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_text

_FACTORY = re.compile(r"(\w+)(\(.*\))?", re.DOTALL)
_FIELD = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")


def is_command(words: list[str]) -> bool:
    """Whether a command asks for one of the library's recipes."""
    found = _FACTORY.fullmatch(launch_option(words, ("factory",)).strip())
    return found is not None and nemo_library.holds(found.group(1))


def read_words(program: str, words: list[str], given: Given, folder: Path | None) -> Reading:
    """Return what such a command runs: the program that it stands for, followed.

    Raises:
        SpecError: a factory's arguments or a field that cannot be.
    """
    said = launch_option(words, ("factory",)).strip()
    found = _FACTORY.fullmatch(said)
    assert found is not None  # asked before
    lines = [f"recipe = llm.{found.group(1)}.{_task(program, folder)}_recipe{found.group(2) or '()'}"]  # fmt: skip
    for word in words:
        field, equals, value = word.partition("=")
        if equals and _FIELD.fullmatch(field):
            lines.append(f"recipe.{field} = {_literal(value)}")
    text = "\n".join(["from nemo.collections import llm", *lines]) + "\n"
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        raise SpecError("--factory", said[:80], "is no call of a recipe, as llama3_8b(num_nodes=2)") from None  # fmt: skip
    reading = nemo_recipes.read_recipe(parse_module(text, "command", None), "command", given)
    reading.format = "NeMo 2 command"
    return reading


def _task(program: str, folder: Path | None) -> str:
    """What a command does with the recipe: its verb says, or the function that its program hands the command line."""
    path = program_beside(folder, program)
    text = program if path is None else read_text(path, "file")
    return "finetune" if "finetune" in text and "pretrain" not in text else "pretrain"


def _literal(value: str) -> str:
    try:
        return repr(ast.literal_eval(value))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return repr({"true": True, "false": False, "null": None}.get(value.lower(), value))
