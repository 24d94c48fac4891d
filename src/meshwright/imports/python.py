"""Python recipes: torchtitan's registries, NeMo 2, Megatron-Bridge, OLMo-core, our own scripts, and
programs around transformers' Trainer.

Their syntax tree is followed; nothing is imported or run.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from meshwright.exports import fsdp
from meshwright.exports import torchtitan_read as exported_titan
from meshwright.exports.stamp import Stamp, read_stamp
from meshwright.imports import logs, programs, python_starters
from meshwright.imports.code.follow import parse_module
from meshwright.imports.code.syntax import parse_python
from meshwright.imports.code.values import Module
from meshwright.imports.formats import (
    bridge,
    colossalai,
    easydel,
    fms_fsdp,
    internevo,
    nanochat,
    nanogpt,
    nanotron_python,
    nemo_recipes,
    olmo_scripts,
    slime_python,
    torchtitan_registry,
    verl_python,
    xtuner,
)
from meshwright.imports.own import config_dicts
from meshwright.imports.own import parsers as own_parsers
from meshwright.imports.own import programs as own_programs
from meshwright.imports.own.asked import refuse_conversion, unfollowed
from meshwright.imports.reading import Given, Reading
from meshwright.imports.script_devices import name_maker
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import read_text

_ON_OURS = re.compile(r"^\s*(?:from|import) train_fsdp\b", re.M)
"""A script of ours that uses the model and the splits of the one beside it."""


def read(
    text: str, name: str, given: Given, folder: Path | None, stamp: Stamp
) -> tuple[Reading, Stamp]:
    """Return what a Python file runs.

    Raises:
        SpecError: not Python, no known recipe, or several of them and none chosen.
    """
    tree = parse_python(text)
    if tree is None:
        if programs.is_program(text):  # a notebook's lines for its shell
            return programs.read(text, name, given, folder=folder), stamp
        raise SpecError("file", name, "is not valid Python")
    tables = fsdp.literals(tree, ("MODEL", "LAYOUT", "JOB", "WORDS"))
    if isinstance(tables.get("WORDS"), list):
        from meshwright.imports import scripts

        words = " ".join(_quoted(str(word)) for word in tables["WORDS"])
        return scripts.read(words, name, given, folder, stamp)
    if "LAYOUT" in tables:
        model, job, layout = fsdp.read(tree)
        return logs.whole("PyTorch script", job, layout, model=given.model or model), stamp
    path = (folder or Path()) / "train_fsdp.py"
    beside_it = folder is not None and Path(name).name != "train_fsdp.py" and path.is_file()
    if beside_it and _ON_OURS.search(text):
        inner = read_text(path)
        found, below = read(inner, str(path), given, folder, read_stamp(inner))
        return found, stamp if stamp != Stamp() else below
    if stamp.target.startswith("torchtitan") and "ParallelismConfig" in text:
        world = given.cluster.gpus if given.cluster is not None else 0
        if not world and stamp.cluster:
            from meshwright.specs import load_cluster

            world = load_cluster(stamp.cluster).gpus
        return logs.from_torchtitan(exported_titan.read(tree, world), "torchtitan recipe"), stamp
    small = _of_small_tools(tree, text, name, given, folder)
    if small is not None:
        return small, stamp
    alone = ".backward(" in text and "gradient_accumulation_steps" not in text
    if nanogpt.is_constants(tree) and not alone:  # a program without nanoGPT's other constants
        return nanogpt.read_constants(tree, given), stamp
    module = parse_module(text, name, folder)
    if internevo.is_config(text):
        return internevo.read(module, given), stamp
    if "execute_train(" in text and "train_args" in text:
        return slime_python.read(module, name, given, folder, stamp)
    accelerated = (
        re.search(r"^[^\S\n]*(?:from|import) (?:\w+, ){0,8}accelerate\b", text, re.M) is not None
    )  # has one of its own
    if ("ParallelismConfig" in text and not accelerated) or "Trainer.Config" in text:
        return torchtitan_registry.read_registry(module, name, given), stamp
    if bridge.is_recipe(text):
        return bridge.read_recipe(module, name, given), stamp
    if nemo_recipes.is_recipe(text):
        return nemo_recipes.read_recipe(module, name, given), stamp
    if "olmo_core" in text:
        return olmo_scripts.read_script(module, name, given), stamp
    if xtuner.is_config(text):
        return xtuner.read(text, name, given), stamp
    if xtuner.of_trainer(text):
        found = programs.read(xtuner.as_program(text), name, given, folder=folder)
        found.format = "XTuner configuration of the Trainer"
        return found, stamp
    if fms_fsdp.is_program(text):
        found = fms_fsdp.read(name, {}, given, "FMS-FSDP program")
        found.guess("program", "started without options: its own defaults are taken")
        return found, stamp
    return _of_its_own(module, text, name, given, folder, stamp)


def _of_its_own(
    module: Module, text: str, name: str, given: Given, folder: Path | None, stamp: Stamp
) -> tuple[Reading, Stamp]:
    """What a program runs that is no framework's recipe.

    Raises:
        SpecError: nothing in it can be followed.
    """
    held = verl_python.read(module, name, given) if verl_python.is_program(text) else None
    held = easydel.read_program(text, given) if easydel.is_program(text) else held
    held = config_dicts.read(module, given, folder) if config_dicts.is_config(text) else held
    if held is not None:
        return held, stamp
    refuse_conversion(text, name)
    looped = own_programs.read(text, name, given, folder)
    if looped is not None:
        name_maker(text, looped)
        return looped, stamp
    if programs.is_program(text):
        found = programs.read(text, name, given, folder=folder)
        name_maker(text, found)
        return found, stamp
    started = python_starters.read(text, name, given, folder, stamp) or own_parsers.read(
        text, name, given, folder, stamp
    )
    if started is not None:
        return started
    raise unfollowed(text, name)


def _quoted(word: str) -> str:
    """A word of a driver as a shell reads it: what names a variable in double quotes is in a shell's form already."""
    import shlex

    return word if '"$' in word else shlex.quote(word)


def _of_small_tools(
    tree: ast.Module, text: str, name: str, given: Given, folder: Path | None
) -> Reading | None:
    """What ColossalAI's and nanotron's configurations in Python and nanochat's program run."""
    if colossalai.is_config(tree, text):
        return colossalai.read(tree, text, given)
    if nanotron_python.is_config(text):
        return nanotron_python.read(text, name, given, folder)
    return nanochat.read_program(text, given) if nanochat.is_program(text) else None
