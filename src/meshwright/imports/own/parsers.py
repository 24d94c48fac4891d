"""A training program whose model and batch are defaults of its own parser, imported by itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from meshwright.exports.stamp import Stamp
from meshwright.imports.formats import openrlhf
from meshwright.imports.launch import Launch
from meshwright.imports.names import model_named
from meshwright.imports.own import commands, option_names
from meshwright.imports.own.arguments import HEARS, own_defaults
from meshwright.imports.reading import Given, Reading

_TRAINS = re.compile(r"\.(?:fit|train)\(|\.backward\(|\b(?:run_)?(?:\w+_)?train(?:ing|er)?\(")
_OPENRLHF = {"pretrain", "micro_train_batch_size", "zero_stage"}
"""Words of OpenRLHF's programs and of those that were made from them."""


def read(
    text: str, name: str, given: Given, folder: Path | None, stamp: Stamp
) -> tuple[Reading, Stamp] | None:
    """Return what such a program trains when it is started without options; None where its parser says no model or no batch."""
    declares = "add_argument(" in text or HEARS.search(text)
    if folder is None or not declares or _TRAINS.search(text) is None:
        return None
    program = Path(name).name
    own = own_defaults(program, folder)
    model = next((own[one] for one in (*option_names.NAMES, "pretrain") if isinstance(own.get(one), str)), "")  # fmt: skip
    if model_named(model) is None or not option_names.says_batch({*own, *_micro(own)}):
        return None
    if set(own) >= _OPENRLHF:
        reading = openrlhf.read_openrlhf("openrlhf.cli.train_sft", _words(own), given)
        if re.search(r"[\"']--bf16[\"']", text) and "bf16" not in own:
            reading.unmodelled("--bf16", "is off where nothing is said: weights train in the width that they were published in, without 32-bit copies; bf16 with copies is priced")  # fmt: skip
        reading.format = "program with OpenRLHF's options"
    elif set(own) & {*option_names.LENGTHS} and set(own) & {*option_names.TRAINS}:
        reading = commands.read_words(Launch(program, [], ["python"]), given, folder, own=own)
        reading.format = "program of its own"
    else:
        return None
    reading.guess("program", "started without options: the defaults of its own parser are taken")
    return reading, stamp


def _micro(own: dict[str, Any]) -> set[str]:
    return {"micro_batch_size"} if "micro_train_batch_size" in own else set()


def _words(own: dict[str, Any]) -> list[str]:
    """Defaults as the words of a command."""
    return [
        word
        for key, value in own.items()
        if value is not False and not isinstance(value, (list, dict))
        for word in ([f"--{key}"] if value is True else [f"--{key}", str(value)])
    ]
