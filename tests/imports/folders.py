"""A script and the files beside it, written as a user has them, and imported."""

from pathlib import Path

from meshwright.imports.files import import_file
from meshwright.imports.reading import Given, Imported

GUESS = Given(guess=True)


def lay(folder: Path, files: dict[str, str]) -> Path:
    """Write files by their paths in a folder; returns the folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def put(folder: Path, command: str, **files: str) -> Imported:
    """Write a script and the files beside it (`__` a point, `___` a folder, `_dash_` a dash), and import the script."""
    told = (("___", "/"), ("__", "."), ("_dash_", "-"))
    for word, sign in told:
        files = {name.replace(word, sign): text for name, text in files.items()}
    lay(folder, files | {"run.sh": f"#!/bin/bash\n{command}\n"})
    return import_file(folder / "run.sh", GUESS)
