"""What the engine does to whole tensors outside any module: copies, accumulation, norm and update.

Such work is bound by memory and grows with the parameters alone, so that it is timed directly on tensors
larger than the caches; a fit to steps of small models would have to tell it from everything else that a
step does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

ELEMENTS = 2**20
"""Of one tensor: 4 MiB in fp32, a weight of some 1,000 by 1,000."""

TENSORS = 6

REPEATS = 9


def seconds_per_element(elements: int = ELEMENTS, repeats: int = REPEATS) -> dict[str, float]:
    """Processor seconds by name: `parameter` (its gradient's norm, clipping and AdamW's update),
    `accumulated_parameter` (a gradient added in place to what is there), `copied_byte` (read once and
    written once). On one thread, as ranks compute: the clock is this thread's, and others would not count.
    """
    tensors = [torch.randn(elements) for _ in range(TENSORS)]
    others = [torch.randn(elements) for _ in range(TENSORS)]
    total = float(TENSORS * elements)
    parameters = [tensor.clone().requires_grad_() for tensor in tensors]
    for parameter, other in zip(parameters, others, strict=True):
        parameter.grad = other.clone()
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)

    def update() -> None:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        torch._foreach_norm(gradients, 2)
        torch._foreach_mul_(gradients, torch.ones(()))
        optimizer.step()

    def accumulate() -> None:
        for tensor, other in zip(tensors, others, strict=True):
            tensor.add_(other)

    def copy() -> None:
        for tensor, other in zip(tensors, others, strict=True):
            tensor.copy_(other)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            return {
                "parameter": _median_s(update, repeats) / total,
                "accumulated_parameter": _median_s(accumulate, repeats) / total,
                "copied_byte": _median_s(copy, repeats) / (total * tensors[0].itemsize),
            }
    finally:
        torch.set_num_threads(threads)


def _median_s(work: Callable[[], None], repeats: int) -> float:
    work()
    found = []
    for _ in range(repeats):
        began = time.thread_time()
        work()
        found.append(time.thread_time() - began)
    return statistics.median(found)
