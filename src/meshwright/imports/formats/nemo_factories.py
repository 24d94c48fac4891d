"""NeMo 2's command line: a recipe of the library by its factory's name, and fields of it that words set (`--factory "llama3_8b(num_nodes=2)" trainer.devices=8`)."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
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
_MAIN = re.compile(r"\bcli\.main\(\s*[\w.]+\s*,\s*default_factory\s*=\s*(\w+)")
_COMMAND = "recipe_of_the_command_line"


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
    recipe = f"llm.{found.group(1)}.{_task(program, folder)}_recipe{found.group(2) or '()'}"
    lines = ["from nemo.collections import llm", f"recipe = {recipe}", *_set(words)]
    text = _parsed("\n".join(lines) + "\n", said)
    reading = nemo_recipes.read_recipe(parse_module(text, "command", None), "command", given)
    reading.format = "NeMo 2 command"
    return reading


def read_program(program: str, words: list[str], given: Given, folder: Path | None) -> Reading | None:  # fmt: skip
    """Return what a program runs that hands NeMo's command line a recipe of its own; None for another program.

    Raises:
        SpecError: a factory's arguments or a field that cannot be.
    """
    path = program_beside(folder, program)
    if path is None:
        return None
    text = read_text(path, "file")
    default = _MAIN.search(text)
    if default is None:
        return None
    said = launch_option(words, ("factory",)).strip() or given.config or default.group(1)
    found = _FACTORY.fullmatch(said)
    if found is None or not re.search(rf"^def {found.group(1)}\(", text, re.MULTILINE):
        return None
    body = [f"recipe = {found.group(1)}{found.group(2) or '()'}", *_set(words), "return recipe"]
    text += "".join([f"\n\ndef {_COMMAND}():", *(f"\n    {line}" for line in body)]) + "\n"
    module = parse_module(_parsed(text, said), path.name, path.parent)
    reading = nemo_recipes.read_recipe(module, path.name, replace(given, config=_COMMAND))
    reading.format = f"NeMo 2 recipe {found.group(1)}"
    return reading


def _set(words: list[str]) -> list[str]:
    """What words set on a recipe, as statements."""
    split = [word.partition("=") for word in words]
    return [f"recipe.{field} = {_literal(value)}" for field, equals, value in split
            if equals and _FIELD.fullmatch(field)]  # fmt: skip


def _parsed(text: str, said: str) -> str:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        raise SpecError("--factory", said[:80], "is no call of a recipe, as llama3_8b(num_nodes=2)") from None  # fmt: skip
    return text


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
