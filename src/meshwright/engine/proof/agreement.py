"""How far a plan's run is from the reference, quantity by quantity, and what fp64 accepts.

Quantities are the loss, the gradient norm and every parameter tensor; differences are absolute and
the largest over all steps. In fp32 and bf16 `meshwright.prove` judges instead.
"""

from __future__ import annotations

from collections.abc import Iterable

from meshwright.engine.proof.reference import Trace

FP64_BOUND = 1e-10
"""Largest accepted absolute difference of any gradient, parameter, loss or norm in fp64."""

DERIVATIVE_BOUND = 1e-5
"""Largest accepted relative distance of the reference's gradient from finite differences."""

SCALARS = ("loss", "grad_norm")

Differences = dict[str, float]
"""Largest difference by quantity."""


def worst(differences: Differences) -> tuple[float, str]:
    """The largest difference, and where it is."""
    if not differences:
        return 0.0, ""
    name = max(differences, key=lambda one: differences[one])
    return differences[name], name


def hold(differences: Differences) -> bool:
    """Whether every difference is within fp64's bound."""
    return all(value <= FP64_BOUND for value in differences.values())


def merged(tables: Iterable[Differences]) -> Differences:
    """The largest difference of each quantity over several runs or ranks."""
    found: Differences = {}
    for table in tables:
        for name, value in table.items():
            found[name] = max(found.get(name, 0.0), value)
    return found


def differences(trace: Trace, wanted: Trace) -> Differences:
    """Largest absolute differences of losses, norms and gradients, and of the final parameters.

    A trace of fewer steps is compared over those, without its parameters.
    """
    steps = len(trace.losses)
    found: Differences = {}
    for name, mine, theirs in (
        ("loss", trace.losses, wanted.losses[:steps]),
        ("grad_norm", trace.norms, wanted.norms[:steps]),
    ):
        found[name] = max(_finite(abs(a - b)) for a, b in zip(mine, theirs, strict=True))
    tables = list(zip(trace.gradients, wanted.gradients[:steps], strict=True))
    if steps == len(wanted.losses):
        tables.append((trace.parameters, wanted.parameters))
    for mine_table, wanted_table in tables:
        for name, value in mine_table.items():
            if name not in wanted_table or wanted_table[name].shape != value.shape:
                found[name] = float("inf")
                continue
            apart = (value.double() - wanted_table[name]).abs().max()
            found[name] = max(found.get(name, 0.0), _finite(float(apart)))
    return found


def _finite(value: float) -> float:
    """NaN compares as the worst there is."""
    return value if value == value else float("inf")
