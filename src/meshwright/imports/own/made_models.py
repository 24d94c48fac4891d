"""A model that a program builds itself, from one of transformers' configuration classes."""

from __future__ import annotations

from typing import Any

from meshwright.imports.config_classes import sizes_of
from meshwright.imports.reading import Reading
from meshwright.specs.errors import SpecError
from meshwright.specs.huggingface import model_from_config
from meshwright.specs.model import Model


def made_model(family: str, said: dict[str, Any], left: list[str], reading: Reading) -> Model:
    """The model that the class with these arguments describes.

    Args:
        left: arguments whose values the program does not state; the class's own are taken, and named.

    Raises:
        SpecError: a shape that cannot be.
    """
    fields = sizes_of(family, {key: value for key, value in said.items() if value is not None})
    guessed = [name for name in left if name in fields]
    if guessed:
        reading.guess(
            "--model",
            f"the program computes {', '.join(guessed)}: "
            f"{', '.join(str(fields[name]) for name in guessed)}, the class's own, "
            f"{'is' if len(guessed) == 1 else 'are'} taken",
        )
    try:
        return model_from_config({"model_type": family, **fields}, "imported", "a program")
    except SpecError as error:
        raise SpecError("--model", family, f"the shape that the program builds cannot be: {error}") from None  # fmt: skip
