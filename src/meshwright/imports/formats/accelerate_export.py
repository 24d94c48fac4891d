"""An export for accelerate, read back whole: its YAML, the model's config.json and the constants of its script."""

from __future__ import annotations

import ast
from pathlib import Path

from meshwright.exports.fsdp import literals
from meshwright.imports.formats import accelerate
from meshwright.imports.model_files import exported
from meshwright.imports.reading import Given, Reading
from meshwright.specs.foreign import parse_yaml, read_text
from meshwright.specs.huggingface import model_from_config

_CONSTANTS = ("SEQ_LEN", "MICRO_BATCH", "ACCUMULATION")


def found(program: str, folder: Path | None) -> Path | None:
    """The script of such an export, where a launcher's command names it and its other files lie beside it."""
    if folder is None or program.rsplit("/", 1)[-1] != "train.py":
        return None
    files = [folder / name for name in ("train.py", "accelerate.yaml", "config.json")]
    whole = all(path.is_file() for path in files)
    return files[0] if whole and "made by meshwright" in read_text(files[0])[:3000] else None


def read(script: Path, given: Given) -> Reading:
    """Return what the files of an export run; what the user gave counts over them.

    Raises:
        SpecError: a file is no longer what was exported.
    """
    folder = script.parent
    config = exported(folder / "config.json")
    table = parse_yaml(read_text(folder / "accelerate.yaml"), "file", "accelerate.yaml")
    reading = accelerate.read(table, given, folder)
    reading.format = "accelerate export"
    reading.model = given.model or model_from_config(config)
    said = literals(ast.parse(read_text(script)), _CONSTANTS)
    reading.seq_len, reading.micro_batch, reading.accumulation = (
        int(said.get(name, 0)) for name in _CONSTANTS
    )
    if config.get("attn_implementation") == "eager":
        reading.job["attention_kernel"] = "unfused"
    return reading
