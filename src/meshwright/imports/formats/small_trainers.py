"""Trainers that a command's program tells by its name alone."""

from __future__ import annotations

from pathlib import Path

from meshwright.imports.formats import (
    autotrain,
    easylm,
    fms_fsdp,
    litgpt,
    llm_recipes,
    nanochat,
    nanogpt,
    open_lm,
    primus,
    xtuner,
)
from meshwright.imports.launch import Launch
from meshwright.imports.reading import Given, Reading
from meshwright.imports.shell.state import Script


def read(script: Script, launch: Launch, given: Given, folder: Path | None) -> Reading | None:
    """What the command of such a trainer runs; None where it starts none of them.

    Raises:
        SpecError: a value that cannot be.
    """
    if primus.reads(launch):
        return primus.read_words(launch, given, folder)
    if easylm.reads(launch):
        return easylm.read_words(launch, given, script)
    if fms_fsdp.reads(launch):
        return fms_fsdp.read_words(launch, given)
    if litgpt.reads(launch):
        return litgpt.read_words(launch, given, folder)
    if open_lm.reads(launch):
        return open_lm.read_words(launch, given, folder)
    if nanochat.reads(launch):
        return nanochat.read_words(launch, given, folder, script)
    if autotrain.reads(launch):
        return autotrain.read_words(script, launch, given, folder)
    if xtuner.reads(launch):
        return xtuner.read_words(launch, given, folder)
    if llm_recipes.has_words(launch):
        return llm_recipes.read_words(launch, given)
    if nanogpt.reads(launch, folder):
        return nanogpt.read_words(launch, given, folder)
    return None
