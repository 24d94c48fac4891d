"""Which part of which parameter this rank holds, whatever framework cut it.

Every parameter gets its canonical name (wrappers' prefixes removed, then the caller's own mapping),
the shape of the whole, and the parts that lie here: plain tensors, DTensor (FSDP2, tensor parallel),
FSDP1's flat parameters, DeepSpeed's ZeRO partitions (`deepspeed.py`), Megatron's sharded layers, and
whatever a caller's `placement` says.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from meshwright.probe.sketch import Part, whole

_WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod", "module")


@dataclass(frozen=True, slots=True)
class Shard:
    """How a plain tensor is one of `count` equal shards of a whole along `dim`.

    With `stride` above one the local tensor is that many blocks, each a shard of its own block of the
    whole, as the gate and up projections that Megatron keeps in one tensor.
    """

    dim: int
    index: int
    count: int
    stride: int = 1


Placement = Callable[[str, torch.Tensor], Shard | None]
Fetch = Callable[[], torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class Holding:
    """One part of one parameter on this rank; `value` and `gradient` read it when called."""

    name: str
    part: Part
    value: Fetch
    gradient: Fetch


def canonical_name(name: str) -> str:
    """A parameter's name without the prefixes that wrappers put in."""
    return ".".join(word for word in name.split(".") if word not in _WRAPPERS)


def holdings(
    models: Iterable[torch.nn.Module], rename: Callable[[str], str], placement: Placement | None
) -> list[Holding]:
    """Everything trainable that this rank holds of the models, each parameter once."""
    found: list[Holding] = []
    for model in models:
        flat = dict(_fsdp1(model))
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad or id(parameter) in flat:
                continue
            clean = rename(canonical_name(name))
            found += _of_parameter(clean, parameter, placement)
        for pieces in flat.values():
            found += [_renamed(piece, rename) for piece in pieces]
    return found


def _renamed(piece: Holding, rename: Callable[[str], str]) -> Holding:
    name = rename(canonical_name(piece.name))
    return Holding(name, piece.part, piece.value, piece.gradient)


def gradient_of(parameter: torch.Tensor) -> torch.Tensor | None:
    """The gradient that the optimizer will read: Megatron's `main_grad` where there is one."""
    main = getattr(parameter, "main_grad", None)
    return main if main is not None else parameter.grad


def _of_parameter(
    name: str, parameter: torch.nn.Parameter, placement: Placement | None
) -> list[Holding]:
    if hasattr(parameter, "placements"):
        return [_of_dtensor(name, parameter)]
    shard = placement(name, parameter) if placement else None
    shard = shard or _megatron_shard(parameter)
    if shard is None:
        part = whole(parameter.shape)
        return [Holding(name, part, lambda: parameter, lambda: gradient_of(parameter))]
    return list(_of_shard(name, parameter, shard))


def _of_dtensor(name: str, parameter: Any) -> Holding:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sizes, offsets = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    empty = not offsets
    part = Part(
        tuple(parameter.shape),
        (0,) * parameter.dim() if empty else tuple(offsets),
        (0,) * parameter.dim() if empty else tuple(sizes),
    )

    def gradient() -> torch.Tensor | None:
        grad = gradient_of(parameter)
        if grad is None:
            return None
        if getattr(grad, "placements", None) not in (None, parameter.placements):
            grad = grad.redistribute(parameter.device_mesh, parameter.placements)
        return _local(grad)

    return Holding(name, part, lambda: _local(parameter), gradient)


def _local(tensor: Any) -> torch.Tensor:
    """The local part of a DTensor without a collective."""
    return tensor._local_tensor if hasattr(tensor, "_local_tensor") else tensor


def _of_shard(name: str, parameter: torch.Tensor, shard: Shard) -> Iterator[Holding]:
    dim, block = shard.dim, parameter.shape[shard.dim] // shard.stride
    shape = list(parameter.shape)
    shape[dim] *= shard.count
    for number in range(shard.stride):
        offsets, sizes = [0] * len(shape), list(parameter.shape)
        offsets[dim] = number * block * shard.count + shard.index * block
        sizes[dim] = block
        part = Part(tuple(shape), tuple(offsets), tuple(sizes))

        yield _block(name, part, parameter, dim, number * block)


def _block(name: str, part: Part, parameter: torch.Tensor, dim: int, start: int) -> Holding:
    length = part.sizes[dim]

    def gradient() -> torch.Tensor | None:
        found = gradient_of(parameter)
        return None if found is None else found.narrow(dim, start, length)

    return Holding(name, part, lambda: parameter.detach().narrow(dim, start, length), gradient)


def _megatron_shard(parameter: Any) -> Shard | None:
    """How Megatron-Core's layers mark a shard (tensor_parallel/layers.py, attributes of a parameter)."""
    if not getattr(parameter, "tensor_model_parallel", False):
        return None
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or getattr(parameter, "partition_dim", -1) < 0:
        return None
    index, count = (
        state.get_tensor_model_parallel_rank(),
        state.get_tensor_model_parallel_world_size(),
    )
    if count == 1:
        return None
    return Shard(
        parameter.partition_dim, index, count, max(1, getattr(parameter, "partition_stride", 1))
    )


def _fsdp1(model: torch.nn.Module) -> Iterator[tuple[int, list[Holding]]]:
    """FSDP1's flat parameters: `(id of what named_parameters lists, what lies here)`.

    Structure: torch/distributed/fsdp/_flat_param.py, FlatParameter.
    """
    for prefix, module in model.named_modules():
        handle = getattr(module, "_handle", None)
        flat = getattr(handle, "flat_param", None)
        if flat is None:
            continue
        originals = getattr(flat, "_params", None)
        for number, (fqn, shape, info) in enumerate(
            zip(flat._fqns, flat._shapes, flat._shard_param_infos, strict=True)
        ):
            original = originals[number] if originals else None
            name = f"{prefix}.{fqn}" if prefix else fqn
            pieces = [_of_flat(name, tuple(shape), info, flat, original)] if info.in_shard else []
            yield (id(original) if original is not None else -number - 1), pieces
        yield id(flat), []


def _of_flat(name: str, shape: tuple[int, ...], info: Any, flat: Any, original: Any) -> Holding:
    start, stop = info.intra_param_start_idx, info.intra_param_end_idx + 1
    here = slice(info.offset_in_shard, info.offset_in_shard + info.numel_in_shard)

    def gradient() -> torch.Tensor | None:
        if original is not None and original.grad is not None:
            return original.grad.reshape(-1)
        return None if flat.grad is None else flat.grad.reshape(-1)[here]

    def value() -> torch.Tensor:
        return flat._local_shard.reshape(-1)[here]

    return Holding(name, Part(shape, flat=(start, stop)), value, gradient)
