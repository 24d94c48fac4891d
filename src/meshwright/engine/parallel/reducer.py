"""Plain data parallelism: gradients of replicated parameters, summed in buckets during backward.

A bucket is sent as soon as the last backward of the step has filled it, while earlier layers still
compute; gradients then *are* views of the bucket, so nothing is copied back (PyTorch's DDP, arXiv
2006.15704 §3.2, whose bucket size this takes). Under mixed precision, where parameters need a cast
before use, torch's `replicate` does this work instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

BUCKET_BYTES = 25 * 2**20


def local_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """This rank's part of a gradient, as a plain tensor sharing its memory."""
    gradient = parameter.grad
    if gradient is None:
        raise RuntimeError("a parameter got no gradient")
    return gradient._local_tensor if isinstance(gradient, DTensor) else gradient


class _Bucket:
    """Parameters of one dtype whose gradients travel together."""

    def __init__(self, parameters: list[nn.Parameter], group: Any) -> None:
        self.parameters, self.group = parameters, group
        self.missing = 0
        """Gradient arrivals still to come before the bucket is full."""

    def send(self) -> Any:
        """Start the all-reduce; from now on the gradients are views of what travels."""
        gradients = [local_gradient(parameter) for parameter in self.parameters]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        views = flat.split([gradient.numel() for gradient in gradients])
        for parameter, gradient, view in zip(self.parameters, gradients, views, strict=True):
            if isinstance(parameter.grad, DTensor):
                parameter.grad._local_tensor = view.view_as(gradient)
            else:
                parameter.grad = view.view_as(gradient)
        return dist.all_reduce(flat, group=self.group, async_op=True)


class GradientReducer:
    """Sums the gradients of one group of ranks; every rank holds the same parameters in order.

    `start` before the first backward of a step, `finish` after the last. Buckets are always sent in
    the same order, whatever order gradients arrive in, so the ranks' collectives match.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], group: Any, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        # The last layer's gradients come first.
        self._buckets = [
            _Bucket(held, group) for held in _cut(list(parameters)[::-1], bucket_bytes)
        ]
        self._next = 0
        self._works: list[Any] = []
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(self._hook(bucket))

    def start(self, backwards: int) -> None:
        """Expect every parameter's gradient this many times: once per micro-batch."""
        self._next = 0
        for bucket in self._buckets:
            bucket.missing = backwards * len(bucket.parameters)

    def _hook(self, bucket: _Bucket) -> Any:
        def arrived(_parameter: torch.Tensor) -> None:
            bucket.missing -= 1
            while self._next < len(self._buckets) and self._buckets[self._next].missing == 0:
                self._send()

        return arrived

    def _send(self) -> None:
        self._works.append(self._buckets[self._next].send())
        self._next += 1

    def finish(self) -> None:
        """Send what is left (a split backward pass does not announce its weights) and wait.

        Raises:
            RuntimeError: a parameter got no gradient.
        """
        while self._next < len(self._buckets):
            self._send()
        for work in self._works:
            work.wait()
        self._works.clear()


def _cut(parameters: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Neighbours of one dtype, up to `bucket_bytes` together."""
    found: list[list[nn.Parameter]] = []
    filled, kind = 0, None
    for parameter in parameters:
        local = parameter._local_tensor if isinstance(parameter, DTensor) else parameter
        size = local.numel() * local.element_size()
        if not found or local.dtype != kind or filled + size > bucket_bytes:
            found.append([])
            filled, kind = 0, local.dtype
        found[-1].append(parameter)
        filled += size
    return found
