"""Memory of a running program at its peak, by part: every storage followed from birth to death.

A dispatch mode sees each new tensor; a storage counts its bytes until it is freed. Works on fake
tensors, whose storages have sizes and no memory, as on real ones. The kernels' own workspaces and
an allocator's rounding are not seen.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PARTS = ("parameters", "gathered", "gradients", "optimizer", "activations")
"""Sharded parameters; FSDP's unsharded copies; gradients in any form; optimizer states; and
everything else: activations, logits, temporaries."""


GLOO_SETTLES_S = 0.002
"""gloo's threads hold a collective's tensors a moment after it has ended, on real ranks only."""


class Footprint(TorchDispatchMode):
    """Follows storages while it is entered: `with footprint: program.step(…)`."""

    def __init__(self, parameters: Iterable[torch.Tensor], settle_s: float = 0.0) -> None:
        """`settle_s`: how long a new peak must last to count: `GLOO_SETTLES_S` on real ranks."""
        super().__init__()
        self._settle_s = settle_s
        self.live_bytes = self.peak_bytes = 0
        self._live: dict[int, int] = {}  # serial number to bytes
        self._at_peak: dict[int, int] = {}
        self._known: dict[int, tuple[Any, int]] = {}  # id of a storage to (weak reference, serial)
        self._next = 0
        self._parts: dict[int, str] = {}
        self._parameters = list(parameters)
        for parameter in self._parameters:
            self._parts[self._follow(_plain(parameter))] = "parameters"

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in (out,) if isinstance(out, torch.Tensor) else tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                self._follow(_plain(tensor))
        return out

    def __enter__(self) -> Any:
        self._patches = _observed_fsdp(self)
        self._patches.__enter__()
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._gradient_came)
            for parameter in self._parameters
        ]
        return super().__enter__()

    def __exit__(self, *error: Any) -> Any:
        for hook in self._hooks:
            hook.remove()
        self._patches.__exit__(*error)
        return super().__exit__(*error)

    def _gradient_came(self, parameter: torch.Tensor) -> None:
        self.mark(parameter.grad, "gradients")

    def start_phase(self) -> None:
        """Forget the peak so far; what lives stays counted."""
        self.peak_bytes, self._at_peak = self.live_bytes, dict(self._live)

    def peak_parts(self) -> dict[str, int]:
        """Bytes of each of `PARTS` at the peak; they add up to `peak_bytes`."""
        return self._by_part(self._at_peak)

    def live_parts(self) -> dict[str, int]:
        """Bytes of each of `PARTS` alive now."""
        return self._by_part(self._live)

    def _by_part(self, sizes: dict[int, int]) -> dict[str, int]:
        totals = dict.fromkeys(PARTS, 0)
        for serial, size in sizes.items():
            totals[self._parts.get(serial, "activations")] += size
        return totals

    def mark(self, tensor: torch.Tensor | None, part: str) -> None:
        """Say what a tensor's storage is for."""
        if tensor is not None:
            self._parts[self._follow(_plain(tensor))] = part

    def resized(self, storage: torch.UntypedStorage) -> None:
        """FSDP frees and allocates its gathered parameters by resizing them."""
        serial = self._serial(storage)
        self._parts[serial] = "gathered"
        self._set(serial, storage.nbytes())

    def _follow(self, tensor: torch.Tensor) -> int:
        return self._serial(tensor.untyped_storage())

    def _serial(self, storage: torch.UntypedStorage) -> int:
        key = id(storage)
        if (found := self._known.get(key)) is not None:
            return found[1]
        serial = self._next
        self._next += 1

        def freed(_reference: Any) -> None:
            self._known.pop(key, None)
            self.live_bytes -= self._live.pop(serial, 0)

        self._known[key] = (weakref.ref(storage, freed), serial)
        self._set(serial, storage.nbytes())
        return serial

    def _set(self, serial: int, size: int) -> None:
        self.live_bytes += size - self._live.get(serial, 0)
        self._live[serial] = size
        if self._settle_s and self.live_bytes > self.peak_bytes:
            time.sleep(self._settle_s)
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes, self._at_peak = self.live_bytes, dict(self._live)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


@contextmanager
def _observed_fsdp(footprint: Footprint) -> Iterator[None]:
    """Hear of FSDP's resized storages, and of its unsharded gradients before it reduces them."""
    resize, post_backward = torch.UntypedStorage.resize_, FSDPParamGroup.post_backward

    def resize_(storage: Any, size: int) -> Any:
        result = resize(storage, size)
        footprint.resized(storage)
        return result

    def observed(group: Any, *unused: Any) -> Any:
        for parameter in group.fsdp_params:
            whole = getattr(parameter, "_unsharded_param", None)
            footprint.mark(None if whole is None else whole.grad, "gradients")
            footprint.mark(parameter.unsharded_accumulated_grad, "gradients")
        return post_backward(group, *unused)

    with (
        mock.patch.object(torch.UntypedStorage, "resize_", resize_),
        mock.patch.object(FSDPParamGroup, "post_backward", observed),
    ):
        yield
