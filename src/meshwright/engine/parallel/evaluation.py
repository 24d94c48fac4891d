"""A batch through all stages, forward only: one order for every layout and schedule.

torch's schedules have a forward-only mode of their own, which the split-backward ones do not survive.
Here each rank takes its stages in their order in the model, every micro-batch through one before the
next, so that a stage waits for the one before it and for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from meshwright.engine.parallel.mesh import World


def forward_only(
    modules: Mapping[int, Callable[..., torch.Tensor]],
    holders: Sequence[int],
    world: World,
    micro_batches: Sequence[tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]],
    message: Callable[[], torch.Tensor],
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> list[torch.Tensor]:
    """Losses of the micro-batches on the ranks that hold the last stage; nothing on others.

    Args:
        modules: this rank's stages by their number; `holders` has every stage's pipeline rank.
        micro_batches: (tokens `[B, S]`, targets `[B, S]`, arguments that every stage gets).
        message: a new buffer of what goes from stage to stage.
        loss: of logits and targets.
    """
    me, losses, sending = world.pp.rank, [], []
    own: dict[int, list[torch.Tensor]] = {}
    for index, module in sorted(modules.items()):
        passed = own.pop(index - 1, [])
        own[index] = []
        for at, (tokens, targets, extra) in enumerate(micro_batches):
            given = tokens
            if index > 0 and holders[index - 1] == me:
                given = passed[at]
            elif index > 0:
                given = message()
                dist.recv(given, group=world.pp.group, group_src=holders[index - 1])
            out = module(given, **extra)
            if index == len(holders) - 1:
                losses.append(loss(out, targets))
            elif holders[index + 1] == me:
                own[index].append(out)
            else:
                out = out.contiguous()
                request: Any = dist.isend(out, group=world.pp.group, group_dst=holders[index + 1])
                sending.append((request, out))
    for request, _ in sending:
        request.wait()
    return losses
