"""What happens to gradients between backward and the optimizer: sums, norm, clipping.

Works on any mixture of plain tensors and DTensors of different meshes, which torch's own
`clip_grad_norm_` refuses, and over pipeline stages, which it ignores.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from meshwright.engine.model.init import canonical, shares_embedding
from meshwright.engine.model.kernels import wide
from meshwright.engine.parallel.mesh import World
from meshwright.engine.parallel.parallelize import Stage, is_partial
from meshwright.engine.parallel.reducer import local_gradient


def complete_gradients(stages: Iterable[Stage], world: World) -> None:
    """Add up what backward left partial: replicated parameters over tp, tied weights over ends.

    One all-reduce over tp for all such parameters together, once a step.
    """
    stages = list(stages)
    axes, partial = world.axes, []
    for stage in stages:
        for name, parameter in stage.named_parameters():
            if is_partial(stage, name, axes.tp.size, axes.sequence_parallel):
                partial.append(local_gradient(parameter))
    if partial and world.mutant != "sp":
        flat = torch.cat([gradient.flatten() for gradient in partial])
        dist.all_reduce(flat, group=axes.tp.group)
        parts = flat.split([gradient.numel() for gradient in partial])
        for gradient, part in zip(partial, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
    if stages and shares_embedding(stages[0].model) and world.mutant != "tied":
        _sum_tied(stages, world)


def _sum_tied(stages: list[Stage], world: World) -> None:
    """The embedding of the first stage and the last's copy of it, perhaps as a head, are one weight."""
    copies = [stage.embed.weight for stage in stages if hasattr(stage, "embed")]
    if stages[0].model.tied_embeddings:
        copies += [stage.head.weight for stage in stages if hasattr(stage, "head")]
    else:
        copies += [stage.ahead.weight for stage in stages if hasattr(stage, "ahead")]
    gradients = [local_gradient(copy) for copy in copies]
    if len(gradients) == 2:  # a V-shaped schedule has both on one rank
        total = gradients[0] + gradients[1]
        for gradient in gradients:
            gradient.copy_(total)
    elif gradients and world.layout.pp > 1:
        dist.all_reduce(gradients[0], group=world.tied.group)


def counts_here(name: str, parameter: nn.Parameter, stage: Stage, world: World) -> bool:
    """Whether this rank's part of a parameter counts towards the global norm.

    Exactly one of the ranks that hold the same elements says yes.
    """
    if name != canonical(name, stage.model):
        return False  # counted as the embedding
    if ".experts." in name and world.experts is not None:
        shared = world.experts["edp"]
        return world.layout.zero > 0 or shared.get_local_rank() == 0
    data_first = world.dense.get_local_rank("replicate") == 0 and (
        world.layout.zero > 0 or world.dense.get_local_rank("shard") == 0
    )
    if world.axes.tp.size == 1:
        return data_first
    assert isinstance(parameter, DTensor)
    whole_on_tp = isinstance(parameter.placements[-1], Replicate)
    return data_first and (world.axes.tp.rank == 0 or not whole_on_tp)


def squared_norm(stages: Iterable[Stage], world: World) -> torch.Tensor:
    """This rank's share of the squared norm, fp64: what it alone counts.

    A tensor's own norm is summed in fp32, in blocks; widening every element costs four times that.
    """
    counted = [
        local_gradient(parameter)
        for stage in stages
        for name, parameter in stage.named_parameters()
        if counts_here(name, parameter, stage, world)
    ]
    if not counted:
        return torch.zeros((), dtype=torch.float64, device=world.device)
    norms = torch._foreach_norm(counted, 2, dtype=wide(counted[0].dtype))
    return torch.stack(norms).double().square().sum()


def clip_gradients(stages: Iterable[Stage], norm: torch.Tensor, limit: float) -> None:
    """Scale all gradients so that their norm is at most `limit` (torch's rule: limit/(norm+1e-6))."""
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    if norm.device.type == "cpu" and float(factor) == 1.0:
        return  # on a GPU looking at the factor would wait for the whole backward pass
    gradients = [local_gradient(parameter) for stage in stages for parameter in stage.parameters()]
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for gradient in gradients:
        by_dtype.setdefault(gradient.dtype, []).append(gradient)
    for dtype, held in by_dtype.items():
        torch._foreach_mul_(held, factor.to(dtype))
