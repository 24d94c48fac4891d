"""The reference's gradients against finite differences of its loss."""

from __future__ import annotations

import torch

from meshwright.engine.proof.reference import Batch, Reference
from meshwright.engine.proof.reference_shapes import Tensors

_STRIDE = 1e-5
"""Of finite differences; their error is of its square, that of rounding 1e-16 over it."""
_NO_GRADIENT = 1e-9
"""A tensor with a smaller gradient, as a key's bias, has none but rounding."""


def derivative_errors(
    reference: Reference, values: Tensors, batch: Batch, seed: int
) -> dict[str, float]:
    """How far autograd is from central differences on the batch's last row, relative.

    Of every kind of tensor one is tried, of the first layer that has it, along its gradient and a
    random direction together.
    """
    last = slice(-1, None)
    starts = None if batch.starts is None else batch.starts[last]
    batch = Batch(batch.tokens[last], batch.targets[last], starts)
    values = {name: value.detach() for name, value in values.items()}
    _, gradients = reference.gradients(values, batch, 0)
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, float] = {}
    tried: set[str] = set()
    for name, value in values.items():
        kind = ".".join(word for word in name.split(".") if not word.isdigit())
        size = float(gradients[name].norm())
        if kind in tried or size < _NO_GRADIENT:
            continue
        tried.add(kind)
        direction = torch.randn(value.shape, generator=generator, dtype=value.dtype)
        direction = direction / direction.norm() + gradients[name] / size
        slope = float((direction * gradients[name]).sum())
        two = [
            reference.loss(values | {name: value + side * _STRIDE * direction}, batch, 0)
            for side in (1, -1)
        ]
        found[name] = abs((two[0] - two[1]) / (2 * _STRIDE) - slope) / abs(slope)
    return found
