"""transformers' programs for Flax (`run_clm_flax.py` and what was made of it), which take the Trainer's words."""

from __future__ import annotations

import re
from pathlib import Path

from meshwright.imports.beside import program_beside
from meshwright.imports.launch import Launch
from meshwright.imports.options import flags_of
from meshwright.imports.reading import Reading
from meshwright.imports.recipes import cast_where_used
from meshwright.specs.foreign import read_text
from meshwright.specs.job import RECIPES

_FLAX = re.compile(r"\bFlaxAutoModelForCausalLM\b|\bFLAX_MODEL_FOR_CAUSAL_LM_MAPPING\b|^from flax\b|^import flax\b", re.M)  # fmt: skip


def _is_flax(program: str, folder: Path | None) -> bool:
    """Whether a program trains with Flax, by its text where it is at hand, else by its name."""
    path = program_beside(folder, program)
    if path is None:
        return "flax" in program.rsplit("/", 1)[-1]
    return _FLAX.search(read_text(path, "program")) is not None


def adapted(reading: Reading, launch: Launch, folder: Path | None) -> Reading:
    """A reading of the Trainer's words as a program for Flax takes them; itself where the program is none.

    One process of a host holds whole copies on all its devices, parameters in 32 bits.
    """
    if not _is_flax(launch.program, folder):
        return reading
    reading.format = "script of a transformers program for Flax"
    reading.jax, reading.likely, reading.devices = True, "tpu-v4", 0
    reading.remarks = [one for one in reading.remarks if one.option != "launcher"]
    reading.job["framework"] = "maxtext"
    reading.layout["zero"] = 0
    half = "float16" in str(flags_of(launch.words).get("dtype", ""))  # bfloat16, too
    recipe = cast_where_used(wide=True) if half else RECIPES["fp32"]
    reading.job["precision"] = recipe.model_dump()
    reading.note("Flax is priced as MaxText, the JAX trainer that has been measured; parameters stay in 32 bits on every device", "framework")  # fmt: skip
    return reading
