"""How far two runs of the same training are apart, quantity by quantity, and what is accepted.

Quantities are the loss, the gradient norm and every parameter tensor. In fp64 differences are
absolute, over all steps; in fp32 and bf16 they are relative, after the first backward pass, and the
bounds come from how far one device at that precision is from fp64.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

FP64_BOUND = 1e-10
"""Largest accepted absolute difference of any gradient, parameter, loss or norm in fp64."""

LOW_PRECISION_FACTOR = 2.0
"""In fp32 and bf16 a plan may be this many times as far from the fp64 oracle as one device is."""

ZERO_GRADIENT = 1e-12
"""Of the whole gradient's norm: a tensor with less in fp64 has no gradient but rounding."""

SCALARS = ("loss", "grad_norm")

Differences = dict[str, float]
"""Largest difference by quantity."""


@dataclass(slots=True)
class Trace:
    """What one run shows: per step loss, norm and gradients, and the final parameters."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    gradients: list[dict[str, torch.Tensor]] = field(default_factory=list)
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is accepted, of tensors and of the two scalars."""

    tensors: float = FP64_BOUND
    scalars: float = FP64_BOUND

    def of(self, quantity: str) -> float:
        """The bound of one quantity."""
        return self.scalars if quantity in SCALARS else self.tensors

    def worst(self, differences: Differences) -> tuple[float, str]:
        """The difference that is largest against its bound, and where it is."""
        if not differences:
            return 0.0, ""
        name = max(differences, key=lambda one: differences[one] / self.of(one))
        return differences[name], name

    def hold(self, differences: Differences) -> bool:
        """Whether every difference is within its bound."""
        return all(value <= self.of(name) for name, value in differences.items())


def derived_bounds(own: Iterable[Differences], compute: torch.dtype) -> Bounds:
    """Bounds at a low precision, from one device's own differences there.

    A mean over tokens that are each rounded is off by about one rounding, so the scalars get at
    least that: one device may hit the exact value by luck.
    """
    everyone = list(own)
    tensors = max(v for table in everyone for k, v in table.items() if k not in SCALARS)
    scalars = max(v for table in everyone for k, v in table.items() if k in SCALARS)
    rounding = torch.finfo(compute).eps
    return Bounds(LOW_PRECISION_FACTOR * tensors, LOW_PRECISION_FACTOR * max(scalars, rounding))


def merged(tables: Iterable[Differences]) -> Differences:
    """The largest difference of each quantity over several runs or ranks."""
    found: Differences = {}
    for table in tables:
        for name, value in table.items():
            found[name] = max(found.get(name, 0.0), value)
    return found


def absolute_differences(trace: Trace, wanted: Trace) -> Differences:
    """Largest absolute differences of losses, norms and gradients, and of the final parameters."""
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
            difference = (value.double() - wanted_table[name].double()).abs().max()
            found[name] = max(found.get(name, 0.0), _finite(float(difference)))
    return found


def absolute_error(trace: Trace, wanted: Trace) -> tuple[float, str]:
    """The largest absolute difference of all, and where it is."""
    return Bounds().worst(absolute_differences(trace, wanted))


def relative_differences(trace: Trace, wanted: Trace) -> Differences:
    """‖difference‖ / ‖gradient‖ of every tensor after the first backward pass, and of the scalars.

    Later steps are not compared: where a gradient is near zero, Adam divides noise by noise. Nor
    are tensors whose exact gradient *is* zero (a key bias, which softmax does not see): what is
    left of them is rounding.
    """
    found = {
        "loss": _finite(abs(trace.losses[0] / wanted.losses[0] - 1)),
        "grad_norm": _finite(abs(trace.norms[0] / wanted.norms[0] - 1)),
    }
    nothing = ZERO_GRADIENT * wanted.norms[0]
    for name, value in trace.gradients[0].items():
        reference = wanted.gradients[0][name].double()
        size = reference.norm()
        if size >= nothing:
            found[name] = _finite(float((value.double() - reference).norm() / size))
    return found


def _finite(value: float) -> float:
    """NaN compares as the worst there is."""
    return value if value == value else float("inf")
