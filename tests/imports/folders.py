"""A script and the files beside it, written as a user has them, and imported."""

from pathlib import Path

from meshwright.imports.files import import_file
from meshwright.imports.reading import Given, Imported

GUESS = Given(guess=True)


def put(folder: Path, command: str, **files: str) -> Imported:
    """Write a script and the files beside it (`__` a point, `___` a folder), and import the script."""
    for name, text in files.items():
        path = folder / name.replace("___", "/").replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "run.sh").write_text(f"#!/bin/bash\n{command}\n")
    return import_file(folder / "run.sh", GUESS)
