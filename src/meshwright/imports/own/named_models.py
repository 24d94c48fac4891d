"""A model that a table names and describes in part."""

from __future__ import annotations

from collections.abc import Iterable

from meshwright.imports.reading import Reading
from meshwright.specs.model import Model


def as_named(reading: Reading, known: Model | None, said_too: Iterable[str]) -> None:
    """Take what a table leaves out of its model's shape from the model that it names, where their widths agree.

    Args:
        known: the preset that the table names; None where it names none.
        said_too: fields that have to agree beside the widths, since the table says them.
    """
    said = reading.model
    if said is None or known is None:
        return
    if any(getattr(said, one) != getattr(known, one) for one in ("hidden", "heads", *said_too)):
        return
    reading.remarks = [one for one in reading.remarks if one.option != "--model"]
    reading.model = known
    if said.layers != known.layers:
        reading.model = Model.parse({**known.model_dump(), "name": "imported", "layers": said.layers}, "model")  # fmt: skip
        reading.guess("--model", f"is {known.name} with the file's {said.layers} layers of {known.layers}: --model {known.name} has them all")  # fmt: skip
