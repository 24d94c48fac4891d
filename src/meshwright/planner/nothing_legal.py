"""Why no layout is legal: which of the fixed choices leave none, and by which rule.

The search learns only that its tables stayed empty. Here each fixed choice is left free by itself; those
without which something is legal are named, with the rule that stands between them and a layout.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np

from meshwright.planner.constraints import Constraints, Tally
from meshwright.planner.corners import columns_at, corners
from meshwright.planner.legality import RULES, Question
from meshwright.planner.question import asked
from meshwright.planner.space import Heads, enumerate_layouts
from meshwright.specs.errors import SpecError

_NO_AXIS = ("fit_probability",)

MOST_CORNERS, MOST_ROWS = 64, 16_384
"""Combinations of degrees, and layouts, that are looked at for the rule they break."""


class NothingLegalError(SpecError):
    """No combination of axes is legal; raised where the choices that leave none are not at hand."""

    def __init__(self) -> None:
        super().__init__(
            "layout", "none", "no combination of axes is legal under these constraints; relax one"
        )

    def __reduce__(self) -> tuple[type[NothingLegalError], tuple[()]]:  # type: ignore[override]
        """What a copy in another process is made from."""
        return NothingLegalError, ()


def why_nothing(question: Question, constraints: Constraints) -> SpecError:
    """The error that names the choices which leave no legal layout, and the rule they break."""
    fixed = _fixed(constraints)
    blamed = [name for name in fixed if any_legal(question, _freed(constraints, name))]
    if not blamed and (expected := _batch_expected(question, constraints)):
        return SpecError("global_batch", question.job.global_batch, expected)
    blamed = blamed or list(fixed)
    rule = _rule(question, constraints)
    if not blamed:
        what = f"{question.model.name} on {question.cluster.gpus} devices"
        return SpecError("layout", what, f"no combination of axes is legal: {rule}")
    under = "" if question.job.framework == "any" else f" under {asked(question).title}"
    if len(blamed) == 1:
        remedy = f"no layout is legal with this{under}: {rule}"
        return SpecError(blamed[0], fixed[blamed[0]], remedy)
    values = ", ".join(str(fixed[name]) for name in blamed)
    remedy = f"no layout is legal with these together{under}: {rule}; leave one of them free"
    return SpecError(", ".join(blamed), values, remedy)


def _batch_expected(question: Question, constraints: Constraints) -> str:
    """What the global batch must be for anything to be legal; empty where another batch changes nothing."""
    job, world = question.job, question.cluster.gpus
    whole = max(math.ceil(job.global_batch / world), 1) * world
    if whole == job.global_batch:
        return ""
    other = replace(question, job=job.but(global_batch=whole))
    if not any_legal(other, constraints):
        return ""
    under = "there are" if job.framework == "any" else f"{asked(question).title} has"
    return (
        f"{under} no degrees on {world} devices whose data-parallel ranks divide a batch of "
        f"{job.global_batch}; one of {whole}, say, is divided"
    )


def _fixed(constraints: Constraints) -> dict[str, object]:
    free = Constraints()
    return {
        name: getattr(constraints, name)
        for name in Constraints.model_fields
        if name not in _NO_AXIS and getattr(constraints, name) != getattr(free, name)
    }


def _freed(constraints: Constraints, name: str) -> Constraints:
    return constraints.model_copy(update={name: getattr(Constraints(), name)})


def any_legal(question: Question, constraints: Constraints) -> bool:
    """Whether any layout at all may run."""
    return any(table.rows for table in enumerate_layouts(question, constraints, Tally()))


def _rule(question: Question, constraints: Constraints) -> str:
    """The sentence of the rule that by itself keeps most layouts from running."""
    counts, world = Tally(), question.cluster.gpus
    some = list(itertools.islice(corners(question, constraints, counts), MOST_CORNERS))
    if not some:
        degrees = [constraints.tp, constraints.cp, constraints.pp, constraints.dp]
        product = math.prod(degree or 1 for degree in degrees)
        if world % product or (None not in degrees and product != world):
            named = " · ".join(
                name
                for name, degree in zip(("tp", "cp", "pp", "dp"), degrees, strict=True)
                if degree
            )
            if world % product:
                return f"{named} = {product} does not divide {world} devices"
            return f"{named} = {product}, and there are {world} devices"
        if counts.removed.get("batch"):
            return next(rule.sentence for rule in RULES if rule.name == "batch")
        return "no degrees that divide heads, layers and batch multiply to the number of devices"
    rows = Heads(
        columns_at(constraints, some),
        np.repeat(np.arange(len(some), dtype=np.int64), [corner.rows for corner in some]),
        tuple(corner.ways for corner in some),
    )
    columns = rows.expand(slice(0, MOST_ROWS))
    broken = np.stack([rule.forbids(question, columns) for rule in RULES])
    fewest = broken.sum(axis=0)
    nearest = broken[:, fewest == fewest.min()]  # layouts that break as few rules as any
    return RULES[int(np.argmax(nearest.sum(axis=1)))].sentence
