"""Families that compute otherwise than the architecture they are shaped like, and numbers that nobody published.

A file that describes a shape alone would train another model: same cost, other function. Sources: the modelling
files of transformers 5.23 of each family.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.exports.hf import own_config
from meshwright.exports.limit_rules import Problem
from meshwright.exports.model_names import repository
from meshwright.specs.hf_carried import language_part
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
    """What an export from new weights says where the numbers of a model's config.json are not known here."""
    own = own_config(model)
    if (
        own is not None
        and model.positions == "rope"
        and not {*language_part(own)} & {"rope_theta", "rope_parameters"}
    ):
        return (
            f"the config.json of {model.name} here states no rotary base; what it leaves out is as the family's class has it: "
            "give --model the published config.json where that matters",
        )
    if model.numerics is not None or model.positions != "rope" or repository(model) is None:
        return ()
    share = "" if model.experts is None else ", scaling of its experts' output"
    return (
        f"the numbers of {model.name}'s config.json (rotary base, epsilon of its norms{share}) are not known here and "
        f"usual ones of its family are written: compare with {repository(model)} where that matters",
    )
