"""Families that compute otherwise than the architecture they are shaped like, and numbers that nobody published.

A file that describes a shape alone would train another model: same cost, other function. Sources: the modelling
files of transformers 5.23 of each family.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.exports.limit_rules import Problem
from meshwright.exports.model_names import repository
from meshwright.specs.model import Model
from meshwright.specs.plain_families import OTHERWISE


def computes_otherwise(model: Model) -> Iterator[Problem]:
    """Why files that say an architecture by its shape are not of this model."""
    if model.family in OTHERWISE:
        yield Problem(
            "model.family",
            model.family,
            f"has no words for it: {model.name} {OTHERWISE[model.family]}",
        )


def unknown_numbers(model: Model) -> tuple[str, ...]:
    """What an export from new weights says where a model's rotary base is not known here."""
    if model.numerics is not None or model.positions != "rope" or repository(model) is None:
        return ()
    return (
        f"the rotary base of {model.name} is not known here and a usual one is written: compare with the config.json of "
        f"{repository(model)} where that matters",
    )
