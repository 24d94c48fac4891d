"""Programs that lie beside the script that starts them."""

from __future__ import annotations

import re
from pathlib import Path

from meshwright.imports import programs
from meshwright.imports.beside import beside, file_of, program_beside
from meshwright.imports.code.follow import parse_module
from meshwright.imports.code.notebook import code_cells, program_of
from meshwright.imports.code.values import Run
from meshwright.imports.formats import bridge, hf, nemo_recipes, olmo_scripts
from meshwright.imports.formats.hf_launcher import launcher, one_process
from meshwright.imports.launch import Launch
from meshwright.imports.options import flags_of
from meshwright.imports.own.arguments import typed
from meshwright.imports.reading import Given, Reading
from meshwright.imports.shell.state import Script
from meshwright.imports.tasks import name_task
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_text

_NOTEBOOK_BYTES = 4_000_000


def olmo_core(program: str, words: list[str], given: Given, folder: Path | None) -> Reading | None:
    """What a program of OLMo-core that lies beside the script runs, the command's words over it."""
    path = beside(folder, program) if program.endswith(".py") else None
    if path is None or "olmo_core" not in (text := read_text(path, "file")):
        return None
    try:
        reading = olmo_scripts.read_script(
            parse_module(text, str(path), path.parent), str(path), given, words
        )
    except SpecError:
        return None
    reading.format = "OLMo-core script, named by a script"
    return reading


def recipe(program: str, words: list[str], given: Given, folder: Path | None) -> Reading | None:
    """What a program beside the script runs that sets a recipe of NeMo 2 or Megatron-Bridge by options of its own."""
    path = beside(folder, program) if program.endswith(".py") else None
    if path is None or "add_argument(" not in (text := read_text(path, "file")):
        return None
    reads = bridge.read_recipe if bridge.is_recipe(text) else nemo_recipes.read_recipe
    if not (bridge.is_recipe(text) or nemo_recipes.is_recipe(text)):
        return None
    said = {name.replace("-", "_"): typed(one) for name, one in flags_of(words).items()}
    reading = reads(parse_module(text, str(path), path.parent, Run(said=said)), str(path), given)
    reading.format = f"{reading.format}, started by a script"
    return reading


def parses_itself(program: str, folder: Path | None) -> bool:
    """Whether a program at hand declares its options itself: then its own defaults count beside its words."""
    path = program_beside(folder, program)
    if path is None:
        return False
    text = read_text(path, "file")
    return "add_argument(" in text and not re.search(r"HfArgumentParser|TrlParser", text)


def trainer(script: Script, launch: Launch, given: Given, folder: Path | None) -> Reading | None:
    """What a program around transformers' Trainer that lies beside the script runs, by the command's words."""
    program = file_of(launch.program)
    path = beside(folder, program) if program.endswith((".py", ".ipynb")) else None
    if path is None:
        return None
    text = read_text(path, "file", size_bytes=_NOTEBOOK_BYTES)
    if path.suffix == ".ipynb":
        text = program_of(code_cells(text, "file", path.name))
    if not programs.is_program(text):
        return None
    options = {key: f"--{name}" for key, name in hf.EDITS.items()}
    reading = Reading("Hugging Face Trainer program, started by a script", options=options)
    launcher(script, launch, reading, given, folder)
    one_process(launch, reading)
    if not reading.world() and launch.starts_ranks():  # which a program divides its batch among
        reading.hosts, reading.per_host = launch.hosts or 1, launch.per_host
    name_task(reading, path.name)
    said = {name.replace("-", "_"): typed(value) for name, value in flags_of(launch.words).items()}
    try:
        return programs.read(text, str(path), given, said, reading, folder, script)
    except SpecError as error:
        if program == launch.program and "takes model and batch from" not in str(error):
            raise
        return None  # a program whose command says the rest, or a module that it says too little of


def makes_a_trainer(program: str, folder: Path | None) -> bool:
    """Whether a program at hand hands its options, though they are called as Megatron-LM's, to transformers' Trainer."""
    path = program_beside(folder, program)
    text = "" if path is None else read_text(path, "file")
    ours = re.search(r"^[^\S\n]*(?:from|import) transformers\b", text, re.M)
    return (
        ours is not None
        and "Trainer(" in text
        and not re.search(r"^[^\S\n]*(?:from|import) megatron", text, re.M)
    )
